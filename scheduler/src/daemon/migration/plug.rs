//! What a vGPU does when libxl saves or migrates its guest.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow, ensure};
use vgpu_control::{Cause, Pages, Phase, Step};
use vgpu_migrate::stream::Section;
use vgpu_sched::qmp::{Hooks, Verdict};

use super::file::SaveFile;
use super::migrant::Migrant;
use super::record::{Record, line, ms};
use super::times::Times;
use super::toolstack::{Toolstack, Watch};
use super::tracker::{Tracker, name_written, sending_ms};

/// How long the GPU may take to end what it is at, before it is taken off and
/// has to do it again at the target.
const DRAIN: Duration = Duration::from_millis(100);

/// One guest's, in its QMP proxy.
///
/// libxl's order (Xen libxl_dom_suspend.c, libxg xg_sr_save.c): log-dirty on,
/// the guest's memory again and again, the guest stops, `stop`, `add-fd`,
/// `xen-save-devices-state`, the rest of its memory, log-dirty off; `cont` if
/// it came to nothing. What is named at `stop` is in the rest, and nothing
/// may be written after it.
pub struct Plug {
    record: Arc<Record>,
    /// libxl's process, as of the last conversation.
    toolstack: Option<Arc<Toolstack>>,
    /// Of the one that saves or migrates.
    watch: Option<Watch>,
    tracker: Option<Tracker>,
    file: Option<SaveFile>,
    /// When the guest was found standing still.
    stopped: Option<(Instant, SystemTime)>,
}

impl Plug {
    /// For the guest of `record`.
    pub fn new(record: Arc<Record>) -> Self {
        Self {
            record,
            toolstack: None,
            watch: None,
            tracker: None,
            file: None,
            stopped: None,
        }
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let guest = self.record.guest()?;
        // Of an attempt whose toolstack was killed.
        self.tracker = None;
        self.watch = None;
        {
            let mut migration = self.record.migration();
            *migration = vgpu_control::Migration {
                limit_ms: migration.limit_ms,
                ..vgpu_control::Migration::default()
            };
        }
        self.reached(Step::Begin)?;
        let start = Instant::now();
        guest.begin_save()?;
        self.record.enter(Phase::Copying);
        if let Err(e) = self.attend(guest) {
            self.end();
            self.record.enter(Phase::GivenUp);
            return Err(e);
        }
        log::info!(
            "domain {}: saved or migrated from now on; got ready in {:.1} ms",
            self.record.domid(),
            ms(start.elapsed())
        );
        Ok(())
    }

    /// Starts what goes on beside the toolstack.
    fn attend(&mut self, guest: Arc<dyn Migrant>) -> anyhow::Result<()> {
        let toolstack = self.toolstack.clone();
        let pid = toolstack.as_ref().map(|t| t.pid());
        let tracker = Tracker::start(&self.record, guest, pid);
        self.tracker = Some(tracker.context("cannot start a thread")?);
        let watch = toolstack.map(|t| Watch::start(&self.record, t));
        self.watch = watch.transpose().context("cannot watch the toolstack")?;
        Ok(())
    }

    /// Fails, or kills the toolstack, if that is to happen at `step`.
    fn reached(&self, step: Step) -> anyhow::Result<()> {
        if self.record.reached(step)?
            && let Some(toolstack) = &self.toolstack
        {
            log::warn!(
                "domain {}: process {} is killed, as a client wants it",
                self.record.domid(),
                toolstack.pid()
            );
            toolstack.kill().context("the toolstack cannot be killed")?;
        }
        Ok(())
    }

    /// The guest is to run on here.
    fn end(&mut self) {
        self.tracker = None;
        self.watch = None;
        self.file = None;
        self.stopped = None;
        let done = self.record.guest().and_then(|guest| guest.end_save());
        if let Err(e) = done {
            log::error!(
                "domain {}: the vGPU does not go on as before: {e:#}",
                self.record.domid()
            );
        }
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        if self.record.phase() != Phase::Copying {
            // Without log-dirty: a guest's kexec, say.
            self.begin()?;
        }
        let guest = self.record.guest()?;
        let now = (Instant::now(), SystemTime::now());
        self.stopped = Some(now);
        self.tracker = None;
        self.reached(Step::Stop)?;
        let drained = guest.suspend(DRAIN).context("the GPU does not let go")?;
        self.record.waited(Cause::Drain, now.0.elapsed());
        let start = Instant::now();
        let pages = name_written(&*guest).context("pages the GPU wrote cannot be named")?;
        self.record.waited(Cause::NamePages, start.elapsed());
        self.predict(now.0, pages)?;
        self.record.enter(Phase::Stopped);
        let mut migration = self.record.migration();
        migration.at_stop = pages;
        let Pages { named, .. } = migration.copying;
        log::info!(
            "domain {}: stopped; the GPU took {:.1} ms, {} elements are to run again; \
             {} pages named, {named} before",
            self.record.domid(),
            ms(drained.waited),
            drained.put_back,
            pages.named,
        );
        Ok(())
    }

