use super::*;
use crate::platform::PLATFORMS;
use crate::{Platform, lrc, regs};

fn count(table: &Table, engine: Engine, kept: Kept) -> usize {
    let listed = |s: &Switched| s.row.source.contains("gvt/") && s.row.engine == engine;
    let all = table.registers().filter(listed);
    all.filter(|s| s.row.kept == kept).count()
}

#[test]
fn gvt_gs_lists_are_there() {
    use Engine::{Bcs, Rcs, Vcs, Vecs};
    use Kept::{InContext, Outside};
    assert_eq!(count(&GEN8, Rcs, Outside), 15);
    assert_eq!(count(&GEN8, Rcs, InContext), 7);
    assert_eq!(count(&GEN8, Bcs, Outside), 5);
    // 53 registers, one of them named twice, and 32 of L3.
    assert_eq!(count(&GEN9, Rcs, Outside), 28 + 32);
    assert_eq!(count(&GEN9, Rcs, InContext), 24);
    assert_eq!(count(&GEN9, Bcs, Outside), 5 + 64);
    assert_eq!(count(&GEN9, Vcs, Outside), 1 + 64);
    assert_eq!(count(&GEN9, Vecs, Outside), 1 + 64);
}

#[test]
fn each_register_is_there_once_and_found_by_offset() {
    for table in [&GEN8, &GEN9] {
        for (i, s) in table.registers().enumerate() {
            let again = table.registers().skip(i + 1);
            for t in again {
                assert_ne!(t.offset(), s.offset(), "{s}");
            }
            let found = table.find(s.offset()).unwrap();
            assert_eq!((found.row.name, found.index), (s.row.name, s.index));
            assert!(table.find(s.offset() + 1).is_none());
            assert!(s.row.source.len() > 4);
        }
    }
}

#[test]
fn masked_registers_are_those_the_gpu_masks() {
    for s in PLATFORMS.iter().flat_map(|p| p.switched.registers()) {
        assert_eq!(s.row.masked, regs::masked(s.offset()), "{s}");
    }
}

#[test]
fn what_is_marked_as_in_the_context_is() {
    for platform in PLATFORMS {
        for s in platform.switched.registers() {
            let in_context = platform
                .rules
                .context(s.row.engine)
                .any(|o| o == s.offset());
            assert_eq!(in_context, s.row.kept == Kept::InContext, "{s}");
        }
    }
}

/// Values a privileged write could have.
fn may_write(platform: &Platform, engine: Engine, offset: u32) -> bool {
    let may = |value| platform.rules.may_write(engine, offset, value);
    may(None) || (0..16).any(|bit| may(Some(1 << bit << 16)))
}

#[test]
fn whatever_a_guest_can_change_is_carried_over() {
    for platform in PLATFORMS {
        let Platform {
            rules, switched, ..
        } = platform;
        for engine in Engine::ALL {
            let all = (0..crate::vreg::REGISTER_BYTES).step_by(4);
            // What no command reaches, none writes.
            let reached = all.filter(|o| rules.privileged(engine, *o).is_some());
            for offset in reached {
                let user = rules.user_writable(engine, offset);
                if !user && !may_write(platform, engine, offset) {
                    continue;
                }
                let in_context = rules.context(engine).any(|o| o == offset);
                let listed = switched.find(offset).filter(|s| s.row.engine == engine);
                // An unprivileged batch is not looked at, so what it alone
                // writes outside the context cannot be kept.
                let carried = listed.is_some_and(|s| !user || s.is_volatile());
                assert!(in_context || carried, "{platform} {engine:?} {offset:#x}");
            }
        }
    }
}

#[test]
fn what_commands_write_without_naming_it_is_carried_over() {
    for platform in PLATFORMS {
        for engine in Engine::ALL {
            let rows = platform.commands.rows();
            let all = rows.filter(|c| c.engines.contains(engine));
            for (command, set) in all.flat_map(|c| c.sets.iter().map(move |s| (c, s))) {
                for n in 0..set.dwords {
                    let offset = engine.mmio_base() + set.offset + n * 4;
                    let in_context = platform.rules.context(engine).any(|o| o == offset);
                    let listed = platform.switched.find(offset);
                    let volatile = listed.is_some_and(|s| s.is_volatile());
                    assert!(in_context || volatile, "{} {offset:#x}", command.name);
                }
            }
        }
    }
}

#[test]
fn what_an_image_loads_is_the_contexts_own() {
    // The audited image has these registers and no others. Those of its last
    // load are engine state, which an inhibited restore leaves alone.
    for layout in lrc::GEN8.iter().chain(&lrc::GEN9) {
        let [ring, tables, state] = layout.loads;
        assert!(ring.registers.len() > 10 && tables.registers.len() == 9);
        for r in state.registers {
            let known = [ring::R_PWR_CLK_STATE, ring::BCS_SWCTRL & 0xfff, 0x28];
            assert!(known.contains(r), "{r:#x}");
        }
    }
}
