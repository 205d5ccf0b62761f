//! What a run brings into dom0 and its guests: tar archives that serve as raw
//! disks, made afresh each time, so that a changed program or script costs no
//! root file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::check::igt;
use crate::handover;
use crate::image::{Images, Initrd};
use crate::program;

/// Our programs as dom0 sees them, and the crate that builds each.
const PROGRAMS: &[(&str, &str)] = &[
    ("vgpud", "vgpu-sched"),
    ("vgpu-dm", "vgpu-dm"),
    ("vgpu-launcher", "vgpu-launcher"),
    ("vgpuctl", "vgpuctl"),
    ("xl-vgpu", "xl-vgpu"),
];

/// Programs that run inside a guest, from the crate `lab`.
const GUEST_PROGRAMS: &[&str] = &["mmio-latency"];

/// For a guest's kernel. A big log, since the whole of it is judged; the
/// frame buffer console elsewhere, since it would draw through trapped memory;
/// register mappings allowed while a driver is bound, for `mmio-latency`. On
/// the AMD CPU that TCG shows, Linux looks for an old AGP bridge in all 65,536
/// PCI functions, each a trap: not with `pci=noearly`.
const GUEST_COMMAND_LINE: &str =
    "console=hvc0 panic=5 log_buf_len=4M iomem=relaxed fbcon=map:9 pci=noearly";

/// Size of the disk that logs come back on, bytes.
const RESULTS_SIZE: u64 = 256 << 20;

/// What the dom0 scripts are told.
pub struct Settings<'a> {
    /// The script in `tests/lab/scenarios`.
    pub scenario: &'a str,
    /// Whether our programs are to be used.
    pub device: bool,
    /// Whether guests get our measuring programs.
    pub guest_programs: bool,
    /// Fewer tests and rounds.
    pub short: bool,
    /// Leave it to QEMU's boot ROM to load the guests' kernel.
    pub plain_boot: bool,
    /// Seconds until dom0 gives up by itself and brings back what it has.
    pub timeout: u64,
}

/// The files a run boots from besides the images.
pub struct Payload {
    dir: PathBuf,
}

impl Payload {
    /// Stages everything in `dir`.
    pub fn make(dir: &Path, images: &Images, settings: &Settings<'_>) -> anyhow::Result<Self> {
        program::require(program::FOR_RUNS)?;
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        let (dom0, guest) = (dir.join("dom0"), dir.join("guest"));
        fs::create_dir_all(dom0.join("bin"))?;
        fs::create_dir_all(&guest)?;
        let scripts = workspace().join("tests/lab");
        copy_files(&scripts.join("dom0"), &dom0)?;
        copy_files(&scripts.join("guest"), &guest)?;
        let script = format!("scenarios/{}.sh", settings.scenario);
        copy(&scripts.join(script), &dom0.join("scenario.sh"))?;
        let release = workspace().join("target/release");
        if settings.device {
            for (name, crate_name) in PROGRAMS {
                copy(&release.join(name), &dom0.join("bin").join(name))
                    .with_context(|| format!("{name} (crate {crate_name}) is not built"))?;
            }
        }
        if settings.guest_programs {
            for name in GUEST_PROGRAMS {
                copy(&release.join(name), &guest.join(name))
                    .with_context(|| format!("{name} (crate lab) is not built"))?;
            }
        }
        guest_boot(&dom0.join("boot"), images, &scripts, settings.plain_boot)?;
        fs::write(dom0.join("igt.list"), igt::list(settings.short))?;
        fs::write(
            dom0.join("settings"),
            format!(
                "LAB_SCENARIO={}\nLAB_DEVICE={}\nLAB_SHORT={}\nLAB_TIMEOUT={}\n",
                settings.scenario,
                u8::from(settings.device),
                u8::from(settings.short),
                settings.timeout
            ),
        )?;
        let payload = Self {
            dir: dir.to_owned(),
        };
        Initrd::Dom0.write(images, &scripts.join("dom0-initrd.sh"), &payload.initrd())?;
        tar(&dom0, &payload.dom0_disk())?;
        tar(&guest, &payload.guest_disk())?;
        File::create(payload.results_disk())?.set_len(RESULTS_SIZE)?;
        Ok(payload)
    }

