//! Where images live between runs, and the lock that keeps runs apart.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The folder of built images, outside git and outside `target/`, so that a
/// fresh clone or `cargo clean` does not cost a root file system.
pub struct Cache {
    root: PathBuf,
    /// Held for as long as the process uses the cache: two labs at once would
    /// build the same image twice and halve each other's emulation speed,
    /// which breaks the guest driver's time limits.
    _lock: File,
}

impl Cache {
    /// Opens `$LAB_CACHE`, else `$XDG_CACHE_HOME/xen-vgpu-lab`, else
    /// `~/.cache/xen-vgpu-lab`, and locks it.
    pub fn open() -> anyhow::Result<Self> {
        let root = location(
            env::var_os("LAB_CACHE").map(PathBuf::from),
            env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            env::var_os("HOME").map(PathBuf::from),
        )
        .context("no place for the image cache: set LAB_CACHE, XDG_CACHE_HOME or HOME")?;
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot make the image cache {}", root.display()))?;
        let lock = lock(&root.join("lock"))?;
        Ok(Self { root, _lock: lock })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn location(lab: Option<PathBuf>, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let set = |p: Option<PathBuf>| p.filter(|p| !p.as_os_str().is_empty());
    set(lab)
        .or_else(|| set(xdg).map(|p| p.join("xen-vgpu-lab")))
        .or_else(|| set(home).map(|p| p.join(".cache/xen-vgpu-lab")))
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            write!(file, "{}", std::process::id())?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.rewind()?;
            file.read_to_string(&mut holder)?;
            bail!(
                "another lab (pid {}) is using {}: wait for it or set LAB_CACHE to another folder",
                holder.trim(),
                path.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_setting_names_the_cache() {
        let p = |s: &str| Some(PathBuf::from(s));
        assert_eq!(location(p("/a"), p("/b"), p("/c")), p("/a"));
        assert_eq!(location(p(""), p("/b"), p("/c")), p("/b/xen-vgpu-lab"));
        assert_eq!(location(None, None, p("/c")), p("/c/.cache/xen-vgpu-lab"));
        assert_eq!(location(None, None, None), None);
    }

    #[test]
    fn a_second_lab_is_told_who_holds_the_lock() {
        let dir = env::temp_dir().join(format!("lab-lock-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("lock");
        let first = lock(&path).unwrap();
        let refused = lock(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())));
        drop(first);
        assert!(lock(&path).is_ok());
        fs::remove_dir_all(&dir).unwrap();
    }
}
