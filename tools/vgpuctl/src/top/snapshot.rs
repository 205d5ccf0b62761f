//! All counts at one moment.

use vgpu_control::{ClientRequest, EngineSample, Sample, VgpuSample};

use crate::daemon::Daemon;

/// What vgpud counts, of every engine and vGPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Which vgpud.
    pub vgpud: u32,
    /// When, in nanoseconds of its clock.
    pub at_ns: u64,
    /// Engines.
    pub engines: Vec<EngineSample>,
    /// vGPUs by domain.
    pub vgpus: Vec<VgpuSample>,
}

impl Snapshot {
    /// Takes one from vgpud, in as many answers as it needs.
    ///
    /// # Errors
    /// When vgpud does not answer.
    pub fn take(daemon: &Daemon) -> anyhow::Result<Self> {
        let ask = |after| daemon.ask::<Sample>(&ClientRequest::Top { after });
        let mut first = ask(None)?;
        let mut next = first.next;
        // The domain grows with each page, so this ends.
        while let Some(after) = next {
            let page = ask(Some(after))?;
            anyhow::ensure!(page.vgpud == first.vgpud, "vgpud was started anew");
            first.vgpus.extend(page.vgpus);
            next = page.next.filter(|n| *n > after);
        }
        Ok(first.into())
    }
}

impl From<Sample> for Snapshot {
    fn from(sample: Sample) -> Self {
        Self {
            vgpud: sample.vgpud,
            at_ns: sample.at_ns,
            engines: sample.engines,
            vgpus: sample.vgpus,
        }
    }
}
