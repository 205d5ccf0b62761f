//! Kernels besides bookworm's usual one, of guests and of device models' own
//! domains: each an image of its own.

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

/// What a kernel's image is made from.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The image's name in the cache.
    pub name: &'static str,
    suite: &'static str,
    /// The kernel, and kmod for the list of dependencies that the kernel's own
    /// scripts would make.
    packages: &'static str,
    /// What is loaded of its modules.
    modules: &'static [&'static str],
    /// What of them an initial RAM disk may need.
    early: &'static [&'static str],
}

const TRIXIE: Source = Source {
    name: "kernel-trixie",
    suite: "trixie",
    packages: "linux-image-amd64,kmod",
    modules: &["i915"],
    early: rootfs::GUEST_MODULES,
};

/// For device models' own domains: the kernel of Debian that needs least memory
/// as a PV domain (docs/stub-domain.md).
pub const STUB: Source = Source {
    name: "kernel-stub",
    suite: "bookworm",
    packages: "linux-image-cloud-amd64,kmod",
    modules: &stub_image::MODULES,
    early: &[],
};

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

    /// What its image is made from; none if it is dom0's.
    pub const fn source(self) -> Option<Source> {
        match self {
            Self::Bookworm => None,
            Self::Trixie => Some(TRIXIE),
        }
    }
}

/// Everything that decides the content of an image, for the cache key.
pub fn recipe(source: &Source) -> String {
    let Source {
        suite,
        packages,
        modules,
        early,
        ..
    } = source;
    format!("{RECIPE_VERSION} {suite} {packages} {modules:?} {early:?}")
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

/// Builds the image of a kernel in `out`.
pub fn build(source: &Source, out: &Path) -> anyhow::Result<()> {
    let work = Work::new(out)?;
    let root = out.join("root");
    work.step(source.name, || {
        // Unpacked only: what would have to be configured is not wanted.
        work.debootstrap(source.suite, "extract", source.packages, &root)?;
        fs::copy(
            rootfs::only(&root.join("boot"), "vmlinuz-", "")?,
            out.join(KERNEL),
        )?;
        // Where bookworm has them, or where later suites do.
        let base = [root.clone(), root.join("usr")]
            .into_iter()
            .find(|base| base.join("lib/modules").is_dir())
            .context("no modules were unpacked")?;
        let all = rootfs::only(&base.join("lib/modules"), "", "")?;
        let version = all
            .file_name()
            .context("the module folder has no name")?
            .to_string_lossy()
            .into_owned();
        depmod(&work, &root, &base, &version)?;
        // modprobe and busybox read plain modules at any rate, so that is what
        // they get.
        let tree = ModuleTree::open(&all)?;
        let wanted: Vec<&str> = source.early.iter().chain(source.modules).copied().collect();
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
    let library = |dir: &str| root.join(dir).join("x86_64-linux-gnu");
    let mut libraries = library("usr/lib").into_os_string();
    libraries.push(":");
    libraries.push(library("lib"));
    let kmod = ["bin/kmod", "usr/bin/kmod"]
        .map(|file| root.join(file))
        .into_iter()
        .find(|file| file.is_file())
        .context("no kmod was unpacked")?;
    work.run(
        program::command(&rootfs::loader(root).to_string_lossy())
            .args(["--argv0", "depmod", "--library-path"])
            .arg(libraries)
            .arg(kmod)
            .arg("-b")
            .arg(base)
            .arg(version),
    )
}
