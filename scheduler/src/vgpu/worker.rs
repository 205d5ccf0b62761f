//! A vGPU's own thread. It prepares the elements that follow one another,
//! so that a guest whose tables or batches take long to look at holds up
//! itself alone, and it offers events again that found the ring full.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gen8::{Engine, EngineSet};

use super::Vgpu;
use crate::sync::lock;

/// How often a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Tasks {
    engines: u8,
    flush: bool,
    stop: bool,
}

/// The thread and what it has to do.
#[derive(Default)]
pub struct Worker {
    tasks: Mutex<Tasks>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// The next element on `engine` can be prepared.
    pub fn advance(&self, engine: Engine) {
        lock(&self.tasks).engines |= EngineSet::of(&[engine]).bits();
        self.wake.notify_one();
    }

    /// Events wait.
    pub fn wake(&self) {
        lock(&self.tasks).flush = true;
        self.wake.notify_one();
    }
}

pub fn start(vgpu: &Arc<Vgpu>) -> std::io::Result<()> {
    let its = Arc::clone(vgpu);
    let thread = std::thread::Builder::new()
        .name(format!("prepare{}", vgpu.id()))
        .spawn(move || run(&its))?;
    *lock(&vgpu.worker.thread) = Some(thread);
    Ok(())
}

pub fn stop(vgpu: &Vgpu) {
    lock(&vgpu.worker.tasks).stop = true;
    vgpu.worker.wake.notify_one();
    let thread = lock(&vgpu.worker.thread).take();
    if let Some(thread) = thread
        && thread.join().is_err()
    {
        log::error!("vGPU {}: its thread panicked", vgpu.id());
    }
}

fn run(vgpu: &Arc<Vgpu>) {
    let worker = &vgpu.worker;
    let mut backlog = false;
    loop {
        let tasks = {
            let idle = |t: &mut Tasks| t.engines == 0 && !t.flush && !t.stop;
            let guard = lock(&worker.tasks);
            let mut guard = if backlog {
                worker
                    .wake
                    .wait_timeout_while(guard, RETRY, idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            } else {
                worker
                    .wake
                    .wait_while(guard, idle)
                    .unwrap_or_else(PoisonError::into_inner)
            };
            if guard.stop {
                return;
            }
            std::mem::take(&mut *guard)
        };
        backlog = lock(&vgpu.outbox).flush();
        for engine in EngineSet::from_bits(tasks.engines).iter() {
            vgpu.advance(engine);
        }
    }
}
