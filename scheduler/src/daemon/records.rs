//! What a vgpud to come has to know of each guest.
//!
//! A file for each guest in a directory of root's: what was registered, and
//! which processes it has. Written anew and renamed, so that it is whole
//! whenever vgpud dies. Not trusted when it is read: what it says is compared
//! with what is there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use vgpu_control::{Place, QmpSockets};
use vgpu_ring::AreaWords;
use vgpu_sched::flights::{FlightLog, KeptWords, LOG_WORDS};

use super::platform::Platform;
use super::process::Process;

/// The longest record, in bytes: two paths and small fields.
const MAX_RECORD: u64 = 64 << 10;

/// How often, and after what pause, another vgpud's lock is tried for.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// What this vgpud writes and reads.
const VERSION: u32 = 1;

/// A guest that has a vGPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestRecord {
    /// Of its form.
    pub version: u32,
    /// Its domain.
    pub domid: u16,
    /// Who it is, as Xen's toolstack says: domain ids come again.
    pub uuid: Option<String>,
    /// What was asked for.
    pub vgpu: String,
    /// The sockets of the QMP proxy.
    pub qmp: Option<QmpSockets>,
    /// Its QEMU.
    pub qemu: Process,
    /// Its device model, if that is a process of dom0.
    pub dm: Option<Process>,
    /// Its device model's domain, if that has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stub: Option<StubRecord>,
    /// The id of its ioreq server.
    pub server: u16,
    /// Inode of the shared area's memfd; 0 if it is memory of a stub domain.
    pub area: u64,
    /// Its page table is RAM of its own.
    pub table_in_ram: bool,
    /// Why it has lost its vGPU, if it has.
    pub failure: Option<String>,
}

impl GuestRecord {
    /// A record of this version for a guest with nothing yet.
    pub fn new(domid: u16, qemu: Process) -> Self {
        Self {
            version: VERSION,
            domid,
            uuid: None,
            vgpu: String::new(),
            qmp: None,
            qemu,
            dm: None,
            stub: None,
            server: 0,
            area: 0,
            table_in_ram: false,
            failure: None,
        }
    }
}

impl GuestRecord {
    /// Notes where its device model runs.
    pub fn runs_at(&mut self, place: Place, platform: &dyn Platform) {
        (self.dm, self.stub) = match place {
            Place::Process(pid) => (Process::of(pid).ok(), None),
            Place::Domain(domid) => (None, Some(StubRecord::of(domid, platform))),
        };
    }
}

/// A device model's own domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StubRecord {
    /// Its number.
    pub domid: u16,
    /// Which domain of that number.
    pub uuid: Option<String>,
}

impl StubRecord {
    /// The domain that has this number now.
    pub fn of(domid: u16, platform: &dyn Platform) -> Self {
        let uuid = platform.identify(domid).uuid;
        Self {
            domid,
            uuid: uuid.as_ref().map(ToString::to_string),
        }
    }
}

/// The directory. One process has it at a time.
#[derive(Clone, Debug)]
pub struct Records {
    path: PathBuf,
    _lock: Arc<File>,
}

impl Records {
    /// Makes it, unless it is there.
    ///
    /// # Errors
    /// When it cannot be made, others may write there, or another vgpud has it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("directory {}", path.display());
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700).recursive(true);
        builder.create(path).with_context(what)?;
        let metadata = std::fs::symlink_metadata(path).with_context(what)?;
        let uid = rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o022 != 0 {
            bail!(
                "{} has mode {:o} and uid {}, allowed: a directory that only uid {uid} writes",
                path.display(),
                metadata.mode(),
                metadata.uid()
            );
        }
        let lock = path.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&lock).with_context(what)?;
        // It goes with the process, however that ends, and with what the process
        // was about to start: a child has it until it runs its program.
        let mut tries = 0;
        while let Err(e) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            tries += 1;
            if e != Errno::WOULDBLOCK || tries == LOCK_TRIES {
                return Err(e).with_context(|| format!("another vgpud has {}", lock.display()));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(Self {
            path: path.to_owned(),
            _lock: Arc::new(file),
        })
    }

    fn path(&self, domid: u16) -> PathBuf {
        self.path.join(format!("guest-{domid}"))
    }

    /// Writes a guest's record, in place of the one there was.
    ///
    /// # Errors
    /// What the system says; the old one is there then.
    pub fn write(&self, record: &GuestRecord) -> anyhow::Result<()> {
        let path = self.path(record.domid);
        let new = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options
                .open(&new)?
                .write_all(&serde_json::to_vec(record)?)?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Forgets a guest.
    pub fn remove(&self, domid: u16) {
        remove(&self.path(domid));
        self.let_go(domid);
    }

    fn hold_path(&self, domid: u16) -> PathBuf {
        self.path.join(format!("held-{domid}"))
    }

    /// Notes that the guest is about to be paused by us. A file of its own: it
    /// comes and goes while the record is another's to write.
    ///
    /// # Errors
    /// What the system says.
    pub fn hold(&self, domid: u16) -> anyhow::Result<()> {
        let path = self.hold_path(domid);
        let made = File::create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(())
    }

    /// Whether the guest was about to be paused, and is not known to run again.
    pub fn held(&self, domid: u16) -> bool {
        self.hold_path(domid).exists()
    }

    /// Notes that it runs again.
    pub fn let_go(&self, domid: u16) {
        remove(&self.hold_path(domid));
    }

    /// The guests that were another vgpud's. What is no record is removed; one
    /// of another version is left for a vgpud that can read it.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn read(&self) -> anyhow::Result<Vec<GuestRecord>> {
        let mut records = Vec::new();
        let what = || format!("directory {}", self.path.display());
        for entry in std::fs::read_dir(&self.path).with_context(what)? {
            let path = entry.with_context(what)?.path();
            let name = path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default();
            let Some(rest) = name.strip_prefix("guest-") else {
                continue;
            };
            match read(&path, rest) {
                Ok(record) => records.push(record),
                Err(e) if e.is::<OtherVersion>() => {
                    log::error!("domain {rest} has no GPU until its vgpud is back: {e}");
                }
                Err(e) => {
                    log::warn!("{} is no record: {e:#}", path.display());
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        records.sort_by_key(|r| r.domid);
        Ok(records)
    }

    /// What keeps the place of what is at the GPU. `None`, with a warning, when
    /// it cannot be had: then what was at the GPU when a vgpud died is lost.
    pub fn flights(&self) -> Option<Arc<FlightLog>> {
        let path = self.path.join("flights");
        let open = || -> anyhow::Result<_> {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o600);
            let file = options.truncate(false).open(&path)?;
            let words = AreaWords::of_file(&file, LOG_WORDS)?;
            Ok(FlightLog::open(Box::new(Words(words)))?)
        };
        let opened = open().or_else(|e| {
            log::warn!("{}: {e:#}; it is made anew", path.display());
            std::fs::remove_file(&path)?;
            open()
        });
        let lost = |e| log::warn!("{}: {e:#}", path.display());
        opened.map_err(lost).ok()
    }
}

fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_file(path)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("cannot remove {}: {e}", path.display());
    }
}

