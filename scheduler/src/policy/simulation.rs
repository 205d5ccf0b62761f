//! An engine and its guests in simulated time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use vgpu_config::Share;

use super::Policy;

/// What a guest does.
#[derive(Clone, Debug)]
pub struct Load {
    /// How long its batches take, in turn, over and over.
    pub batches: Vec<Duration>,
    /// After so many batches it sleeps; 0 for never.
    pub burst: usize,
    /// For how long.
    pub sleep: Duration,
    /// When it starts.
    pub start: Duration,
    /// A driver that has so many batches at the engine or before it, and
    /// hears so late that one is over; without one there is always a next.
    pub driver: Option<(usize, Duration)>,
}

impl Load {
    /// Always something to do, batches of one length.
    pub fn steady(batch: Duration) -> Self {
        Self {
            batches: vec![batch],
            burst: 0,
            sleep: Duration::ZERO,
            start: Duration::ZERO,
            driver: None,
        }
    }

    /// Has at most so many batches submitted, and submits the next one so
    /// long after one is over.
    pub fn driven(self, batches: usize, answer: Duration) -> Self {
        Self {
            driver: Some((batches, answer)),
            ..self
        }
    }

    /// Sleeps after every `burst` batches.
    pub fn sleeping(self, burst: usize, sleep: Duration) -> Self {
        Self {
            burst,
            sleep,
            ..self
        }
    }

    /// Begins later.
    pub fn from(self, start: Duration) -> Self {
        Self { start, ..self }
    }

    pub fn longest(&self) -> Duration {
        self.batches.iter().copied().max().unwrap_or_default()
    }
}

struct Guest {
    load: Load,
    /// Batches taken.
    taken: usize,
    /// Batches over.
    done: usize,
    /// When it next has one, if it sleeps.
    due: Option<Duration>,
    ready_at: Duration,
    pause: Option<Duration>,
    /// Of a driver: when it submits, in order.
    submits: VecDeque<Duration>,
    /// What it submitted and nobody took.
    submitted: usize,
}

/// One batch on the engine.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub vgpu: u64,
    /// When it could have been taken.
    pub ready: Duration,
    /// When it was.
    pub taken: Duration,
    pub start: Duration,
    pub end: Duration,
}

impl Ran {
    pub fn length(&self) -> Duration {
        self.end - self.start
    }
}

/// The engine, its guests and what has happened.
pub struct Simulation {
    pub policy: Policy,
    pub now: Duration,
    pub ran: Vec<Ran>,
    guests: BTreeMap<u64, Guest>,
    loaded: VecDeque<Ran>,
    slots: usize,
}

impl Simulation {
    pub fn new(slots: usize) -> Self {
        Self {
            policy: Policy::new(),
            now: Duration::ZERO,
            ran: Vec::new(),
            guests: BTreeMap::new(),
            loaded: VecDeque::new(),
            slots,
        }
    }

    /// One more guest, numbered from 0.
    pub fn guest(&mut self, share: Share, load: Load) -> u64 {
        let vgpu = self.guests.len().try_into().unwrap();
        self.policy.set_share(vgpu, share, self.now);
        let start = load.start.max(self.now);
        let submits = load.driver.map_or(0, |(batches, _)| batches);
        self.guests.insert(
            vgpu,
            Guest {
                due: load.driver.is_none().then_some(start),
                load,
                taken: 0,
                done: 0,
                ready_at: Duration::ZERO,
                pause: None,
                submits: std::iter::repeat_n(start, submits).collect(),
                submitted: 0,
            },
        );
        vgpu
    }

    /// The guest's next sleep is so long, once.
    pub fn pause(&mut self, vgpu: u64, sleep: Duration) {
        self.guests.get_mut(&vgpu).unwrap().pause = Some(sleep);
    }

    /// Goes on until then; a batch that runs then is not over.
    pub fn run(&mut self, until: Duration) {
        loop {
            self.wake();
            self.load();
            let next = self.next();
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            if self.loaded.front().is_some_and(|r| r.end <= next) {
                self.finish();
            }
        }
    }

    fn wake(&mut self) {
        for (&vgpu, guest) in &mut self.guests {
            if guest.due.is_some_and(|d| d <= self.now) {
                guest.due = None;
                guest.ready_at = self.now;
                self.policy.ready(vgpu, self.now);
            }
            while guest.submits.front().is_some_and(|s| *s <= self.now) {
                guest.submits.pop_front();
                guest.submitted += 1;
                if guest.submitted == 1 {
                    guest.ready_at = self.now;
                    self.policy.ready(vgpu, self.now);
                }
            }
        }
    }

    fn load(&mut self) {
        while self.loaded.len() < self.slots
            && let Some(vgpu) = self.policy.take(self.now)
        {
            let guest = self.guests.get_mut(&vgpu).unwrap();
            let batch = guest.load.batches[guest.taken % guest.load.batches.len()];
            let start = self.loaded.back().map_or(self.now, |r| r.end);
            self.loaded.push_back(Ran {
                vgpu,
                ready: guest.ready_at,
                taken: self.now,
                start,
                end: start + batch,
            });
            guest.taken += 1;
            if guest.load.driver.is_some() {
                guest.submitted -= 1;
                if guest.submitted > 0 {
                    guest.ready_at = self.now;
                    self.policy.ready(vgpu, self.now);
                }
                continue;
            }
            if guest.load.burst == 0 || !guest.taken.is_multiple_of(guest.load.burst) {
                guest.ready_at = self.now;
                self.policy.ready(vgpu, self.now);
            }
        }
    }

    fn next(&self) -> Duration {
        let ends = self.loaded.front().map(|r| r.end);
        let due = |g: &Guest| g.due.into_iter().chain(g.submits.front().copied()).min();
        let due = self.guests.values().filter_map(due).min();
        let uncapped = if self.loaded.len() < self.slots {
            self.policy.wake_at(self.now)
        } else {
            None
        };
        let next = [ends, due, uncapped].into_iter().flatten().min();
        next.unwrap_or(Duration::MAX)
    }

    fn finish(&mut self) {
        let ran = self.loaded.pop_front().unwrap();
        self.policy.charge(ran.vgpu, ran.length(), self.now);
        let guest = self.guests.get_mut(&ran.vgpu).unwrap();
        guest.done += 1;
        let sleeps = guest.load.burst != 0 && guest.done.is_multiple_of(guest.load.burst);
        if let Some((_, answer)) = guest.load.driver {
            let answer = if sleeps { guest.load.sleep } else { answer };
            guest.submits.push_back(self.now + answer);
        } else if sleeps {
            let sleep = guest.pause.take().unwrap_or(guest.load.sleep);
            guest.due = Some(self.now + sleep);
        }
        self.ran.push(ran);
    }

    /// What a guest had of the engine between two moments, parts of batches
    /// counted.
    pub fn service(&self, vgpu: u64, from: Duration, to: Duration) -> Duration {
        self.ran
            .iter()
            .chain(&self.loaded)
            .filter(|r| r.vgpu == vgpu)
            .map(|r| r.end.min(to).saturating_sub(r.start.max(from)))
            .sum()
    }

    /// What it had of the engine in all.
    pub fn total(&self, vgpu: u64) -> Duration {
        self.service(vgpu, Duration::ZERO, self.now)
    }
}
