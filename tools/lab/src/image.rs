//! The images: built once, kept in the cache, never written by a run.

mod cpio;
mod initrd;
mod modules;
mod rootfs;

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use log::info;

use crate::cache::Cache;
use crate::program;

pub use initrd::Initrd;

/// All that a run boots from; paths into the cache.
pub struct Images {
    dir: PathBuf,
}

impl Images {
    /// Takes the images from the cache, building them first if this recipe has
    /// not been built yet.
    pub fn ensure(cache: &Cache) -> anyhow::Result<Self> {
        let mut hasher = DefaultHasher::new();
        rootfs::recipe().hash(&mut hasher);
        let dir = cache
            .root()
            .join(format!("images-{:016x}", hasher.finish()));
        if !dir.is_dir() {
            program::require(program::FOR_IMAGES)?;
            // Built aside and renamed: an interrupted build leaves no images
            // that look complete.
            let unfinished = cache.root().join("unfinished");
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)
                    .with_context(|| format!("cannot clear {}", unfinished.display()))?;
            }
            fs::create_dir_all(&unfinished)?;
            let started = Instant::now();
            info!("building images in {} (some minutes, once)", dir.display());
            rootfs::build(&unfinished)?;
            fs::rename(&unfinished, &dir)?;
            info!("images built in {} s", started.elapsed().as_secs());
        }
        Ok(Self { dir })
    }

    /// The folder that holds them.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// dom0's root disk (ext4, raw).
    pub fn dom0_disk(&self) -> PathBuf {
        self.dir.join(rootfs::DOM0_DISK)
    }

    /// The guests' root disk (ext4, raw).
    pub fn guest_disk(&self) -> PathBuf {
        self.dir.join(rootfs::GUEST_DISK)
    }

    /// Debian's kernel, the same for dom0 and guests.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join(rootfs::KERNEL)
    }

    /// Xen, unpacked.
    pub fn xen(&self) -> PathBuf {
        self.dir.join(rootfs::XEN)
    }

    /// A static busybox for the initial RAM disks.
    pub fn busybox(&self) -> PathBuf {
        self.dir.join(rootfs::BUSYBOX)
    }

    /// Root of the unpacked QEMU.
    pub fn qemu(&self) -> PathBuf {
        self.dir.join(rootfs::QEMU)
    }

    /// Modules the initial RAM disks choose from, with their modules.dep.
    pub fn modules(&self) -> PathBuf {
        self.dir.join(rootfs::MODULES)
    }
}
