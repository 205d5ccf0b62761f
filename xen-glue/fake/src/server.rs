//! Ioreq servers of a domain (Xen common/ioreq.c).

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_memory::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use xen_glue::{Access, DomId, Mapping};
use xen_sys::layout as at;

use crate::events::{PortState, Wakeup};
use crate::host::PortTable;
use crate::memory::Memory;
use crate::ranges::Ranges;

/// `MAX_NR_IOREQ_SERVERS` of Xen's sched.h.
const MOST: usize = 8;

pub(crate) struct Page {
    /// Where other mappings come from; `None` for a frame of the guest's.
    file: Option<OwnedFd>,
    pub(crate) mapping: Mapping,
}

/// Where frames for pages begin, one for each server, and how many there are
/// (Xen `tools/libs/guest/xg_dom_x86.c:ioreq_server_pfn`).
const FIRST_FRAME: u64 = 0xf_eff0;

pub(crate) struct ServerVcpu {
    pub(crate) port: Arc<PortState>,
    pub(crate) wake: Arc<Wakeup>,
}

pub(crate) struct Server {
    pub(crate) id: u16,
    pub(crate) emulator: DomId,
    pub(crate) vcpus: Vec<ServerVcpu>,
    page: OnceLock<Page>,
    gone: AtomicBool,
}

impl Server {
    /// The page, if someone mapped it yet.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.get()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Wakes all its vCPUs to look at what happened.
    pub(crate) fn wake_all(&self) {
        for vcpu in &self.vcpus {
            vcpu.wake.wake();
        }
    }

    /// Another mapping of the page, which is made on first use.
    pub(crate) fn map_page(&self) -> Result<Mapping, Errno> {
        if self.page.get().is_none() {
            let name = CString::default();
            let file = memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?;
            ftruncate(&file, 4096)?;
            let mapping = Mapping::shared(&file, 0, 1, Access::ReadWrite);
            let mapping = mapping.map_err(|_| Errno::ENOMEM)?;
            // Lost only to another that did the same.
            let file = Some(file);
            let _ = self.page.set(Page { file, mapping });
        }
        let page = self.page.get().ok_or(Errno::ENOMEM)?;
        // Xen arch/x86/hvm/ioreq.c, common/ioreq.c:ioreq_server_alloc_mfn.
        let file = page.file.as_ref().ok_or(Errno::EPERM)?;
        Mapping::shared(file, 0, 1, Access::ReadWrite).map_err(|_| Errno::ENOMEM)
    }

    /// The frame of the guest's at which the page is while the server is
    /// disabled; it is made on first use (Xen
    /// arch/x86/hvm/ioreq.c:hvm_map_ioreq_gfn).
    pub(crate) fn frame(&self, memory: &Memory) -> Result<u64, Errno> {
        let gfn = FIRST_FRAME + u64::from(self.id);
        match self.page.get() {
            Some(Page { file: Some(_), .. }) => Err(Errno::EPERM),
            Some(Page { file: None, .. }) => Ok(gfn),
            None => {
                let mapping = memory.lend(gfn)?;
                let _ = self.page.set(Page {
                    file: None,
                    mapping,
                });
                Ok(gfn)
            }
        }
    }

    /// Takes the page out of the guest, or puts it there; either clears it.
    fn move_frame(&self, memory: &Memory, into_guest: bool) {
        let Some(Page {
            file: None,
            mapping,
        }) = self.page.get()
        else {
            return;
        };
        let cleared = mapping.write(0, &[0; PAGE_SIZE]);
        debug_assert!(cleared.is_ok(), "a page");
        memory.set_lent(FIRST_FRAME + u64::from(self.id), into_guest);
    }

    /// Ports become visible in the page when the server is enabled.
    fn publish_ports(&self) {
        let Some(page) = self.page.get() else { return };
        for (i, vcpu) in self.vcpus.iter().enumerate() {
            let offset = i * at::IOREQ_SIZE + at::IOREQ_VP_EPORT;
            let written = page
                .mapping
                .write(offset, &vcpu.port.number().to_le_bytes());
            debug_assert!(written.is_ok(), "at most 128 vcpus fit {PAGE_SIZE} bytes");
        }
    }
}

struct Entry {
    server: Arc<Server>,
    enabled: bool,
    ranges: [Ranges; 3],
}

/// The servers of one domain.
#[derive(Default)]
pub(crate) struct Servers {
    slots: [Option<Entry>; MOST],
    /// Who gets writes to protected frames.
    protection: Option<u16>,
    /// What each vCPU sleeps on, whichever server it waits in (Xen
    /// common/event_channel.c:default_xen_notification_fn).
    wakes: Vec<Arc<Wakeup>>,
}

