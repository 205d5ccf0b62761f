//! Builds what a device model's own domain boots from.
//!
//! A kernel of the distribution, unchanged, and an initial RAM disk with one
//! program, a static vgpu-dm, and the kernel's modules that it needs. The same
//! input gives the same bytes.

#![forbid(unsafe_code)]

mod elf;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use boot_image::{Archive, ModuleTree};

pub use elf::interpreter;

/// The kernel's file in an image.
pub const KERNEL: &str = "vmlinuz";
/// The initial RAM disk's file.
pub const INITRAMFS: &str = "initramfs.gz";

/// What the device model loads, in this order: event channels, memory of its
/// own that dom0 may map, memory of dom0's, and its guest.
pub const MODULES: [&str; 4] = ["xen-evtchn", "xen-gntalloc", "xen-gntdev", "xen-privcmd"];

/// What an image is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The kernel (bzImage) that domains boot.
    pub kernel: &'a Path,
    /// That kernel's module folder, with its modules.dep.
    pub modules: &'a Path,
    /// The static vgpu-dm.
    pub dm: &'a Path,
}

/// Bytes of an image's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The kernel.
    pub kernel: u64,
    /// The initial RAM disk.
    pub initramfs: u64,
}

/// Builds the image in the folder `out`. Its files are complete or absent:
/// domains may be made from them at any time.
///
/// # Errors
/// What is missing or cannot be used, by its path.
pub fn build(parts: Parts<'_>, out: &Path) -> anyhow::Result<Sizes> {
    let archive = initramfs(parts)?;
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let aside = |name: &str| out.join(format!("new-{name}"));
    boot_image::gzip(&archive, &aside(INITRAMFS))?;
    fs::copy(parts.kernel, aside(KERNEL))
        .with_context(|| format!("cannot copy {}", parts.kernel.display()))?;
    let mut sizes = [0; 2];
    for (size, name) in sizes.iter_mut().zip([KERNEL, INITRAMFS]) {
        *size = fs::metadata(aside(name))?.len();
        fs::rename(aside(name), out.join(name))?;
    }
    let [kernel, initramfs] = sizes;
    Ok(Sizes { kernel, initramfs })
}

/// The initial RAM disk, not yet packed.
fn initramfs(parts: Parts<'_>) -> anyhow::Result<Vec<u8>> {
    let dm = fs::read(parts.dm).with_context(|| format!("cannot read {}", parts.dm.display()))?;
    if let Some(interpreter) = interpreter(&dm).with_context(|| parts.dm.display().to_string())? {
        bail!(
            "{} needs {interpreter}, allowed: a static program",
            parts.dm.display()
        );
    }
    let tree = ModuleTree::open(parts.modules)?;
    let mut archive = Archive::new();
    for folder in ["dev", "proc", "modules"] {
        archive.folder(folder)?;
    }
    archive.file("init", &dm)?;
    let mut order = String::new();
    for file in tree.load_order(&MODULES)? {
        let (name, bytes) = boot_image::unpacked(&tree.path(&file))?;
        archive.file(&format!("modules/{name}"), &bytes)?;
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes())?;
    archive.finish()
}

#[cfg(test)]
mod tests;
