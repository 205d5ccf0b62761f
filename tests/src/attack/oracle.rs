//! What the GPU may do, access by access.
//!
//! - Commands of the global table, which have privilege, come from pages of
//!   vgpud's own: copies that were audited.
//! - Contexts and page tables are vgpud's own, too.
//! - Whatever a command reads or writes is memory of its guest. Of vgpud's
//!   own pages it reaches one thing: where an audited batch keeps a register,
//!   which is in a page of such a batch but in no line that commands come from.
//! - All that one run of a context reaches belongs to one guest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gen8::Engine;
use softgpu::{Access, Observer, Why};

use super::memory::reached;

/// Violations that are kept; one is enough.
const KEPT: usize = 16;
const LINE: u64 = 64;

/// Lines of a page of vgpud's own, as bits.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    commands: u64,
    data: u64,
}

/// One run of a context on an engine.
#[derive(Debug, Default)]
struct Run {
    guest: Option<u64>,
    own: HashMap<u64, Lines>,
}

/// The judge.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    runs: [Mutex<Run>; Engine::COUNT],
    broken: Mutex<Vec<String>>,
    accesses: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lines(bus: u64, len: usize) -> u64 {
    let first = (bus & 0xfff) / LINE;
    let len = u64::try_from(len).unwrap_or(0).max(1);
    let last = ((bus & 0xfff) + len - 1) / LINE;
    (first..=last.min(63)).fold(0, |bits, line| bits | 1 << line)
}

impl Oracle {
    /// Accesses judged.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(SeqCst)
    }

    /// What must not have been.
    pub fn broken(&self) -> Vec<String> {
        lock(&self.broken).clone()
    }

    fn judge(run: &mut Run, access: &Access, guest: Option<u64>) -> Result<(), &'static str> {
        if access.why == Why::Context && !access.write && access.len == 4096 {
            *run = Run::default();
        }
        if let Some(guest) = guest
            && *run.guest.get_or_insert(guest) != guest
        {
            return Err("two guests in one run");
        }
        match (access.why, guest) {
            (Why::Context | Why::Status, Some(_)) => Err("vgpud's part of a context in a guest"),
            (Why::Tables, Some(_)) => Err("page tables in a guest"),
            (Why::Context | Why::Status | Why::Tables, None) => Ok(()),
            (Why::Commands, Some(_)) if access.global => Err("commands nobody audited"),
            (Why::Commands | Why::Data, Some(_)) => Ok(()),
            (_, None) if !access.global => Err("vgpud's page through a context's tables"),
            (Why::Commands, None) => {
                let lines = lines(access.bus, access.len);
                let of = run.own.entry(access.bus >> 12).or_default();
                of.commands |= lines;
                if of.commands & of.data == 0 {
                    Ok(())
                } else {
                    Err("commands that a command wrote")
                }
            }
            (Why::Data, None) => {
                let lines = lines(access.bus, access.len);
                match run.own.get_mut(&(access.bus >> 12)) {
                    Some(of) if access.len == 4 && of.commands & lines == 0 => {
                        of.data |= lines;
                        Ok(())
                    }
                    Some(_) => Err("a command's own batch"),
                    None => Err("vgpud's page"),
                }
            }
        }
    }
}

impl Observer for Oracle {
    fn reached(&self, access: &Access) {
        self.accesses.fetch_add(1, SeqCst);
        let guest = reached();
        let Some(run) = self.runs.get(access.engine.index()) else {
            return;
        };
        if let Err(why) = Self::judge(&mut lock(run), access, guest) {
            let mut broken = lock(&self.broken);
            if broken.len() < KEPT {
                broken.push(format!("{why}: guest {guest:?}, {access:x?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(why: Why, global: bool, write: bool, bus: u64, len: usize) -> Access {
        Access {
            engine: Engine::Rcs,
            why,
            global,
            write,
            address: 0,
            bus,
            len,
            header: 0,
        }
    }

    #[test]
    fn each_rule_finds_its_offender() {
        let judge = Oracle::judge;
        let load = access(Why::Context, true, false, 0x1000, 4096);
        let mut run = Run::default();
        judge(&mut run, &load, None).unwrap();
        judge(
            &mut run,
            &access(Why::Commands, true, false, 0x2000, 256),
            None,
        )
        .unwrap();
        // Where a register is kept: behind the commands.
        judge(&mut run, &access(Why::Data, true, true, 0x2100, 4), None).unwrap();
        judge(
            &mut run,
            &access(Why::Commands, false, false, 0x5000, 64),
            Some(1),
        )
        .unwrap();
        for (bad, guest) in [
            (access(Why::Data, true, true, 0x2040, 4), None),
            (access(Why::Data, true, true, 0x2140, 8), None),
            (access(Why::Data, true, false, 0x3000, 4), None),
            (access(Why::Data, false, false, 0x2140, 4), None),
            (access(Why::Commands, true, false, 0x2100, 256), None),
            (access(Why::Commands, true, false, 0x5000, 64), Some(1)),
            (access(Why::Data, false, false, 0x9000, 64), Some(2)),
            (access(Why::Tables, false, false, 0x5000, 8), Some(1)),
            (access(Why::Context, true, true, 0x5000, 4), Some(1)),
        ] {
            assert!(judge(&mut run, &bad, guest).is_err(), "{bad:?}");
        }
        judge(&mut run, &load, None).unwrap();
        judge(
            &mut run,
            &access(Why::Data, false, false, 0x9000, 64),
            Some(2),
        )
        .unwrap();
    }
}
