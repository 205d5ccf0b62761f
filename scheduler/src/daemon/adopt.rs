//! Guests that another vgpud left when it was killed or replaced.
//!
//! Their vCPUs and their device models went on. Each is found by its record,
//! its shared area in the process of its QEMU or in its device model's domain,
//! and its device model is replaced by one of this vgpud's, which goes on from
//! what the area keeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use vgpu_control::{Place, Register};
use vgpu_ring::SharedArea;
use xen_glue::DomainState;

use super::claim::Claim;
use super::client::{check, settle};
use super::guest::{Comes, Guest};
use super::records::{GuestRecord, StubRecord};
use super::seat::LeftSeat;
use super::server::Shared;
use super::stub::WaitingStub;

/// How long a device model may take to end that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// Takes over every guest that is left. One that cannot be taken over loses its
/// vGPU; the others are no worse for it. Of device models' domains those stay that
/// a guest has then.
pub fn adopt_all(shared: &Shared) {
    // Not those that are made from here on.
    let stubs = made_before(shared);
    let records = shared.host.records.read().unwrap_or_else(|e| {
        log::error!("{e:#}; guests that run are not found");
        Vec::new()
    });
    // A stub domain may take all the time there is: they take it at once, and
    // nobody waits for them.
    let (slow, fast): (Vec<_>, Vec<_>) = records.iter().partition(|r| r.stub.is_some());
    for record in fast {
        adopt_or_give_up(record, shared);
    }
    thread::scope(|scope| {
        for record in slow {
            let name = format!("adopt{}", record.domid);
            let thread = thread::Builder::new().name(name);
            let spawned = thread.spawn_scoped(scope, move || adopt_or_give_up(record, shared));
            if let Err(e) = spawned {
                log::warn!("domain {}: no thread to adopt it: {e}", record.domid);
                adopt_or_give_up(record, shared);
            }
        }
    });
    for stub in stubs {
        end_unless_used(stub, shared);
    }
    shared.platform.adopted_all();
}

fn adopt_or_give_up(record: &GuestRecord, shared: &Shared) {
    let domid = record.domid;
    match adopt(record, shared) {
        Ok(()) => log::info!("domain {domid}: vGPU adopted"),
        Err(e) => {
            log::error!("domain {domid}: vGPU not adopted: {e:#}");
            give_up(record, shared);
        }
    }
}

/// The domains that vgpud has made for device models.
fn made_before(shared: &Shared) -> Vec<u16> {
    let made = shared.host.stubs.as_ref().map(|s| s.toolstack.made());
    made.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|e| {
        log::error!("{e:#}; device models' domains without a guest are not found");
        Vec::new()
    })
}

/// Destroys a device model's domain that no guest has: that of one that was not
/// taken over, or one that was coming up when vgpud died. What it has of a guest in
/// Xen goes only with it: Xen lets nobody else end its ioreq server.
fn end_unless_used(stub: u16, shared: &Shared) {
    let Some(stubs) = &shared.host.stubs else {
        return;
    };
    let place = Place::Domain(stub);
    let guests = shared.registry.guests();
    if guests.iter().any(|guest| guest.dm().place() == place)
        || matches!(stubs.toolstack.state(stub), Ok(DomainState::Gone))
    {
        return;
    }
    match stubs.toolstack.destroy(stub) {
        Ok(()) => log::warn!("domain {stub}, a device model's, had no guest: destroyed"),
        Err(e) => log::error!("domain {stub}, a device model's, is left: {e:#}"),
    }
}

/// Nobody serves the guest's device: its accesses give all ones, or hang where its
/// device model had a domain of its own.
fn give_up(record: &GuestRecord, shared: &Shared) {
    let domid = record.domid;
    if let Some(dm) = record.dm
        && let Err(e) = dm.kill(KILLED)
    {
        log::error!("domain {domid}: its device model: {e:#}");
    }
    // Not another guest's that has its number.
    if same_guest(record, shared).is_ok() {
        if record.stub.is_none()
            && let Err(e) = shared.platform.reclaim(domid, record.server)
        {
            log::warn!("domain {domid}: {e:#}");
        }
        // One that was lost before was paused before.
        if record.failure.is_none()
            && record.qemu.open().is_ok()
            && (shared.host.limits.crashes.then).carry_out(domid, &*shared.platform)
        {
            log::warn!("domain {domid}: the guest is paused");
        }
        // After that: no vCPU of it runs in between.
        let_run(domid, shared);
    }
    shared.host.records.remove(domid);
}

