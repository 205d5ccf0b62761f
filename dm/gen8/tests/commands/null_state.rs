//! The batch that gives each render context of i915 its first state: every
//! piece of 3D state there is, whatever its value.

mod gen8;
mod gen9;

use ::gen8::Engine;
use ::gen8::cmd::{self, Item, Table};

/// A null state.
pub struct NullState {
    /// Dwords of it, the state that its commands point to included.
    dwords: usize,
    /// Commands in it, the end of the batch included.
    commands: usize,
    /// Dwords that get an address, from `gen…_null_state_relocs`.
    relocated: [usize; 4],
    /// The dwords that are not 0, from `gen…_null_state_batch`.
    not_zero: &'static [(usize, u32)],
}

impl NullState {
    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; self.dwords];
        for &(at, dword) in self.not_zero {
            words[at] = dword;
        }
        words
    }
}

/// The commands in `words` up to the end of the batch.
fn commands<'a>(table: &'static Table, words: &'a [u32]) -> Vec<Item<'a>> {
    let mut all = Vec::new();
    for step in table.walk(Engine::Rcs, words) {
        match step {
            Ok(item) => all.push(item),
            Err(e) => panic!("{e}"),
        }
        if all.last().is_some_and(Item::ends) {
            break;
        }
    }
    all
}

#[test]
fn it_decodes_whole() {
    for (table, state) in [(&cmd::GEN8, gen8::GEN8), (&cmd::GEN9, gen9::GEN9)] {
        let words = state.words();
        let found = commands(table, &words);
        assert_eq!(found.len(), state.commands);
        assert!(found.last().unwrap().ends());
        let names: Vec<_> = found.iter().map(|i| i.command.name).collect();
        assert_eq!(names[names.len() - 2], "3DPRIMITIVE");
        // Nothing of it is known by its group only.
        assert!(found.iter().all(|i| !i.command.is_group()), "{names:?}");
        // The long ones, by which a scanner would lose step.
        let longest: Vec<_> = found
            .iter()
            .filter(|i| i.words.len() > 20)
            .map(|i| (i.command.name, i.words.len()))
            .collect();
        let want = [
            ("3DSTATE_SO_DECL_LIST", 259),
            ("3DSTATE_POLY_STIPPLE_PATTERN", 33),
            ("3DSTATE_VERTEX_BUFFERS", 133),
            ("3DSTATE_VERTEX_ELEMENTS", 69),
        ];
        assert_eq!(longest, want, "{}", table.name);
    }
}

#[test]
fn its_relocations_are_address_fields() {
    for (table, state) in [(&cmd::GEN8, gen8::GEN8), (&cmd::GEN9, gen9::GEN9)] {
        let words = state.words();
        let fields: Vec<_> = commands(table, &words)
            .iter()
            .flat_map(|i| {
                let all = i.command.addresses_in(i.words);
                all.map(|a| i.offset + a.dword).collect::<Vec<_>>()
            })
            .collect();
        for at in state.relocated {
            assert!(fields.contains(&at), "dword {at} not in {fields:?}");
        }
    }
}

#[test]
fn gen9s_does_not_pass_for_gen8s() {
    let words = gen9::GEN9.words();
    let failed = cmd::GEN8
        .walk(Engine::Rcs, &words)
        .find_map(Result::err)
        .unwrap();
    assert_eq!(
        failed.to_string(),
        "dword 25: 3DSTATE_SBE has 6 dwords, allowed: 4"
    );
}