/// A record that this vgpud cannot read.
#[derive(Debug, thiserror::Error)]
#[error("version of its record is {0}, allowed: {VERSION}")]
struct OtherVersion(u64);

fn read(path: &Path, name: &str) -> anyhow::Result<GuestRecord> {
    let mut text = Vec::new();
    File::open(path)?
        .take(MAX_RECORD + 1)
        .read_to_end(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|n| n > MAX_RECORD) {
        bail!("it has more than {MAX_RECORD} bytes");
    }
    let version = serde_json::from_slice::<serde_json::Value>(&text)?["version"].clone();
    match version.as_u64() {
        Some(n) if n == u64::from(VERSION) => {}
        Some(n) => bail!(OtherVersion(n)),
        None => bail!("version is {version}, allowed: {VERSION}"),
    }
    let record: GuestRecord = serde_json::from_slice(&text)?;
    if record.domid.to_string() != name {
        bail!("domid is {}, allowed: {name}", record.domid);
    }
    Ok(record)
}

struct Words(AreaWords);

impl KeptWords for Words {
    fn load(&self, index: usize) -> u64 {
        vgpu_ring::Words::load(&self.0, index, std::sync::atomic::Ordering::Acquire)
    }

    fn store(&self, index: usize, value: u64) {
        vgpu_ring::Words::store(&self.0, index, value, std::sync::atomic::Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_read_again_and_nothing_else_is() {
        let dir = std::env::temp_dir().join(format!("vgpud-records-{}", std::process::id()));
        let records = Records::open(&dir).unwrap();
        let process = Process { pid: 7, started: 8 };
        let record = |domid| GuestRecord {
            vgpu: "slot=5".into(),
            area: 99,
            ..GuestRecord::new(domid, process)
        };
        for domid in [12, 9] {
            records.write(&record(domid)).unwrap();
        }
        let changed = GuestRecord {
            failure: Some("it broke".into()),
            ..record(9)
        };
        records.write(&changed).unwrap();
        let put = |name: &str, text: &[u8]| std::fs::write(dir.join(name), text).unwrap();
        put("guest-3", b"{");
        put("guest-4", &serde_json::to_vec(&record(5)).unwrap());
        put("guest-6", br#"{"version":200}"#);
        put("guest-7", &vec![b' '; 70_000]);
        put("guest-8.new", b"{}");
        assert!(records.flights().is_some());
        assert_eq!(records.read().unwrap(), [changed, record(12)]);
        let left = |name: &str| dir.join(name).exists();
        assert!(left("guest-6"));
        assert!(!["guest-3", "guest-4", "guest-7"].into_iter().any(left));
        records.hold(9).unwrap();
        records.hold(12).unwrap();
        records.remove(9);
        records.remove(9);
        assert!(records.held(12) && !records.held(9));
        records.let_go(12);
        assert!(!records.held(12));
        assert_eq!(records.read().unwrap(), [record(12)]);
        // A log of a kind that this vgpud does not know.
        put("flights", &[1; 4096]);
        assert!(records.flights().is_some());
        put("flights", &vec![0; LOG_WORDS * 8 + 1]);
        assert!(records.flights().is_some());
        assert!(Records::open(&dir).is_err());
        drop(records);
        let records = Records::open(&dir).unwrap();
        drop(records);
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Records::open(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
