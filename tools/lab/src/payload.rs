//! What a run brings into dom0 and its guests: tar archives that serve as raw
//! disks, made afresh each time, so that a changed program or script costs no
//! root file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::check::igt;
use crate::handover;
use crate::image::{GuestKernel, Images, Initrd, KernelImage};
use crate::program;
use crate::scenario::{Form, Gpu, Shadow};

/// Our programs as dom0 sees them, and the crate that builds each.
const PROGRAMS: &[(&str, &str)] = &[
    ("vgpud", "vgpu-sched"),
    ("vgpu-dm", "vgpu-dm"),
    ("vgpu-launcher", "vgpu-launcher"),
    ("vgpuctl", "vgpuctl"),
    ("xl-vgpu", "xl-vgpu"),
    ("grant-loop", "lab"),
    ("prisoner", "lab"),
];

/// What a device model's own domain is made of, in dom0: the program that makes
/// it, and the device model with all it needs.
const STUB_IMAGE: (&str, &str) = ("vgpu-stub-image", "stub-image");
const STUB_DM: GuestProgram = GuestProgram {
    name: "vgpu-dm",
    crate_name: "vgpu-dm",
    whole: true,
};

/// A program of ours that runs inside a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct GuestProgram {
    name: &'static str,
    crate_name: &'static str,
    /// Whether it brings its C library along.
    whole: bool,
}

/// Times register reads.
pub const MMIO_LATENCY: GuestProgram = GuestProgram {
    name: "mmio-latency",
    crate_name: "lab",
    whole: false,
};

/// GPU load whose every result is checked. It may have to run where there is
/// nothing else.
pub const GPU_WORK: GuestProgram = GuestProgram {
    name: "gpu-work",
    crate_name: "gpu-work",
    whole: true,
};

/// How long its guest stood still.
pub const CLOCK_GAP: GuestProgram = GuestProgram {
    name: "clock-gap",
    crate_name: "gpu-work",
    whole: true,
};

/// Rust's name for what guests are, and how a static program is asked for. A
/// target of its own keeps such builds apart from the others.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const TARGET_FLAGS: (&str, &str) = (
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
    "-C target-feature=+crt-static -C strip=symbols",
);

impl GuestProgram {
    fn path(&self) -> PathBuf {
        let target = workspace().join("target");
        if self.whole {
            target.join(TARGET).join("release").join(self.name)
        } else {
            target.join("release").join(self.name)
        }
    }
}

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
    /// The kernel of device models' own domains, if they get any.
    pub stub: Option<&'a KernelImage>,
    /// Our programs that guests get.
    pub guest_programs: &'a [GuestProgram],
    /// More for the command line of guests' kernels.
    pub guest_options: &'a str,
    /// Kernels that guests boot besides dom0's.
    pub kernels: &'a [(GuestKernel, KernelImage)],
    /// How much is run.
    pub form: Form,
    /// Programs of igt to run; all if there is none.
    pub only: &'a [String],
    /// How vgpud follows page tables; nothing for its default.
    pub shadow: Option<Shadow>,
    /// The device guests get.
    pub gpu: Gpu,
    /// Memory of a large guest beside the usual ones, MiB.
    pub large_guest: Option<u32>,
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
        // All of them: one may use another.
        fs::create_dir_all(dom0.join("scenarios"))?;
        copy_files(&scripts.join("scenarios"), &dom0.join("scenarios"))?;
        let release = workspace().join("target/release");
        if settings.device {
            for (name, crate_name) in PROGRAMS {
                copy(&release.join(name), &dom0.join("bin").join(name))
                    .with_context(|| format!("{name} (crate {crate_name}) is not built"))?;
            }
        }
        if let Some(kernel) = settings.stub {
            let (name, crate_name) = STUB_IMAGE;
            copy(&release.join(name), &dom0.join("bin").join(name))
                .with_context(|| format!("{name} (crate {crate_name}) is not built"))?;
            copy(&STUB_DM.path(), &dom0.join("bin/vgpu-dm-static"))
                .context("the static vgpu-dm is not built")?;
            copy_tree(&kernel.modules()?, &dom0.join("stub/modules"))?;
            copy(&kernel.kernel(), &dom0.join("stub/vmlinuz"))?;
        }
        for program in settings.guest_programs {
            let GuestProgram {
                name, crate_name, ..
            } = program;
            copy(&program.path(), &guest.join(name))
                .with_context(|| format!("{name} (crate {crate_name}) is not built"))?;
        }
        let initrd_script = scripts.join("guest-initrd.sh");
        let boot = Boot {
            images,
            script: &initrd_script,
            plain: settings.plain_boot,
            command_line: format!("{GUEST_COMMAND_LINE} {}", settings.guest_options)
                .trim_end()
                .to_owned(),
        };
        let modules = images.modules();
        boot.stage(
            &dom0,
            "boot",
            &images.kernel(),
            &modules,
            handover::LEAST_MIB,
        )?;
        if let Some(mib) = settings.large_guest {
            boot.stage(&dom0, "boot-large", &images.kernel(), &modules, mib)?;
        }
        for (kernel, image) in settings.kernels {
            let folder = format!("boot-{}", kernel.name());
            let modules = image.modules()?;
            boot.stage(
                &dom0,
                &folder,
                &image.kernel(),
                &modules,
                handover::LEAST_MIB,
            )?;
            copy_tree(&image.module_folder(), &guest.join("modules"))?;
        }
        fs::write(
            dom0.join("igt.list"),
            igt::list(settings.form, settings.only),
        )?;
        fs::write(
            dom0.join("settings"),
            format!(
                "LAB_SCENARIO={}\nLAB_DEVICE={}\nLAB_SHORT={}\nLAB_SHADOW={}\nLAB_GPU={}\nLAB_STUB={}\nLAB_ONLY={}\nLAB_TIMEOUT={}\n",
                settings.scenario,
                u8::from(settings.device),
                u8::from(settings.form == Form::Short),
                settings.shadow.map_or("", Shadow::name),
                settings.gpu.name(),
                u8::from(settings.stub.is_some()),
                settings.only.join(","),
                settings.timeout
            ),
        )?;
        let payload = Self {
            dir: dir.to_owned(),
        };
        Initrd::Dom0.write(
            images,
            &images.modules(),
            &scripts.join("dom0-initrd.sh"),
            &payload.initrd(),
        )?;
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

