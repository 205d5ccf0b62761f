//! What is known of a guest's migration, for whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use vgpu_control::{Cause, Failing, Migration, Phase, Step};
use vgpu_sched::sync::lock;

use super::migrant::Migrant;

/// What a guest's QMP proxy, the thread that names its pages and its clients
/// share.
pub struct Record {
    domid: u16,
    guest: OnceLock<Weak<dyn Migrant>>,
    migration: Mutex<Migration>,
    fail_at: Mutex<Option<(Step, Failing)>>,
    /// Held while a step is taken.
    steps: Mutex<()>,
    /// When the present phase began.
    since: Mutex<Instant>,
}

impl Record {
    /// No migration yet of the guest `domid`, which may stand still for
    /// `limit`.
    pub fn new(domid: u16, limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            domid,
            guest: OnceLock::new(),
            migration: Mutex::new(Migration {
                limit_ms: ms(limit),
                ..Migration::default()
            }),
            fail_at: Mutex::new(None),
            steps: Mutex::new(()),
            since: Mutex::new(Instant::now()),
        })
    }

    /// The guest.
    pub fn domid(&self) -> u16 {
        self.domid
    }

    /// The guest is complete: from now on it can be migrated.
    pub fn connect(&self, guest: Weak<dyn Migrant>) {
        // Connected once, when it was made.
        let _ = self.guest.set(guest);
    }

    /// The guest's vGPU.
    ///
    /// # Errors
    /// When it is being made, or goes away.
    pub fn guest(&self) -> anyhow::Result<Arc<dyn Migrant>> {
        let guest = self.guest.get().and_then(Weak::upgrade);
        guest.with_context(|| format!("domain {} has no vGPU at the moment", self.domid))
    }

    /// The migration as it is now.
    pub fn now(&self) -> Migration {
        self.migration().clone()
    }

    /// The same, to be changed.
    pub fn migration(&self) -> MutexGuard<'_, Migration> {
        lock(&self.migration)
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.migration().phase
    }

    /// It is so far now.
    pub fn enter(&self, phase: Phase) {
        *lock(&self.since) = Instant::now();
        self.migration().phase = phase;
    }

    /// How long it has been so far.
    pub fn in_phase(&self) -> Duration {
        lock(&self.since).elapsed()
    }

    /// The guest waited for `cause`.
    pub fn waited(&self, cause: Cause, time: Duration) {
        self.migration().downtime.push((cause, ms(time)));
    }

    /// From the toolstack's steps and what is done in its place, one at a
    /// time.
    pub fn steps(&self) -> MutexGuard<'_, ()> {
        lock(&self.steps)
    }

    /// From now on the guest may stand still for `limit_ms` milliseconds.
    pub fn limit(&self, limit_ms: u32) {
        self.migration().limit_ms = f64::from(limit_ms);
    }

    /// The next migration is to fail at `step`.
    pub fn fail_at(&self, step: Step, how: Failing) {
        *lock(&self.fail_at) = Some((step, how));
    }

    /// Fails if it is to fail at `step`; true if the toolstack is to be killed
    /// there.
    ///
    /// # Errors
    /// Once, if asked for.
    pub fn reached(&self, step: Step) -> anyhow::Result<bool> {
        match lock(&self.fail_at).take_if(|(at, _)| *at == step) {
            None => Ok(false),
            Some((_, Failing::Killed)) => Ok(true),
            Some((_, Failing::Refused)) => bail!("it was made to fail here by a client"),
        }
    }
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The parts of a downtime in one line.
pub fn line(downtime: &[(Cause, f64)]) -> String {
    let total: f64 = downtime.iter().map(|(_, ms)| ms).sum();
    let parts = downtime
        .iter()
        .map(|(cause, ms)| format!("{} {ms:.1}", cause.name()));
    let parts: Vec<String> = parts.collect();
    format!("{total:.1} ms: {}", parts.join(", "))
}
