//! Cleaning up behind a device model that died.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use guest_memory::{Gfn, GuestMemory};
use xen_glue::{
    DeviceModel, DomId, ForeignMemory, ForeignMemoryConfig, Hypervisor, IoHandler, IoKind,
    IoreqPage, IoreqServer, IoreqServerId, IoreqState, VcpuIoreqs, execute,
};

/// How long vCPUs may take to pick up their answers. One that is paused does
/// not, and then gets what its register held before.
const PICK_UP: Duration = Duration::from_secs(1);

/// How long vCPUs may go on with writes to protected frames, of which each
/// keeps its frame from becoming RAM.
const LET_GO: Duration = Duration::from_secs(1);

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
    let memory = ForeignMemory::new(
        hypervisor.open_privcmd()?,
        domid,
        ForeignMemoryConfig::default(),
    );
    let vcpus = model.nr_vcpus()?;
    let page = Arc::new(server.map_page(vcpus)?);
    // For the slots to have ports, should the device model have died before.
    server.set_enabled(true)?;
    let mut slots = Vec::new();
    for vcpu in 0..vcpus {
        let events = hypervisor.open_event_channels()?;
        match VcpuIoreqs::bind(Arc::clone(&page), vcpu, events, domid) {
            Ok(slot) => slots.push(slot),
            Err(e) => log::warn!("{domid} vCPU {vcpu}: {e}"),
        }
    }
    let mut answered = end_protection(&server, &slots, &page, &memory);
    server.set_enabled(false)?;
    answered += answer(&slots, &memory);
    // Xen looks for the answer in the page of a server that still exists
    // (Xen common/ioreq.c:vcpu_ioreq_handle_completion).
    let start = Instant::now();
    let unread = |vcpu| matches!(page.state(vcpu), Ok(IoreqState::RespReady));
    while (0..vcpus).any(unread) && start.elapsed() < PICK_UP {
        thread::sleep(Duration::from_millis(1));
    }
    drop(slots);
    drop(page);
    server
        .destroy()
        .context("cannot destroy the ioreq server")?;
    log::info!("{domid}: ioreq server destroyed, {answered} accesses answered with all ones");
    Ok(())
}

/// Answers what vCPUs wait for; says how many do.
fn answer(slots: &[VcpuIoreqs], memory: &ForeignMemory) -> usize {
    let answer = |slot: &&VcpuIoreqs| -> anyhow::Result<bool> {
        let Some(request) = slot.take_unfinished()? else {
            return Ok(false);
        };
        let data = execute(&request, &mut Nothing(memory), memory);
        slot.complete(data)?;
        Ok(true)
    };
    let waited = |slot: &&VcpuIoreqs| {
        answer(slot).unwrap_or_else(|e| {
            log::warn!("vCPU {}: {e:#}", slot.vcpu());
            false
        })
    };
    slots.iter().filter(waited).count()
}

