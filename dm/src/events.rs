//! The thread that hears vgpud and keeps the device's alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

use vgpu_device::{Clock, Device};
use vgpu_ring::{AreaWords, Consumer, Event, EventBell, RingError};

use crate::alarm::Alarm;
use crate::pause::Pause;

/// Events handled before the alarm is looked at again.
const BATCH: usize = 64;

pub(crate) struct EventLoop {
    pub(crate) device: Arc<Device>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) ring: Consumer<Event, AreaWords, EventBell>,
    pub(crate) pause: Arc<Pause>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl EventLoop {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        if let Err(e) = self.serve() {
            log::error!("complete {e}; the GPU does nothing more for this guest");
            self.keep_time();
        }
    }

    fn serve(&mut self) -> Result<(), RingError> {
        while !self.stop.load(Acquire) {
            for _ in 0..BATCH {
                match self.ring.pop()? {
                    Some(Event::Pong { token }) => self.pause.reached(token),
                    Some(event) => self.device.handle_event(event),
                    None => break,
                }
            }
            let deadline = self.device.next_deadline();
            if deadline.is_some_and(|at| at <= self.alarm.now_ns()) {
                self.device.tick();
                continue;
            }
            self.ring.wait(deadline.map(|at| self.alarm.until(at)))?;
        }
        Ok(())
    }

    /// The alarm alone: screens go on blanking without vgpud.
    fn keep_time(&self) {
        use vgpu_ring::Doorbell;
        while !self.stop.load(Acquire) {
            self.device.tick();
            let deadline = self.device.next_deadline();
            let bell = self.ring.doorbell();
            if bell.wait(deadline.map(|at| self.alarm.until(at))) {
                bell.clear();
            }
        }
    }
}
