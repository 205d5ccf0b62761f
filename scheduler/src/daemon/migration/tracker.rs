//! Names pages while the guest runs, so that little is left when it stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use vgpu_control::Pages;
use vgpu_sched::sync::lock;

use super::migrant::Migrant;
use super::record::Record;

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
    /// Starts one.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(record: &Arc<Record>, guest: Arc<dyn Migrant>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name(format!("dirty{}", record.domid()))
            .spawn({
                let shared = Arc::clone(&shared);
                let record = Arc::clone(record);
                move || shared.run(&record, &*guest)
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
    fn run(&self, record: &Record, guest: &dyn Migrant) {
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
            match name_written(guest) {
                Ok(pages) => {
                    let mut migration = record.migration();
                    migration.rounds += 1;
                    add(&mut migration.copying, pages);
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
