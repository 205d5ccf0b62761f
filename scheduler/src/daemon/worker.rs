//! A vGPU's worker: takes requests off its submit ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vgpu_ring::{AreaWords, Consumer, Doorbell, EventBell, Request};
use vgpu_sched::clock::nanos;
use vgpu_sched::reading::Allowance;

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
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    /// Nanoseconds in which the ring was left alone.
    slowed: AtomicU64,
    failure: std::sync::OnceLock<String>,
}

impl Worker {
    /// Starts one for the guest `domid`.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn start(domid: u16, mut work: Work) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let bell = work.requests.doorbell().try_clone()?;
        let thread = thread::Builder::new().name(format!("vgpu{domid}")).spawn({
            let shared = Arc::clone(&shared);
            move || {
                if let Err(reason) = work.run(&shared) {
                    // Only this thread sets it.
                    let _ = shared.failure.set(reason);
                    work.broke.ring();
                }
            }
        })?;
        Ok(Self {
            shared,
            bell,
            thread: Some(thread),
        })
    }

    /// Why it ended by itself, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// A counter of the requests taken so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// For how long the ring was left alone so far, in nanoseconds, because
    /// requests had cost more than they may.
    pub fn slowed_ns(&self) -> u64 {
        self.shared.slowed.load(Ordering::Relaxed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("a vGPU's worker panicked");
            }
        }
    }
}

impl Work {
    fn run(&mut self, shared: &Shared) -> Result<(), String> {
        let mut allowance = Allowance::new();
        while !shared.stop.load(Ordering::SeqCst) {
            // One that was not carried out to its end stays for a vgpud to come.
            while let Some(request) = self.requests.peek().map_err(|e| e.to_string())? {
                shared.requests.fetch_add(1, Ordering::Relaxed);
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
                    shared.slowed.fetch_add(nanos(pause), Ordering::Relaxed);
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
