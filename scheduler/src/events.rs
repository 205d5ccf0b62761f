//! Events on their way to a device model.

use std::collections::VecDeque;

use vgpu_ring::Event;

/// The complete ring was full; the event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the complete ring is full")]
pub struct Full;

/// Where a vGPU's events go.
pub trait EventSink: Send {
    /// Passes `event` on. Must not block.
    ///
    /// # Errors
    /// [`Full`]; the event is offered again later, in order.
    fn push(&mut self, event: Event) -> Result<(), Full>;

    /// The vGPU is of no more use: whoever holds its handle should drop it.
    /// Called once. Must not block, and must not drop the handle itself.
    fn failed(&mut self, _why: &str) {}
}

/// Events kept for a device model that does not take them.
pub const BACKLOG: usize = 1024;

/// A sink and what it has not taken yet.
pub struct Outbox {
    sink: Box<dyn EventSink>,
    backlog: VecDeque<Event>,
}

impl Outbox {
    /// Nothing waits.
    #[must_use]
    pub fn new(sink: Box<dyn EventSink>) -> Self {
        Self {
            sink,
            backlog: VecDeque::new(),
        }
    }

    /// Passes an event on, behind those that wait.
    ///
    /// # Errors
    /// [`Full`] when [`BACKLOG`] events wait: the device model is not doing
    /// its part. The event is lost.
    pub fn push(&mut self, event: Event) -> Result<(), Full> {
        self.flush();
        if self.backlog.is_empty() && self.sink.push(event).is_ok() {
            return Ok(());
        }
        // Interrupts of an engine that wait together are one, so that no guest
        // fills the backlog with them. What is signalled has happened, so it
        // may overtake other events.
        if let Event::Interrupt { engine, bits } = event {
            for waits in self.backlog.iter_mut().rev() {
                if let Event::Interrupt { engine: e, bits: b } = waits
                    && *e == engine
                {
                    *b |= bits;
                    return Ok(());
                }
            }
        }
        if self.backlog.len() >= BACKLOG {
            return Err(Full);
        }
        self.backlog.push_back(event);
        Ok(())
    }

    /// Offers what waits again. Returns whether anything still does.
    pub fn flush(&mut self) -> bool {
        while let Some(&event) = self.backlog.front() {
            if self.sink.push(event).is_err() {
                return true;
            }
            self.backlog.pop_front();
        }
        false
    }

    /// Tells the sink that the vGPU is of no more use.
    pub fn fail(&mut self, why: &str) {
        self.sink.failed(why);
    }

    /// How many events wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.backlog.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sync::lock;

    struct Narrow {
        room: usize,
        taken: Arc<Mutex<Vec<Event>>>,
    }

    impl EventSink for Narrow {
        fn push(&mut self, event: Event) -> Result<(), Full> {
            let mut taken = lock(&self.taken);
            if taken.len() >= self.room {
                return Err(Full);
            }
            taken.push(event);
            Ok(())
        }
    }

    fn pong(token: u64) -> Event {
        Event::Pong { token }
    }

    #[test]
    fn order_is_kept_across_a_full_ring() {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let mut outbox = Outbox::new(Box::new(Narrow {
            room: 1,
            taken: Arc::clone(&taken),
        }));
        for i in 0..3 {
            outbox.push(pong(i)).unwrap();
        }
        assert_eq!(outbox.waiting(), 2);
        lock(&taken).clear();
        assert!(outbox.flush());
        assert_eq!(*lock(&taken), [pong(1)]);
        lock(&taken).clear();
        assert!(!outbox.flush());
        assert_eq!(*lock(&taken), [pong(2)]);
    }

    #[test]
    fn the_backlog_is_bounded_and_interrupts_join() {
        let mut outbox = Outbox::new(Box::new(Narrow {
            room: 0,
            taken: Arc::default(),
        }));
        let interrupt = |engine, bits| Event::Interrupt { engine, bits };
        for _ in 0..10 * BACKLOG {
            outbox.push(interrupt(1, 1)).unwrap();
            outbox.push(interrupt(0, 1)).unwrap();
        }
        outbox.push(interrupt(1, 0x10)).unwrap();
        assert_eq!(outbox.waiting(), 2);
        assert_eq!(outbox.backlog, [interrupt(1, 0x11), interrupt(0, 1)]);
        for i in 2..BACKLOG {
            outbox.push(pong(i.try_into().unwrap())).unwrap();
        }
        assert_eq!(outbox.push(pong(0)), Err(Full));
    }
}
