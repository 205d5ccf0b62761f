//! The `vgpu=` specification: its keys, defaults and one parser.
//!
//! A specification is what stands between the quotes of
//! `vgpu = ["gpu=bdw,slot=16"]` in an xl configuration, and what follows
//! `-vgpu` on a device model's command line. xl-vgpu, vgpu-launcher and vgpud
//! all parse it here, so they agree. [`KEYS`] is the only list of keys:
//! parsing, error messages and the check of the documentation follow it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod keys;
mod share;
mod slots;

pub use keys::{KEYS, Key, MODES};
pub use share::{NoSuchPriority, Priority, Share};
pub use slots::{MAX_SLOT, SlotUse, Slots};

/// The longest specification that is looked at, in bytes.
pub const MAX_SPEC_LEN: usize = 4096;

/// What virtual GPU a guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuSpec {
    /// The device emulated; what the host's GPU is when nothing is said.
    pub gpu: Option<Gpu>,
    /// PCI slot on bus 0, 2 to 31.
    pub slot: u8,
    /// Size of BAR2, the aperture, in MiB.
    pub aperture_mib: u32,
    /// The mode the virtual monitor prefers.
    pub mode: Mode,
    /// Whether it has MSI; without, its interrupt is INTA of its slot.
    pub msi: bool,
    /// What it gets of the GPU's time.
    pub share: Share,
    /// Whether its device model gets a domain of its own; what the host's
    /// default is when nothing is said.
    pub stub: Option<bool>,
    /// The QEMU to run instead of the distribution's.
    pub qemu: Option<PathBuf>,
}

impl Default for VgpuSpec {
    fn default() -> Self {
        Self {
            gpu: None,
            slot: 16,
            aperture_mib: 256,
            mode: Mode {
                width: 1024,
                height: 768,
            },
            msi: true,
            share: Share::default(),
            stub: None,
            qemu: None,
        }
    }
}

/// A device that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gpu {
    /// Broadwell GT2 ULT, PCI id 8086:1616.
    Bdw,
    /// Kaby Lake GT2 ULT, PCI id 8086:5916.
    Kbl,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bdw => "bdw",
            Self::Kbl => "kbl",
        })
    }
}

/// A display mode in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// Pixels of a line.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// What is wrong with a specification, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vgpu: {key} is {value:?}, allowed: {allowed}")]
pub struct SpecError {
    /// The key, or the part of the specification.
    pub key: String,
    /// What it was set to.
    pub value: String,
    /// What it may be set to.
    pub allowed: String,
}

impl SpecError {
    /// A [`SpecError`]; long values are cut, as they may come from anywhere.
    pub fn new(
        key: impl Into<String>,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let mut value = value.into();
        if let Some((cut, _)) = value.char_indices().nth(80) {
            value.truncate(cut);
            value.push('…');
        }
        Self {
            key: key.into(),
            value,
            allowed: allowed.into(),
        }
    }
}

impl FromStr for VgpuSpec {
    type Err = SpecError;

    /// Parses `key=value,key=value`. Blanks around keys and values do not
    /// count; a key may stand once; what is not given has its default, so the
    /// empty string is the default vGPU.
    fn from_str(s: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        spec.assign(s, |_| true)?;
        Ok(spec)
    }
}

impl VgpuSpec {
    /// Changes what `changes`, in the form of a specification, names. Only
    /// keys that are [`Key::live`] may stand there, one at least. On an error
    /// nothing is changed.
    ///
    /// # Errors
    /// [`SpecError`] for the first thing that is wrong.
    pub fn change(&mut self, changes: &str) -> Result<(), SpecError> {
        let mut spec = self.clone();
        if spec.assign(changes, |key| key.live)? == 0 {
            return Err(SpecError::new("specification", changes, "KEY=VALUE"));
        }
        *self = spec;
        Ok(())
    }

    /// The device emulated on a host whose GPU is `host`.
    ///
    /// # Errors
    /// [`SpecError`] when that cannot be.
    pub fn gpu_on(&self, host: Gpu) -> Result<Gpu, SpecError> {
        match self.gpu {
            Some(gpu) if gpu != host => {
                let allowed = format!("{host}, which this host's GPU is");
                Err(SpecError::new("gpu", gpu.to_string(), allowed))
            }
            _ => Ok(host),
        }
    }

    /// Sets what stands in `s`, of the keys that `of` picks. Returns how many
    /// it set.
    fn assign(&mut self, s: &str, of: fn(&Key) -> bool) -> Result<usize, SpecError> {
        if s.len() > MAX_SPEC_LEN {
            let allowed = format!("at most {MAX_SPEC_LEN} bytes");
            return Err(SpecError::new("specification", s, allowed));
        }
        let mut seen = Vec::new();
        for pair in pairs(s) {
            let (name, value) = pair?;
            let Some(key) = KEYS.iter().find(|k| k.name == name && of(k)) else {
                return Err(SpecError::new("key", name, names(of)));
            };
            if seen.contains(&key.name) {
                return Err(SpecError::new(
                    key.name,
                    value,
                    "one value; it is set twice",
                ));
            }
            seen.push(key.name);
            (key.set)(self, value).ok_or_else(|| SpecError::new(key.name, value, key.allowed()))?;
        }
        Ok(seen.len())
    }
}

impl fmt::Display for VgpuSpec {
    /// A specification that parses to the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gpu) = self.gpu {
            write!(f, "gpu={gpu},")?;
        }
        write!(
            f,
            "slot={},aperture={},mode={},{}",
            self.slot, self.aperture_mib, self.mode, self.share,
        )?;
        if let Some(stub) = self.stub {
            write!(f, ",stub={}", u8::from(stub))?;
        }
        if !self.msi {
            f.write_str(",msi=off")?;
        }
        if let Some(qemu) = &self.qemu {
            write!(f, ",qemu={}", qemu.display())?;
        }
        Ok(())
    }
}

/// The keys and values in `s`.
fn pairs(s: &str) -> impl Iterator<Item = Result<(&str, &str), SpecError>> {
    let parts = s.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| {
        let pair = part.split_once('=').map(|(k, v)| (k.trim(), v.trim()));
        pair.ok_or_else(|| SpecError::new("specification", part, "KEY=VALUE"))
    })
}

/// One list of changes that does what `older` and then `newer` do, both as
/// [`VgpuSpec::change`] takes them.
///
/// # Errors
/// [`SpecError`] for the first thing that is wrong in either.
pub fn join_changes(older: &str, newer: &str) -> Result<String, SpecError> {
    let mut check = VgpuSpec::default();
    check.change(newer)?;
    let mut joined: BTreeMap<&str, &str> = BTreeMap::new();
    if !older.is_empty() {
        check.change(older)?;
        joined = pairs(older).collect::<Result<_, _>>()?;
    }
    for pair in pairs(newer) {
        let (key, value) = pair?;
        joined.insert(key, value);
    }
    let joined: Vec<String> = joined.iter().map(|(k, v)| format!("{k}={v}")).collect();
    Ok(joined.join(","))
}

fn names(of: fn(&Key) -> bool) -> String {
    let names: Vec<_> = KEYS.iter().filter(|k| of(k)).map(|k| k.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