/// Builds our programs as they are in the tree now: those for guests, for
/// `device` those for dom0, and for `stub` those of a device model's domain.
pub fn build_programs(device: bool, stub: bool, guest: &[GuestProgram]) -> anyhow::Result<()> {
    let mut crates: Vec<&str> = Vec::new();
    if device {
        crates.extend(PROGRAMS.iter().map(|(_, crate_name)| crate_name));
    }
    if stub {
        crates.push(STUB_IMAGE.1);
    }
    let of_guests = |whole| {
        guest
            .iter()
            .filter(move |p| p.whole == whole)
            .map(|p| p.crate_name)
    };
    crates.extend(of_guests(false));
    if !crates.is_empty() {
        cargo_build(&crates, |command| command.arg("--bins"))?;
    }
    let mut whole: Vec<&str> = of_guests(true).collect();
    if stub {
        whole.push(STUB_DM.crate_name);
    }
    whole.dedup();
    if !whole.is_empty() {
        let (name, flags) = TARGET_FLAGS;
        cargo_build(&whole, |command| {
            command.args(["--target", TARGET]).env(name, flags)
        })?;
    }
    Ok(())
}

fn cargo_build(
    crates: &[&str],
    more: impl FnOnce(&mut Command) -> &mut Command,
) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet"]);
    for name in crates {
        command.args(["-p", name]);
    }
    let status = more(&mut command)
        .current_dir(workspace())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("building {} failed ({status})", crates.join(", "));
    }
    Ok(())
}

/// What guests boot from.
struct Boot<'a> {
    images: &'a Images,
    /// /init of the initial RAM disk.
    script: &'a Path,
    plain: bool,
    command_line: String,
}

impl Boot<'_> {
    /// Puts a kernel and what belongs to it into the folder `name` of dom0's
    /// payload, with the lines for the xl config of a guest of `mib` MiB.
    fn stage(
        &self,
        dom0: &Path,
        name: &str,
        kernel: &Path,
        modules: &Path,
        mib: u32,
    ) -> anyhow::Result<()> {
        let boot = dom0.join(name);
        let there = format!("/lab/{name}");
        fs::create_dir_all(&boot)?;
        let initrd = boot.join("initrd");
        Initrd::Guest.write(self.images, modules, self.script, &initrd)?;
        let config = if self.plain {
            copy(kernel, &boot.join("vmlinuz"))?;
            format!(
                "kernel = \"{there}/vmlinuz\"\nramdisk = \"{there}/initrd\"\n\
                 cmdline = \"{}\"\n",
                self.command_line
            )
        } else {
            let size = usize::try_from(fs::metadata(&initrd)?.len())?;
            let parts = handover::prepare(&fs::read(kernel)?, size, &self.command_line, mib)?;
            fs::write(boot.join("stub"), parts.stub)?;
            fs::write(boot.join("kernel"), parts.kernel)?;
            fs::write(boot.join("parameters"), parts.parameters)?;
            fs::write(
                boot.join("device-model-args"),
                handover::device_model_arguments(&there),
            )?;
            format!("kernel = \"{there}/stub\"\n")
        };
        fs::write(boot.join("config"), format!("memory = {mib}\n{config}"))?;
        Ok(())
    }
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

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    copy_files(from, to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
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
