//! The way back to a device model: the complete ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use vgpu_ring::{AreaWords, Doorbell, Event, EventBell, Producer, PushError, RingError};
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::sync::lock;

/// What became of a ring.
#[derive(Default)]
pub struct RingFate {
    sent: AtomicU64,
    broken: OnceLock<RingError>,
}

impl RingFate {
    /// Events put into the ring so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the ring is of use.
    ///
    /// # Errors
    /// How the device model broke it.
    pub fn sound(&self) -> Result<(), RingError> {
        self.broken.get().map_or(Ok(()), |e| Err(*e))
    }
}

/// A ring of one shared area.
pub struct Way {
    /// It.
    pub ring: Producer<Event, AreaWords, EventBell>,
    /// The doorbell that the vGPU's worker waits on.
    pub worker: EventBell,
}

/// Puts the scheduler's events into the ring.
pub struct RingSink {
    /// `None` while it becomes that of another area.
    way: Arc<Mutex<Option<Way>>>,
    fate: Arc<RingFate>,
}

impl RingSink {
    /// Puts into the ring of `way`.
    pub fn new(way: Way) -> Self {
        Self {
            way: Arc::new(Mutex::new(Some(way))),
            fate: Arc::default(),
        }
    }

    /// The ring, to put another in its place.
    pub fn way(&self) -> Arc<Mutex<Option<Way>>> {
        Arc::clone(&self.way)
    }

    /// What becomes of the ring.
    pub fn fate(&self) -> Arc<RingFate> {
        Arc::clone(&self.fate)
    }
}

impl EventSink for RingSink {
    fn push(&mut self, event: Event) -> Result<(), Full> {
        let mut way = lock(&self.way);
        let Some(way) = way.as_mut() else {
            return Err(Full);
        };
        match way.ring.push(event) {
            Ok(()) => {
                self.fate.sent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(PushError::Full) => Err(Full),
            // Nobody can read it any more: it is lost, and the vGPU with it.
            Err(PushError::Broken(e)) => {
                if self.fate.broken.set(e).is_ok() {
                    way.worker.ring();
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use vgpu_ring::layout::{PAGE_WORDS, index};
    use vgpu_ring::{AreaConfig, Bells, SharedArea};

    use super::*;

    #[test]
    fn a_full_ring_is_told_from_a_broken_one() {
        let area = SharedArea::create(AreaConfig {
            submit_slots: 2,
            complete_slots: 2,
        })
        .unwrap();
        let bells = Bells::new().unwrap();
        let worker = bells.submit.try_clone().unwrap();
        let mut sink = RingSink::new(Way {
            ring: area.daemon_end(bells).events,
            worker,
        });
        let fate = sink.fate();
        let event = Event::Pong { token: 0 };
        assert_eq!(sink.push(event), Ok(()));
        assert_eq!(sink.push(event), Ok(()));
        assert_eq!(sink.push(event), Err(Full));
        assert_eq!(fate.sent(), 2);
        assert_eq!(fate.sound(), Ok(()));
        // The complete ring's index page follows the submit ring's slots.
        let consumer = u64::try_from((3 * PAGE_WORDS + index::CONSUMER) * 8).unwrap();
        let file = std::fs::File::from(area.share().unwrap());
        file.write_all_at(&[0xff; 8], consumer).unwrap();
        assert_eq!(sink.push(event), Ok(()));
        assert!(fate.sound().is_err());
        let way = lock(&sink.way).take().unwrap();
        assert!(way.worker.wait(Some(Duration::ZERO)));
        // In between there is none.
        assert_eq!(sink.push(event), Err(Full));
    }
}