    /// dom0's initial RAM disk.
    pub fn initrd(&self) -> PathBuf {
        self.dir.join("dom0-initrd")
    }

    /// Scripts and programs for dom0.
    pub fn dom0_disk(&self) -> PathBuf {
        self.dir.join("dom0.tar")
    }

    /// Scripts and programs for guests.
    pub fn guest_disk(&self) -> PathBuf {
        self.dir.join("guest.tar")
    }

    /// Where dom0 writes a tar archive of its logs.
    pub fn results_disk(&self) -> PathBuf {
        self.dir.join("results.tar")
    }

    /// Unpacks the logs to `to`; false if dom0 never wrote any.
    pub fn unpack_results(&self, to: &Path) -> anyhow::Result<bool> {
        let written = {
            use std::io::Read as _;
            let mut first = [0_u8; 1];
            File::open(self.results_disk())?.read_exact(&mut first)?;
            first != [0]
        };
        if !written {
            return Ok(false);
        }
        let log = self.dir.join("unpack.log");
        let mut command = program::command("tar");
        command
            .arg("-xf")
            .arg(self.results_disk())
            .arg("-C")
            .arg(to);
        program::logged(&mut command, &log)?;
        Ok(true)
    }
}

/// The workspace this `lab` was built from: its scripts and programs are the
/// ones to run.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// Whether all our programs for dom0 are in target/release.
pub fn programs_built() -> bool {
    let release = workspace().join("target/release");
    PROGRAMS
        .iter()
        .all(|(name, _)| release.join(name).is_file())
}

/// Builds our programs as they are in the tree now: those for guests, and for
/// `device` those for dom0.
pub fn build_programs(device: bool) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet", "-p", "lab", "--bins"]);
    for (_, crate_name) in PROGRAMS.iter().filter(|_| device) {
        command.args(["-p", crate_name]);
    }
    let status = command
        .current_dir(workspace())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("building our programs failed ({status})");
    }
    Ok(())
}

/// What a guest boots from, and the lines for its xl config.
fn guest_boot(boot: &Path, images: &Images, scripts: &Path, plain: bool) -> anyhow::Result<()> {
    fs::create_dir_all(boot)?;
    let initrd = boot.join("initrd");
    Initrd::Guest.write(images, &scripts.join("guest-initrd.sh"), &initrd)?;
    let config = if plain {
        copy(&images.kernel(), &boot.join("vmlinuz"))?;
        format!(
            "kernel = \"/lab/boot/vmlinuz\"\nramdisk = \"/lab/boot/initrd\"\n\
             cmdline = \"{GUEST_COMMAND_LINE}\"\n"
        )
    } else {
        let size = usize::try_from(fs::metadata(&initrd)?.len())?;
        let parts = handover::prepare(&fs::read(images.kernel())?, size, GUEST_COMMAND_LINE)?;
        fs::write(boot.join("stub"), parts.stub)?;
        fs::write(boot.join("kernel"), parts.kernel)?;
        fs::write(boot.join("parameters"), parts.parameters)?;
        fs::write(
            boot.join("device-model-args"),
            handover::device_model_arguments("/lab/boot"),
        )?;
        "kernel = \"/lab/boot/stub\"\n".to_owned()
    };
    fs::write(
        boot.join("config"),
        format!("memory = {}\n{config}", handover::GUEST_MIB),
    )?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn tar(from: &Path, to: &Path) -> anyhow::Result<()> {
    let log = to.with_extension("log");
    let mut command = program::command("tar");
    // Numeric root owner: nobody in dom0 knows this machine's users. The block
    // factor pads the end to whole sectors, as a disk needs.
    command.args([
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "-b",
        "128",
        "-cf",
    ]);
    program::logged(command.arg(to).arg("-C").arg(from).arg("."), &log)
}
