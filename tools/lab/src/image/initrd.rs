//! The two small initial RAM disks: busybox, a few modules, one script.
//!
//! Made afresh for every run, since they hold our script and cost nothing;
//! small, since a guest's BIOS loads its one through trapped port reads.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use boot_image::{Archive, ModuleTree};

use super::{Images, rootfs};

/// Whose initial RAM disk.
#[derive(Clone, Copy)]
pub enum Initrd {
    /// dom0's: finds its root on AHCI.
    Dom0,
    /// A guest's: finds its root on xvda.
    Guest,
}

impl Initrd {
    /// Writes it to `to`, compressed, with `script` as its /init and modules
    /// from the tree `modules`.
    pub fn write(
        self,
        images: &Images,
        modules: &Path,
        script: &Path,
        to: &Path,
    ) -> anyhow::Result<()> {
        let names = match self {
            Self::Dom0 => rootfs::DOM0_MODULES,
            Self::Guest => rootfs::GUEST_MODULES,
        };
        let tree = ModuleTree::open(modules)?;
        let mut archive = Archive::new();
        for folder in ["bin", "dev", "proc", "sys", "sysroot", "modules"] {
            archive.folder(folder)?;
        }
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        archive.file("bin/busybox", &read(&images.busybox())?)?;
        archive.file("init", &read(script)?)?;
        let mut order = String::new();
        for file in tree.load_order(names)? {
            let base = file.rsplit('/').next().unwrap_or(&file);
            archive.file(&format!("modules/{base}"), &read(&tree.path(&file))?)?;
            order.push_str(base);
            order.push('\n');
        }
        archive.file("modules/order", order.as_bytes())?;
        boot_image::gzip(&archive.finish()?, to)
    }
}
