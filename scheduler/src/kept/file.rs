//! The file: read with a bound, replaced in one step, put aside.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::Damage;

/// Damaged files that are put aside before somebody has to look at them.
const MAX_ASIDE: u32 = 99;

/// Makes the directory, for its owner only.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The file's bytes, `max` at most; `None` when there is no file.
pub fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, Damage> {
    match fs::symlink_metadata(path) {
        // Neither opened nor waited for: a pipe would never answer.
        Ok(meta) if !meta.is_file() || meta.len() > max => return Err(Damage::NotAFile),
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    let mut bytes = Vec::new();
    // It may have grown meanwhile; what is cut does not parse.
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Makes `bytes` the file's contents. After a crash either the old contents
/// are there or the new.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name is in the directory, which is a file of its own to sync.
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

/// Gives a damaged file another name, where nothing is yet, and tells which.
pub fn put_aside(path: &Path) -> io::Result<PathBuf> {
    for n in 1..=MAX_ASIDE {
        let aside = path.with_extension(format!("json.damaged-{n}"));
        match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(aside),
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::Error::other(format!(
        "{MAX_ASIDE} damaged files are there already"
    )))
}
