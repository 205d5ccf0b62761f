//! A guest's vGPU is saved.
//!
//! libxl's steps, as the QMP proxy sees them: the dirty log comes on while the
//! guest runs ([`Guest::begin_save`]), the guest stops ([`Guest::suspend`]), the
//! state is taken ([`Guest::save`]). At any of them it may go on instead
//! ([`Guest::end_save`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use guest_memory::Gfn;
use vgpu_control::{MAX_RUNS, ToDm};
use vgpu_sched::ppgtt::Frames;
use vgpu_sched::saved::{HostV1, Saved};
use vgpu_sched::sync::lock;
use vgpu_sched::vgpu::Drained;
use xen_glue::PARKING_GFN;

use super::guest::Guest;
use super::migration::Migrant;
use super::platform::Vgpu;

/// How long a step may take that moves the page table, or a look: libxl waits
/// 10 s for the dirty log (`LIBXL_QMP_CMD_TIMEOUT`).
const TABLE: Duration = Duration::from_secs(8);

/// How long a device model may take to hold still.
const STILL: Duration = Duration::from_secs(5);

/// Frames that may be written between two looks, 4 GiB. A device model says which
/// it wrote, and what it says is kept: it may say anything.
const MOST_WRITTEN: u64 = 1 << 20;

/// How far a save is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The dirty log is on.
    begun: bool,
    /// The vGPU and its device model hold still.
    stopped: bool,
    /// Its device model was replaced meanwhile: what that one wrote of the
    /// guest's memory is not known.
    lost: bool,
}

impl Guest {
    /// Calls `with` with the vGPU, unless it failed. It cannot be ended
    /// meanwhile, but looked at: a device model may take its time.
    pub(super) fn with_vgpu<T>(
        &self,
        with: impl FnOnce(&dyn Vgpu) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _in_use = lock(&self.in_use);
        let vgpu = lock(&self.running).as_ref().map(|r| Arc::clone(&r.vgpu));
        let Some(vgpu) = vgpu else {
            bail!(self.lost());
        };
        vgpu.usable().map_err(anyhow::Error::msg)?;
        with(&*vgpu)
    }

    /// The guest is going to be saved, and runs on. Its page table is no RAM
    /// of its any more: libxc would send the frames, for which the target has
    /// no room (`docs/ggtt-in-ram.md`). Pages written behind its back are
    /// recorded from now on.
    ///
    /// # Errors
    /// What failed; all is as before then.
    pub fn begin_save(&self) -> anyhow::Result<()> {
        let mut progress = lock(&self.progress);
        if progress.begun {
            return Ok(());
        }
        let begun = self.with_vgpu(|vgpu| {
            let begun = self.take_table_out(vgpu).and_then(|()| {
                vgpu.written().start();
                self.dm().step(&ToDm::Record(true), TABLE)
            });
            if begun.is_err() {
                self.undo(vgpu, false);
            }
            begun
        });
        begun.context("the vGPU cannot be saved")?;
        *progress = Progress {
            begun: true,
            ..Progress::default()
        };
        Ok(())
    }

    fn take_table_out(&self, vgpu: &dyn Vgpu) -> anyhow::Result<()> {
        let table = vgpu.table();
        if table.gfn().is_none() {
            return Ok(());
        }
        self.dm().step(&ToDm::TableOut, TABLE)?;
        // Until both have changed over, each reads the same from either.
        table.leave_ram();
        self.note(|record| record.table_in_ram = false);
        let settle = ToDm::TableSettle { gfn: PARKING_GFN };
        self.dm().step(&settle, TABLE)?;
        table.withdraw().context("the guest's page table")
    }

    /// No save after all, or the guest goes on behind it. What was stopped
    /// goes on, and its page table is RAM again.
    ///
    /// # Errors
    /// When the vGPU failed meanwhile.
    pub fn end_save(&self) -> anyhow::Result<()> {
        let mut progress = lock(&self.progress);
        let was = std::mem::take(&mut *progress);
        if was == Progress::default() {
            return Ok(());
        }
        self.with_vgpu(|vgpu| {
            self.undo(vgpu, was.stopped);
            Ok(())
        })
    }

    /// Another device model has taken over: a save under way comes to nothing,
    /// and the guest goes on.
    pub(super) fn lose_save(&self) {
        let mut progress = lock(&self.progress);
        let was = *progress;
        let undone = self.with_vgpu(|vgpu| {
            if was.begun || was.stopped || vgpu.table().gfn().is_none() {
                self.undo(vgpu, was.stopped);
            }
            Ok(())
        });
        if let Err(e) = undone {
            log::warn!("domain {}: {e:#}", self.domid);
        }
        *progress = Progress {
            lost: was.begun || was.stopped || was.lost,
            ..Progress::default()
        };
    }

    /// Refuses to go on with a save that was lost.
    fn not_lost(&self, progress: Progress) -> anyhow::Result<()> {
        if progress.lost {
            let domid = self.domid;
            bail!("domain {domid}: its device model was replaced during the save");
        }
        Ok(())
    }

    /// Takes back what there is to take back. A device model that does not do
    /// its part harms its own guest.
    fn undo(&self, vgpu: &dyn Vgpu, stopped: bool) {
        let warn = |what: &str, e: anyhow::Error| {
            log::warn!("domain {}: {what}: {e:#}", self.domid);
        };
        if stopped {
            if let Err(e) = self.dm().step(&ToDm::GoOn, STILL) {
                warn("the device model does not go on", e);
            }
            vgpu.resume();
        }
        vgpu.written().stop();
        if let Err(e) = self.dm().step(&ToDm::Record(false), STILL) {
            warn("pages go on being recorded", e);
        }
        if let Err(e) = self.take_table_in(vgpu) {
            warn("the guest's page table stays trapped", e);
        }
    }

