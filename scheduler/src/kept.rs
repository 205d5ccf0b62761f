//! Shares set while a guest ran, kept for when it comes again.
//!
//! They are in one JSON file, by the guest's UUID. A file that is damaged is
//! put aside, never overwritten, and the daemon goes on without it.

mod file;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use vgpu_config::{SpecError, join_changes};

use crate::sync::lock;

/// The file's name in the state directory.
pub const FILE: &str = "shares.json";

/// The most guests that are remembered. With more, those whose shares were
/// set longest ago are forgotten.
pub const MAX_GUESTS: usize = 1024;

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The form of the file.
const VERSION: u32 = 1;

/// A guest's UUID, as the toolstack gave it: it outlives a domain id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid(String);

/// Not a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("uuid is {0:?}, allowed: 8-4-4-4-12 hexadecimal digits")]
pub struct NotAUuid(String);

impl FromStr for Uuid {
    type Err = NotAUuid;

    fn from_str(s: &str) -> Result<Self, NotAUuid> {
        let groups = s.split('-').map(str::len);
        let digits = s.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
        if digits && groups.eq([8, 4, 4, 4, 12]) {
            return Ok(Self(s.to_ascii_lowercase()));
        }
        Err(NotAUuid(s.chars().take(80).collect()))
    }
}

impl TryFrom<String> for Uuid {
    type Error = NotAUuid;

    fn try_from(s: String) -> Result<Self, NotAUuid> {
        s.parse()
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is kept for a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The guest.
    pub uuid: Uuid,
    /// What differs from its configuration, as `VgpuSpec::change` takes it.
    pub changes: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    shares: Vec<Kept>,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// Not the file of a vgpud.
    #[error("it is no regular file of at most {MAX_BYTES} bytes")]
    NotAFile,
    /// Not JSON, or other JSON.
    #[error("{0}")]
    Format(#[from] serde_json::Error),
    /// From another vgpud.
    #[error("version is {0}, allowed: {VERSION}")]
    Version(u32),
    /// Too many guests.
    #[error("it has {0} guests, allowed: at most {MAX_GUESTS}")]
    Guests(usize),
    /// A guest twice.
    #[error("guest {0} stands twice")]
    Twice(Uuid),
    /// A share that nobody could have set.
    #[error("guest {uuid}: {source}")]
    Share {
        /// The guest.
        uuid: Uuid,
        /// What is wrong.
        source: SpecError,
    },
}

/// Reads a file's contents: what is kept, set longest ago first.
///
/// # Errors
/// [`Damage`].
pub fn parse(bytes: &[u8]) -> Result<Vec<Kept>, Damage> {
    let Contents { version, shares } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    if shares.len() > MAX_GUESTS {
        return Err(Damage::Guests(shares.len()));
    }
    let mut seen = std::collections::BTreeSet::new();
    for kept in &shares {
        let uuid = || kept.uuid.clone();
        if !seen.insert(&kept.uuid) {
            return Err(Damage::Twice(uuid()));
        }
        join_changes("", &kept.changes).map_err(|source| Damage::Share {
            uuid: uuid(),
            source,
        })?;
    }
    Ok(shares)
}

/// What [`parse`] reads.
fn render(shares: &[Kept]) -> serde_json::Result<Vec<u8>> {
    let contents = Contents {
        version: VERSION,
        shares: shares.to_vec(),
    };
    let mut bytes = serde_json::to_vec_pretty(&contents)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Why a share is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It is none.
    #[error(transparent)]
    Share(#[from] SpecError),
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is there could not be put aside.
    #[error("{} is damaged and could not be put aside", .0.display())]
    InTheWay(PathBuf),
}

struct State {
    /// Set longest ago first.
    shares: Vec<Kept>,
    /// A damaged file is still in its place.
    in_the_way: bool,
}

/// The shares that are kept.
pub struct KeptShares {
    path: PathBuf,
    state: Mutex<State>,
}

impl KeptShares {
    /// Reads what is kept in the directory `dir`, which is made when it is
    /// missing. What cannot be read is put aside and a warning says so.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let path = dir.join(FILE);
        if let Err(e) = file::make_dir(dir) {
            log::warn!("cannot make {}: {e}; shares are not kept", dir.display());
        }
        let (shares, in_the_way) = match load(&path) {
            Ok(shares) => (shares, false),
            Err(damage) => {
                let shown = path.display();
                match file::put_aside(&path) {
                    Ok(aside) => {
                        let aside = aside.display();
                        log::warn!("{shown}: {damage}; put aside as {aside}, nothing is kept");
                        (Vec::new(), false)
                    }
                    Err(e) => {
                        log::warn!(
                            "{shown}: {damage}; cannot put it aside: {e}; shares are not kept"
                        );
                        (Vec::new(), true)
                    }
                }
            }
        };
        Self {
            path,
            state: Mutex::new(State { shares, in_the_way }),
        }
    }

    /// What is kept for a guest.
    #[must_use]
    pub fn get(&self, uuid: &Uuid) -> Option<String> {
        let state = lock(&self.state);
        let kept = state.shares.iter().find(|k| k.uuid == *uuid)?;
        Some(kept.changes.clone())
    }

    /// Keeps `changes` for a guest, over what is kept for it already.
    ///
    /// # Errors
    /// [`KeepError`]; what was kept before still is.
    pub fn set(&self, uuid: &Uuid, changes: &str) -> Result<(), KeepError> {
        self.update(|shares| {
            let at = shares.iter().position(|k| k.uuid == *uuid);
            let older = at.map(|at| shares.remove(at).changes);
            let changes = join_changes(older.as_deref().unwrap_or_default(), changes)?;
            if shares.len() >= MAX_GUESTS {
                let oldest = shares.remove(0).uuid;
                log::warn!("guest {oldest}: its share is forgotten, {MAX_GUESTS} others are kept");
            }
            shares.push(Kept {
                uuid: uuid.clone(),
                changes,
            });
            Ok(())
        })
    }

    /// Keeps nothing for a guest.
    ///
    /// # Errors
    /// [`KeepError`]; what was kept before still is.
    pub fn forget(&self, uuid: &Uuid) -> Result<(), KeepError> {
        self.update(|shares| {
            shares.retain(|k| k.uuid != *uuid);
            Ok(())
        })
    }

    fn update(
        &self,
        change: impl FnOnce(&mut Vec<Kept>) -> Result<(), KeepError>,
    ) -> Result<(), KeepError> {
        let mut state = lock(&self.state);
        if state.in_the_way {
            return Err(KeepError::InTheWay(self.path.clone()));
        }
        let mut shares = state.shares.clone();
        change(&mut shares)?;
        if shares == state.shares {
            return Ok(());
        }
        render(&shares)
            .map_err(std::io::Error::from)
            .and_then(|bytes| file::replace(&self.path, &bytes))
            .map_err(|source| KeepError::Write {
                path: self.path.clone(),
                source,
            })?;
        state.shares = shares;
        Ok(())
    }
}

fn load(path: &Path) -> Result<Vec<Kept>, Damage> {
    match file::read(path, MAX_BYTES)? {
        None => Ok(Vec::new()),
        Some(bytes) => parse(&bytes),
    }
}

#[cfg(test)]
mod tests;