    /// Whether the guest, which stands still since `stopped`, may stand still
    /// for as long as it takes to bring over the last `pages`.
    fn predict(&self, stopped: Instant, pages: Pages) -> anyhow::Result<()> {
        let mut migration = self.record.migration();
        // Of `xl save` nothing is known: it sends all memory now.
        let Some(rate) = migration.send_rate else {
            return Ok(());
        };
        let predicted = ms(stopped.elapsed()) + sending_ms(pages.named, rate);
        migration.predicted_ms = Some(predicted);
        ensure!(
            predicted <= migration.limit_ms,
            "it would stand still for {predicted:.0} ms, allowed: {:.0}; {} pages and the state \
             are left at {} KiB/s",
            migration.limit_ms,
            pages.named,
            rate >> 10
        );
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let (instant, time) = self.stopped.context("the guest does not stand still")?;
        let file = self.file.take().context("no file was given by add-fd")?;
        self.reached(Step::Save)?;
        let start = Instant::now();
        let saved = self.record.guest()?.save()?;
        // QEMU's part, too: from the answer to `stop` on.
        let before: f64 = self.record.now().downtime.iter().map(|(_, t)| t).sum();
        let qemu = Duration::from_secs_f64((ms(instant.elapsed()) - before).max(0.0) / 1000.0);
        self.record.waited(Cause::Save, qemu);
        let times = Times::new(time, &self.record.now());
        let times = times.to_bytes()?;
        let times = Section::optional(super::TIMES, 1, &times);
        let (theirs, ours) = file.append(saved.writer()?.section(&times))?;
        self.record.enter(Phase::Saved);
        let migration = self.record.migration();
        log::info!(
            "domain {}: {ours} bytes of vGPU behind {theirs} of QEMU, written in {:.1} ms; stopped for {}",
            self.record.domid(),
            ms(start.elapsed()),
            line(&migration.downtime)
        );
        Ok(())
    }

    fn verdict(&self, what: &str, result: anyhow::Result<()>) -> Verdict {
        let Err(e) = result else {
            return Verdict::Pass;
        };
        let domid = self.record.domid();
        let reason = format!("domain {domid}: {what}: {e:#}; the guest goes on here");
        log::warn!("{reason}");
        self.record.migration().failure = Some(reason.clone());
        Verdict::Fail(reason)
    }
}

impl Hooks for Plug {
    fn client(&mut self, pid: i32) {
        let toolstack = Toolstack::of(pid).inspect_err(|e| {
            log::warn!("process {pid} talks to QEMU and cannot be watched: {e}");
        });
        self.toolstack = toolstack.ok().map(Arc::new);
    }

    fn dirty_log(&mut self, enable: bool) -> Verdict {
        let record = Arc::clone(&self.record);
        let _steps = record.steps();
        if enable {
            let begun = self.begin();
            return self.verdict("its vGPU cannot be saved", begun);
        }
        // It comes as well when all went right, and then the guest is not to
        // run here any more.
        if self.record.phase() == Phase::Copying {
            self.end();
            self.record.enter(Phase::GivenUp);
            log::info!(
                "domain {}: not saved after all, it goes on",
                self.record.domid()
            );
        }
        Verdict::Pass
    }

    fn stopped(&mut self) -> Verdict {
        let record = Arc::clone(&self.record);
        let _steps = record.steps();
        let stopped = self.stop();
        self.verdict("its vGPU cannot be stopped", stopped)
    }

    fn add_fd(&mut self, fd: Option<BorrowedFd<'_>>) -> Verdict {
        // Others have their descriptors passed as well: a CD that is changed.
        if self.record.phase() != Phase::Stopped {
            return Verdict::Pass;
        }
        let file = fd
            .ok_or_else(|| anyhow!("it came without one"))
            .and_then(SaveFile::take);
        let taken = file.map(|file| self.file = Some(file));
        self.verdict("the descriptor for its state", taken)
    }

    fn device_state_saved(&mut self) -> Verdict {
        let record = Arc::clone(&self.record);
        let _steps = record.steps();
        let saved = self.save();
        self.verdict("its vGPU is not saved", saved)
    }

    fn loading(&mut self) -> Verdict {
        let refused = Err(anyhow!(
            "a vGPU takes no state while its guest runs, so there is no COLO for it"
        ));
        self.verdict("xen-load-devices-state", refused)
    }

    fn resuming(&mut self) -> Verdict {
        let record = Arc::clone(&self.record);
        let _steps = record.steps();
        match self.record.phase() {
            Phase::Copying | Phase::Stopped | Phase::Saved => {
                self.end();
                self.record.enter(Phase::GivenUp);
                log::info!(
                    "domain {}: the guest goes on here, and so does its vGPU",
                    self.record.domid()
                );
            }
            Phase::Restored => {
                if let Err(e) = self.reached(Step::Start) {
                    let domid = self.record.domid();
                    let reason = format!("domain {domid}: the guest is not to run here: {e:#}");
                    log::warn!("{reason}");
                    return Verdict::Fail(reason);
                }
                super::arrival::resumed(&self.record);
            }
            Phase::None | Phase::GivenUp | Phase::Arrived => {}
        }
        Verdict::Pass
    }
}
