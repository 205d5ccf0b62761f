//! A guest's device model, wherever it runs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use vgpu_confine::Confined;
use vgpu_control::{ControlError, FromDm, Place, StartDm, ToDm};
use vgpu_sched::saved::MAX_DEVICE;

/// How long a device model may take for an answer or to stop.
pub const LIMIT: Duration = Duration::from_secs(2);

/// A device model that is attached to its guest. Dropping it stops it.
pub trait DeviceModel: Send + Sync {
    /// Where it runs.
    fn place(&self) -> Place;

    /// Becomes readable when it ends.
    fn ended(&self) -> BorrowedFd<'_>;

    /// The id of its ioreq server.
    fn server(&self) -> u16;

    /// What it gave up, if it was told to.
    fn confined(&self) -> Option<&Confined>;

    /// Where the guest's page table was when it attached, if that is RAM of
    /// the guest.
    fn table(&self) -> Option<u64>;

    /// Asks, and waits at most `limit` for the answer. Answers to questions
    /// that were given up are not taken for it.
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

    /// Another that goes on with the same shared area, told `start`. Where it
    /// runs is `noted` before.
    ///
    /// # Errors
    /// As the first's: what it says, or how it failed to say anything.
    fn successor(
        &self,
        start: StartDm,
        noted: &dyn Fn(Place),
    ) -> anyhow::Result<Arc<dyn DeviceModel>>;
}

/// Whether an error of a device model's start is that it died or fell silent, and
/// not what it said.
pub fn died(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ControlError>().is_some()
}

impl dyn DeviceModel + '_ {
    /// The device, for people and tools.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn tree(&self) -> anyhow::Result<Value> {
        match self.ask(&ToDm::Inspect, LIMIT)? {
            FromDm::Tree(tree) => Ok(tree),
            other => bail!("the device model answered {other:?}"),
        }
    }

    /// A step of a save that may take `limit`.
    ///
    /// # Errors
    /// Why it was not done, or that it does not answer.
    pub fn step(&self, step: &ToDm, limit: Duration) -> anyhow::Result<()> {
        match self.ask(step, limit)? {
            FromDm::Done => Ok(()),
            other => bail!("the device model answered {other:?}"),
        }
    }

    /// Runs of pages it wrote, `most` at most: first frame and number.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn written(&self, most: usize) -> anyhow::Result<Vec<(u64, u64)>> {
        match self.ask(&ToDm::Written { most }, LIMIT)? {
            FromDm::Written(runs) => Ok(runs),
            other => bail!("the device model answered {other:?}"),
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
