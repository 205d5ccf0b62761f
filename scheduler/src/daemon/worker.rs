//! A vGPU's worker: takes requests off its submit ring.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vgpu_ring::{AreaWords, Consumer, Doorbell, EventBell, Request};
use vgpu_sched::clock::nanos;
use vgpu_sched::reading::Allowance;
use vgpu_sched::sync::lock;

use super::events::RingFate;
use super::platform::Vgpu;

/// How often a silent device model is looked after: one that neither sends
/// requests nor takes its events.
const LOOK: Duration = Duration::from_secs(1);

/// What a worker works on.
pub struct Work {
    /// The ring.
    pub requests: Consumer<Request, AreaWords, EventBell>,
    /// What became of the other ring.
    pub fate: Arc<RingFate>,
    /// Who carries requests out.
    pub vgpu: Arc<dyn Vgpu>,
    /// Rung when the ring broke.
    pub broke: EventBell,
    /// Called when the first work is submitted.
    pub first: Option<Box<dyn FnOnce() + Send>>,
}

/// A running worker. Dropping it stops the thread and waits for it.
pub struct Worker {
    shared: Arc<Shared>,
    bell: EventBell,
    thread: Mutex<Option<JoinHandle<Work>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counts: Arc<Counts>,
    failure: OnceLock<String>,
}

/// What a vGPU's workers count, one after the other.
#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    /// Nanoseconds in which the ring was left alone.
    slowed: AtomicU64,
}

impl Worker {
    /// Starts one for the guest `domid`.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn start(domid: u16, work: Work) -> std::io::Result<Self> {
        Self::start_counting(domid, work, Arc::default())
    }

    /// Starts one that goes on with what this one, which is halted, counted.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub fn succeed(&self, domid: u16, work: Work) -> std::io::Result<Self> {
        Self::start_counting(domid, work, Arc::clone(&self.shared.counts))
    }

    fn start_counting(domid: u16, mut work: Work, counts: Arc<Counts>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            counts,
            ..Shared::default()
        });
        let bell = work.requests.doorbell().try_clone()?;
        let thread = thread::Builder::new().name(format!("ring{domid}")).spawn({
            let shared = Arc::clone(&shared);
            move || {
                if let Err(reason) = work.run(&shared) {
                    // Only this thread sets it.
                    let _ = shared.failure.set(reason);
                    work.broke.ring();
                }
                work
            }
        })?;
        Ok(Self {
            shared,
            bell,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Stops it, and gives what it worked on, once. A request that it had begun
    /// is carried out.
    pub fn halt(&self) -> Option<Work> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        let thread = lock(&self.thread).take()?;
        thread.thread().unpark();
        let work = thread.join();
        if work.is_err() {
            log::error!("a vGPU's worker panicked");
        }
        work.ok()
    }

    /// Why it ended by itself, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// A counter of the requests taken so far.
    pub fn requests(&self) -> u64 {
        self.shared.counts.requests.load(Ordering::Relaxed)
    }

    /// For how long the ring was left alone so far, in nanoseconds, because
    /// requests had cost more than they may.
    pub fn slowed_ns(&self) -> u64 {
        self.shared.counts.slowed.load(Ordering::Relaxed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Work {
    fn run(&mut self, shared: &Shared) -> Result<(), String> {
        let mut allowance = Allowance::new();
        while !shared.stop.load(Ordering::SeqCst) {
            // One that was not carried out to its end stays for a vgpud to come.
            while let Some(request) = self.requests.peek().map_err(|e| e.to_string())? {
                shared.counts.requests.fetch_add(1, Ordering::Relaxed);
                if matches!(request, Request::Submit { .. })
                    && let Some(first) = self.first.take()
                {
                    first();
                }
                self.vgpu.request(request)?;
                self.requests.take();
                let pause = allowance.served();
                if shared.stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
                if let Some(pause) = pause {
                    shared
                        .counts
                        .slowed
                        .fetch_add(nanos(pause), Ordering::Relaxed);
                    // Whoever stops this thread ends it early.
                    thread::park_timeout(pause);
                }
            }
            self.fate.sound().map_err(|e| e.to_string())?;
            self.vgpu.usable()?;
            self.requests.wait(Some(LOOK)).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