impl Servers {
    pub(crate) fn create(
        &mut self,
        domid: DomId,
        emulator: DomId,
        vcpus: u32,
        ports: &mut PortTable,
    ) -> Result<u16, Errno> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.ok_or(Errno::ENOSPC)?;
        let id = u16::try_from(slot).map_err(|_| Errno::ENOSPC)?;
        let count = usize::try_from(vcpus).unwrap_or(0);
        self.wakes.resize_with(count, Arc::default);
        let vcpus = (self.wakes.iter().cloned())
            .map(|wake| {
                let number = ports.allocate();
                let port = PortState::for_xen(domid, number, emulator, Arc::clone(&wake));
                let port = Arc::new(port);
                ports.add(&port);
                ServerVcpu { port, wake }
            })
            .collect();
        let server = Server {
            id,
            emulator,
            vcpus,
            page: OnceLock::new(),
            gone: AtomicBool::new(false),
        };
        self.slots[slot] = Some(Entry {
            server: Arc::new(server),
            enabled: false,
            ranges: Default::default(),
        });
        Ok(id)
    }

    fn entry(&mut self, id: u16, caller: DomId) -> Result<&mut Entry, Errno> {
        let slot = self.slots.get_mut(usize::from(id));
        let entry = slot.and_then(Option::as_mut).ok_or(Errno::ENOENT)?;
        if entry.server.emulator == caller {
            Ok(entry)
        } else {
            Err(Errno::EPERM)
        }
    }

    pub(crate) fn get(&mut self, id: u16, caller: DomId) -> Result<Arc<Server>, Errno> {
        Ok(Arc::clone(&self.entry(id, caller)?.server))
    }

    pub(crate) fn destroy(&mut self, id: u16, caller: DomId) -> Result<(), Errno> {
        self.entry(id, caller)?;
        if let Some(entry) = self.slots[usize::from(id)].take() {
            entry.server.gone.store(true, Ordering::Release);
            entry.server.wake_all();
        }
        if self.protection == Some(id) {
            self.protection = None;
        }
        Ok(())
    }

    pub(crate) fn destroy_all(&mut self) {
        for entry in self.slots.iter_mut().filter_map(Option::take) {
            entry.server.gone.store(true, Ordering::Release);
            entry.server.wake_all();
        }
        self.protection = None;
    }

    pub(crate) fn wake_all(&self) {
        for entry in self.slots.iter().flatten() {
            entry.server.wake_all();
        }
    }

    pub(crate) fn set_enabled(
        &mut self,
        id: u16,
        caller: DomId,
        enabled: bool,
        memory: &Memory,
    ) -> Result<(), Errno> {
        let entry = self.entry(id, caller)?;
        if enabled != entry.enabled {
            entry.server.move_frame(memory, !enabled);
        }
        if enabled && !entry.enabled {
            entry.server.publish_ports();
        }
        entry.enabled = enabled;
        Ok(())
    }

    pub(crate) fn ranges(
        &mut self,
        id: u16,
        caller: DomId,
        kind: u32,
    ) -> Result<&mut Ranges, Errno> {
        let entry = self.entry(id, caller)?;
        let kind = usize::try_from(kind).map_err(|_| Errno::EINVAL)?;
        entry.ranges.get_mut(kind).ok_or(Errno::EINVAL)
    }

    /// Xen arch/x86/mm/p2m.c:p2m_set_ioreq_server.
    pub(crate) fn set_protection(
        &mut self,
        id: u16,
        caller: DomId,
        claim: bool,
        frames_left: bool,
    ) -> Result<(), Errno> {
        self.entry(id, caller)?;
        match (claim, self.protection) {
            (true, Some(_)) => Err(Errno::EBUSY),
            (true, None) if frames_left => Err(Errno::EBUSY),
            (true, None) => {
                self.protection = Some(id);
                Ok(())
            }
            (false, Some(owner)) if owner == id => {
                self.protection = None;
                Ok(())
            }
            (false, _) => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn protection(&self) -> Option<Arc<Server>> {
        let slot = self.slots.get(usize::from(self.protection?))?;
        Some(Arc::clone(&slot.as_ref()?.server))
    }

    /// Who gets an access: of the enabled ones that have all of it, the last
    /// created.
    pub(crate) fn select(&self, kind: u32, start: u64, end: u64) -> Option<Arc<Server>> {
        let kind = usize::try_from(kind).ok()?;
        self.slots
            .iter()
            .rev()
            .flatten()
            .filter(|e| e.enabled)
            .find(|e| e.ranges.get(kind).is_some_and(|r| r.contains(start, end)))
            .map(|e| Arc::clone(&e.server))
    }

    /// All that are enabled, last created first.
    pub(crate) fn enabled(&self) -> Vec<Arc<Server>> {
        let entries = self.slots.iter().rev().flatten();
        entries
            .filter(|e| e.enabled)
            .map(|e| Arc::clone(&e.server))
            .collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}
