//! Root file systems from Debian packages: dom0, the guest, and the QEMU that
//! emulates the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};
use boot_image::ModuleTree;
use log::info;

use crate::program;

pub const DOM0_DISK: &str = "dom0.img";
pub const GUEST_DISK: &str = "guest.img";
pub const KERNEL: &str = "vmlinuz";
pub const XEN: &str = "xen.elf";
pub const BUSYBOX: &str = "busybox";
pub const QEMU: &str = "qemu";
pub const MODULES: &str = "modules";

/// Raise it when `build` changes what it makes.
const RECIPE_VERSION: u32 = 1;

const DOM0_PACKAGES: &str = "linux-image-amd64,xen-utils-4.17,xen-hypervisor-4.17-amd64,\
     xenstore-utils,qemu-system-xen,seabios,kmod,procps,busybox-static";
const GUEST_PACKAGES: &str = "igt-gpu-tools-tests,kmod";
// Unpacked, not installed: Debian's qemu-utils from backports, which a machine
// may well have, conflicts with bookworm's qemu-system-x86.
const QEMU_PACKAGES: &str = "qemu-system-x86";

/// What the initial RAM disks may need from the kernel's modules.
pub const DOM0_MODULES: &[&str] = &["ahci", "sd_mod", "crc32c_generic", "ext4"];
/// The same for a guest's.
pub const GUEST_MODULES: &[&str] = &["xen-blkfront", "crc32c_generic", "ext4"];

/// Everything that decides the content of the images, for the cache key.
pub fn recipe() -> String {
    format!(
        "{RECIPE_VERSION} {DOM0_PACKAGES} {GUEST_PACKAGES} {QEMU_PACKAGES} {DOM0_MODULES:?} {GUEST_MODULES:?}"
    )
}

/// Builds all images in `out`.
pub fn build(out: &Path) -> anyhow::Result<()> {
    let work = Work::new(out)?;
    let qemu = out.join(QEMU);
    work.step("QEMU", || {
        work.debootstrap("bookworm", "extract", QEMU_PACKAGES, &qemu)
    })?;
    let dom0 = out.join("dom0-root");
    work.step("dom0 packages", || {
        work.debootstrap("bookworm", "minbase", DOM0_PACKAGES, &dom0)
    })?;
    let guest = out.join("guest-root");
    work.step("guest packages", || {
        work.debootstrap("sid", "minbase", GUEST_PACKAGES, &guest)
    })?;
    work.step("disks", || {
        work.boot_files(&dom0)?;
        // The guest's userland is sid's, its kernel bookworm's: so are its modules.
        work.run(
            program::command("cp")
                .arg("-a")
                .arg(dom0.join("usr/lib/modules"))
                .arg(guest.join("usr/lib/")),
        )?;
        work.disk(&dom0, DOM0_DISK, "3G")?;
        work.disk(&guest, GUEST_DISK, "2G")
    })?;
    fs::remove_dir_all(&dom0)?;
    fs::remove_dir_all(&guest)?;
    Ok(())
}

/// An image being built.
pub struct Work<'a> {
    out: &'a Path,
    log: PathBuf,
}

impl<'a> Work<'a> {
    /// One in `out`.
    pub fn new(out: &'a Path) -> anyhow::Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!(
                "building images needs root (files in them belong to many users): run `lab images` as root once"
            );
        }
        Ok(Self {
            out,
            log: out.join("build.log"),
        })
    }

    /// A part of the work, announced by name.
    pub fn step(
        &self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        info!("image: {name} ...");
        work().with_context(|| format!("building {name}"))?;
        info!("image: {name} done in {} s", started.elapsed().as_secs());
        Ok(())
    }

    /// Runs a host program, its output in the image's log.
    pub fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        program::logged(command, &self.log)
    }

    /// Takes packages and what they need from a suite to the folder `to`.
    pub fn debootstrap(
        &self,
        suite: &str,
        variant: &str,
        packages: &str,
        to: &Path,
    ) -> anyhow::Result<()> {
        self.run(
            program::command("mmdebstrap")
                .arg("--mode=root")
                .arg(format!("--variant={variant}"))
                .arg(format!("--include={packages}"))
                // A mirror may serve a frozen sid, whose Release has expired.
                .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
                .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
                .arg("--dpkgopt=path-exclude=/usr/share/man/*")
                .arg("--dpkgopt=path-exclude=/usr/share/locale/*")
                .arg(suite)
                .arg(to),
        )
    }

    /// Takes out of dom0's root what QEMU and the guests boot from, and what
    /// the initial RAM disks are made of.
    fn boot_files(&self, dom0: &Path) -> anyhow::Result<()> {
        let boot = dom0.join("boot");
        let kernel = only(&boot, "vmlinuz-", "")?;
        fs::copy(&kernel, self.out.join(KERNEL))?;
        let xen = only(&boot, "xen-4.17", ".gz")?;
        let packed = self.out.join("xen.elf.gz");
        fs::copy(&xen, &packed)?;
        self.run(program::command("gzip").arg("-d").arg(&packed))?;
        fs::copy(dom0.join("usr/bin/busybox"), self.out.join(BUSYBOX))
            .or_else(|_| fs::copy(dom0.join("bin/busybox"), self.out.join(BUSYBOX)))
            .context("no busybox in dom0's root")?;
        let tree = ModuleTree::open(&only(&dom0.join("usr/lib/modules"), "", "")?)?;
        let wanted: Vec<&str> = DOM0_MODULES.iter().chain(GUEST_MODULES).copied().collect();
        tree.copy(&wanted, &self.out.join(MODULES))?;
        // Only dom0's kernel would read it, and QEMU hands it another one.
        for initrd in fs::read_dir(&boot)?.flatten() {
            if initrd
                .file_name()
                .to_string_lossy()
                .starts_with("initrd.img")
            {
                fs::remove_file(initrd.path())?;
            }
        }
        Ok(())
    }

    fn disk(&self, root: &Path, name: &str, size: &str) -> anyhow::Result<()> {
        self.run(
            program::command("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                // Every run starts from a fresh overlay or mounts read-only:
                // there is nothing to recover, so no journal.
                .args(["-O", "^has_journal", "-d"])
                .arg(root)
                .arg(self.out.join(name))
                .arg(size),
        )
    }
}

/// The dynamic loader in an unpacked root, where bookworm has it or where
/// later suites do.
pub fn loader(root: &Path) -> PathBuf {
    let name = "ld-linux-x86-64.so.2";
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
        .map(|dir| root.join(dir).join(name))
        .into_iter()
        .find(|file| file.is_file())
        .unwrap_or_else(|| root.join("lib64").join(name))
}

/// The one file in `dir` whose name starts and ends as given.
pub fn only(dir: &Path, prefix: &str, suffix: &str) -> anyhow::Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("cannot list {}", dir.display()))?
        .flatten()
        .filter(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            name.starts_with(prefix) && name.ends_with(suffix)
        })
        .map(|e| e.path())
        .collect();
    match (found.pop(), found.pop()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!("no {prefix}*{suffix} in {}", dir.display()),
        (Some(_), Some(_)) => bail!("more than one {prefix}*{suffix} in {}", dir.display()),
    }
}
