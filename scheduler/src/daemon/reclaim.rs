//! Cleaning up behind a device model that died.

use std::sync::Arc;

use anyhow::Context;
use xen_glue::{DeviceModel, DomId, Hypervisor, IoreqServerId, VcpuIoreqs};

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
    let mut answered = 0;
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
            Ok(waited) => answered += u32::from(waited),
            Err(e) => log::warn!("{domid} vCPU {vcpu}: {e:#}"),
        }
    }
    drop(page);
    server
        .destroy()
        .context("cannot destroy the ioreq server")?;
    log::info!("{domid}: ioreq server destroyed, {answered} accesses answered with all ones");
    Ok(())
}
