//! What becomes of `xl save` and `xl migrate` of a guest with a vGPU.

use vgpu_sched::qmp::{Hooks, Verdict};

/// Refuses both at their first step, so that the guest just goes on: a saved
/// guest without its vGPU's state would find a strange device when restored.
pub struct Refuse {
    /// The guest.
    pub domid: u16,
}

impl Hooks for Refuse {
    fn dirty_log(&mut self, enable: bool) -> Verdict {
        if !enable {
            return Verdict::Pass;
        }
        let reason = format!(
            "domain {} has a vGPU, and this vgpud cannot save or migrate a vGPU; the guest goes on",
            self.domid
        );
        log::warn!("{reason}");
        Verdict::Fail(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_of_a_save_fails_and_says_why() {
        let mut hooks = Refuse { domid: 7 };
        let Verdict::Fail(reason) = hooks.dirty_log(true) else {
            panic!("a save was let through");
        };
        assert!(reason.contains("domain 7"), "{reason}");
        // libxl switches it off after a failed attempt.
        assert_eq!(hooks.dirty_log(false), Verdict::Pass);
        assert_eq!(hooks.resuming(), Verdict::Pass);
    }
}
