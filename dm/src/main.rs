//! The device model of one guest, started by vgpud.

#![forbid(unsafe_code)]

mod control;
mod stub;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use control::{Came, Control, read_device};
use gen8::Platform;
use grant_area::LentArea;
use stub::Shared;
use stub::keeper::Keeper;
use vgpu_confine::{Confined, Confinement, Role, Seccomp};
use vgpu_control::{Connection, ControlError, FromDm, MAX_RUNS, StartDm, ToDm};
use vgpu_device::{Config, DeviceV1, GGTT_MIB};
use vgpu_dm::{PageKeeper, Server, ServerConfig, TableState};
use vgpu_ring::{Bells, DeviceBells, DeviceEnd, SharedArea};
use xen_glue::{DEVICE_MODEL_REQUESTS, DomId, Handles, XenHost};

/// Serves one guest's virtual GPU. vgpud starts it, with its control socket
/// as standard input.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Be the first process of a domain made for a device model.
    #[arg(long, hide = true, conflicts_with = "stub")]
    init: bool,

    /// Serve the guest that this domain was made for.
    #[arg(long, hide = true)]
    stub: bool,
}

/// MiB of global address space that a guest may use when each write to its
/// page table is trapped: i915 writes all of it when it starts, 256 entries a
/// MiB.
const TRAPPED_GGTT_MIB: u32 = 128;

fn main() -> anyhow::Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let arguments = Arguments::parse();
    if arguments.init {
        let own = std::env::args_os().skip(1).filter(|a| a != "--init");
        let Err(e) = stub::init::run(&own.collect::<Vec<_>>());
        return Err(e);
    }
    let stdin = std::io::stdin();
    let control = stdin.as_fd().try_clone_to_owned();
    let control = Connection::from(control.context("standard input")?);
    if arguments.stub {
        return in_stub(&control);
    }
    run(&Arc::new(Control::Socket(control)), None)
}

/// Serves the guest of this domain, whose area `holder` lends.
fn in_stub(holder: &Connection) -> anyhow::Result<()> {
    let Shared {
        area,
        control,
        pipe: _pipe,
    } = stub::offer(holder)?;
    let control = Arc::new(Control::Pipe(Box::new(control)));
    let keeper = Arc::new(Keeper::new(&control, holder)?);
    let result = run(&control, Some((&area, keeper)));
    if let Err(e) = &result {
        log::error!("{e:#}");
    }
    // What is granted ends with the process, as when it is killed: nothing is
    // given back by calls that a confined process does not have.
    std::process::exit(i32::from(result.is_err()));
}

/// What a device model in a domain of its own has before vgpud says anything.
type InStub<'a> = (&'a LentArea, Arc<Keeper>);

/// Attaches as vgpud says and serves until it says stop. In a domain of its own
/// there is an `area` before vgpud says anything.
fn run(control: &Arc<Control>, area: Option<InStub<'_>>) -> anyhow::Result<()> {
    match attach(control, area) {
        Ok((server, confined)) => {
            let server_id = server.id();
            let attached = control.send(&FromDm::Attached {
                server: server_id,
                confined,
                table: match server.table() {
                    TableState::Ram { gfn, .. } => Some(gfn),
                    TableState::Trapped => None,
                },
            });
            if let Err(e) = attached {
                log::warn!("vgpud does not hear that it is attached: {e}");
            }
            serve_and_part(control, server)
        }
        Err(e) => {
            // Who started us may be gone; the log has it too.
            let reason = format!("{e:#}");
            if let Err(lost) = control.send(&FromDm::Failed(reason)) {
                log::warn!("{lost}");
            }
            Err(e)
        }
    }
}

