//! What vGPUs are sorted by.

use std::cmp::Ordering;

use super::rates::VgpuRates;

/// An order; what is equal in it is sorted by domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Time on engines, the most first.
    Busy,
    /// Domain id.
    Domain,
    /// Name.
    Name,
    /// Requests, the most first.
    Requests,
    /// Switches, the most first.
    Switches,
    /// Waits, the longest first.
    Waits,
}

impl Order {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::Busy,
        Self::Domain,
        Self::Name,
        Self::Requests,
        Self::Switches,
        Self::Waits,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Domain => "domain",
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Switches => "switches",
            Self::Waits => "waits",
        }
    }

    /// The order whose name begins with `key`.
    pub fn of_key(key: char) -> Option<Self> {
        Self::ALL.into_iter().find(|o| o.name().starts_with(key))
    }

    /// Sorts.
    pub fn sort(self, vgpus: &mut [VgpuRates]) {
        let most = |a: f64, b: f64| b.total_cmp(&a);
        vgpus.sort_by(|a, b| {
            let order = match self {
                Self::Busy => most(a.total_percent, b.total_percent),
                Self::Domain => Ordering::Equal,
                Self::Name => a.name.cmp(&b.name),
                Self::Requests => most(a.requests_per_second, b.requests_per_second),
                Self::Switches => most(a.switches_per_second, b.switches_per_second),
                Self::Waits => most(a.wait_us_p99.unwrap_or(0.0), b.wait_us_p99.unwrap_or(0.0)),
            };
            order.then(a.domid.cmp(&b.domid))
        });
    }
}
