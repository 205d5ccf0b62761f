//! What a guest brings that was saved, or comes from another host.

use std::fs::File;

use anyhow::Context;
use vgpu_migrate::stream::{Known, Name, Section, Stream, find, read_file};

/// The sections this vgpud can read. Others are refused if the guest needs
/// them.
pub const KNOWN: [Known; 4] = [
    known(Name::HOST),
    known(Name::DEVICE),
    known(Name::SCHEDULER),
    known(super::TIMES),
];

const fn known(name: Name) -> Known {
    Known {
        name,
        oldest: 1,
        newest: 1,
    }
}

/// A vGPU's saved state, whole and of known sections. Bodies are yet to be
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    sections: Vec<Section<'static>>,
}

impl Saved {
    /// Reads the stream behind QEMU's state. The file's position stays.
    ///
    /// # Errors
    /// When there is none, or what is wrong with it.
    pub fn read(file: &File) -> anyhow::Result<Self> {
        let bytes = read_file(file).context("cannot read the saved state")?;
        let (_, stream) = find(&bytes)
            .context("the saved state has no vGPU in it, or not the one that belongs to it")?;
        let stream = Stream::parse(stream, &KNOWN).context("the saved vGPU")?;
        let sections = KNOWN.iter().filter_map(|k| stream.get(k.name));
        let owned = |s: &Section<'_>| Section {
            name: s.name,
            version: s.version,
            required: s.required,
            body: s.body.to_vec().into(),
        };
        Ok(Self {
            sections: sections.map(owned).collect(),
        })
    }

    /// The body of a section, if it is there.
    pub fn body(&self, name: Name) -> Option<&[u8]> {
        let section = self.sections.iter().find(|s| s.name == name)?;
        Some(&section.body)
    }
}
