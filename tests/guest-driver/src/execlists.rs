//! i915's books on what an engine runs (Linux
//! `gt/intel_execlists_submission.c:process_csb`, `execlists_dequeue`).

use gen8::csb;

/// An event that contradicts what the driver submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExeclistError {
    /// A promote event without a list waiting for one.
    #[error("{engine}: event {event:#x} promotes, but no list is pending")]
    NothingPending {
        /// sysfs name.
        engine: &'static str,
        /// Low dword of the entry.
        event: u32,
    },
    /// A completion without an active context.
    #[error("{engine}: event {event:#x} completes, but nothing is active")]
    NothingActive {
        /// sysfs name.
        engine: &'static str,
        /// Low dword of the entry.
        event: u32,
    },
    /// A completion that names another context than the active one.
    #[error("{engine}: context {found:#x} completed, {expected:#x} was active")]
    WrongContext {
        /// sysfs name.
        engine: &'static str,
        /// High dword of the entry.
        found: u32,
        /// The active context's id.
        expected: u32,
    },
    /// The write pointer is not one.
    #[error("{engine}: status write pointer is {found}, allowed: 0 to 5")]
    WritePointer {
        /// sysfs name.
        engine: &'static str,
        /// What was read.
        found: u32,
    },
}

/// One engine's books. Contexts are known by their ids.
#[derive(Clone, Debug)]
pub struct Accounting {
    engine: &'static str,
    active: [Option<u32>; 2],
    pending: Option<[Option<u32>; 2]>,
}

impl Accounting {
    /// Empty books.
    #[must_use]
    pub const fn new(engine: &'static str) -> Self {
        Self {
            engine,
            active: [None; 2],
            pending: None,
        }
    }

    /// The list to load so that `next` (in order) runs, or `None` when the
    /// engine has no room now. At most two ids; the running one stays first.
    #[must_use]
    pub fn list_for(&self, next: &[u32]) -> Option<[Option<u32>; 2]> {
        if self.pending.is_some() || self.active[1].is_some() {
            return None;
        }
        let mut list = [self.active[0], None];
        for &id in next {
            match list {
                [None, _] => list[0] = Some(id),
                [Some(a), None] if a != id => list[1] = Some(id),
                [Some(a), None] if a == id => {}
                _ => break,
            }
        }
        (!next.is_empty()).then_some(list)
    }

    /// Notes that `list` was written to the submit port.
    pub const fn loaded(&mut self, list: [Option<u32>; 2]) {
        self.pending = Some(list);
    }

    /// Whether the engine has nothing to do.
    #[must_use]
    pub const fn idle(&self) -> bool {
        self.active[0].is_none() && self.pending.is_none()
    }

    /// Takes in one status entry.
    ///
    /// # Errors
    /// [`ExeclistError`] where i915 would reset the engine.
    pub fn event(&mut self, low: u32, high: u32) -> Result<(), ExeclistError> {
        let engine = self.engine;
        if low & (csb::IDLE_TO_ACTIVE | csb::PREEMPTED) != 0 {
            let list = self.pending.take();
            self.active = list.ok_or(ExeclistError::NothingPending { engine, event: low })?;
            return Ok(());
        }
        let Some(expected) = self.active[0] else {
            return Err(ExeclistError::NothingActive { engine, event: low });
        };
        if high != expected {
            return Err(ExeclistError::WrongContext {
                engine,
                found: high,
                expected,
            });
        }
        self.active = [self.active[1], None];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_promoted_then_completes_in_order() {
        let mut books = Accounting::new("rcs0");
        let list = books.list_for(&[1, 2, 3]).unwrap();
        assert_eq!(list, [Some(1), Some(2)]);
        books.loaded(list);
        assert_eq!(books.list_for(&[3]), None);
        books.event(0x1, 0).unwrap();
        books.event(0x14, 1).unwrap();
        assert_eq!(books.list_for(&[2, 3]), Some([Some(2), Some(3)]));
        books.event(0x18, 2).unwrap();
        assert!(books.idle());
    }

    #[test]
    fn what_i915_would_not_believe_is_an_error() {
        let mut books = Accounting::new("rcs0");
        assert!(matches!(
            books.event(0x1, 0),
            Err(ExeclistError::NothingPending { .. })
        ));
        assert!(matches!(
            books.event(0x18, 1),
            Err(ExeclistError::NothingActive { .. })
        ));
        books.loaded([Some(1), None]);
        books.event(0x1, 0).unwrap();
        assert!(matches!(
            books.event(0x18, 2),
            Err(ExeclistError::WrongContext { .. })
        ));
    }
}
