//! The emulated machine: QEMU's command line and its life.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use log::debug;

use crate::image::Images;
use crate::payload::Payload;
use crate::program;

/// Without SMAP and SMEP, since a PV dom0 dies in its int3 self-test with them
/// under TCG; without RDTSCP, for which QEMU reports a wrong exit code, so that
/// Xen kills the guest ("Insn mismatch"); five-level paging and protection keys
/// only cost time. Without XSAVE and so AVX: a guest's XSETBV passes Xen by, as
/// QEMU knows no intercept of it, so Xen takes the guest to have no AVX, refuses to
/// emulate its accesses by 32 bytes, and does not switch those registers.
const CPU: &str = "max,-smap,-smep,-la57,-pku,-rdtscp,-xsave";

/// One CPU for dom0, one for guests: unpinned, a guest's CLOCK_MONOTONIC was
/// seen running backwards. Floating-point and vector registers are switched at
/// once: left to the first use after a switch, Xen's default on AMD, two guests
/// on this emulated CPU were seen with each other's values. Memory that QEMU
/// gives is clean.
const XEN_ARGUMENTS: &str = "console=com1 com1=115200,8n1 dom0_mem=1500M,max:1500M \
     dom0_max_vcpus=1 dom0_vcpus_pin sched=credit spec-ctrl=eager-fpu bootscrub=0 loglvl=info \
     guest_loglvl=all";

/// loglevel 4 keeps dom0's kernel off the console that we read.
const DOM0_ARGUMENTS: &str = "console=hvc0 loglevel=4";

/// Where the serial console goes.
pub enum Console {
    /// To us, by a pipe.
    Piped,
    /// To this terminal, with QEMU's monitor at ctrl-a c.
    Terminal,
}

/// Memory for Xen, dom0 and the usual guests, MiB.
const MEMORY_MIB: u32 = 5 << 10;

/// Starts the machine, with `more_mib` MiB of memory beyond the usual.
pub fn start(
    images: &Images,
    payload: &Payload,
    console: &Console,
    more_mib: u32,
) -> anyhow::Result<Child> {
    let mut command = qemu(images);
    command
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", CPU])
        .args([
            "-smp",
            "2",
            "-no-reboot",
            "-nic",
            "none",
            "-display",
            "none",
        ])
        .arg("-m")
        .arg(format!("{}M", MEMORY_MIB + more_mib))
        .arg("-kernel")
        .arg(images.xen())
        .args(["-append", XEN_ARGUMENTS, "-initrd"])
        // Multiboot modules: dom0's kernel with its arguments, its RAM disk.
        .arg(joined(&[
            images.kernel().as_os_str(),
            " ".as_ref(),
            DOM0_ARGUMENTS.as_ref(),
            ",".as_ref(),
            payload.initrd().as_os_str(),
        ]))
        .args(["-device", "ahci,id=ahci"]);
    // Scripts find a disk by its model, since the kernel's order of names is
    // not promised. snapshot=on leaves the images as they are.
    let disks = [
        ("LAB-DOM0", images.dom0_disk(), true),
        ("LAB-GUEST", images.guest_disk(), true),
        ("LAB-PAYLOAD", payload.dom0_disk(), true),
        ("LAB-GUESTLOAD", payload.guest_disk(), true),
        ("LAB-RESULTS", payload.results_disk(), false),
    ];
    for (port, (model, file, snapshot)) in disks.iter().enumerate() {
        let snapshot = if *snapshot { "on" } else { "off" };
        command.arg("-drive").arg(joined(&[
            format!("if=none,id=d{port},format=raw,snapshot={snapshot},file=").as_ref(),
            file.as_os_str(),
        ]));
        command.arg("-device").arg(format!(
            "ide-hd,drive=d{port},bus=ahci.{port},model={model}"
        ));
    }
    match console {
        Console::Piped => command
            .args(["-monitor", "none", "-serial", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
        Console::Terminal => command.args(["-serial", "mon:stdio"]),
    };
    keep_priority();
    command.spawn().context("cannot start QEMU")
}

/// Linux weighs sessions against each other by a nice value of their own, and
/// that of a process counts only within its session (`sched(7)`, "The autogroup
/// feature"). Whoever started us with a priority means it beyond our session.
fn keep_priority() {
    // Field 19 of the line; the second is a name in brackets.
    let nice = fs::read_to_string("/proc/self/stat").ok().and_then(|line| {
        let (_, fields) = line.rsplit_once(") ")?;
        fields.split(' ').nth(16)?.parse::<i32>().ok()
    });
    if let Some(nice) = nice.filter(|n| *n != 0)
        && let Err(e) = fs::write("/proc/self/autogroup", nice.to_string())
    {
        debug!("the session stays at its priority: {e}");
    }
}

/// The unpacked QEMU, run by its own dynamic loader with its own libraries and
/// modules, so that nothing of it has to be installed or fit the host.
fn qemu(images: &Images) -> Command {
    let root = images.qemu();
    let lib = root.join("usr/lib/x86_64-linux-gnu");
    let old_lib = root.join("lib/x86_64-linux-gnu");
    let mut command = program::command("setpriv");
    // A lab that is killed takes its machine with it.
    command.args(["--pdeathsig", "KILL", "--"]);
    command
        .arg(old_lib.join("ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(joined(&[
            lib.as_os_str(),
            ":".as_ref(),
            old_lib.as_os_str(),
        ]))
        .arg(root.join("usr/bin/qemu-system-x86_64"))
        .arg("-L")
        .arg(root.join("usr/share/qemu"))
        .arg("-L")
        .arg(root.join("usr/share/seabios"))
        .env("QEMU_MODULE_DIR", lib.join("qemu"));
    command
}

fn joined(parts: &[&std::ffi::OsStr]) -> OsString {
    let mut all = OsString::new();
    for part in parts {
        all.push(part);
    }
    all
}

/// A file name with a comma would be split by QEMU; say so before it does.
pub fn check_path(path: &Path) -> anyhow::Result<()> {
    let text = path.to_string_lossy();
    anyhow::ensure!(
        !text.contains(',') && !text.contains(' '),
        "{text}: QEMU cannot take a path with a comma or a space; set LAB_CACHE or move the tree"
    );
    Ok(())
}
