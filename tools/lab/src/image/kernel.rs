//! Kernels that guests boot besides bookworm's: each an image of its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use boot_image::ModuleTree;

use super::rootfs::{self, Work};
use crate::program;

/// A kernel for guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKernel {
    /// Debian bookworm's 6.1, which is dom0's, too.
    Bookworm,
    /// Debian trixie's 6.12.
    Trixie,
}

/// Raise it when [`build`] changes what it makes.
const RECIPE_VERSION: u32 = 1;

/// The kernel, and kmod for the list of dependencies that the kernel's own
/// scripts would make.
const PACKAGES: &str = "linux-image-amd64,kmod";

/// What a guest loads beyond what its initial RAM disk needs.
const MODULES: &[&str] = &["i915"];

const KERNEL: &str = "vmlinuz";
const TREE: &str = "modules";

impl GuestKernel {
    /// As scripts, folders and recordings call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm-6.1",
            Self::Trixie => "trixie-6.12",
        }
    }

    /// The Debian suite that its image is made from; none if it is dom0's.
    pub const fn suite(self) -> Option<&'static str> {
        match self {
            Self::Bookworm => None,
            Self::Trixie => Some("trixie"),
        }
    }
}

/// Everything that decides the content of a suite's image, for the cache key.
pub fn recipe(suite: &str) -> String {
    format!(
        "{RECIPE_VERSION} {suite} {PACKAGES} {MODULES:?} {:?}",
        rootfs::GUEST_MODULES
    )
}

/// A built kernel; paths into the cache.
pub struct KernelImage {
    dir: PathBuf,
}

impl KernelImage {
    /// The one in `dir`.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The kernel (bzImage).
    pub fn kernel(&self) -> PathBuf {
        self.dir.join(KERNEL)
    }

    /// The folder whose only entry, named by the kernel's version, is a module
    /// tree as modprobe wants it.
    pub fn module_folder(&self) -> PathBuf {
        self.dir.join(TREE)
    }

    /// That entry.
    pub fn modules(&self) -> anyhow::Result<PathBuf> {
        rootfs::only(&self.module_folder(), "", "")
    }
}

/// Builds the image of a suite's kernel in `out`.
pub fn build(suite: &str, out: &Path) -> anyhow::Result<()> {
    let work = Work::new(out)?;
    let root = out.join("root");
    work.step(&format!("kernel of {suite}"), || {
        // Unpacked only: what would have to be configured is not wanted.
        work.debootstrap(suite, "extract", PACKAGES, &root)?;
        fs::copy(
            rootfs::only(&root.join("boot"), "vmlinuz-", "")?,
            out.join(KERNEL),
        )?;
        let all = rootfs::only(&root.join("usr/lib/modules"), "", "")?;
        let version = all
            .file_name()
            .context("the module folder has no name")?
            .to_string_lossy()
            .into_owned();
        depmod(&work, &root, &root.join("usr"), &version)?;
        // modprobe and busybox read plain modules at any rate, so that is what
        // they get.
        let tree = ModuleTree::open(&all)?;
        let wanted: Vec<&str> = rootfs::GUEST_MODULES
            .iter()
            .chain(MODULES)
            .copied()
            .collect();
        let own = out.join("lib/modules").join(&version);
        tree.copy(&wanted, &own)?;
        for file in tree.load_order(&wanted)? {
            if file.ends_with(".xz") {
                work.run(program::command("xz").arg("-d").arg(own.join(file)))?;
            }
        }
        for list in [
            "modules.builtin",
            "modules.builtin.modinfo",
            "modules.order",
        ] {
            fs::copy(all.join(list), own.join(list))?;
        }
        depmod(&work, &root, out, &version)?;
        fs::rename(out.join("lib/modules"), out.join(TREE))?;
        fs::remove_dir(out.join("lib"))?;
        Ok(())
    })?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Lists the dependencies of `base`/lib/modules/`version` with the kmod of
/// `root`, run with its own libraries: the host may have none.
fn depmod(work: &Work<'_>, root: &Path, base: &Path, version: &str) -> anyhow::Result<()> {
    work.run(
        program::command(&rootfs::loader(root).to_string_lossy())
            .args(["--argv0", "depmod", "--library-path"])
            .arg(root.join("usr/lib/x86_64-linux-gnu"))
            .arg(root.join("usr/bin/kmod"))
            .arg("-b")
            .arg(base)
            .arg(version),
    )
}
