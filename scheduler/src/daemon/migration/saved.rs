//! What a guest brings that was saved, or comes from another host.

use std::fs::File;

use anyhow::Context;
use vgpu_migrate::stream::{Known, Stream, find, read_file};
use vgpu_sched::saved::Saved;

use super::TIMES;
use super::file::MARK;
use super::times::Times;
use crate::daemon::device_model::one_line;

/// A vGPU's saved state, and what its guest waited for so far.
pub struct Arriving {
    /// The state.
    pub saved: Saved,
    /// What the source told of the downtime, if it did.
    pub times: Option<Times>,
    /// Where in the file QEMU's state begins.
    pub qemu_at: u64,
}

impl Arriving {
    /// Reads the stream behind QEMU's state. The file's position stays.
    ///
    /// # Errors
    /// When there is none, or what is wrong with it.
    pub fn read(file: &File) -> anyhow::Result<Self> {
        let bytes = read_file(file).context("cannot read the saved state")?;
        let (before, stream) = find(&bytes)
            .context("the saved state has no vGPU in it, or not the one that belongs to it")?;
        let saved = Saved::parse(stream).context("the saved vGPU")?;
        Ok(Self {
            saved,
            times: times(stream),
            // Earlier vgpuds wrote no mark.
            qemu_at: if before.starts_with(&MARK) { 8 } else { 0 },
        })
    }
}

/// The optional section. What is wrong with it is no reason to refuse a guest.
fn times(stream: &[u8]) -> Option<Times> {
    let times = Known {
        name: TIMES,
        oldest: 1,
        newest: 1,
    };
    let known: Vec<Known> = vgpu_sched::saved::KNOWN
        .into_iter()
        .chain([times])
        .collect();
    let stream = Stream::parse(stream, &known).ok()?;
    let section = stream.get(TIMES)?;
    let times = Times::parse(&section.body);
    times.inspect_err(|e| log::warn!("{}", one_line(e))).ok()
}
