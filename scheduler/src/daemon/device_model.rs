//! A guest's device model, wherever it runs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use grant_area::MappedArea;
use serde_json::Value;
use vgpu_confine::Confined;
use vgpu_control::{ControlError, Disturb, FromDm, Place, StartDm, ToDm, printable};
use vgpu_ring::Area;
use vgpu_sched::saved::MAX_DEVICE;

/// How long a device model may take for an answer or to stop.
pub const LIMIT: Duration = Duration::from_secs(2);

/// What is left of the time until `until`.
pub fn left_until(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The longest text of others that is passed on, in characters.
const MOST_SAID: usize = 1000;

/// What a device model says, or what a saved state has, for a log, a record and
/// people: whoever made it is not trusted with any of them.
pub fn quoted(said: &str) -> String {
    printable(said, MOST_SAID)
}

/// An error and its reasons in one line, which may quote a file or a device model.
pub fn one_line(error: &anyhow::Error) -> String {
    quoted(&format!("{error:#}"))
}

/// An answer that is none to what was asked.
pub fn unexpected(answer: &FromDm) -> anyhow::Error {
    let answer = quoted(&format!("{answer:?}"));
    anyhow!("the device model answered {answer}")
}

/// What a device model says when it is attached.
pub struct Attached {
    /// The id of its ioreq server.
    pub server: u16,
    /// What it gave up, if it was told to.
    pub confined: Option<Confined>,
    /// Where the guest's page table is, if that is RAM of the guest.
    pub table: Option<u64>,
}

impl Attached {
    /// From the first thing that a device model says.
    ///
    /// # Errors
    /// Why it is not attached.
    pub fn heard(said: FromDm) -> anyhow::Result<Self> {
        match said {
            FromDm::Attached {
                server,
                confined,
                table,
            } => Ok(Self {
                server,
                confined,
                table,
            }),
            FromDm::Failed(reason) => bail!(quoted(&reason)),
            _ => bail!("it answered what nobody asked"),
        }
    }
}

/// A device model that is attached to its guest. Dropping it stops it.
pub trait DeviceModel: Send + Sync {
    /// Where it runs.
    fn place(&self) -> Place;

    /// Becomes readable when it ends.
    fn ended(&self) -> BorrowedFd<'_>;

    /// What it said when it attached.
    fn attached(&self) -> &Attached;

    /// Asks, and waits at most `limit` for the answer, whatever comes before it.
    /// Answers to questions that were given up are not taken for it; nothing more
    /// is asked before they are there.
    ///
    /// # Errors
    /// When it does not answer, or why it did not do it.
    fn ask(&self, message: &ToDm, limit: Duration) -> anyhow::Result<FromDm>;

    /// The device's state as the device model gives it, at most one byte more
    /// than [`MAX_DEVICE`].
    ///
    /// # Errors
    /// When it does not answer.
    fn device(&self) -> anyhow::Result<Vec<u8>>;

    /// Stops it, kindly first, and tells how it ended.
    fn stop(&self) -> String;

    /// Ends it at once, if it has to be, and tells how it ended. Another can
    /// take its place then.
    fn kill(&self) -> String;

    /// Another that goes on with what is in the shared area, told `start`.
    ///
    /// # Errors
    /// As the first's: what it says, or how it failed to say anything.
    fn successor(&self, start: StartDm, home: &dyn Home) -> anyhow::Result<Arc<dyn DeviceModel>>;

    /// Kills or stops it, for who watches it to find.
    ///
    /// # Errors
    /// When it is gone, or out of reach.
    fn disturb(&self, how: Disturb) -> anyhow::Result<()>;

    /// None takes its place any more: nothing is done for one.
    fn lost(&self) {}

    /// Does what has to be done now and then.
    fn tend(&self) {}
}

/// The part of a vGPU that stays when its device model changes.
pub trait Home {
    /// The id of a process that is a device model, before that hears anything.
    fn noted(&self, pid: i32);

    /// What is in the area `from` is in `to` from now on.
    ///
    /// # Errors
    /// When the areas are not of one kind, or the process has no more
    /// descriptors.
    fn move_to(&self, from: &Area, to: &MappedArea) -> anyhow::Result<()>;
}

/// Whether an error of a device model's start is that it died or fell silent, and
/// not what it said.
pub fn died(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ControlError>().is_some()
}

/// Starts a device model, and another when it dies, at most `deaths` times. `start`
/// hears whether one died before. One that falls silent has used up the time that
/// there is.
///
/// # Errors
/// Those of the last start.
pub fn unless_dead<T>(
    deaths: usize,
    mut start: impl FnMut(bool) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut died_so_far = 0;
    loop {
        match start(died_so_far > 0) {
            Err(e)
                if died_so_far < deaths
                    && died(&e)
                    && !matches!(e.downcast_ref(), Some(ControlError::TimedOut)) =>
            {
                died_so_far += 1;
                log::warn!("{e:#}; another device model is started");
            }
            started => return started,
        }
    }
}

impl dyn DeviceModel + '_ {
    /// The id of its ioreq server.
    pub fn server(&self) -> u16 {
        self.attached().server
    }

    /// What it gave up, if it was told to.
    pub fn confined(&self) -> Option<&Confined> {
        self.attached().confined.as_ref()
    }

    /// Where the guest's page table was when it attached, if that is RAM of
    /// the guest.
    pub fn table(&self) -> Option<u64> {
        self.attached().table
    }

    /// The device, for people and tools.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn tree(&self) -> anyhow::Result<Value> {
        match self.ask(&ToDm::Inspect, LIMIT)? {
            FromDm::Tree(tree) => Ok(tree),
            other => Err(unexpected(&other)),
        }
    }

    /// A step of a save that may take `limit`.
    ///
    /// # Errors
    /// Why it was not done, or that it does not answer.
    pub fn step(&self, step: &ToDm, limit: Duration) -> anyhow::Result<()> {
        match self.ask(step, limit)? {
            FromDm::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs of pages it wrote, `most` at most: first frame and number.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn written(&self, most: usize) -> anyhow::Result<Vec<(u64, u64)>> {
        match self.ask(&ToDm::Written { most }, LIMIT)? {
            FromDm::Written(runs) => Ok(runs),
            other => Err(unexpected(&other)),
        }
    }

    /// The device's state: JSON, of which nothing is known but its length.
    ///
    /// # Errors
    /// When it does not answer, or with more than a device can have.
    pub fn save(&self) -> anyhow::Result<Vec<u8>> {
        let bytes = self.device()?;
        if bytes.len() > MAX_DEVICE {
            bail!("the device's state is longer than {MAX_DEVICE} bytes");
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_model_says_is_one_short_line() {
        assert_eq!(quoted("no\n\u{1b}[2Jroom\u{9b}"), "no  [2Jroom ");
        let tree = FromDm::Tree(Value::String("\n".repeat(MOST_SAID)));
        for e in [
            Attached::heard(FromDm::Failed("é\n".repeat(MOST_SAID))).err(),
            Some(unexpected(&tree)),
        ] {
            let line = format!("{:#}", e.unwrap());
            assert!(line.chars().count() < MOST_SAID + 50, "{line}");
            assert!(!line.contains(char::is_control), "{line:?}");
        }
    }
}
