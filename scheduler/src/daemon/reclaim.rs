//! Cleaning up behind a device model that died.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use xen_glue::{DeviceModel, DomId, Hypervisor, IoreqServerId, IoreqState, VcpuIoreqs};

/// How long vCPUs may take to pick up their answers. One that is paused does
/// not, and then gets what its register held before.
const PICK_UP: Duration = Duration::from_secs(1);

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
    server.set_enabled(false)?;
    let vcpus = model.nr_vcpus()?;
    let page = Arc::new(server.map_page(vcpus)?);
    let mut answered = Vec::new();
    for vcpu in 0..vcpus {
        let waits = || -> anyhow::Result<bool> {
            let events = hypervisor.open_event_channels()?;
            let slot = VcpuIoreqs::bind(Arc::clone(&page), vcpu, events, domid)?;
            if slot.take_unfinished()?.is_none() {
                return Ok(false);
            }
            slot.complete(u64::MAX)?;
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
    use fake_xen::{Domain, DomainConfig, FakeXen};

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
    fn a_server_that_is_gone_is_no_error() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(two_vcpus()).unwrap();
        reclaim(&xen, domain.id(), 5).unwrap();
        domain.destroy();
        reclaim(&xen, domain.id(), 5).unwrap();
    }
}
