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
use vgpu_config::Gpu;
use vgpu_confine::Seccomp;
use vgpu_sched::ppgtt::ShadowMode;
use vgpu_sched::scan::ScanMode;
use vgpu_sched::scheduler::Config;
use vgpu_sched::switch::SwitchMode;

use crate::daemon::{
    Bounds, Confine, Daemon, DmCommand, Limits, OnCrashLoop, Places, Records, XenPlatform,
};

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

    /// What the GPU is, and so every guest's: bdw or kbl. The only GPU there is
    /// now is a software one in this process.
    #[arg(long, value_enum, default_value = "bdw")]
    gpu: GpuKind,

    /// Seconds a device model may take to attach to its guest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=50))]
    attach_limit: u64,

    /// Seconds a request may hold an engine. One that does not end is taken
    /// off by a reset of its context, and its guest is told.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    run_limit: u64,

    /// Milliseconds a guest may stand still when it is migrated. When more is
    /// expected, it is not stopped for long: it goes on here.
    #[arg(long, default_value_t = 500, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    downtime_limit: u64,

    /// Milliseconds a device model may be at one thing before it counts as hung
    /// and is replaced: of its own time on the processor, or asleep.
    #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(100..=600_000))]
    dm_hang_limit: u64,

    /// How many device models of a guest may die within --dm-death-window
    /// before no more are started.
    #[arg(long, default_value_t = 10, value_name = "DEATHS", value_parser = clap::value_parser!(u32).range(0..=1000))]
    dm_deaths: u32,

    /// See --dm-deaths.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    dm_death_window: u64,

    /// What then becomes of the guest: fail-device, it runs on without its
    /// vGPU; pause-guest, it is paused, too.
    #[arg(long, default_value_t, value_name = "ACTION")]
    on_crash_loop: OnCrashLoop,

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

    /// How guests' page tables are followed: strict, each write to one
    /// trapped; lazy, each compared at submissions; adaptive, each whichever
    /// way is cheaper. Where Xen cannot trap writes, it is lazy.
    #[arg(long, default_value_t, value_name = "MODE")]
    shadow: ShadowMode,

    /// What is done about batches that guests' users submit: off, note or refuse.
    /// Noting names what has no place in them to whoever inspects the vGPU;
    /// refusing stops the context. No safety rests on either.
    #[arg(long, default_value_t, value_name = "MODE")]
    scan: ScanMode,

    /// Where shares that were set while a guest ran are kept.
    #[arg(long, default_value = "/var/lib/vgpu", value_name = "DIRECTORY")]
    state_dir: PathBuf,

    /// Where is noted what the next vgpud needs to take over guests that run.
    #[arg(long, default_value = "/run/vgpu", value_name = "DIRECTORY")]
    run_dir: PathBuf,
}

/// The GPUs there are.
#[derive(Clone, Copy, ValueEnum)]
enum GpuKind {
    /// Broadwell GT2.
    Bdw,
    /// Kaby Lake GT2.
    Kbl,
}

impl From<GpuKind> for Gpu {
    fn from(kind: GpuKind) -> Self {
        match kind {
            GpuKind::Bdw => Self::Bdw,
            GpuKind::Kbl => Self::Kbl,
        }
    }
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
    let records = Records::open(&args.run_dir)?;
    let config = Config {
        flights: records.flights(),
        run_limit: Duration::from_secs(args.run_limit),
        switch_mode: args.switch_mode,
        ..Config::default()
    };
    let platform = XenPlatform::open(args.gpu.into(), config, args.scan, args.shadow)?;
    let limits = Limits {
        attach: Duration::from_secs(args.attach_limit),
        downtime: Duration::from_millis(args.downtime_limit),
        heartbeat: Duration::from_millis(args.dm_hang_limit),
        crashes: Bounds {
            deaths: usize::try_from(args.dm_deaths)?,
            within: Duration::from_secs(args.dm_death_window),
            then: args.on_crash_loop,
        },
        ..Limits::default()
    };
    let places = Places {
        socket: &args.socket,
        state: &args.state_dir,
        records,
    };
    let daemon = Daemon::start(places, dm, limits, Arc::new(platform))?;
    log::info!("listening at {}", args.socket.display());
    let signal = signals.wait().context("cannot wait for signals")?;
    log::info!("{signal}: stopping");
    if signal == Signal::SIGTERM {
        // Guests run on, and the next vgpud takes them over.
        daemon.leave();
    } else {
        drop(daemon);
    }
    Ok(())
}