/// Takes back what a vgpud that died had the guest paused for.
fn let_run(domid: u16, shared: &Shared) {
    if let Some(stubs) = &shared.host.stubs
        && shared.host.records.held(domid)
        && let Err(e) = stubs.toolstack.unpause_guest(domid)
    {
        log::error!("domain {domid} stays paused: {e:#}");
    }
}

/// That the number of a device model's domain is not another's by now.
fn same_stub(stub: &StubRecord, shared: &Shared) -> anyhow::Result<()> {
    let now = StubRecord::of(stub.domid, &*shared.platform);
    if now != *stub {
        let named = |uuid: &Option<String>| uuid.as_deref().unwrap_or("none").to_owned();
        bail!(
            "its device model's domain {} has UUID {}, wanted: {}",
            stub.domid,
            named(&now.uuid),
            named(&stub.uuid)
        );
    }
    Ok(())
}

fn same_guest(record: &GuestRecord, shared: &Shared) -> anyhow::Result<super::platform::Identity> {
    let identity = shared.platform.identify(record.domid);
    let uuid = identity.uuid.as_ref().map(ToString::to_string);
    if uuid != record.uuid {
        bail!(
            "the domain has UUID {}, wanted: {}",
            uuid.as_deref().unwrap_or("none"),
            record.uuid.as_deref().unwrap_or("none")
        );
    }
    Ok(identity)
}

fn adopt(record: &GuestRecord, shared: &Shared) -> anyhow::Result<()> {
    let domid = record.domid;
    let qemu = record.qemu.open().context("its QEMU")?;
    let identity = same_guest(record, shared)?;
    if let Some(failure) = &record.failure {
        bail!("it was lost before: {failure}");
    }
    let register = Register {
        domid,
        vgpu: record.vgpu.clone(),
        qmp: record.qmp.clone(),
        incoming: false,
    };
    let spec = check(&register, shared)?;
    let place = shared.registry.reserve(domid);
    let place = place.context("the domain has a vGPU already")?;
    let left = match &record.stub {
        Some(stub) => {
            let adopt = || {
                same_stub(stub, shared)?;
                let records = &shared.host.records;
                WaitingStub::adopt(shared.host.stubs()?, records, stub.domid, domid)
            };
            let adopted = adopt().with_context(|| match shared.host.records.held(domid) {
                true => "its device model was being replaced when vgpud ended",
                false => "its device model's domain",
            });
            let (stub, area) = adopted?;
            LeftSeat::Stub(Box::new(stub), area)
        }
        None => {
            let area = SharedArea::open(find_area(record, qemu.as_fd())?)?;
            // The rings have room for one.
            if let Some(dm) = record.dm {
                dm.kill(KILLED).context("its device model")?;
            }
            LeftSeat::Memory(area)
        }
    };
    let claim = Claim::new(spec, identity, &shared.kept);
    let comes = Comes::Orphan(record, Box::new(left));
    let guest = Guest::start(
        &register,
        claim,
        record.qemu,
        &shared.host,
        &*shared.platform,
        comes,
    )?;
    if !record.table_in_ram
        && let Err(e) = guest.bring_table_home()
    {
        log::warn!("domain {domid}: its page table stays trapped: {e:#}");
    }
    settle(guest, place, shared)
}

/// The descriptor of the shared area, which the guest's QEMU holds. It knows
/// nothing of it, so its number is whatever its launcher had free.
fn find_area(record: &GuestRecord, qemu: BorrowedFd<'_>) -> anyhow::Result<OwnedFd> {
    let path = format!("/proc/{}/fd", record.qemu.pid);
    let entries = std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        // What it is is looked at here: by then the number may mean another.
        let Ok(fd) = pidfd_getfd(qemu, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if rustix::fs::fstat(&fd).is_ok_and(|s| s.st_ino == record.area)
            && rustix::fs::fcntl_get_seals(&fd).is_ok()
        {
            return Ok(fd);
        }
    }
    bail!(
        "its QEMU, process {}, does not hold the shared area: it was started by \
         a vgpu-launcher of an older version",
        record.qemu.pid
    );
}
