//! A client's requests.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use vgpu_config::VgpuSpec;
use vgpu_control::{
    ClientRequest, Connection, ControlError, Failing, Peer, Register, Registered, Reply, Step,
};
use vgpu_sched::sync::lock;

use super::claim::Claim;
use super::device_model::one_line;
use super::guest::{Comes, Guest};
use super::migration::{self, Arriving};
use super::process::Process;
use super::registry::Reservation;
use super::server::Shared;
use super::{supervisor, top};

/// Xen reserves the domain ids from here up (Xen `public/xen.h:DOMID_FIRST_RESERVED`).
const FIRST_RESERVED: u16 = 0x7ff0;

/// Answers a client until it leaves.
pub fn serve(connection: &Connection, shared: &Shared) {
    if let Err(e) = converse(connection, shared) {
        log::warn!("a client was sent away: {e:#}");
    }
}

fn converse(connection: &Connection, shared: &Shared) -> anyhow::Result<()> {
    let peer = connection.peer()?;
    if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
        bail!("process {} has uid {}, allowed: 0", peer.pid, peer.uid);
    }
    connection.set_limit(Some(shared.host.limits.idle))?;
    loop {
        let (request, fds) = match connection.recv::<ClientRequest>() {
            Ok(request) => request,
            Err(ControlError::Closed) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let (reply, fd) = match answer(request, fds, peer, shared) {
            Ok((value, fd)) => (Reply::Ok(value), fd),
            Err(e) => (Reply::Error(one_line(&e)), None),
        };
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        match connection.send(&reply, &fds) {
            Err(ControlError::TooLong) => {
                let reply = Reply::<()>::Error("the answer is too long for one message".into());
                connection.send(&reply, &[])?;
            }
            other => other?,
        }
    }
}

fn answer(
    request: ClientRequest,
    fds: Vec<OwnedFd>,
    peer: Peer,
    shared: &Shared,
) -> anyhow::Result<(Value, Option<OwnedFd>)> {
    let value = match request {
        ClientRequest::Ping => json!({"version": env!("CARGO_PKG_VERSION")}),
        ClientRequest::List => serde_json::to_value(shared.registry.list())?,
        ClientRequest::InspectHost => shared.platform.tree(),
        ClientRequest::Inspect { domid } => guest(shared, domid)?.tree(),
        ClientRequest::Set { domid, changes } => {
            let held = guest(shared, domid)?.set_share(&changes, &shared.kept)?;
            log::info!("domain {domid}: {} by process {}", held.share, peer.pid);
            serde_json::to_value(held)?
        }
        ClientRequest::RestartDm { domid, how } => {
            guest(shared, domid)?.disturb_dm(how)?;
            log::info!(
                "domain {domid}: {how:?} of its device model by process {}",
                peer.pid
            );
            json!({})
        }
        ClientRequest::MigrateStatus { domid } => {
            let guest = guest(shared, domid)?;
            migration::look_ahead(guest.migration());
            serde_json::to_value(guest.migration().now())?
        }
        ClientRequest::FailMigration { domid, at, how } => {
            fail_migration(shared, domid, at, how)?;
            json!({})
        }
        ClientRequest::LimitMigration { domid, limit_ms } => {
            guest(shared, domid)?.migration().limit(limit_ms);
            log::info!(
                "domain {domid}: may stand still for {limit_ms} ms, by process {}",
                peer.pid
            );
            json!({})
        }
        ClientRequest::Top { after } => top::sample(shared, after)?,
        ClientRequest::Trace { cursor, max } => top::trace(shared, cursor, max)?,
        ClientRequest::Register(register) => {
            let (registered, area) = add(&register, fds, peer, shared).inspect_err(|e| {
                log::warn!("domain {}: no vGPU: {}", register.domid, one_line(e));
            })?;
            return Ok((serde_json::to_value(registered)?, area));
        }
    };
    Ok((value, None))
}

fn guest(shared: &Shared, domid: u16) -> anyhow::Result<Arc<Guest>> {
    let guest = shared.registry.get(domid);
    guest.with_context(|| format!("domid is {domid}, allowed: a domain with a vGPU"))
}

fn fail_migration(shared: &Shared, domid: u16, at: Step, how: Failing) -> anyhow::Result<()> {
    if !at.at_target() {
        guest(shared, domid)?.migration().fail_at(at, how);
        return Ok(());
    }
    if domid != 0 {
        bail!("domid is {domid}, allowed at this step: 0, for the guest that comes next");
    }
    if how == Failing::Killed {
        bail!("the toolstack can be killed at steps of the source only");
    }
    *lock(&shared.fail_arrival) = Some(at);
    Ok(())
}

/// Adds a guest; what its launcher is told, and the shared area, if that is
/// memory of dom0, which its QEMU is to hold.
fn add(
    register: &Register,
    fds: Vec<OwnedFd>,
    peer: Peer,
    shared: &Shared,
) -> anyhow::Result<(Registered, Option<OwnedFd>)> {
    let domid = register.domid;
    let spec = check(register, shared)?;
    let saved = if register.incoming {
        let file = fds.into_iter().next();
        let file = file.context("the guest is to be restored, and no file came with that")?;
        Some(Arriving::read(&File::from(file))?)
    } else {
        None
    };
    let fail = saved
        .as_ref()
        .and_then(|_| lock(&shared.fail_arrival).take());
    if fail == Some(Step::Load) {
        bail!("it was made to fail here by a client");
    }
    let Some(place) = shared.registry.reserve(domid) else {
        bail!("domid is {domid}, allowed: a domain without a vGPU");
    };
    let identity = shared.platform.identify(domid);
    let claim = Claim::new(spec, identity, &shared.kept);
    let now = claim.spec();
    log::info!("domain {domid}: vGPU {now} for process {}", peer.pid);
    let qemu = Process::of(peer.pid).context("the client")?;
    let comes = saved.as_ref().map_or(Comes::New, Comes::Arriving);
    let guest = Guest::start(
        register,
        claim,
        qemu,
        &shared.host,
        &*shared.platform,
        comes,
    )?;
    let area = guest.area()?;
    if let Some(step) = fail {
        guest.migration().fail_at(step, Failing::Refused);
    }
    settle(guest, place, shared)?;
    log::info!("domain {domid}: vGPU attached");
    let registered = Registered {
        incoming_at: saved.map_or(0, |saved| saved.qemu_at),
    };
    Ok((registered, area))
}

/// What is asked for.
pub fn check(register: &Register, shared: &Shared) -> anyhow::Result<VgpuSpec> {
    let domid = register.domid;
    if domid == 0 || domid >= FIRST_RESERVED {
        bail!("domid is {domid}, allowed: 1 to {}", FIRST_RESERVED - 1);
    }
    let mut spec: VgpuSpec = register.vgpu.parse()?;
    spec.gpu = Some(spec.gpu_on(shared.platform.gpu())?);
    Ok(spec)
}

/// Puts a guest in its place, where it is watched until it ends.
pub fn settle(guest: Guest, place: Reservation<'_>, shared: &Shared) -> anyhow::Result<()> {
    let guest = Arc::new(guest);
    let domid = guest.domid;
    let weak: Weak<Guest> = Arc::downgrade(&guest);
    guest.migration().connect(weak);
    place.fill(Arc::clone(&guest));
    let registry = Arc::clone(&shared.registry);
    let platform = Arc::clone(&shared.platform);
    supervisor::start(guest, Arc::clone(&registry), platform).inspect_err(|_| {
        registry.remove(domid);
    })?;
    Ok(())
}
