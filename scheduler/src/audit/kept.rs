//! Registers that a batch saves to memory, changes and loads back.
//!
//! i915's workaround does that to L3SQCREG4 whenever a context is restored
//! (Linux `gt/intel_lrc.c:gen8_emit_flush_coherentl3_wa`). What the guest can
//! change in between is anybody's guess, so the register would have to be
//! read at every switch. The copy of the batch therefore saves it a second
//! time, to a place of vgpud's own, and loads it from there: then it holds
//! what it held. The guest finds its own save where it wants it.

use gen8::cmd::flags::USE_GGTT;
use gen8::cmd::{Command, mi_op, pipe_control};

use crate::switch::{Effects, Saved};

/// Dwords of MI_STORE_REGISTER_MEM and MI_LOAD_REGISTER_MEM.
const LENGTH: usize = 4;
/// Dwords of a cache line, in which the hardware counts these batches.
const LINE: usize = 16;

struct Save {
    register: u32,
    address: [u32; 2],
    at: usize,
    effects: Saved,
}

struct Pair {
    register: u32,
    store: usize,
    load: usize,
}

/// What of a batch's commands looks like that.
#[derive(Default)]
pub struct Kept {
    save: Option<Save>,
    pair: Option<Pair>,
}

/// A batch changed, and where in it addresses of its own belong: dwords of
/// low halves.
pub struct Changed {
    pub words: Vec<u32>,
    /// They hold the address of this dword of it.
    pub place: usize,
    pub addresses: [usize; 2],
}

fn operation(words: &[u32]) -> Option<(u32, u32, [u32; 2])> {
    let [header, register, low, high] = *words else {
        return None;
    };
    let global = header >> 29 == 0 && header & USE_GGTT != 0;
    global.then_some(((header >> 23) & 0x3f, register, [low, high]))
}

impl Kept {
    /// The command at dword `at` is next. Returns what the register it loads
    /// back held when it was saved: then that, and not the load, is its
    /// effect.
    pub fn next(
        &mut self,
        command: &Command,
        words: &[u32],
        at: usize,
        effects: &Effects,
    ) -> Option<Saved> {
        let opcode = words.first().map(|h| (h >> 23) & 0x3f);
        match operation(words) {
            Some((mi_op::STORE_REGISTER_MEM, register, address)) if self.pair.is_none() => {
                self.save = Some(Save {
                    register,
                    address,
                    at,
                    effects: effects.saved(register)?,
                });
                return None;
            }
            Some((mi_op::LOAD_REGISTER_MEM, register, address)) => {
                let save = self.save.take()?;
                if (save.register, save.address) != (register, address) {
                    return None;
                }
                self.pair = Some(Pair {
                    register,
                    store: save.at,
                    load: at,
                });
                return Some(save.effects);
            }
            _ => {}
        }
        let harmless = match opcode {
            _ if command.name == "PIPE_CONTROL" => words.get(1).is_some_and(|flags| {
                flags & (pipe_control::POST_SYNC_MASK | pipe_control::LRI_POST_SYNC) == 0
            }),
            Some(mi_op::NOOP | mi_op::ARB_ON_OFF) => command.addresses.is_empty(),
            Some(mi_op::LOAD_REGISTER_IMM) => {
                // Another could turn a predicate on between the two.
                let pairs = words.get(1..).unwrap_or_default().chunks(2);
                let register = self.save.as_ref().map(|s| s.register);
                pairs.into_iter().all(|p| p.first().copied() == register)
            }
            _ => false,
        };
        if !harmless {
            self.save = None;
        }
        None
    }

    /// The batch runs as it is after all, so what it loads is the guest's say.
    pub fn forget(&self, effects: &mut Effects) {
        if let Some(pair) = &self.pair {
            effects.unknown(pair.register);
        }
    }

    /// The audited batch with the second save, and whole cache lines; `None`
    /// when it has nothing of the kind or would be longer than `most` lines.
    pub fn change(&self, words: &[u32], most: usize) -> Option<Changed> {
        let Pair { store, load, .. } = self.pair.as_ref()?;
        let save = words.get(*store..*store + LENGTH)?;
        let used = words.iter().rposition(|w| *w != 0)? + 1;
        let used = used.max(load + LENGTH);
        let mut changed = Vec::with_capacity(words.len() + 2 * LINE);
        changed.extend_from_slice(words.get(..store + LENGTH)?);
        changed.extend_from_slice(save);
        changed.extend_from_slice(words.get(store + LENGTH..used)?);
        let place = changed.len().next_multiple_of(LINE);
        if place > most * LINE {
            return None;
        }
        // A line of its own for the value.
        changed.resize(place + LINE, 0);
        Some(Changed {
            words: changed,
            place,
            addresses: [store + LENGTH + 2, load + LENGTH + 2],
        })
    }
}
