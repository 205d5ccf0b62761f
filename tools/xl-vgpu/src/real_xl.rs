//! The xl behind this program.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::anyhow;

/// Where distributions put it.
const DEFAULT: &str = "/usr/sbin/xl";

/// Set in the environment of the real xl. Whoever finds it set was run by
/// another copy of this program, which must not be run again in turn.
const PASSED: &str = "XL_VGPU_PASSED";

/// Becomes the real xl. Returns why it could not.
pub fn exec(args: impl Iterator<Item = OsString>) -> anyhow::Error {
    let xl = find();
    let error = Command::new(&xl).args(args).env(PASSED, "1").exec();
    anyhow!("cannot execute {}: {error}", xl.display())
}

/// XL_VGPU_XL, or the first `xl` on the path that is not this program.
fn find() -> PathBuf {
    if let Some(xl) = std::env::var_os("XL_VGPU_XL") {
        return xl.into();
    }
    if std::env::var_os(PASSED).is_some() {
        return DEFAULT.into();
    }
    let own = std::env::current_exe().ok().and_then(|p| file_id(&p));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("xl"))
        .find(|xl| is_program(xl) && file_id(xl) != own)
        .unwrap_or_else(|| DEFAULT.into())
}

/// What two names of one file share.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
}
