//! The thread that hears vgpud and keeps the device's alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::Duration;

use vgpu_device::kept;
use vgpu_device::{Device, Kept};
use vgpu_ring::{AreaWords, Consumer, Event, EventBell, RingError};

use crate::alarm::Alarm;
use crate::outside::SubmitRing;
use crate::pause::Pause;
use crate::protection::Protection;

/// Events handled before the alarm is looked at again.
const BATCH: usize = 64;

/// How often a full submit ring is tried again.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) struct EventLoop {
    pub(crate) device: Arc<Device>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) submit: Arc<SubmitRing>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) ring: Consumer<Event, AreaWords, EventBell>,
    pub(crate) pause: Arc<Pause>,
    pub(crate) kept: Arc<dyn Kept>,
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
                if !self.next()? {
                    break;
                }
            }
            let owes = !self.submit.settle();
            let tend = self.protection.tend();
            let deadline = self.device.next_deadline();
            if deadline.is_some_and(|at| at <= self.alarm.at_ns()) {
                kept::take_event_in_hand(&*self.kept);
                self.device.tick();
                kept::event_done(&*self.kept);
                continue;
            }
            let until = deadline.map(|at| self.alarm.until(at));
            let retry = owes.then_some(RETRY);
            self.ring
                .wait([until, retry, tend].into_iter().flatten().min())?;
        }
        Ok(())
    }

    /// Handles the next event; says whether there was one. Its slot is given
    /// back when what it did is committed.
    pub(crate) fn next(&mut self) -> Result<bool, RingError> {
        let Some(event) = self.ring.peek()? else {
            return Ok(false);
        };
        if let Event::Pong { token } = event {
            self.kept.about_to();
            self.ring.take();
            self.pause.reached(token);
            return Ok(true);
        }
        kept::take_event_in_hand(&*self.kept);
        if let Some(event) = self.protection.handle(event) {
            let taken = self.ring.taken().wrapping_add(1);
            self.device.take_event(event, taken);
        }
        self.kept.about_to();
        self.ring.take();
        kept::event_done(&*self.kept);
        Ok(true)
    }

    /// The alarm alone: screens go on blanking without vgpud.
    fn keep_time(&self) {
        use vgpu_ring::Doorbell;
        while !self.stop.load(Acquire) {
            self.device.tick();
            let until = self.device.next_deadline().map(|at| self.alarm.until(at));
            let tend = self.protection.tend();
            let bell = self.ring.doorbell();
            if bell.wait([until, tend].into_iter().flatten().min()) {
                bell.clear();
            }
        }
    }
}