    /// A migration was under way when another vgpud ended, and came to nothing:
    /// the guest's page table is RAM again.
    ///
    /// # Errors
    /// When it stays where it is.
    pub(super) fn bring_table_home(&self) -> anyhow::Result<()> {
        self.with_vgpu(|vgpu| {
            // It may not have come to that.
            let _ = vgpu.table().withdraw();
            self.take_table_in(vgpu)
        })
    }

    fn take_table_in(&self, vgpu: &dyn Vgpu) -> anyhow::Result<()> {
        let table = vgpu.table();
        let Some(frames) = table.populate()? else {
            return Ok(());
        };
        let gfn = PARKING_GFN;
        if let Err(e) = self.dm().step(&ToDm::TableIn { gfn }, TABLE) {
            drop(frames);
            table.withdraw()?;
            return Err(e);
        }
        table.enter_ram(frames);
        self.note(|record| record.table_in_ram = true);
        self.dm().step(&ToDm::TableSettle { gfn }, TABLE)
    }

    /// The guest has stopped. Takes no more from its device model, gives what
    /// runs on the GPU `limit` to end, and takes back the rest, to be run
    /// where the guest goes on. On return neither the GPU nor this process nor
    /// the device model writes anything of the guest's.
    ///
    /// # Errors
    /// What does not end; the vGPU goes on then.
    pub fn suspend(&self, limit: Duration) -> anyhow::Result<Drained> {
        let mut progress = lock(&self.progress);
        if progress.stopped {
            bail!("domain {}: the vGPU is stopped already", self.domid);
        }
        self.not_lost(*progress)?;
        let drained = self.with_vgpu(|vgpu| {
            let drained = vgpu.suspend(limit)?;
            let limit_ms = u64::try_from(STILL.as_millis()).unwrap_or(u64::MAX);
            let still = self.dm().step(&ToDm::HoldStill { limit_ms }, STILL * 2);
            if let Err(e) = still {
                vgpu.resume();
                return Err(e);
            }
            Ok(drained)
        })?;
        progress.stopped = true;
        Ok(drained)
    }

    /// Runs of pages that the device model and this process wrote since they
    /// were asked last: first frame and number of frames, as the device model
    /// says it. What the GPU wrote is not among them. There may be more when
    /// there are [`MAX_RUNS`] or more.
    ///
    /// # Errors
    /// When the vGPU failed or its device model does not answer.
    pub fn take_written(&self) -> anyhow::Result<Vec<(Gfn, u64)>> {
        self.not_lost(*lock(&self.progress))?;
        self.with_vgpu(|vgpu| {
            let mut runs = vgpu.written().take(MAX_RUNS);
            let theirs = self.dm().written(MAX_RUNS)?;
            runs.extend(
                theirs
                    .into_iter()
                    .map(|(first, frames)| (Gfn(first), frames)),
            );
            Ok(runs)
        })
    }

    /// What is saved of the vGPU, which is stopped.
    ///
    /// # Errors
    /// When it is not, failed, or its device model does not answer.
    pub fn save(&self) -> anyhow::Result<Saved> {
        if !lock(&self.progress).stopped {
            bail!("domain {}: the vGPU is not stopped", self.domid);
        }
        self.with_vgpu(|vgpu| {
            Ok(Saved {
                host: HostV1::new(&self.gpu),
                device: self.dm().save()?,
                scheduler: vgpu.save(),
                table: vgpu.table().pack(),
            })
        })
    }
}

impl Migrant for Guest {
    fn begin_save(&self) -> anyhow::Result<()> {
        // Before the first page is copied: what is at the GPU then counts.
        Self::begin_save(self)?;
        self.with_vgpu(|vgpu| {
            vgpu.track(true);
            Ok(())
        })
    }

    fn end_save(&self) -> anyhow::Result<()> {
        Self::end_save(self)?;
        self.with_vgpu(|vgpu| {
            vgpu.track(false);
            Ok(())
        })
    }

    fn suspend(&self, limit: Duration) -> anyhow::Result<Drained> {
        Self::suspend(self, limit)
    }

    fn save(&self) -> anyhow::Result<Saved> {
        Self::save(self)
    }

    fn written(&self) -> anyhow::Result<Frames> {
        let mut frames = self.with_vgpu(|vgpu| Ok(vgpu.reached()))?;
        let until = Instant::now() + TABLE;
        let mut left = MOST_WRITTEN;
        loop {
            let runs = self.take_written()?;
            // What is written after a short answer is for the next look: one that
            // always has something to tell would keep us here.
            let all = runs.len() < MAX_RUNS;
            for (first, count) in runs {
                // One without a frame counts, too, or they could go on for ever.
                left = left.checked_sub(count.max(1)).with_context(|| {
                    format!(
                        "domain {}: {count} frames from {:#x} on are said to be written, \
                         allowed: {MOST_WRITTEN} in all",
                        self.domid, first.0
                    )
                })?;
                frames.insert_run(first, count);
            }
            if all {
                return Ok(frames);
            }
            if Instant::now() >= until {
                bail!(
                    "domain {}: its device model tells for too long what it wrote",
                    self.domid
                );
            }
        }
    }

    fn preview(&self, time: Duration) -> anyhow::Result<u64> {
        self.with_vgpu(|vgpu| {
            vgpu.track(true);
            std::thread::sleep(time);
            let pages = vgpu.reached().len();
            vgpu.track(false);
            Ok(u64::try_from(pages).unwrap_or(u64::MAX))
        })
    }

    fn name(&self, frames: &Frames) -> anyhow::Result<()> {
        let gfns: Vec<Gfn> = frames.iter().collect();
        self.with_vgpu(|vgpu| vgpu.name_pages(&gfns))
    }
}
