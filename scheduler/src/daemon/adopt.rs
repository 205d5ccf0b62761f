//! Guests that another vgpud left when it was killed or replaced.
//!
//! Their vCPUs and their device models went on. Each is found by its record,
//! its shared area in the process of its QEMU, and its device model is replaced
//! by one of this vgpud's, which goes on from what the area keeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use vgpu_control::Register;
use vgpu_ring::SharedArea;

use super::claim::Claim;
use super::client::{check, settle};
use super::guest::{Comes, Guest};
use super::records::GuestRecord;
use super::server::Shared;

/// How long a device model may take to end that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// Takes over every guest that is left. One that cannot be taken over loses its
/// vGPU; the others are no worse for it.
pub fn adopt_all(shared: &Shared) {
    let records = shared.records.read().unwrap_or_else(|e| {
        log::error!("{e:#}; guests that run are not found");
        Vec::new()
    });
    for record in records {
        let domid = record.domid;
        match adopt(&record, shared) {
            Ok(()) => log::info!("domain {domid}: vGPU adopted"),
            Err(e) => {
                log::error!("domain {domid}: vGPU not adopted: {e:#}");
                give_up(&record, shared);
            }
        }
    }
    shared.platform.adopted_all();
}

/// Nobody serves the guest's device: its accesses give all ones.
fn give_up(record: &GuestRecord, shared: &Shared) {
    let domid = record.domid;
    if let Some(dm) = record.dm
        && let Err(e) = dm.kill(KILLED)
    {
        log::error!("domain {domid}: its device model: {e:#}");
    }
    // Not another guest's that has its number.
    if same_guest(record, shared).is_ok()
        && let Err(e) = shared.platform.reclaim(domid, record.server)
    {
        log::warn!("domain {domid}: {e:#}");
    }
    shared.records.remove(domid);
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
    let area = find_area(record, qemu.as_fd())?;
    let area = SharedArea::open(area)?;
    let place = shared.registry.reserve(domid);
    let place = place.context("the domain has a vGPU already")?;
    // The rings have room for one.
    if let Some(dm) = record.dm {
        dm.kill(KILLED).context("its device model")?;
    }
    let claim = Claim::new(spec, identity, &shared.kept);
    let comes = Comes::Orphan(record, area);
    let guest = Guest::start(&register, claim, record.qemu, &shared.means(), comes)?;
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
