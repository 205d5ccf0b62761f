//! `vgpu-stub-image`: builds what a device model's own domain boots from.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Parser;
use stub_image::{Parts, build};

/// Builds what a device model's own domain boots from: a kernel and an initial
/// RAM disk with a static vgpu-dm.
#[derive(Parser)]
#[command(name = "vgpu-stub-image", version)]
struct Arguments {
    /// The kernel to boot, as in /boot/vmlinuz-VERSION. Any of a distribution
    /// that can be a PV domain.
    #[arg(long)]
    kernel: PathBuf,

    /// Its modules [default: /lib/modules/VERSION, by the kernel's name]
    #[arg(long)]
    modules: Option<PathBuf>,

    /// The static vgpu-dm. Without it, it is built by cargo, in the workspace
    /// that this program was built from.
    #[arg(long)]
    dm: Option<PathBuf>,

    /// The folder for the image.
    #[arg(long, default_value = "/var/lib/vgpu/stub")]
    out: PathBuf,
}

/// A target named explicitly keeps static programs apart from the others.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "-C target-feature=+crt-static -C strip=symbols";

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vgpu-stub-image: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let modules = match &arguments.modules {
        Some(modules) => modules.clone(),
        None => modules_of(&arguments.kernel)?,
    };
    let dm = match &arguments.dm {
        Some(dm) => dm.clone(),
        None => build_dm()?,
    };
    let parts = Parts {
        kernel: &arguments.kernel,
        modules: &modules,
        dm: &dm,
    };
    let sizes = build(parts, &arguments.out)?;
    println!(
        "{}: kernel {} KiB, initial RAM disk {} KiB",
        arguments.out.display(),
        sizes.kernel.div_ceil(1024),
        sizes.initramfs.div_ceil(1024)
    );
    Ok(())
}

/// Where a distribution has the modules of a kernel.
fn modules_of(kernel: &Path) -> anyhow::Result<PathBuf> {
    let name = kernel.file_name().and_then(|n| n.to_str());
    let version = name.and_then(|n| n.split_once('-')).map(|(_, v)| v);
    let version = version.with_context(|| {
        let kernel = kernel.display();
        format!("kernel is {kernel}, allowed without modules: a name with a version")
    })?;
    Ok(Path::new("/lib/modules").join(version))
}

/// Builds the device model as a static program.
fn build_dm() -> anyhow::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = manifest.ancestors().nth(2).unwrap_or(manifest);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "-p", "vgpu-dm"])
        .args(["--target", TARGET])
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", FLAGS)
        .current_dir(workspace)
        .status()
        .context("cannot run cargo: --dm names a device model that is built")?;
    if !status.success() {
        bail!("building vgpu-dm failed ({status})");
    }
    Ok(workspace
        .join("target")
        .join(TARGET)
        .join("release/vgpu-dm"))
}
