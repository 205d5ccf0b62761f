//! Names pages while the guest runs, so that little is left when it stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vgpu_control::{Ahead, Pages, Phase};
use vgpu_sched::sync::lock;

use super::migrant::Migrant;
use super::record::{Record, ms};
use super::sender::Sender;

/// How often: a few times in a pass of libxc over a small guest.
const EVERY: Duration = Duration::from_millis(100);

/// The thread. Dropping it ends it.
pub struct Tracker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Tracker {
    /// Starts one, which sees how fast the process `toolstack` sends.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(
        record: &Arc<Record>,
        guest: Arc<dyn Migrant>,
        toolstack: Option<i32>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name(format!("dirty{}", record.domid()))
            .spawn({
                let shared = Arc::clone(&shared);
                let record = Arc::clone(record);
                let sender = toolstack.map(Sender::new);
                move || shared.run(&record, &*guest, sender)
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        {
            // Under the lock: the thread is asleep, or has yet to look.
            let _asleep = lock(&self.shared.asleep);
            self.shared.stop.store(true, Ordering::SeqCst);
        }
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that names pages panicked");
        }
    }
}

impl Shared {
    fn run(&self, record: &Record, guest: &dyn Migrant, mut sender: Option<Sender>) {
        let mut failed = false;
        loop {
            let asleep = lock(&self.asleep);
            let running = |_: &mut ()| !self.stop.load(Ordering::SeqCst);
            let slept = self.wake.wait_timeout_while(asleep, EVERY, running);
            let slept = slept.unwrap_or_else(PoisonError::into_inner);
            if !slept.1.timed_out() {
                return;
            }
            drop(slept);
            if record.phase() != Phase::Copying {
                return;
            }
            if let Some(sender) = &mut sender {
                sender.look();
            }
            let start = Instant::now();
            match name_written(guest) {
                Ok(pages) => {
                    let mut migration = record.migration();
                    migration.rounds += 1;
                    add(&mut migration.copying, pages);
                    migration.send_rate = sender.as_ref().and_then(Sender::rate);
                    migration.predicted_ms = migration.send_rate.map(|rate| {
                        let looking = ms(start.elapsed());
                        looking + sending_ms(pages.named, rate)
                    });
                }
                // It is tried again when the guest stops, and counts then.
                Err(e) if !failed => {
                    failed = true;
                    log::warn!("domain {}: pages are not named: {e:#}", record.domid());
                }
                Err(_) => {}
            }
        }
    }
}

/// Finds out what a migration that began now would have to bring over, unless
/// one is under way.
pub fn look_ahead(record: &Record) {
    // None begins meanwhile.
    let _steps = record.steps();
    if matches!(
        record.phase(),
        Phase::Copying | Phase::Stopped | Phase::Saved | Phase::Restored
    ) {
        return;
    }
    // A vGPU that failed has nothing to bring over.
    let pages = record.guest().and_then(|guest| guest.preview(EVERY)).ok();
    let mut migration = record.migration();
    let rate = migration.send_rate;
    migration.ahead = pages.map(|pages| Ahead {
        pages,
        expected_ms: rate.map(|rate| sending_ms(pages, rate)),
    });
}

/// Bytes of state that go with the pages: the device's, the page table's and
/// QEMU's are some ten KiB, unless the guest's table has no pattern.
const STATE_BYTES: f64 = 64.0 * 1024.0;

/// How long it takes to bring over so many pages, and the state, at so many
/// bytes a second; milliseconds.
pub fn sending_ms(pages: u64, rate: u64) -> f64 {
    // Pages are far fewer than 2^52, and a rate need not be exact.
    let number = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    let kib = number(rate >> 10).max(1.0);
    (number(pages) * 4.0 + STATE_BYTES / 1024.0) / kib * 1000.0
}

/// Adds pages to a sum.
fn add(sum: &mut Pages, pages: Pages) {
    sum.candidate = sum.candidate.saturating_add(pages.candidate);
    sum.verified = sum.verified.saturating_add(pages.verified);
    sum.named = sum.named.saturating_add(pages.named);
}

/// Names what may have been written since the last time.
///
/// # Errors
/// When it is not known or Xen refuses; then it is not named.
pub fn name_written(guest: &dyn Migrant) -> anyhow::Result<Pages> {
    let written = guest.written()?;
    guest.name(&written)?;
    let count = u64::try_from(written.len()).unwrap_or(u64::MAX);
    Ok(Pages {
        candidate: count,
        verified: 0,
        named: count,
    })
}
