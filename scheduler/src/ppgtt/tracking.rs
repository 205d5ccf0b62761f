//! How a table page of a guest is followed, and which way is cheaper.
//!
//! Strict: the page is write-protected and each write costs the guest a trap.
//! Lazy: it is not, and each submission that reaches it costs a comparison.
//! A [`Ledger`] keeps, for one page, by how much the other way would have been
//! cheaper since that was last in doubt (a cumulative sum, as tests for a
//! change use it: E. S. Page, Biometrika 41, 1954). When that comes to several
//! traps and the cost of a change, the way is changed. Each time the new way
//! turns out not to have paid, it takes twice as much to choose it again.

use std::time::Duration;

use serde::Serialize;

/// How the page tables of a vGPU are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowMode {
    /// Every table page is write-protected where the hypervisor can do it.
    Strict,
    /// None is.
    Lazy,
    /// Each is while that is cheaper.
    #[default]
    Adaptive,
}

impl ShadowMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Strict, Self::Lazy, Self::Adaptive];

    /// Its name, as in options and figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Lazy => "lazy",
            Self::Adaptive => "adaptive",
        }
    }
}

impl std::fmt::Display for ShadowMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No such mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shadow mode is {0:?}, allowed: strict, lazy, adaptive")]
pub struct UnknownMode(pub String);

impl std::str::FromStr for ShadowMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.into_iter().find(|m| m.name() == name);
        found.ok_or_else(|| UnknownMode(name.into()))
    }
}

/// What things cost on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// A trapped write, in nanoseconds of the guest's vCPU.
    pub trap_ns: u32,
    /// Comparing a table page at a submission, in nanoseconds.
    pub compare_ns: u32,
    /// Protecting a page, or ending that, in nanoseconds.
    pub protect_ns: u32,
}

impl Default for Costs {
    /// A host with hardware virtualization: an exit that a device model
    /// answers while it polls takes some 5 µs, an operation on the
    /// hypervisor's page table somewhat less. Both are measured as soon as
    /// there is something to measure.
    fn default() -> Self {
        Self {
            trap_ns: 5_000,
            compare_ns: 400,
            protect_ns: 4_000,
        }
    }
}

impl Costs {
    /// A submission that compared `pages` and found nothing changed took so
    /// long.
    pub(super) fn measure_compare(&mut self, took: Duration, pages: u64) {
        let Some(each) = took.as_nanos().checked_div(pages.into()) else {
            return;
        };
        // A thread that had to wait for a CPU says nothing of the work.
        let most = self.compare_ns.saturating_mul(2);
        let each = u32::try_from(each).unwrap_or(u32::MAX).clamp(1, most);
        self.compare_ns = towards(self.compare_ns, each, 8);
    }

    /// A trap took `ns` from one answer to the next; 0 says nothing. What the
    /// guest did in between is in it, so what is rather short is the truth.
    pub(super) fn measure_trap(&mut self, ns: u32) {
        if ns > 0 {
            let ns = ns.min(self.trap_ns.saturating_mul(4));
            let slowness = if ns < self.trap_ns { 2 } else { 32 };
            self.trap_ns = towards(self.trap_ns, ns, slowness);
        }
    }
}

/// A step from one value towards another, of one part in `slowness`.
fn towards(from: u32, to: u32, slowness: u32) -> u32 {
    let step = from.abs_diff(to).div_ceil(slowness);
    let value = if to > from { from + step } else { from - step };
    value.max(1)
}

/// A change of the way takes an excess of this many traps. Fewer, and a few
/// writes that happen to come together look like a burst; more, and a burst
/// is trapped for longer.
const PATIENCE: u64 = 8;

/// By how much another way must have been cheaper to be chosen, in nanoseconds.
fn demand(costs: Costs) -> u64 {
    PATIENCE * u64::from(costs.trap_ns.max(1)) + u64::from(costs.protect_ns)
}

/// How often that can double: a page that is used for something new must
/// still be found out.
const MOST_DOUBTS: u8 = 6;

/// What one page costs, against what it would cost followed the other way.
/// 24 bytes for each table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    protected: bool,
    /// Changes to lazy and to strict that did not pay, less those that did.
    doubts: [u8; 2],
    /// What the other way would have saved, in nanoseconds, since it last
    /// would have saved nothing.
    excess: u64,
    /// What this way saved since it was chosen, less what choosing it cost.
    balance: i64,
}

impl Default for Ledger {
    /// A page that is not protected.
    fn default() -> Self {
        Self {
            protected: false,
            doubts: [0; 2],
            excess: 0,
            // Nobody chose the first way.
            balance: i64::MAX,
        }
    }
}

impl Ledger {
    /// A submission reached the page.
    pub fn submission(&mut self, costs: Costs) {
        self.cost(!self.protected, costs.compare_ns.into());
    }

    /// The page was written `times` times: as many traps, taken or spared.
    pub fn written(&mut self, times: u32, costs: Costs) {
        let trap = u64::from(costs.trap_ns);
        self.cost(self.protected, trap * u64::from(times));
    }

    /// An entry of it that named a protected page was replaced, and nothing
    /// names that any more. If such is told the page is let go of before it is
    /// written, or else after some traps.
    pub fn unlinked(&mut self, costs: Costs) {
        let traps = PATIENCE * u64::from(costs.trap_ns);
        self.cost(!self.protected, traps);
    }

    /// It is linked again, and was protected until it was no more: unless
    /// that did not pay of late, it is to be so at once.
    pub fn resume(&mut self, costs: Costs) {
        if !self.protected {
            self.excess = self.excess.max(demand(costs) + 1);
        }
    }

    /// Something cost `ns`, either this way or the other.
    fn cost(&mut self, this_way: bool, ns: u64) {
        if this_way {
            self.excess = self.excess.saturating_add(ns);
            self.balance = self.balance.saturating_sub_unsigned(ns);
        } else {
            self.excess = self.excess.saturating_sub(ns);
            self.balance = self.balance.saturating_add_unsigned(ns);
        }
    }

    /// Whether the page is protected.
    #[must_use]
    pub const fn is_protected(&self) -> bool {
        self.protected
    }

    /// Whether it should be followed the other way.
    #[must_use]
    pub fn wants_change(&self, costs: Costs) -> bool {
        let doubts = self.doubts[usize::from(!self.protected)];
        self.excess > demand(costs) << doubts
    }

    /// It is followed the other way from now on.
    pub fn change(&mut self, costs: Costs) {
        let doubts = &mut self.doubts[usize::from(self.protected)];
        *doubts = if self.balance < 0 {
            (*doubts + 1).min(MOST_DOUBTS)
        } else {
            doubts.saturating_sub(1)
        };
        self.protected = !self.protected;
        self.excess = 0;
        // The way back costs as much.
        self.balance = -2 * i64::from(costs.protect_ns);
    }

    /// Its protection ended for reasons of others.
    pub fn end(&mut self) {
        if self.protected {
            *self = Self {
                doubts: self.doubts,
                ..Self::default()
            };
        }
    }

    /// The hypervisor refused to protect it.
    pub fn refused(&mut self) {
        self.end();
        self.excess = 0;
        let doubts = &mut self.doubts[1];
        *doubts = (*doubts + 1).min(MOST_DOUBTS);
    }
}

#[cfg(test)]
mod tests;
