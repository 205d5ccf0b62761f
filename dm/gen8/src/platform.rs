//! The devices there are to emulate: everything in which they differ, as
//! data. A guest's device, the GPU that runs its work and the audit between
//! them all follow one [`Platform`].

use core::fmt;

use crate::lrc::Layout;
use crate::regs::Rules;
use crate::{Engine, cmd, lrc, regs, switched, vreg};

/// A generation of GPUs, as one part of it.
#[derive(Debug)]
pub struct Platform {
    /// Its name in configurations and saved states.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// PCI device id.
    pub device: u16,
    /// PCI revision.
    pub revision: u8,
    /// The commands of its engines.
    pub commands: &'static cmd::Table,
    /// The registers that a switch between guests carries over.
    pub switched: &'static switched::Table,
    /// What guests' commands may do to registers, and what a context holds.
    pub rules: &'static Rules,
    /// The registers a guest sees.
    pub registers: &'static vreg::Map,
    /// Context images, by [`Engine::index`].
    pub images: &'static [Layout; Engine::COUNT],
    /// The unit of RING_TIMESTAMP and CTX_TIMESTAMP.
    pub timestamp: Rate,
    /// What the power controller's mailbox replies; nothing of a command that
    /// is not listed, so its data stays as written.
    pub mailbox: &'static [Reply],
    /// Where a pipe's pixel clock comes from.
    pub pixel_clock: PixelClock,
    /// Bit of a pipe's interrupt bank: the primary plane's flip is done.
    pub flip_done: u32,
}

/// A clock: so many ticks in so many nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Ticks.
    pub ticks: u64,
    /// Nanoseconds; not 0.
    pub ns: u64,
}

impl Rate {
    /// Whole ticks in `ns` nanoseconds.
    #[must_use]
    pub const fn ticks(self, ns: u64) -> u64 {
        let (whole, rest) = (ns / self.ns, ns % self.ns);
        whole.wrapping_mul(self.ticks) + rest * self.ticks / self.ns
    }
}

/// A mailbox command with a reply of its own.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Bits 7:0 of the mailbox.
    pub command: u32,
    /// The data it is asked with.
    pub request: u32,
    /// The data it replies.
    pub data: u32,
}

/// How a port gets its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelClock {
    /// PORT_CLK_SEL names a WRPLL, whose control register has the divisors.
    Wrpll,
    /// DPLL_CTRL2 names a DPLL, whose CFGCR registers have them.
    Dpll,
}

/// Broadwell GT2, ULT: which makes i915 take the PCH for a Lynx Point LP and
/// leave out the analog output
/// (Linux `display/intel_display.c:intel_ddi_crt_present`).
pub static BDW: Platform = Platform {
    name: "bdw",
    title: "Broadwell GT2 ULT",
    device: 0x1616,
    revision: 9,
    commands: &cmd::GEN8,
    switched: &switched::GEN8,
    rules: &regs::GEN8,
    registers: &vreg::BDW,
    images: &lrc::GEN8,
    // 12.5 MHz (Linux gt/intel_gt_clock_utils.c:gen5_read_clock_frequency).
    timestamp: Rate { ticks: 1, ns: 80 },
    mailbox: &[],
    pixel_clock: PixelClock::Wrpll,
    flip_done: 1 << 4,
};

/// Kaby Lake GT2, ULT, of a stepping behind pre-production ones
/// (Linux `intel_step.c`, `i915_driver.c:intel_detect_preproduction_hw`).
pub static KBL: Platform = Platform {
    name: "kbl",
    title: "Kaby Lake GT2 ULT",
    device: 0x5916,
    revision: 2,
    commands: &cmd::GEN9,
    switched: &switched::GEN9,
    rules: &regs::GEN9,
    registers: &vreg::KBL,
    images: &lrc::GEN9,
    // 12 MHz: what CTC_MODE says.
    timestamp: Rate { ticks: 3, ns: 250 },
    // Linux i915_reg.h: GEN9_PCODE_*, SKL_PCODE_*; the latencies in 1 and 2 us
    // steps are those of gvt/handlers.c:mailbox_write.
    mailbox: &[
        Reply {
            command: 0x06,
            request: 0,
            data: 0x1e1a_1100,
        },
        Reply {
            command: 0x06,
            request: 1,
            data: 0x6151_4b3d,
        },
        // The display clock may change.
        Reply {
            command: 0x07,
            request: 3,
            data: 1,
        },
        // The memory's frequency does not change any more.
        Reply {
            command: 0x21,
            request: 0,
            data: 1,
        },
    ],
    pixel_clock: PixelClock::Dpll,
    flip_done: 1 << 3,
};

/// Every platform.
pub static PLATFORMS: [&Platform; 2] = [&BDW, &KBL];

impl Platform {
    /// The platform of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PLATFORMS.into_iter().find(|p| p.name == name)
    }

    /// Its place in [`PLATFORMS`], for what is made once for each.
    #[must_use]
    pub fn index(&self) -> usize {
        let found = PLATFORMS.iter().position(|p| *p == self);
        found.unwrap_or(0)
    }

    /// An engine's context image.
    #[must_use]
    pub const fn image(&self, engine: Engine) -> &'static Layout {
        &self.images[engine.index()]
    }

    /// What the mailbox replies to `command` asked with `request`.
    #[must_use]
    pub fn reply(&self, command: u32, request: u32) -> Option<u32> {
        let asked = |r: &&Reply| (r.command, r.request) == (command, request);
        self.mailbox.iter().find(asked).map(|r| r.data)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Platform {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Platform {}

impl Default for &'static Platform {
    /// Broadwell, the first there was.
    fn default() -> Self {
        &BDW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_and_an_id_of_its_own() {
        for (i, p) in PLATFORMS.iter().enumerate() {
            assert_eq!(Platform::named(p.name), Some(*p));
            assert_eq!(p.index(), i);
            for q in PLATFORMS.iter().skip(i + 1) {
                assert!(p != q && p.device != q.device, "{p} {q}");
            }
        }
        assert_eq!(Platform::named("skl"), None);
    }

    #[test]
    fn clocks_count_whole_ticks() {
        assert_eq!(BDW.timestamp.ticks(159), 1);
        assert_eq!(KBL.timestamp.ticks(83), 0);
        assert_eq!(KBL.timestamp.ticks(84), 1);
        assert_eq!(KBL.timestamp.ticks(1_000_000_000), 12_000_000);
        assert!(KBL.timestamp.ticks(u64::MAX) > u64::MAX / 84);
    }

    #[test]
    fn the_mailbox_replies_by_command_and_request() {
        assert_eq!(KBL.reply(6, 1), Some(0x6151_4b3d));
        assert_eq!(KBL.reply(6, 2), None);
        assert_eq!(BDW.reply(6, 0), None);
    }
}
