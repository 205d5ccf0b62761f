//! Cleaning up behind a device model that died.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use guest_memory::GuestMemory;
use xen_glue::{
    DeviceModel, DomId, ForeignMemory, ForeignMemoryConfig, Hypervisor, IoHandler, IoKind,
    IoreqServerId, IoreqState, VcpuIoreqs, execute,
};

/// How long vCPUs may take to pick up their answers. One that is paused does
/// not, and then gets what its register held before.
const PICK_UP: Duration = Duration::from_secs(1);

/// No device. A write to memory can only be one to a frame that was
/// protected: it is done, or the guest would miss it.
struct Nothing<'a>(&'a ForeignMemory);

impl IoHandler for Nothing<'_> {
    fn read(&mut self, _kind: IoKind, _addr: u64, _size: u32) -> u64 {
        u64::MAX
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        let size = usize::try_from(size).unwrap_or(8).min(8);
        if kind == IoKind::Copy
            && let Err(e) = self.0.write(addr, &value.to_le_bytes()[..size])
        {
            log::debug!("{e}");
        }
    }
}

/// Answers what the vCPUs of `domid` wait for in `server`, reads with all
/// ones, and destroys the server.
///
/// Xen keeps a server whose process died, with the vCPU waiting; any process
/// of its domain may take it over. Nothing new comes once it is disabled.
///
/// # Errors
/// When Xen refuses, and the server is not merely gone already.
pub fn reclaim(hypervisor: &dyn Hypervisor, domid: DomId, server: u16) -> anyhow::Result<()> {
    let model = DeviceModel::new(hypervisor.open_privcmd()?, domid);
    let server = model.attach_ioreq_server(IoreqServerId(server));
    if server.info().is_err() {
        // The device model destroyed it on its way out, or the domain is
        // gone; either way there is nothing to destroy.
        let _ = server.into_id();
        return Ok(());
    }
    // A frame left protected could never be written again. It has to end
    // while there is a server, and most have no claim.
    if let Err(e) = server.release_write_protection() {
        log::debug!("{e}");
    }
    server.set_enabled(false)?;
    let memory = ForeignMemory::new(
        hypervisor.open_privcmd()?,
        domid,
        ForeignMemoryConfig::default(),
    );
    let vcpus = model.nr_vcpus()?;
    let page = Arc::new(server.map_page(vcpus)?);
    let mut answered = Vec::new();
    for vcpu in 0..vcpus {
        let waits = || -> anyhow::Result<bool> {
            let events = hypervisor.open_event_channels()?;
            let slot = VcpuIoreqs::bind(Arc::clone(&page), vcpu, events, domid)?;
            let Some(request) = slot.take_unfinished()? else {
                return Ok(false);
            };
            let data = execute(&request, &mut Nothing(&memory), &memory);
            slot.complete(data)?;
            Ok(true)
        };
        match waits() {
            Ok(true) => answered.push(vcpu),
            Ok(false) => {}
            Err(e) => log::warn!("{domid} vCPU {vcpu}: {e:#}"),
        }
    }
    // Xen looks for the answer in the page of a server that still exists
    // (Xen common/ioreq.c:vcpu_ioreq_handle_completion).
    let start = Instant::now();
    let unread = |&vcpu: &u32| matches!(page.state(vcpu), Ok(IoreqState::RespReady));
    while answered.iter().any(unread) && start.elapsed() < PICK_UP {
        thread::sleep(Duration::from_millis(1));
    }
    drop(page);
    server
        .destroy()
        .context("cannot destroy the ioreq server")?;
    let count = answered.len();
    log::info!("{domid}: ioreq server destroyed, {count} accesses answered with all ones");
    Ok(())
}

#[cfg(test)]
mod tests {
    use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind};
    use guest_memory::Gfn;
    use xen_glue::{Extent, MemType};

    use super::*;

    const BASE: u64 = 0xf000_0000;

    fn two_vcpus() -> DomainConfig {
        DomainConfig {
            vcpus: 2,
            ..DomainConfig::default()
        }
    }

    /// A device model that took the first vCPU's access and died.
    fn leave_a_server(xen: &FakeXen, domain: &Domain) -> u16 {
        let model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
        let server = model.create_ioreq_server().unwrap();
        let page = Arc::new(server.map_page(2).unwrap());
        server.set_enabled(true).unwrap();
        server.map_mmio(&(BASE..=BASE + 0xfff)).unwrap();
        let events = xen.open_event_channels().unwrap();
        let first = VcpuIoreqs::bind(page, 0, events, domain.id()).unwrap();
        let vcpu = domain.vcpu(0).unwrap();
        thread::spawn(move || vcpu.mmio_read(BASE, 4));
        assert!(first.next(None).unwrap().is_some());
        server.into_id().0
    }

    #[test]
    fn no_vcpu_waits_for_a_dead_device_model() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(two_vcpus()).unwrap();
        let server = leave_a_server(&xen, &domain);
        let second = domain.vcpu(1).unwrap();
        let waits = thread::spawn(move || second.mmio_read(BASE + 4, 4));
        reclaim(&xen, domain.id(), server).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), 0xffff_ffff);
        // The first vCPU is free as well, and nobody answers any more.
        let first = domain.vcpu(0).unwrap();
        assert_eq!(first.mmio_read(BASE, 4).unwrap(), 0xffff_ffff);
        assert_eq!(domain.ioreq_servers(), 0);
        assert_eq!(domain.stopped(), None);
    }

    #[test]
    fn a_write_to_a_protected_frame_is_done_and_the_frame_is_ram_again() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(two_vcpus()).unwrap();
        let server = leave_a_server(&xen, &domain);
        let model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
        let handle = model.attach_ioreq_server(IoreqServerId(server));
        handle.claim_write_protection().unwrap();
        let extent = Extent {
            first_gfn: 5,
            frames: 1,
        };
        model.set_mem_type(extent, MemType::WriteProtected).unwrap();
        let second = domain.vcpu(1).unwrap();
        let page = handle.map_page(2).unwrap();
        let waits = thread::spawn(move || second.mmio_write(0x5008, 8, 0x9003));
        while page.state(1) != Ok(IoreqState::Ready) {
            thread::yield_now();
        }
        let server = handle.into_id().0;
        reclaim(&xen, domain.id(), server).unwrap();
        waits.join().unwrap().unwrap();
        assert_eq!(domain.frame(Gfn(5)), FrameKind::Ram);
        assert_eq!(domain.ram().read_u64(0x5008).unwrap(), 0x9003);
        domain.vcpu(1).unwrap().mmio_write(0x5008, 8, 7).unwrap();
        assert_eq!(domain.enable_log_dirty(), Ok(()));
    }

    #[test]
    fn a_server_that_is_gone_is_no_error() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(two_vcpus()).unwrap();
        reclaim(&xen, domain.id(), 5).unwrap();
        domain.destroy();
        reclaim(&xen, domain.id(), 5).unwrap();
    }
}
