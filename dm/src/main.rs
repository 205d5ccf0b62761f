//! The device model of one guest, started by vgpud.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use vgpu_confine::{Confined, Confinement, Role, Seccomp};
use vgpu_control::{Connection, ControlError, FromDm, StartDm, ToDm};
use vgpu_device::{Config, GGTT_MIB};
use vgpu_dm::{Server, ServerConfig};
use vgpu_ring::{Bells, DeviceBells, DeviceEnd, SharedArea};
use xen_glue::{DEVICE_MODEL_REQUESTS, DomId, Handles, XenHost};

/// Serves one guest's virtual GPU. vgpud starts it, with its control socket
/// as standard input.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How long to look for the next request of a vCPU before sleeping, in
    /// microseconds.
    #[arg(long, default_value_t = 1000, value_name = "MICROSECONDS")]
    spin_us: u32,

    /// Count accesses by register, for vgpuctl inspect.
    #[arg(long)]
    count_registers: bool,
}

/// MiB of global address space that a guest may use when each write to its
/// page table is trapped: i915 writes all of it when it starts, 256 entries a
/// MiB.
const TRAPPED_GGTT_MIB: u32 = 128;

fn main() -> anyhow::Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let arguments = Arguments::parse();
    let stdin = std::io::stdin();
    let control = stdin.as_fd().try_clone_to_owned();
    let control = Connection::from(control.context("standard input")?);
    match attach(&control, &arguments) {
        Ok((server, confined)) => {
            let server_id = server.id();
            control.send(
                &FromDm::Attached {
                    server: server_id,
                    confined,
                },
                &[],
            )?;
            let result = serve(&control, &server);
            server.stop();
            result
        }
        Err(e) => {
            // Who started us may be gone; the log has it too.
            let reason = format!("{e:#}");
            if let Err(lost) = control.send(&FromDm::Failed(reason), &[]) {
                log::warn!("{lost}");
            }
            Err(e)
        }
    }
}

/// Takes the first message, gives up what is not needed, and attaches. Nothing
/// of the guest's is looked at before.
fn attach(
    control: &Connection,
    arguments: &Arguments,
) -> anyhow::Result<(Server, Option<Confined>)> {
    let (message, fds) = control
        .recv::<ToDm>()
        .context("waiting for the first message of vgpud on standard input")?;
    let ToDm::Start(start) = message else {
        bail!("first message is {message:?}, allowed: start");
    };
    let end = device_end(fds)?;
    let config = server_config(&start, arguments)?;
    let handles = Handles::open(&XenHost, config.domid)?;
    let confined = match start.confine {
        Some(Confinement { identity, .. }) => Some(vgpu_confine::process(identity)?),
        None => None,
    };
    let server = Server::attach(&handles, &config, end)?;
    // Last: this thread's filter would be that of those it starts, too.
    vgpu_confine::thread(Role::Control, config.seccomp, &DEVICE_MODEL_REQUESTS)?;
    log::info!(
        "domain {}: vGPU in slot {}, {} MiB aperture, {}, page table {}, ioreq server {}",
        start.domid,
        start.slot,
        start.aperture_mib,
        start.mode,
        server.table(),
        server.id()
    );
    match &confined {
        Some(Confined { identity, landlock }) => log::info!(
            "domain {}: uid {}, landlock {landlock}, seccomp {}",
            start.domid,
            identity.uid,
            config.seccomp
        ),
        None => log::warn!("domain {}: not confined", start.domid),
    }
    Ok((server, confined))
}

/// Our end of the shared area, from the descriptors of the first message.
fn device_end(fds: Vec<OwnedFd>) -> anyhow::Result<DeviceEnd> {
    let count = fds.len();
    let [area, submit, complete] = <[OwnedFd; 3]>::try_from(fds)
        .map_err(|_| anyhow!("first message has {count} descriptors, allowed: 3"))?;
    let area = SharedArea::open(area)?;
    let bells = Bells::from_daemon(DeviceBells { submit, complete });
    Ok(area.device_end(bells.context("doorbells")?))
}

fn server_config(start: &StartDm, arguments: &Arguments) -> anyhow::Result<ServerConfig> {
    Ok(ServerConfig {
        domid: DomId(start.domid),
        slot: start.slot,
        table_gfn: start.ggtt_gfn,
        device: Config {
            aperture_mib: start.aperture_mib,
            mode: start.mode.parse()?,
            ggtt_mib: match start.ggtt_gfn {
                Some(_) => GGTT_MIB,
                None => TRAPPED_GGTT_MIB,
            },
            count_registers: arguments.count_registers,
        },
        spin: Duration::from_micros(arguments.spin_us.into()),
        seccomp: start.confine.map_or(Seccomp::Off, |c| c.seccomp),
    })
}

/// Answers vgpud until it says stop or is gone.
fn serve(control: &Connection, server: &Server) -> anyhow::Result<()> {
    loop {
        match control.recv::<ToDm>() {
            Ok((ToDm::Inspect, _)) => {
                match control.send(&FromDm::Tree(server.inspect()?), &[]) {
                    // A guest can fill a device with registers.
                    Err(ControlError::TooLong) => {
                        let tree = serde_json::json!({"error": "too long for one message"});
                        control.send(&FromDm::Tree(tree), &[])?;
                    }
                    other => other?,
                }
            }
            Ok((ToDm::Stop, _)) => return Ok(()),
            Ok((ToDm::Start(_), _)) => log::warn!("a second start, ignored"),
            Err(ControlError::Closed) => {
                log::info!("vgpud closed the connection");
                return Ok(());
            }
            Err(e) => return Err(e).context("control socket"),
        }
    }
}
