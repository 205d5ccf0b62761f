//! How a table page of a guest is followed, and which way is cheaper.
//!
//! Strict: the page is write-protected and each write costs the guest a trap.
//! Lazy: it is not, and each submission that reaches it costs a comparison.
//! A [`Ledger`] keeps, for one page, what the writes and submissions of the
//! recent past would have cost either way. The cheaper way is taken, but only
//! when it is cheaper by what a change costs, and more than that for a page
//! whose changes did not pay before.

use serde::Serialize;

/// How the page tables of a vGPU are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowMode {
    /// Every table page is write-protected where the hypervisor can do it.
    Strict,
    /// None is.
    #[default]
    Lazy,
    /// Each is while that is cheaper.
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

/// The ledger remembers as many submissions as cost this many traps: fewer,
/// and one write of a page that is written seldom looks like a burst.
const MEMORY_TRAPS: u64 = 16;

/// What is remembered of a burst, in the same unit: it must not keep a page
/// unprotected for ever.
const MOST_TRAPS: u64 = 64;

/// The other way must be cheaper by one part in this many.
const MARGIN: u64 = 16;

/// How often a page's demand can double. The memory fades by half in 11
/// submissions' worth of traps, so this many doublings are as good as never.
const MOST_CAUTION: u8 = 16;

/// What one page would have cost lately, either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// In nanoseconds, were every write trapped.
    strict: u64,
    /// In nanoseconds, were it compared at every submission.
    lazy: u64,
    /// What protecting it saved since it was protected, less what it cost.
    balance: i64,
    /// How often protecting it did not pay.
    caution: u8,
}

impl Ledger {
    /// A submission reached the page.
    pub fn submission(&mut self, costs: Costs) {
        // Both fade at the same rate, so that their ratio is the page's.
        let compare = u64::from(costs.compare_ns);
        let memory = MEMORY_TRAPS * u64::from(costs.trap_ns.max(1));
        // Of the remainder something stays for ever, less than a comparison.
        let fade = |total: u64| total - total.saturating_mul(compare.min(memory)) / memory;
        self.strict = fade(self.strict);
        self.lazy = fade(self.lazy).saturating_add(compare);
        self.balance = self.balance.saturating_add_unsigned(compare);
    }

    /// The page was written `times` times: as many traps, taken or spared.
    pub fn written(&mut self, times: u32, costs: Costs) {
        let trap = u64::from(costs.trap_ns.max(1));
        let cost = trap * u64::from(times);
        self.strict = self.strict.saturating_add(cost).min(MOST_TRAPS * trap);
        self.balance = self.balance.saturating_sub_unsigned(cost);
    }

    /// Whether a page that is not protected should be.
    #[must_use]
    pub fn wants_protection(&self, costs: Costs) -> bool {
        let strict = self.strict + self.strict / MARGIN;
        let demand = strict.saturating_mul(1 << self.caution.min(MOST_CAUTION));
        // The next write is one trap at least.
        let change = u64::from(costs.protect_ns) + u64::from(costs.trap_ns);
        self.lazy > demand.saturating_add(change << self.caution.min(MOST_CAUTION))
    }

    /// Whether a page that is protected should not be.
    #[must_use]
    pub fn wants_freedom(&self, costs: Costs) -> bool {
        self.strict > self.lazy + self.lazy / MARGIN + u64::from(costs.protect_ns)
    }

    /// It is protected from now on.
    pub fn protected(&mut self, costs: Costs) {
        // Ending it will cost as much.
        self.balance = -2 * i64::from(costs.protect_ns);
    }

    /// It is no longer protected.
    pub fn freed(&mut self) {
        self.caution = if self.balance < 0 {
            (self.caution + 1).min(MOST_CAUTION)
        } else {
            self.caution.saturating_sub(1)
        };
    }

    /// The hypervisor refused to protect it.
    pub fn refused(&mut self) {
        self.caution = (self.caution + 1).min(MOST_CAUTION);
        // From the start.
        self.lazy = 0;
    }
}

#[cfg(test)]
mod tests;
