//! Run by libxl as the device model: registers with vgpud, then becomes QEMU.
//!
//! libxl runs whatever `device_model_override` names with QEMU's arguments
//! and watches the process. So this one takes out its own argument, has the
//! vGPU attached, and executes QEMU in its place: the pid libxl has written
//! down, its signals and its kill by uid all reach QEMU itself.
//!
//! The environment variables VGPU_QEMU and VGPU_SOCKET name another QEMU and
//! another vgpud.
#![forbid(unsafe_code)]

mod command_line;
mod register;

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use rustix::io::FdFlags;

use crate::command_line::{Guest, Plan};

/// Debian's QEMU for Xen.
const DEFAULT_QEMU: &str = "/usr/libexec/xen-qemu-system-i386";

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).collect();
    // Only a failure comes back: on success this process is QEMU.
    let Err(error) = run(args);
    // libxl has made standard error the device model's log.
    eprintln!("vgpu-launcher: {error:#}");
    ExitCode::FAILURE
}

fn run(args: Vec<OsString>) -> anyhow::Result<std::convert::Infallible> {
    let mut plan = Plan::new(args)?;
    let qemu = qemu(plan.guest.as_ref());
    // Open until QEMU has them.
    let mut _held = Vec::new();
    if let Some(guest) = &plan.guest {
        // Before the vGPU exists, which would come and go for nothing.
        ensure!(
            qemu.is_file(),
            "QEMU is {}, allowed: an executable file",
            qemu.display()
        );
        let socket = std::env::var_os("VGPU_SOCKET")
            .map_or_else(|| vgpu_control::DEFAULT_SOCKET.into(), PathBuf::from);
        let file;
        (file, _held) = register::register(Path::new(&socket), guest)?;
        if let Some(file) = file {
            // vgpud's mark is before QEMU's state: QEMU gets a descriptor
            // that is behind it, in the place of libxl's.
            rustix::io::fcntl_setfd(&file, FdFlags::empty()).context("the file of -incoming")?;
            plan.load_from(file.into_raw_fd());
        }
    }
    let error = Command::new(&qemu).args(&plan.args).exec();
    Err(error).with_context(|| format!("cannot execute {}", qemu.display()))
}

/// The QEMU to become.
fn qemu(guest: Option<&Guest>) -> PathBuf {
    guest
        .and_then(|g| g.spec.qemu.clone())
        .or_else(|| std::env::var_os("VGPU_QEMU").map(PathBuf::from))
        .unwrap_or_else(|| DEFAULT_QEMU.into())
}