/// Makes frames RAM that the server protects, whichever those are, since one
/// left protected could never be written again. It has to be done while there
/// is a server; most protect none. Returns how many requests it had to answer.
fn end_protection(
    server: &IoreqServer,
    slots: &[VcpuIoreqs],
    page: &IoreqPage,
    memory: &ForeignMemory,
) -> usize {
    let is_memory = |gfn| {
        let gpa = Gfn(gfn).address();
        gpa.is_some_and(|gpa| memory.read(gpa, &mut [0]).is_ok())
    };
    // The device model may have died when it made some RAM.
    server.protect_again(page, is_memory);
    let start = Instant::now();
    let mut answered = 0;
    loop {
        let over = match server.end_claim(page, is_memory) {
            Ok(false) if start.elapsed() >= LET_GO => server.release_write_protection(),
            Ok(false) => {
                answered += answer(slots, memory);
                continue;
            }
            Ok(true) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = over {
            log::debug!("{e}");
        }
        return answered;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;

    use fake_xen::{Domain, DomainConfig, FakeXen, FrameKind, MortalPrivcmd};
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

    /// The same, when it had so many frames protected from frame 5 on.
    fn leave_a_server_with_protected(xen: &FakeXen, domain: &Domain, frames: u32) -> IoreqServer {
        let server = leave_a_server(xen, domain);
        let model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
        let handle = model.attach_ioreq_server(IoreqServerId(server));
        handle.claim_write_protection().unwrap();
        let extent = Extent {
            first_gfn: 5,
            frames,
        };
        model.set_mem_type(extent, MemType::WriteProtected).unwrap();
        handle
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
        let handle = leave_a_server_with_protected(&xen, &domain, 1);
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

    /// Xen looks anew at what the frame is when there is an answer.
    #[test]
    fn an_instruction_that_fills_a_protected_frame_comes_to_its_end() {
        let xen = FakeXen::new();
        let domain = xen.create_domain(two_vcpus()).unwrap();
        let handle = leave_a_server_with_protected(&xen, &domain, 2);
        let second = domain.vcpu(1).unwrap();
        let page = handle.map_page(2).unwrap();
        let waits = thread::spawn(move || {
            second.rep_stos(0x5ffc, 8, 512, 0x9003, false)?;
            second.mmio_read(BASE, 4)
        });
        while page.state(1) != Ok(IoreqState::Ready) {
            thread::yield_now();
        }
        let server = handle.into_id().0;
        reclaim(&xen, domain.id(), server).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(0xffff_ffff));
        assert_eq!(domain.stopped(), None);
        for gpa in (0x5ffc..0x6ffc).step_by(8) {
            assert_eq!(domain.ram().read_u64(gpa).unwrap(), 0x9003);
        }
        assert_eq!(domain.enable_log_dirty(), Ok(()));
    }

    /// A device model that dies between making a frame RAM and protecting it
    /// again, or between the end of its claim and the next one.
    #[test]
    fn frames_that_a_device_model_made_ram_as_it_died_are_protected_again() {
        for claim in [false, true] {
            let xen = FakeXen::new();
            let domain = xen.create_domain(two_vcpus()).unwrap();
            let handle = leave_a_server_with_protected(&xen, &domain, 1);
            let page = handle.map_page(2).unwrap();
            let id = handle.into_id();
            let dying = MortalPrivcmd::new(xen.open_privcmd().unwrap());
            let handle = DeviceModel::new(dying.clone(), domain.id()).attach_ioreq_server(id);
            handle.persist(true);
            let (tell, hear) = channel();
            let (second, slots) = (domain.vcpu(1).unwrap(), handle.map_page(2).unwrap());
            dying.before_ram(move || {
                let fill = thread::spawn(move || {
                    second.rep_stos(0x5000, 8, 512, 0x9003, false)?;
                    second.mmio_read(BASE, 4)
                });
                tell.send(fill).unwrap();
                while slots.state(1) != Ok(IoreqState::Ready) {
                    thread::yield_now();
                }
            });
            // Enables the server and makes the frame RAM.
            dying.dies_after(2);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                if claim {
                    handle.end_claim(&page, |gfn| gfn == 5).map(drop)
                } else {
                    handle.let_go(&page, &BTreeSet::from([5])).map(drop)
                }
            }));
            assert!(ended.is_err() && dying.is_dead());
            assert_eq!(domain.frame(Gfn(5)), FrameKind::Ram);
            reclaim(&xen, domain.id(), id.0).unwrap();
            let fill = hear.try_recv().unwrap();
            assert_eq!(fill.join().unwrap(), Ok(0xffff_ffff));
            assert_eq!(domain.stopped(), None);
            for gpa in (0x5000..0x6000).step_by(8) {
                assert_eq!(domain.ram().read_u64(gpa).unwrap(), 0x9003);
            }
            assert_eq!(domain.frame(Gfn(5)), FrameKind::Ram);
        }
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
