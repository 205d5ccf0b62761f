//! What things cost.

use std::time::Duration;

/// Costs of a page, as measured, and what they are worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Nanoseconds that a page takes to the target.
    pub send_ns: f64,
    /// Nanoseconds to verify a page when the guest stands still, with all
    /// threads at it.
    pub verify_ns: f64,
    /// Nanoseconds to look at a few words of it first.
    pub probe_ns: f64,
    /// What a nanosecond before the guest stops counts beside one after.
    pub background: f64,
    /// The chance that the guest stops after a round.
    pub stop_chance: f64,
}

impl Default for Costs {
    /// A guess, until something was measured: 10 Gb/s, and two threads of the
    /// machine of `vgpuctl bench verify`; libxc's five rounds with ten passes
    /// in each.
    fn default() -> Self {
        Self {
            send_ns: 4096.0 * 8.0 / 10.0,
            verify_ns: 200.0,
            probe_ns: 80.0,
            background: 0.02,
            stop_chance: 0.02,
        }
    }
}

impl Costs {
    /// Takes note that `pages` pages took `time` to the target. Later ones
    /// count for more than those before.
    pub fn sent(&mut self, pages: u32, time: Duration) {
        blend(&mut self.send_ns, pages, time);
    }

    /// Takes note that `pages` pages were verified in `time` by all threads.
    pub fn verified(&mut self, pages: u32, time: Duration) {
        blend(&mut self.verify_ns, pages, time);
    }

    /// Takes note of how many bytes get to the target in a second.
    pub fn carries(&mut self, bytes_per_second: f64) {
        if bytes_per_second > 0.0 {
            // A page costs something, or all plans would be as good.
            self.send_ns = (4096e9 / bytes_per_second).max(1.0);
        }
    }

    /// The chance that the guest stops before something happens that has the
    /// chance `a` in each round.
    pub(super) fn lasts(&self, a: f64) -> f64 {
        let h = self.stop_chance;
        (1.0 - a) * h / (h + a * (1.0 - h)).max(f64::MIN_POSITIVE)
    }
}

fn blend(cost: &mut f64, pages: u32, time: Duration) {
    if pages > 0 {
        let each = time.as_secs_f64() * 1e9 / f64::from(pages);
        // A page costs something, or all plans would be as good.
        *cost = (0.75 * *cost + 0.25 * each).max(1.0);
    }
}

/// Whether looking at a few words first pays, where a part `changed` of pages
/// did change and for a part `shown` of those a few words are enough. It
/// spares the rest of the work for those, and costs a look at all.
#[must_use]
pub fn sampling_pays(changed: f64, shown: f64, costs: &Costs) -> bool {
    changed * shown * costs.verify_ns > costs.probe_ns
}
