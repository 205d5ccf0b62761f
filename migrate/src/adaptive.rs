//! How each region of a guest's memory is best brought over: sent whole when
//! the guest stops, verified then, or verified before.
//!
//! Pure decisions: what was seen goes in, a plan comes out. Time, pages and
//! threads are somebody else's.
//!
//! Let a page cost `s` to send and `v` to verify. While the guest stands
//! still, sending costs `s` a page and verifying `v + p·s`, if a part `p` of
//! pages turns out changed: sending blindly is better where `(1 - p)·s < v`.
//!
//! Before that, a page costs some `b` of what it costs then, as it takes only
//! spare processors and bandwidth. What it spares is `v`, unless the page may
//! have been written again by the time the guest stops, and `s`, unless it
//! has been. If the chance of either is `a` in a round, and `h` that the guest
//! stops after one, the work lasts with the chance
//! `(1 - a)·h / (h + a·(1 - h))`. Written is not changed: a texture may be
//! writable in every round and change in none, so both chances are kept.
//!
//! A region that is not worth it is verified twice in a while all the same.
//! Else nobody would notice that its pages are left alone now; the second time
//! shows what one round changes.

mod costs;
mod leaning;

use std::collections::BTreeMap;

use guest_memory::Gfn;

pub use costs::{Costs, sampling_pays};
use leaning::{Estimate, Leaning};

/// Frames of a region: 2 MiB. What a driver allocates at once is seldom
/// smaller where it matters, and changes together.
pub const REGION_FRAMES: u64 = 512;

/// What is best done with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Verify it now, and give the target what changed.
    pub background: bool,
    /// What to do with what is left when the guest stops.
    pub at_stop: AtStop,
    /// Look at a few words of each page first.
    pub sampled: bool,
}

/// What to do with pages that may have changed, when the guest stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtStop {
    /// Send them all.
    Send,
    /// Send those that did change.
    Verify,
}

/// What was seen of a region in a round. A round begins with the verification
/// that was planned, and ends when the next is planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pages that waited when the round began: those that could have been
    /// written since they were last verified.
    pub waiting: u32,
    /// Those of them that could have been written again before it ended.
    pub touched: u32,
    /// Pages verified: all that waited, or none.
    pub verified: u32,
    /// Those of them that had changed.
    pub changed: u32,
    /// Those of them for which a few words were enough.
    pub sampled: u32,
    /// Pages that had changed when verified in the round before.
    pub before: u32,
    /// Those of them that were verified now and had changed again.
    pub again: u32,
}

/// One region's history.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    touched: Estimate,
    changed: Estimate,
    again: Estimate,
    sampled: Estimate,
    background: Leaning,
    send: Leaning,
    /// Rounds since background work was last worth it.
    idle: u32,
}

impl Default for Region {
    fn default() -> Self {
        Self {
            touched: Estimate::default(),
            changed: Estimate::default(),
            again: Estimate::default(),
            sampled: Estimate::default(),
            background: Leaning::towards(true),
            send: Leaning::towards(false),
            idle: 0,
        }
    }
}

/// Rounds after which a region that is not worth it is verified twice.
const LOOK_AFTER: u32 = 10;

impl Region {
    /// Takes note of a round, and plans the next.
    pub fn round(&mut self, seen: &Seen, costs: &Costs) -> Plan {
        self.touched.see(seen.touched, seen.waiting);
        self.again.see(seen.again, seen.before);
        self.sampled.see(seen.sampled, seen.changed);
        // The second of two looks is about one round, and what waits when the
        // guest stops has waited for longer.
        if self.idle % (LOOK_AFTER + 2) != LOOK_AFTER + 1 {
            self.changed.see(seen.changed, seen.verified);
        }
        self.plan(costs)
    }

    fn plan(&mut self, costs: &Costs) -> Plan {
        let Costs {
            send_ns: send,
            verify_ns: verify,
            background,
            ..
        } = *costs;
        let p = self.changed.value();
        let spared =
            verify * costs.lasts(self.touched.value()) + p * send * costs.lasts(self.again.value());
        // Beside each other stands only what differs: work that may be lost
        // against what it may spare, pages sent in vain against looks at all.
        let worth_it = (self.background).lean(background * (verify + p * send), spared);
        let blind = self.send.lean((1.0 - p) * send, verify);
        self.idle = if worth_it {
            0
        } else {
            self.idle.wrapping_add(1)
        };
        Plan {
            background: worth_it || self.idle % (LOOK_AFTER + 2) >= LOOK_AFTER,
            at_stop: if blind { AtStop::Send } else { AtStop::Verify },
            sampled: sampling_pays(p, self.sampled.value(), costs),
        }
    }
}

/// The regions of a guest.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    regions: BTreeMap<u64, Region>,
}

impl Regions {
    /// The region that a frame is in.
    #[must_use]
    pub fn of(gfn: Gfn) -> u64 {
        gfn.0 / REGION_FRAMES
    }

    /// Takes note of a round of region `region`, and plans its next.
    pub fn round(&mut self, region: u64, seen: &Seen, costs: &Costs) -> Plan {
        self.regions.entry(region).or_default().round(seen, costs)
    }

    /// Which part of a region's pages is expected to have changed.
    #[must_use]
    pub fn expected(&self, region: u64) -> f64 {
        let region = self.regions.get(&region).copied().unwrap_or_default();
        region.changed.value()
    }

    /// The plan for a region of which nothing was seen yet.
    #[must_use]
    pub fn first(costs: &Costs) -> Plan {
        Region::default().plan(costs)
    }
}

#[cfg(test)]
mod tests;
