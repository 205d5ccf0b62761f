//! JSON values over a pipe in shared memory: what goes over a socket on one
//! host, to a device model in a domain of its own.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use vgpu_ring::{AreaWords, EventBell, Pipe, PipeError, PipeLimits};

use crate::{ControlError, MAX_MESSAGE};

/// A [`Connection`](crate::Connection) between domains. No descriptor goes
/// through it; in the place of a file that comes along, its bytes are attached
/// to a message.
///
/// One thread uses it at a time. What arrives is not trusted: it is bounded
/// before it is taken, and no wait is longer than the limit.
pub struct PipeConnection(Mutex<Inner>);

struct Inner {
    pipe: Pipe<AreaWords, EventBell>,
    limit: Option<Duration>,
}

impl fmt::Debug for PipeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PipeConnection").finish_non_exhaustive()
    }
}

impl From<Pipe<AreaWords, EventBell>> for PipeConnection {
    fn from(pipe: Pipe<AreaWords, EventBell>) -> Self {
        Self(Mutex::new(Inner { pipe, limit: None }))
    }
}

impl From<PipeError> for ControlError {
    fn from(e: PipeError) -> Self {
        match e {
            PipeError::Closed => Self::Closed,
            PipeError::TimedOut => Self::TimedOut,
            e @ (PipeError::TooLong { .. } | PipeError::Torn | PipeError::Broken(_)) => {
                Self::Pipe(e)
            }
        }
    }
}

impl PipeConnection {
    fn locked<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long a message may take; `None` is for ever.
    pub fn set_limit(&self, limit: Option<Duration>) {
        self.locked(|inner| inner.limit = limit);
    }

    /// Sends `message`.
    ///
    /// # Errors
    /// [`ControlError`]. After [`ControlError::TimedOut`] nothing was sent, or
    /// nothing more can be.
    pub fn send(&self, message: &impl Serialize) -> Result<(), ControlError> {
        self.send_with(message, &[])
    }

    /// Sends `message` with `attached`.
    ///
    /// # Errors
    /// As [`PipeConnection::send`].
    pub fn send_with(&self, message: &impl Serialize, attached: &[u8]) -> Result<(), ControlError> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MAX_MESSAGE {
            return Err(ControlError::TooLong);
        }
        Ok(self.locked(|inner| inner.pipe.send(&text, attached, inner.limit))?)
    }

    /// Receives a message to which nothing is attached.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn recv<T: DeserializeOwned>(&self) -> Result<T, ControlError> {
        Ok(self.recv_with(0)?.0)
    }

    /// Receives a message and the bytes attached to it, at most `most`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn recv_with<T: DeserializeOwned>(
        &self,
        most: usize,
    ) -> Result<(T, Vec<u8>), ControlError> {
        let most = PipeLimits {
            text: MAX_MESSAGE,
            attached: most,
        };
        let message = self.locked(|inner| inner.pipe.recv(most, inner.limit))?;
        Ok((serde_json::from_slice(&message.text)?, message.attached))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use vgpu_ring::{PIPE_AREA_WORDS, PipePlace, WordMemory};

    use super::*;
    use crate::{FromDm, MAX_RUNS, ToDm};

    struct Memory(Vec<AtomicU64>);

    impl WordMemory for Memory {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    /// vgpud's end, and a device model's.
    fn pair() -> (PipeConnection, PipeConnection) {
        let words = (0..PIPE_AREA_WORDS).map(|_| AtomicU64::new(0)).collect();
        let words = AreaWords::of(Arc::new(Memory(words)));
        let (a, b) = (EventBell::new().unwrap(), EventBell::new().unwrap());
        let (c, d) = (a.try_clone().unwrap(), b.try_clone().unwrap());
        let (there, back) = (PipePlace::TO_DEVICE, PipePlace::TO_DAEMON);
        let daemon = Pipe::new(words.clone(), (there, back), (a, b), || false);
        let device = Pipe::new(words, (back, there), (d, c), || false);
        (daemon.into(), device.into())
    }

    #[test]
    fn questions_and_answers_cross_with_what_is_attached() {
        let (daemon, device) = pair();
        daemon.send(&ToDm::Save).unwrap();
        assert_eq!(device.recv::<ToDm>().unwrap(), ToDm::Save);
        device.send_with(&FromDm::Saved, b"the device").unwrap();
        let (answer, file) = daemon.recv_with::<FromDm>(10).unwrap();
        assert_eq!(
            (answer, file.as_slice()),
            (FromDm::Saved, &b"the device"[..])
        );
    }

    #[test]
    fn the_longest_answer_fits() {
        let (daemon, device) = pair();
        let runs = vec![(u64::MAX, u64::MAX); MAX_RUNS];
        let answer = FromDm::Written(runs);
        let sent = answer.clone();
        let device = std::thread::spawn(move || device.send(&sent).unwrap());
        assert_eq!(daemon.recv::<FromDm>().unwrap(), answer);
        device.join().unwrap();
    }

    #[test]
    fn excess_garbage_and_silence_are_told_apart() {
        let (daemon, device) = pair();
        daemon.set_limit(Some(Duration::ZERO));
        let said = || daemon.recv::<FromDm>().unwrap_err();
        assert!(matches!(said(), ControlError::TimedOut));
        device.send(&"garbage").unwrap();
        assert!(matches!(said(), ControlError::Format(_)));
        let long = "x".repeat(MAX_MESSAGE);
        assert!(matches!(device.send(&long), Err(ControlError::TooLong)));
        device.send_with(&FromDm::Done, b"unasked").unwrap();
        assert!(matches!(
            said(),
            ControlError::Pipe(PipeError::TooLong { len: 7, most: 0 })
        ));
    }
}
