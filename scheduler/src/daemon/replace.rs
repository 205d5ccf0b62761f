//! A guest's device models, one after the other (`docs/crash.md`).
//!
//! A device model that dies leaves the device in the shared area, and its
//! requests in its ioreq server. Another one goes on with both. Meanwhile
//! vgpud goes on with the guest's work at the GPU.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use grant_area::MappedArea;
use vgpu_control::{Disturb, Place, StartDm};
use vgpu_heartbeat::Heartbeat;
use vgpu_ring::{Area, KeptPart};
use vgpu_sched::sync::lock;

use super::device_model::{DeviceModel, Home, died};
use super::events::Way;
use super::guest::Guest;
use super::platform::Platform;
use super::process::Process;
use super::server::Limits;
use super::worker::Work;

/// What becomes of a guest whose device models die again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCrashLoop {
    /// It runs on without its vGPU.
    #[default]
    FailDevice,
    /// It is paused, too.
    PauseGuest,
}

impl OnCrashLoop {
    /// Does it to a guest that has lost its vGPU; says whether that is paused by
    /// it.
    pub fn carry_out(self, domid: u16, platform: &dyn Platform) -> bool {
        if self == Self::FailDevice {
            return false;
        }
        let paused = platform.pause(domid);
        if let Err(e) = &paused {
            log::warn!("domain {domid}: not paused: {e:#}");
        }
        paused.is_ok()
    }
}

impl FromStr for OnCrashLoop {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "fail-device" => Ok(Self::FailDevice),
            "pause-guest" => Ok(Self::PauseGuest),
            _ => Err(format!("{s:?}, allowed: fail-device, pause-guest")),
        }
    }
}

impl fmt::Display for OnCrashLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailDevice => "fail-device",
            Self::PauseGuest => "pause-guest",
        })
    }
}

/// How many deaths are no crash loop yet.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// So many within [`Bounds::within`].
    pub deaths: usize,
    /// That time.
    pub within: Duration,
    /// What follows from more.
    pub then: OnCrashLoop,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            deaths: 10,
            within: Duration::from_secs(10),
            then: OnCrashLoop::default(),
        }
    }
}

/// Deaths so far.
#[derive(Default)]
struct Deaths {
    recent: VecDeque<Instant>,
    replaced: u64,
    last: Option<String>,
    /// How long the guest was without one, the last time.
    gap: Duration,
}

impl Deaths {
    /// Counts one; says whether there are too many.
    fn count(&mut self, reason: &str, now: Instant, bounds: Bounds) -> bool {
        self.last = Some(reason.to_owned());
        self.recent.push_back(now);
        while let Some(first) = self.recent.front()
            && now.duration_since(*first) > bounds.within
        {
            self.recent.pop_front();
        }
        self.recent.len() > bounds.deaths
    }
}

/// The present device model, and what it takes to start the next.
pub struct Models {
    now: Mutex<Arc<dyn DeviceModel>>,
    start: StartDm,
    kept: Option<KeptPart>,
    limits: Limits,
    deaths: Mutex<Deaths>,
}

/// What a guest's device models are made with.
pub struct Made {
    /// What the first was told.
    pub start: StartDm,
    /// What they keep, if they are processes of dom0.
    pub kept: Option<KeptPart>,
    /// How long things may take.
    pub limits: Limits,
}

impl Models {
    /// `first` is there.
    pub fn new(first: Arc<dyn DeviceModel>, made: Made) -> Self {
        let Made {
            start,
            kept,
            limits,
        } = made;
        Self {
            now: Mutex::new(first),
            start,
            kept,
            limits,
            deaths: Mutex::default(),
        }
    }

    /// The present one.
    pub fn now(&self) -> Arc<dyn DeviceModel> {
        Arc::clone(&lock(&self.now))
    }

    /// How many took the place of one that died, and why the last died.
    pub fn replaced(&self) -> (u64, Option<String>) {
        let deaths = lock(&self.deaths);
        (deaths.replaced, deaths.last.clone())
    }

    /// How long the guest was without one, the last time.
    pub fn gap(&self) -> Duration {
        lock(&self.deaths).gap
    }

    /// What follows from a crash loop.
    pub fn then(&self) -> OnCrashLoop {
        self.limits.crashes.then
    }

    /// A watch over the present one. In a domain of its own the first process
    /// there watches it.
    pub fn heartbeat(&self) -> Option<Heartbeat> {
        match self.now().place() {
            Place::Process(pid) => {
                let limit = self.limits.heartbeat;
                Some(Heartbeat::new(limit, pid, self.kept.clone()?))
            }
            Place::Domain(_) => None,
        }
    }