/// Takes the first message, gives up what is not needed, and attaches. Nothing
/// of the guest's is looked at before.
fn attach(
    control: &Arc<Control>,
    stub: Option<InStub<'_>>,
) -> anyhow::Result<(Server, Option<Confined>)> {
    let (message, came) = control
        .recv()
        .context("waiting for the first message of vgpud")?;
    let ToDm::Start(start) = message else {
        bail!("first message is {message:?}, allowed: start");
    };
    let (area, keeper) = match stub {
        Some((area, keeper)) => (Some(area), Some(keeper as Arc<dyn PageKeeper>)),
        None => (None, None),
    };
    let (end, saved) = match (came, area) {
        (Came::Descriptors(fds), _) => descriptors(fds, &start)?,
        (Came::Bytes(bytes), Some(area)) => {
            let saved = start.restored.then(|| read_device(&*bytes)).transpose();
            let bells = area.bells()?;
            let end = match start.recover {
                Some(_) => area.resumed_device_end(bells),
                None => area.device_end(bells),
            };
            (end, saved.context("saved device")?)
        }
        (Came::Bytes(_), None) => bail!("first message came without an area"),
    };
    let mut config = server_config(&start)?;
    config.keeper = keeper;
    let handles = Handles::open(&XenHost, DomId(start.domid))?;
    let confined = match start.confine {
        Some(Confinement { identity, .. }) => Some(vgpu_confine::process(identity)?),
        None => None,
    };
    let server = match (start.recover, &saved) {
        (Some(server), _) => {
            let server = if start.anew {
                Server::recover_anew(handles, &config, end)?
            } else {
                Server::recover(handles, &config, server, end)?
            };
            if start.replay {
                server.device().replay();
            }
            server
        }
        (None, Some(saved)) => Server::restore(handles, &config, saved, end)?,
        (None, None) => Server::attach(handles, &config, end)?,
    };
    // Last: this thread's filter would be that of those it starts, too.
    vgpu_confine::thread(Role::Control, config.seccomp, &DEVICE_MODEL_REQUESTS)?;
    log::info!(
        "domain {}: {} vGPU in slot {}, {} MiB aperture, {}, page table {}, ioreq server {}",
        start.domid,
        start.gpu,
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

/// Our end of the shared area and the saved device, from the descriptors of
/// the first message.
fn descriptors(
    mut fds: Vec<OwnedFd>,
    start: &StartDm,
) -> anyhow::Result<(DeviceEnd, Option<DeviceV1>)> {
    let count = fds.len();
    let allowed = if start.restored { 4 } else { 3 };
    let saved = if start.restored { fds.pop() } else { None };
    let [area, submit, complete] = <[OwnedFd; 3]>::try_from(fds)
        .map_err(|_| anyhow!("first message has {count} descriptors, allowed: {allowed}"))?;
    let area = SharedArea::open(area)?;
    let bells = Bells::from_daemon(DeviceBells { submit, complete });
    let bells = bells.context("doorbells")?;
    let end = match start.recover {
        Some(_) => area.resumed_device_end(bells),
        None => area.device_end(bells),
    };
    let saved = saved.map(|file| read_device(File::from(file))).transpose();
    Ok((end, saved.context("saved device")?))
}

fn server_config(start: &StartDm) -> anyhow::Result<ServerConfig> {
    Ok(ServerConfig {
        slot: start.slot,
        table_gfn: start.ggtt_gfn,
        device: Config {
            gpu: Platform::named(&start.gpu)
                .with_context(|| format!("gpu is {:?}, allowed: bdw, kbl", start.gpu))?,
            aperture_mib: start.aperture_mib,
            mode: start.mode.parse()?,
            msi: start.msi,
            ggtt_mib: match start.ggtt_gfn {
                Some(_) => GGTT_MIB,
                None => TRAPPED_GGTT_MIB,
            },
            count_registers: start.count_registers,
        },
        spin: ServerConfig::DEFAULT_SPIN,
        seccomp: start.confine.map_or(Seccomp::Off, |c| c.seccomp),
        keeper: None,
    })
}

/// How often a device model without a vgpud looks whether its guest is there.
const LOOK: Duration = Duration::from_millis(500);

/// Serves the guest on, without a vgpud, until its domain ends or somebody
/// ends this process: a new vgpud has a successor go on from what is kept.
fn outlive(server: &Server) {
    log::warn!("vgpud is gone; the guest is served on");
    while server.attached() {
        std::thread::sleep(LOOK);
    }
    log::info!("the guest is gone");
}

/// Serves until vgpud says stop or there is no guest any more, and lets go of
/// the guest then. After anything else that is a successor's.
fn serve_and_part(control: &Control, server: Server) -> anyhow::Result<()> {
    let result = serve(control, &server).or_else(|e| match e.downcast_ref() {
        // Whether it went before it asked something or before it was answered.
        Some(ControlError::Closed) => {
            outlive(&server);
            Ok(())
        }
        _ => Err(e),
    });
    match result {
        Ok(()) => server.stop(),
        // The ioreq server must be there for it.
        Err(_) => server.abandon(),
    }
    result
}

/// Answers vgpud until it says stop.
fn serve(control: &Control, server: &Server) -> anyhow::Result<()> {
    loop {
        let (message, came) = control.recv().context("control socket")?;
        match message {
            ToDm::Inspect => {
                match control.send(&FromDm::Tree(server.inspect()?)) {
                    // A guest can fill a device with registers.
                    Err(ControlError::TooLong) => {
                        let tree = serde_json::json!({"error": "too long for one message"});
                        control.send(&FromDm::Tree(tree))?;
                    }
                    other => other?,
                }
            }
            ToDm::Stop => return Ok(()),
            ToDm::Start(_) | ToDm::Proceed => log::warn!("{message:?} now, ignored"),
            ToDm::Wake => {
                let woken = server.wake_vcpus().map_err(anyhow::Error::from);
                control.send(&woken.map_or_else(|e| refused(&e), |()| FromDm::Done))?;
            }
            ToDm::Written { most } => {
                let runs = server.take_written(most.min(MAX_RUNS)).into_iter();
                let runs = runs.map(|(first, frames)| (first.0, frames)).collect();
                control.send(&FromDm::Written(runs))?;
            }
            ToDm::Save => {
                if let Err(e) = control.send_device(came, &server.save()) {
                    control.send(&refused(&e))?;
                }
            }
            save => {
                let answer =
                    for_a_save(server, &save).map_or_else(|e| refused(&e), |()| FromDm::Done);
                control.send(&answer)?;
            }
        }
    }
}

fn refused(error: &anyhow::Error) -> FromDm {
    FromDm::Refused(format!("{error:#}").replace('\n', " "))
}

/// A step of a save.
fn for_a_save(server: &Server, step: &ToDm) -> anyhow::Result<()> {
    match *step {
        ToDm::TableOut => server.take_table_out()?,
        ToDm::TableIn { gfn } => server.take_table_in(gfn)?,
        ToDm::TableSettle { gfn } => server.settle_table(gfn),
        ToDm::Record(true) => server.record()?,
        ToDm::Record(false) => server.stop_recording(),
        ToDm::HoldStill { limit_ms } => server.hold_still(Duration::from_millis(limit_ms))?,
        ToDm::GoOn => server.go_on(),
        ToDm::Start(_)
        | ToDm::Inspect
        | ToDm::Stop
        | ToDm::Written { .. }
        | ToDm::Proceed
        | ToDm::Wake
        | ToDm::Save => {
            bail!("{step:?} is no step of a save");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::BorrowedFd;
    use std::thread;

    use fake_xen::{Domain, DomainConfig, FakeXen};
    use vgpu_ring::{AreaConfig, DaemonEnd};

    use super::*;

    struct Guest {
        xen: FakeXen,
        domain: Domain,
        area: SharedArea,
        _vgpud: DaemonEnd,
    }

    fn config() -> ServerConfig {
        ServerConfig {
            slot: 16,
            table_gfn: None,
            device: Config::default(),
            spin: ServerConfig::DEFAULT_SPIN,
            seccomp: Seccomp::Off,
            keeper: None,
        }
    }

    impl Guest {
        fn new() -> (Self, Server) {
            let xen = FakeXen::new();
            let domain = xen.create_domain(DomainConfig::default()).unwrap();
            let area = SharedArea::create(AreaConfig::default()).unwrap();
            let bells = Bells::new().unwrap();
            let vgpud = area.daemon_end(bells.try_clone().unwrap());
            let handles = Handles::open(&xen, domain.id()).unwrap();
            let server = Server::attach(handles, &config(), area.device_end(bells)).unwrap();
            let guest = Self {
                xen,
                domain,
                area,
                _vgpud: vgpud,
            };
            (guest, server)
        }

        fn successor(&self, server: u16) -> Server {
            let handles = Handles::open(&self.xen, self.domain.id()).unwrap();
            let end = self.area.resumed_device_end(Bells::new().unwrap());
            Server::recover(handles, &config(), server, end).unwrap()
        }
    }

    #[test]
    fn a_vgpud_that_dies_with_a_question_open_takes_no_vgpu_with_it() {
        let file = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let questions = [
            ToDm::Inspect,
            ToDm::Wake,
            ToDm::Written { most: 1 },
            ToDm::Record(true),
            ToDm::TableOut,
            ToDm::HoldStill { limit_ms: 1 },
            ToDm::Save,
        ];
        let served = questions.map(|question| {
            let (guest, server) = Guest::new();
            let (vgpud, ours) = Connection::pair().unwrap();
            let fds: &[BorrowedFd<'_>] = match question {
                ToDm::Save => &[file.as_fd()],
                _ => &[],
            };
            vgpud.send(&question, fds).unwrap();
            drop(vgpud);
            let ours = Control::Socket(ours);
            let serves = thread::spawn(move || serve_and_part(&ours, server));
            (question, guest, serves)
        });
        for (question, guest, serves) in served {
            assert_eq!(guest.domain.ioreq_servers(), 1, "{question:?}");
            guest.domain.destroy();
            let result = serves.join().unwrap();
            assert!(result.is_ok(), "{question:?}: {result:?}");
        }
    }

    #[test]
    fn what_is_no_order_leaves_the_guest_to_a_successor() {
        let (guest, server) = Guest::new();
        let number = server.id();
        let (vgpud, ours) = Connection::pair().unwrap();
        vgpud.send(&"garbage", &[]).unwrap();
        let ended = serve_and_part(&Control::Socket(ours), server);
        assert!(ended.is_err());
        assert_eq!(guest.domain.ioreq_servers(), 1);
        let (vgpud, ours) = Connection::pair().unwrap();
        vgpud.send(&ToDm::Stop, &[]).unwrap();
        let ended = serve_and_part(&Control::Socket(ours), guest.successor(number));
        assert!(ended.is_ok());
        assert_eq!(guest.domain.ioreq_servers(), 0);
    }
}
