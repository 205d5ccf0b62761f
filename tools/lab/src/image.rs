//! The images: built once, kept in the cache, never written by a run.

mod initrd;
mod kernel;
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
pub use kernel::{GuestKernel, KernelImage, STUB};

/// All that a run boots from; paths into the cache.
pub struct Images {
    dir: PathBuf,
}

impl Images {
    /// Takes the images from the cache, building them first if this recipe has
    /// not been built yet.
    pub fn ensure(cache: &Cache) -> anyhow::Result<Self> {
        let dir = cached(cache, "images", &rootfs::recipe(), |out| {
            program::require(program::FOR_IMAGES)?;
            rootfs::build(out)
        })?;
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

impl KernelImage {
    /// Takes the image of a kernel from the cache, building it first if it is
    /// not there.
    pub fn ensure(cache: &Cache, source: &kernel::Source) -> anyhow::Result<Self> {
        let dir = cached(cache, source.name, &kernel::recipe(source), |out| {
            program::require(program::FOR_KERNELS)?;
            kernel::build(source, out)
        })?;
        Ok(Self::at(dir))
    }
}

/// The folder of an image in the cache; `build` fills it if it is not there.
fn cached(
    cache: &Cache,
    name: &str,
    recipe: &str,
    build: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    let dir = cache
        .root()
        .join(format!("{name}-{:016x}", hasher.finish()));
    if dir.is_dir() {
        return Ok(dir);
    }
    // Built aside and renamed: an interrupted build leaves no image that
    // looks complete.
    let unfinished = cache.root().join("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)
            .with_context(|| format!("cannot clear {}", unfinished.display()))?;
    }
    fs::create_dir_all(&unfinished)?;
    let started = Instant::now();
    info!("building {} (minutes, once)", dir.display());
    build(&unfinished)?;
    fs::rename(&unfinished, &dir)?;
    info!("{name} built in {} s", started.elapsed().as_secs());
    Ok(dir)
}