    /// Starts another one in the place of the present one, which died, or is
    /// killed. The page table is RAM of the guest at `table`, or is not.
    fn replace(&self, reason: &str, table: Option<u64>, home: &dyn Home) -> anyhow::Result<()> {
        let since = Instant::now();
        let server = self.now().server();
        let mut reason = reason.to_owned();
        loop {
            self.now().kill();
            let bounds = self.limits.crashes;
            if lock(&self.deaths).count(&reason, Instant::now(), bounds) {
                let within = bounds.within.as_secs_f64();
                bail!(
                    "its device models died more than {} times in {within} s, last: {reason}",
                    bounds.deaths
                );
            }
            let start = StartDm {
                restored: false,
                recover: Some(server),
                replay: false,
                ggtt_gfn: table,
                ..self.start.clone()
            };
            let present = self.now();
            match present.successor(start, home) {
                Ok(next) => {
                    *lock(&self.now) = next;
                    let mut deaths = lock(&self.deaths);
                    deaths.replaced += 1;
                    deaths.gap = since.elapsed();
                    return Ok(());
                }
                Err(e) if died(&e) => reason = format!("{e:#}").replace('\n', " "),
                Err(e) => return Err(e).context("no other can take its place"),
            }
        }
    }
}

impl Guest {
    /// Replaces its device model, which is at fault for `reason`.
    ///
    /// # Errors
    /// Why none can take its place.
    pub fn replace_dm(&self, reason: &str, platform: &dyn Platform) -> anyhow::Result<()> {
        // First, so that nobody waits for its answer with a lock held.
        self.dm().kill();
        let Some(table) = self.table_gfn() else {
            bail!(self.lost());
        };
        self.models.replace(reason, table, self)?;
        let gap = self.models.gap().as_millis();
        let place = self.dm().place();
        let server = self.dm().server();
        self.note(|record| {
            record.runs_at(place, platform);
            record.server = server;
        });
        log::warn!(
            "domain {}: {reason}; that at {place} goes on after {gap} ms",
            self.domid
        );
        self.lose_save();
        Ok(())
    }
}

impl Guest {
    /// Kills or stops its device model, to be replaced.
    ///
    /// # Errors
    /// When there is none.
    pub fn disturb_dm(&self, how: Disturb) -> anyhow::Result<()> {
        if self.table_gfn().is_none() {
            bail!(self.lost());
        }
        self.dm().disturb(how)
    }
}

impl Home for Guest {
    fn noted(&self, pid: i32) {
        self.note(|record| record.dm = Process::of(pid).ok());
    }

    fn move_to(&self, from: &Area, to: &MappedArea) -> anyhow::Result<()> {
        let bells = to.bells()?;
        let wake = bells.submit.try_clone()?;
        let lost = || anyhow!(self.lost());
        let (worker, vgpu) = {
            let running = lock(&self.running);
            let running = running.as_ref().ok_or_else(lost)?;
            (Arc::clone(&running.worker), Arc::clone(&running.vgpu))
        };
        // Nobody of ours is in the rings while they are copied; what the
        // scheduler has to tell meanwhile, it keeps.
        let work = worker.halt().context("its worker has ended")?;
        let mut way = lock(&self.way);
        *way = None;
        from.copy_to(to)?;
        let ours = to.resumed_daemon_end(bells);
        vgpu.table().share(ours.ggtt);
        vgpu.count_changes(ours.changes);
        *way = Some(Way {
            ring: ours.events,
            worker: wake,
        });
        drop(way);
        let work = Work {
            requests: ours.requests,
            ..work
        };
        let worker = worker.succeed(self.domid, work)?;
        lock(&self.running).as_mut().ok_or_else(lost)?.worker = Arc::new(worker);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deaths_close_together_are_a_loop() {
        let bounds = Bounds {
            deaths: 3,
            within: Duration::from_secs(10),
            then: OnCrashLoop::FailDevice,
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut deaths = Deaths::default();
        for s in [0, 1, 9, 12, 15] {
            assert!(!deaths.count("killed", at(s), bounds), "{s}");
        }
        assert!(deaths.count("killed", at(16), bounds));
        assert_eq!(deaths.last.as_deref(), Some("killed"));
    }

    #[test]
    fn what_follows_is_said_in_words() {
        for then in [OnCrashLoop::FailDevice, OnCrashLoop::PauseGuest] {
            assert_eq!(then.to_string().parse(), Ok(then));
        }
        assert!(
            "reboot"
                .parse::<OnCrashLoop>()
                .unwrap_err()
                .contains("pause-guest")
        );
    }
}
