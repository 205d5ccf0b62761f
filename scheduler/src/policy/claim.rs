//! What the policy knows of one vGPU.

use std::time::Duration;

use vgpu_config::{Priority, Share};

use super::bucket::Bucket;
use super::class::{Place, UNIT, Virtual};
use super::hold::Pauses;
use super::nanos;

/// Whether a vGPU waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has nothing that could be taken.
    Idle,
    /// It can be taken.
    Ready(Place),
    /// It has a workload and is over its cap until then.
    Throttled(Duration),
}

/// One vGPU's claim to an engine.
#[derive(Debug)]
pub struct Claim {
    pub share: Share,
    pub state: State,
    /// What it had, with the part of running work that is over.
    pub service: Virtual,
    /// Workloads taken and not charged.
    pub flights: u32,
    /// Nanoseconds that those are expected to take yet.
    pub promised: i128,
    pub pauses: Pauses,
    mean: Option<i128>,
    bucket: Option<Bucket>,
}

impl Claim {
    pub fn new(share: Share, service: Virtual, now: Duration) -> Self {
        Self {
            share,
            state: State::Idle,
            service,
            flights: 0,
            promised: 0,
            pauses: Pauses::default(),
            mean: None,
            bucket: Bucket::new(share.cap, now),
        }
    }

    /// The class's place among the classes, highest first.
    pub const fn class(&self) -> usize {
        match self.share.priority {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }

    /// Whether it takes part in its class now.
    pub const fn active(&self) -> bool {
        self.flights > 0 || matches!(self.state, State::Ready(_))
    }

    /// Nanoseconds of its time as service by weight.
    pub fn virtual_time(&self, ns: i128) -> Virtual {
        ns * UNIT / i128::from(self.share.weight.max(1))
    }

    /// Its slice in nanoseconds.
    pub fn slice(&self) -> i128 {
        nanos(self.share.slice())
    }

    /// Where it stands: what it had, and will have had when all that is
    /// under way is through.
    pub fn key(&self) -> Virtual {
        self.service + self.virtual_time(self.promised)
    }

    /// Nanoseconds that its next workload is expected to take. An unknown
    /// one counts as a whole slice: nobody gets two before the first one's
    /// length is known.
    pub fn expected(&self) -> i128 {
        self.mean.unwrap_or_else(|| self.slice())
    }

    /// Counts nanoseconds on the engine; negative to take some back.
    pub fn serve(&mut self, ns: i128, now: Duration) {
        self.service += self.virtual_time(ns);
        if let Some(bucket) = &mut self.bucket {
            bucket.spend(ns, now);
        }
    }

    /// A workload took so many nanoseconds.
    pub fn learn(&mut self, ran: i128) {
        // The last few workloads make most of it.
        self.mean = Some(self.mean.map_or(ran, |mean| mean + (ran - mean) / 4));
    }

    /// When its cap allows it to go on, if not now.
    pub fn throttled_until(&self, now: Duration) -> Option<Duration> {
        let bucket = self.bucket.as_ref()?;
        let at = bucket.enough_at(self.expected(), self.promised, now);
        (at > now).then_some(at)
    }

    /// Another cap.
    pub fn set_cap(&mut self, cap: u8, now: Duration) {
        self.bucket = match (self.bucket.take(), Bucket::new(cap, now)) {
            (Some(mut bucket), Some(_)) => {
                bucket.change(cap, now);
                Some(bucket)
            }
            (_, new) => new,
        };
    }
}
