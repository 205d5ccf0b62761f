//! A vGPU's saved state as a stream of sections
//! (`docs/migration-format.md`).

mod table;

use serde::{Deserialize, Serialize};
use serde_json::{from_slice, to_vec};
use vgpu_migrate::stream::{Known, Name, Section, Stream, StreamError, Writer};

use crate::vgpu::{BadScheduler, SchedulerV1};
pub use table::{BadTable, PackedTable};
pub use vgpu_control::MAX_DEVICE;

/// The guest's global page table.
pub const TABLE: Name = Name::of("table");

/// What this vgpud reads.
pub const KNOWN: [Known; 4] = [
    version_1(Name::HOST),
    version_1(Name::DEVICE),
    version_1(Name::SCHEDULER),
    version_1(TABLE),
];

const fn version_1(name: Name) -> Known {
    Known {
        name,
        oldest: 1,
        newest: 1,
    }
}

/// The host a vGPU was saved on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostV1 {
    /// Which GPU it has, as `gpu=` names it.
    pub gpu: String,
    /// The version of its vgpud, for people.
    pub vgpud: String,
}

impl HostV1 {
    /// A host with this GPU and this vgpud.
    #[must_use]
    pub fn new(gpu: &str) -> Self {
        Self {
            gpu: gpu.to_owned(),
            vgpud: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// A vGPU's saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where it was saved.
    pub host: HostV1,
    /// vgpu-dm's `DeviceV1`, JSON that is none of vgpud's business.
    pub device: Vec<u8>,
    /// What vgpud held of it.
    pub scheduler: SchedulerV1,
    /// The guest's global page table.
    pub table: PackedTable,
}

/// A stream that no vGPU can be made from here.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A section that is JSON.
    #[error("section {name}: {source}")]
    Json {
        /// Which.
        name: Name,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The device is longer than any.
    #[error("section device has {0} bytes, allowed: up to {MAX_DEVICE}")]
    Device(usize),
    /// What vgpud held.
    #[error("section scheduler: {0}")]
    Scheduler(#[from] BadScheduler),
    /// The page table.
    #[error("section table: {0}")]
    Table(#[from] BadTable),
    /// Another GPU.
    #[error("the vGPU was saved on a host with gpu={saved}, this one has gpu={here}")]
    Host {
        /// What the source has.
        saved: String,
        /// What this host has.
        here: String,
    },
}

impl Saved {
    /// The sections, to be [finished](Writer::finish) as a stream.
    ///
    /// # Errors
    /// When a part cannot be made into JSON.
    pub fn writer(&self) -> serde_json::Result<Writer> {
        let Self {
            host,
            device,
            scheduler,
            table,
        } = self;
        let host = to_vec(host)?;
        let scheduler = to_vec(scheduler)?;
        let sections = [
            (Name::HOST, host.as_slice()),
            (Name::DEVICE, device),
            (Name::SCHEDULER, &scheduler),
            (TABLE, table.bytes()),
        ];
        Ok(sections.into_iter().fold(Writer::new(), |w, (name, body)| {
            w.section(&Section::required(name, 1, body))
        }))
    }

    /// Reads a stream. All but the device is checked, which its vgpu-dm does.
    ///
    /// # Errors
    /// [`SavedError`] names the part.
    pub fn parse(bytes: &[u8]) -> Result<Self, SavedError> {
        let stream = Stream::parse(bytes, &KNOWN)?;
        let body = |name| stream.require(name).map(|s| &*s.body);
        let json = |name| move |source| SavedError::Json { name, source };
        let host: HostV1 = from_slice(body(Name::HOST)?).map_err(json(Name::HOST))?;
        let device = body(Name::DEVICE)?;
        if device.len() > MAX_DEVICE {
            return Err(SavedError::Device(device.len()));
        }
        let scheduler: SchedulerV1 =
            from_slice(body(Name::SCHEDULER)?).map_err(json(Name::SCHEDULER))?;
        if let Some(gpu) = gen8::Platform::named(&host.gpu) {
            scheduler.check(gpu)?;
        }
        Ok(Self {
            host,
            device: device.to_vec(),
            scheduler,
            table: PackedTable::from_bytes(body(TABLE)?)?,
        })
    }

    /// Whether a host with this GPU can run it.
    ///
    /// # Errors
    /// [`SavedError::Host`].
    pub fn fits(&self, gpu: &str) -> Result<(), SavedError> {
        if self.host.gpu == gpu {
            return Ok(());
        }
        Err(SavedError::Host {
            saved: self.host.gpu.clone(),
            here: gpu.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
