//! vgpud: owns the GPU of a host and serves it to guests.
#![forbid(unsafe_code)]

mod daemon;
mod notify;
mod options;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use vgpu_config::Gpu;
use vgpu_sched::scheduler::Config;
use xen_glue::XenHost;

use crate::daemon::{
    Bounds, Confine, Daemon, DmCommand, Host, Limits, Places, Records, StubConfig, Stubs,
    XenPlatform, Xl,
};
use crate::options::{Options, Within};

/// Owns the GPU of this host and serves it to guests.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A file that has what is not said here, with the same names but _ for -
    /// [default: /etc/vgpu/vgpud.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
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

    let options = args.options.over(Options::read(args.config.as_deref())?);
    let dm = match options.dm {
        Some(path) => path,
        None => std::env::current_exe()
            .context("cannot find this program's directory")?
            .with_file_name("vgpu-dm"),
    };
    let mut dm = DmCommand::new(dm).counting(options.count_registers == Some(true));
    if options.unconfined == Some(true) {
        log::warn!("device models run as root");
    } else {
        let uid_base = Within::or(options.dm_uid_base, 1_900_000_000);
        dm = dm.confined(Confine {
            uid_base: u32::try_from(uid_base).context("dm_uid_base")?,
            seccomp: options.dm_seccomp.unwrap_or_default(),
        });
    }
    let run_dir = options
        .run_dir
        .unwrap_or_else(|| PathBuf::from("/run/vgpu"));
    let records = Records::open(&run_dir)?;
    let config = Config {
        flights: records.flights(),
        run_limit: Duration::from_secs(Within::or(options.run_limit, 10)),
        switch_mode: options.switch_mode.unwrap_or_default(),
        ..Config::default()
    };
    let platform = XenPlatform::open(
        options.gpu.unwrap_or(Gpu::Bdw),
        config,
        options.scan.unwrap_or_default(),
        options.shadow.unwrap_or_default(),
    )?;
    let limits = Limits {
        attach: Duration::from_secs(Within::or(options.attach_limit, 20)),
        downtime: Duration::from_millis(Within::or(options.downtime_limit, 500)),
        heartbeat: Duration::from_millis(Within::or(options.dm_hang_limit, 1000)),
        crashes: Bounds {
            deaths: usize::try_from(Within::or(options.dm_deaths, 10))?,
            within: Duration::from_secs(Within::or(options.dm_death_window, 10)),
            then: options.on_crash_loop.unwrap_or_default(),
        },
        ..Limits::default()
    };
    let socket = options
        .socket
        .unwrap_or_else(|| vgpu_control::DEFAULT_SOCKET.into());
    let state = options
        .state_dir
        .unwrap_or_else(|| PathBuf::from("/var/lib/vgpu"));
    let memory = Within::or(options.stub_memory, 72);
    let config = StubConfig {
        image: options
            .stub_image
            .unwrap_or_else(|| PathBuf::from("/var/lib/vgpu/stub")),
        memory_mib: u32::try_from(memory).context("stub_memory")?,
        cpus: options.stub_cpus,
        limit: Duration::from_secs(Within::or(options.stub_limit, 45)),
    };
    let xl = options.xl.unwrap_or_else(|| PathBuf::from("/usr/sbin/xl"));
    let host = Host {
        dm,
        stubs: Some(Stubs {
            toolstack: Arc::new(Xl::open(&xl, &run_dir)?),
            xen: Arc::new(XenHost),
            config,
        }),
        stub_default: options.stub == Some(true),
        limits,
        records,
    };
    let places = Places {
        socket: &socket,
        state: &state,
    };
    let daemon = Daemon::start(places, host, Arc::new(platform))?;
    log::info!("listening at {}", socket.display());
    if let Some(place) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(e) = notify::ready(&place)
    {
        log::warn!("cannot tell {} so: {e}", place.display());
    }
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
