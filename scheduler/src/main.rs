//! vgpud: owns the GPU of a host and serves it to guests.
#![forbid(unsafe_code)]

mod daemon;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use vgpu_confine::Seccomp;
use vgpu_sched::scheduler::Config;
use vgpu_sched::switch::SwitchMode;

use crate::daemon::{Confine, Daemon, DmCommand, Limits, XenPlatform};

/// Owns the GPU of this host and serves it to guests.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where clients connect.
    #[arg(long, default_value = vgpu_control::DEFAULT_SOCKET)]
    socket: PathBuf,

    /// The device model to run for each guest [default: vgpu-dm beside vgpud]
    #[arg(long)]
    dm: Option<PathBuf>,

    /// The GPU.
    #[arg(long, value_enum, default_value = "softgpu")]
    gpu: GpuKind,

    /// Seconds a device model may take to attach to its guest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=50))]
    attach_limit: u64,

    /// Seconds a request may hold an engine. One that does not end is taken
    /// off by a reset of its context, and its guest is told.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    run_limit: u64,

    /// How an engine's registers go from one vGPU to the next: full, no-readback,
    /// merged, delta-previous or delta-image. All but the last are there to be
    /// compared with it.
    #[arg(long, default_value_t, value_name = "MODE")]
    switch_mode: SwitchMode,

    /// A device model's user id is this and its guest's number: of nobody else,
    /// so that device models cannot reach each other.
    #[arg(long, default_value_t = 1_900_000_000, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..=0x7fff_0000))]
    dm_uid_base: u32,

    /// What a system call of a device model leads to that its work does without:
    /// kill, log (a line in the kernel's log, for finding out), off.
    #[arg(long, default_value_t, value_name = "ACTION")]
    dm_seccomp: Seccomp,

    /// Let device models keep root's rights.
    #[arg(long)]
    unconfined: bool,

    /// Where shares that were set while a guest ran are kept.
    #[arg(long, default_value = "/var/lib/vgpu", value_name = "DIRECTORY")]
    state_dir: PathBuf,
}

/// The GPUs there are.
#[derive(Clone, Copy, ValueEnum)]
enum GpuKind {
    /// A software Gen8 GPU in this process.
    Softgpu,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    // Blocked before the first thread starts, so that all threads inherit it
    // and only the wait below gets them.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("cannot block signals")?;

    let dm = match args.dm {
        Some(path) => path,
        None => std::env::current_exe()
            .context("cannot find this program's directory")?
            .with_file_name("vgpu-dm"),
    };
    let mut dm = DmCommand::new(dm);
    if args.unconfined {
        log::warn!("device models run as root");
    } else {
        dm = dm.confined(Confine {
            uid_base: args.dm_uid_base,
            seccomp: args.dm_seccomp,
        });
    }
    let GpuKind::Softgpu = args.gpu;
    let config = Config {
        run_limit: Duration::from_secs(args.run_limit),
        switch_mode: args.switch_mode,
        ..Config::default()
    };
    let platform = XenPlatform::open(&config)?;
    let limits = Limits {
        attach: Duration::from_secs(args.attach_limit),
        ..Limits::default()
    };
    let daemon = Daemon::start(
        &args.socket,
        &args.state_dir,
        dm,
        limits,
        Arc::new(platform),
    )?;
    log::info!("listening at {}", args.socket.display());
    let signal = signals.wait().context("cannot wait for signals")?;
    log::info!("{signal}: stopping");
    drop(daemon);
    Ok(())
}
