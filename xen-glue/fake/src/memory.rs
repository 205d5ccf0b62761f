//! A domain's memory: frames of a memfd, and what each guest frame is.
//!
//! A frame that leaves the guest and comes back gets another page of the
//! file, so a foreign mapping that should have been dropped shows old bytes,
//! as on Xen. A frame that is moved keeps its page.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use guest_memory::{Gfn, PAGE_SIZE, for_each_page};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use xen_glue::{Access, ForeignMap, Mapping, MappingError, MemType};

use crate::FakeXenError;

/// What a guest frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Nothing: accesses go to device models.
    Hole,
    /// RAM.
    Ram,
    /// RAM whose writes are dropped.
    RamReadOnly,
    /// No memory, and a device model's for sure.
    MmioDm,
    /// RAM whose writes go to an ioreq server.
    WriteProtected,
    /// RAM that is on disk; a foreign map fails this many times more.
    PagedOut(u32),
    /// RAM that gets its memory when someone looks.
    PopulateOnDemand,
}

#[derive(Clone, Copy)]
struct Frame {
    kind: FrameKind,
    page: usize,
}

/// The last of the special frames below 4 GiB that every HVM guest has
/// (xenstore, console, ioreq pages), which are its highest unless it has
/// memory above.
const LAST_SPECIAL: u64 = 0xf_efff;

/// Frames that libxl lets a domain have beyond its memory
/// (`LIBXL_MAXMEM_CONSTANT`, 1 MiB).
const SLACK: usize = 256;

/// Pages of the file beyond those for the frames a domain is built with.
const SPARE_PAGES: usize = 1 << 16;

/// No frame.
const HOLE: Frame = Frame {
    kind: FrameKind::Hole,
    page: 0,
};

struct P2m {
    /// What the domain was built with.
    frames: Vec<Frame>,
    /// Frames beyond those, wherever they are.
    more: BTreeMap<u64, Frame>,
    /// Pages of Xen's by the frame at which they are now and then.
    lent: BTreeMap<u64, usize>,
    /// The highest frame there was in `more`.
    highest: u64,
    next_page: usize,
    /// Frames the domain has, and may have.
    total: usize,
    most: usize,
    /// Frames that can yet be populated on demand.
    on_demand: usize,
    /// There was one more: Xen crashes the domain.
    exhausted: bool,
    /// A bit for each frame, while log-dirty is on.
    log_dirty: Option<Vec<AtomicU64>>,
}

pub(crate) struct Memory {
    file: OwnedFd,
    pages: Mapping,
    capacity: usize,
    p2m: RwLock<P2m>,
    /// Held shared by those who rely on the types of frames for a while
    /// (`get_gfn`), and alone to change them.
    types: RwLock<()>,
}

/// What became of a guest's access to a frame.
pub(crate) enum Touch {
    /// It was RAM.
    Done,
    /// A write to a protected frame.
    Trap,
    /// Not RAM.
    Mmio,
}

impl Memory {
    pub(crate) fn new(frames: usize) -> Result<Self, FakeXenError> {
        let name = CString::default();
        let memory = |errno| FakeXenError::Memory { errno };
        let file = memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC).map_err(memory)?;
        // Room for every frame to leave and come back once, and for a few
        // more.
        let capacity = frames.saturating_mul(2).saturating_add(SPARE_PAGES);
        let bytes = capacity.checked_mul(PAGE_SIZE).ok_or(Errno::EFBIG);
        let bytes = bytes.map_err(memory)?;
        let bytes = i64::try_from(bytes).map_err(|_| memory(Errno::EFBIG))?;
        ftruncate(&file, bytes).map_err(memory)?;
        let pages = Mapping::shared(&file, 0, capacity, Access::ReadWrite)?;
        let p2m = P2m {
            frames: (0..frames)
                .map(|page| Frame {
                    kind: FrameKind::Ram,
                    page,
                })
                .collect(),
            more: BTreeMap::new(),
            lent: BTreeMap::new(),
            highest: 0,
            next_page: frames,
            total: frames,
            most: frames.saturating_add(SLACK),
            on_demand: 0,
            exhausted: false,
            log_dirty: None,
        };
        Ok(Self {
            file,
            pages,
            capacity,
            p2m: RwLock::new(p2m),
            types: RwLock::default(),
        })
    }

    fn lock(&self) -> RwLockReadGuard<'_, P2m> {
        self.p2m.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_mut(&self) -> RwLockWriteGuard<'_, P2m> {
        self.p2m.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// No frame's type is changed by a device model while this lives.
    pub(crate) fn hold_types(&self) -> RwLockReadGuard<'_, ()> {
        self.types.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while types are changed; taken before all other locks.
    pub(crate) fn change_types(&self) -> RwLockWriteGuard<'_, ()> {
        self.types.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kind(&self, gfn: u64) -> FrameKind {
        self.lock().get(gfn).kind
    }

    /// `domain_get_maximum_gpfn`.
    pub(crate) fn maximum_gpfn(&self) -> u64 {
        let p2m = self.lock();
        let frames = u64::try_from(p2m.frames.len()).unwrap_or(u64::MAX);
        LAST_SPECIAL.max(frames.saturating_sub(1)).max(p2m.highest)
    }

    /// A guest's read inside one frame.
    pub(crate) fn read(&self, gfn: Gfn, offset: usize, buf: &mut [u8]) -> Touch {
        let p2m = self.lock_present(gfn.0);
        let frame = p2m.get(gfn.0);
        match frame.kind {
            FrameKind::Ram | FrameKind::RamReadOnly | FrameKind::WriteProtected => {
                self.inside(self.pages.read(frame.page * PAGE_SIZE + offset, buf));
                Touch::Done
            }
            _ => Touch::Mmio,
        }
    }

    /// A guest's write inside one frame.
    pub(crate) fn write(&self, gfn: Gfn, offset: usize, data: &[u8]) -> Touch {
        let p2m = self.lock_present(gfn.0);
        let frame = p2m.get(gfn.0);
        match frame.kind {
            FrameKind::Ram => {
                p2m.mark_dirty(gfn.0);
                self.inside(self.pages.write(frame.page * PAGE_SIZE + offset, data));
                Touch::Done
            }
            FrameKind::RamReadOnly => Touch::Done,
            FrameKind::WriteProtected => Touch::Trap,
            _ => Touch::Mmio,
        }
    }

    /// Accesses to RAM past all types and logs, as a debugger would.
    pub(crate) fn peek(&self, gfn: Gfn, offset: usize, buf: &mut [u8]) -> bool {
        let frame = self.lock_present(gfn.0).get(gfn.0);
        let ram = frame.kind.is_ram();
        if ram {
            self.inside(self.pages.read(frame.page * PAGE_SIZE + offset, buf));
        }
        ram
    }

    /// See [`Memory::peek`].
    pub(crate) fn poke(&self, gfn: Gfn, offset: usize, data: &[u8]) -> bool {
        let frame = self.lock_present(gfn.0).get(gfn.0);
        let ram = frame.kind.is_ram();
        if ram {
            self.inside(self.pages.write(frame.page * PAGE_SIZE + offset, data));
        }
        ram
    }

    /// Callers split accesses at pages, so they fit.
    fn inside(&self, result: Result<(), MappingError>) {
        if let Err(e) = result {
            log::error!("memory of {} pages: {e}", self.capacity);
        }
    }

    /// Writes RAM that is not protected, or was not a moment ago.
    pub(crate) fn store(&self, gpa: u64, data: &[u8]) {
        let written = for_each_page(gpa, data.len(), |gfn, offset, range| {
            self.poke(gfn, offset, &data[range]);
            self.mark_dirty(gfn.0);
            Ok(())
        });
        debug_assert!(written.is_ok(), "{gpa:#x} wraps");
    }

    /// Changes 1 to 8 bytes of RAM while nobody else does, and gives what was
    /// there. `None` where there is none, or it is protected and not `mapped`
    /// already.
    pub(crate) fn modify(
        &self,
        gpa: u64,
        len: usize,
        mapped: bool,
        change: &dyn Fn(u64) -> u64,
    ) -> Option<u64> {
        let places: Vec<_> = (0_u64..8)
            .take(len)
            .map(|i| gpa.wrapping_add(i))
            .map(|at| (Gfn::containing(at), usize::try_from(at % 4096).unwrap_or(0)))
            .collect();
        for &(gfn, _) in &places {
            drop(self.lock_present(gfn.0));
        }
        // Alone, so that it is atomic.
        let alone = self.lock_mut();
        let at = |&(gfn, offset): &(Gfn, usize)| {
            let frame = alone.get(gfn.0);
            let usable = match frame.kind {
                FrameKind::Ram => true,
                FrameKind::WriteProtected => mapped,
                _ => false,
            };
            usable.then_some(frame.page * PAGE_SIZE + offset)
        };
        let places: Vec<usize> = places.iter().map(at).collect::<Option<_>>()?;
        let mut bytes = [0; 8];
        for (byte, &at) in bytes.iter_mut().zip(&places) {
            self.inside(self.pages.read(at, std::slice::from_mut(byte)));
        }
        let old = u64::from_le_bytes(bytes);
        for (byte, &at) in change(old).to_le_bytes().iter().zip(&places) {
            self.inside(self.pages.write(at, std::slice::from_ref(byte)));
        }
        alone.mark_dirty(Gfn::containing(gpa).0);
        drop(alone);
        Some(old)
    }

    /// The frames, of which this one has its memory if it can.
    fn lock_present(&self, gfn: u64) -> RwLockReadGuard<'_, P2m> {
        let p2m = self.lock();
        if p2m.get(gfn).kind.is_present() {
            return p2m;
        }
        drop(p2m);
        self.lock_mut().bring_in(gfn, self.capacity);
        self.lock()
    }

    pub(crate) fn populate_on_demand(&self, gfn: u64) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        let frame = p2m.get_mut(gfn).filter(|f| f.kind == FrameKind::Ram);
        frame.ok_or(Errno::EINVAL)?.kind = FrameKind::PopulateOnDemand;
        p2m.on_demand += 1;
        Ok(())
    }

    pub(crate) fn set_on_demand(&self, frames: usize) {
        self.lock_mut().on_demand = frames;
    }

    /// Whether a frame was to be populated and could not be.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.lock().exhausted
    }

    pub(crate) fn page_out(&self, gfn: u64, attempts: u32) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        let frame = p2m.get_mut(gfn).filter(|f| f.kind == FrameKind::Ram);
        frame.ok_or(Errno::EINVAL)?.kind = FrameKind::PagedOut(attempts);
        Ok(())
    }

    /// Takes a frame from the guest. Foreign mappings keep the old page.
    pub(crate) fn remove(&self, gfn: u64) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        if !p2m.get(gfn).kind.is_ram() {
            return Err(Errno::EINVAL);
        }
        p2m.put(gfn, HOLE);
        p2m.total -= 1;
        Ok(())
    }

    /// Gives the guest a zeroed frame.
    pub(crate) fn populate(&self, gfn: u64) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        let page = p2m.next_page;
        if page >= self.capacity || p2m.total >= p2m.most {
            return Err(Errno::ENOMEM);
        }
        // Xen would leak a frame that was there.
        if p2m.get(gfn).kind != FrameKind::Hole {
            return Err(Errno::EINVAL);
        }
        let kind = FrameKind::Ram;
        p2m.put(gfn, Frame { kind, page });
        p2m.next_page += 1;
        p2m.total += 1;
        p2m.mark_dirty(gfn);
        Ok(())
    }

    /// Moves one frame (Xen arch/x86/mm/p2m.c:xenmem_add_to_physmap_one with
    /// XENMAPSPACE_gmfn). What was at the target is freed.
    pub(crate) fn relocate(&self, from: u64, to: u64) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        let moved = p2m.get(from);
        if !moved.kind.is_ram() {
            return Err(Errno::EINVAL);
        }
        let kind = FrameKind::Ram;
        if from != to {
            p2m.total -= usize::from(p2m.get(to).kind.is_ram());
            p2m.put(from, HOLE);
        }
        let page = moved.page;
        p2m.put(to, Frame { kind, page });
        p2m.mark_dirty(to);
        Ok(())
    }

    /// Frames the domain may have.
    pub(crate) fn most(&self) -> usize {
        self.lock().most
    }

    pub(crate) fn set_most(&self, frames: usize) {
        self.lock_mut().most = frames;
    }

    /// Frames the domain has.
    pub(crate) fn total(&self) -> usize {
        self.lock().total
    }

    /// A page for something of Xen's, which is at `gfn` in the guest from now
    /// on. It is none of those that the domain may have.
    pub(crate) fn lend(&self, gfn: u64) -> Result<Mapping, Errno> {
        let p2m = &mut *self.lock_mut();
        let there = p2m.lent.get(&gfn).copied();
        let page = there.unwrap_or(p2m.next_page);
        if there.is_none() {
            if page >= self.capacity {
                return Err(Errno::ENOMEM);
            }
            p2m.next_page += 1;
        }
        let offset = i64::try_from(page * PAGE_SIZE).map_err(|_| Errno::EOVERFLOW)?;
        let mapping = Mapping::shared(&self.file, offset, 1, Access::ReadWrite);
        p2m.lent.insert(gfn, page);
        p2m.set_lent(gfn, true);
        mapping.map_err(|_| Errno::ENOMEM)
    }

    /// Has the page be in the guest, or not.
    pub(crate) fn set_lent(&self, gfn: u64, there: bool) {
        self.lock_mut().set_lent(gfn, there);
    }

    /// Maps frames for a device model, each with its own error.
    pub(crate) fn map_foreign(
        &self,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, MappingError> {
        let mut p2m = self.lock_mut();
        let found: Vec<Result<usize, Errno>> = gfns
            .iter()
            .map(|gfn| p2m.foreign_page(*gfn, access, self.capacity))
            .collect();
        drop(p2m);
        let mut mapping = Mapping::reserve(gfns.len(), access)?;
        let mut at = 0;
        while let Some(&first) = found.get(at) {
            let Ok(page) = first else {
                at += 1;
                continue;
            };
            let run = found[at..]
                .iter()
                .enumerate()
                .take_while(|(i, f)| **f == Ok(page + i))
                .count();
            let offset = i64::try_from(page * PAGE_SIZE).map_err(|_| MappingError::Mmap {
                pages: run,
                errno: Errno::EOVERFLOW,
            })?;
            mapping.place(at, &self.file, offset, run)?;
            at += run;
        }
        Ok(ForeignMap {
            mapping,
            errors: found.into_iter().map(Result::err).collect(),
        })
    }

    /// `XEN_DMOP_set_mem_type` for one frame (Xen arch/x86/hvm/dm.c).
    pub(crate) fn set_type(&self, gfn: u64, to: MemType) -> Result<(), Errno> {
        let mut p2m = self.lock_mut();
        let logging = p2m.log_dirty.is_some();
        // get_gfn_unshare populates.
        if p2m.get(gfn).kind == FrameKind::PopulateOnDemand {
            p2m.bring_in(gfn, self.capacity);
        }
        if to == MemType::MmioDm && p2m.get_mut(gfn).is_none() {
            // A hole may be made a device model's, which changes nothing.
            return Ok(());
        }
        let mut frame = p2m.get(gfn);
        frame.kind = match (frame.kind, to) {
            (FrameKind::PagedOut(_), _) => return Err(Errno::EAGAIN),
            // RAM has another type while log-dirty is on.
            (FrameKind::Ram, MemType::WriteProtected) if !logging => FrameKind::WriteProtected,
            (FrameKind::WriteProtected, MemType::Ram) => FrameKind::Ram,
            (FrameKind::Ram | FrameKind::RamReadOnly, MemType::Ram) => FrameKind::Ram,
            (FrameKind::Ram | FrameKind::RamReadOnly, MemType::RamReadOnly) => {
                FrameKind::RamReadOnly
            }
            (
                FrameKind::Ram | FrameKind::RamReadOnly | FrameKind::Hole | FrameKind::MmioDm,
                MemType::MmioDm,
            ) => FrameKind::MmioDm,
            _ => return Err(Errno::EINVAL),
        };
        p2m.put(gfn, frame);
        Ok(())
    }

    /// Makes every protected frame RAM again.
    pub(crate) fn unprotect_all(&self) {
        let p2m = &mut *self.lock_mut();
        for frame in p2m.frames.iter_mut().chain(p2m.more.values_mut()) {
            if frame.kind == FrameKind::WriteProtected {
                frame.kind = FrameKind::Ram;
            }
        }
    }

    pub(crate) fn any_protected(&self) -> bool {
        self.lock().any_protected()
    }

    /// Xen arch/x86/mm/hap/hap.c:hap_enable_log_dirty.
    pub(crate) fn enable_log_dirty(&self) -> Result<(), Errno> {
        // As far as the toolstack asks: it takes the size once.
        let frames = usize::try_from(self.maximum_gpfn()).unwrap_or(usize::MAX);
        let words = frames.saturating_add(1).div_ceil(64);
        let mut p2m = self.lock_mut();
        if p2m.any_protected() {
            return Err(Errno::EBUSY);
        }
        p2m.log_dirty = Some((0..words).map(|_| AtomicU64::new(0)).collect());
        Ok(())
    }

    pub(crate) fn disable_log_dirty(&self) {
        self.lock_mut().log_dirty = None;
    }

    /// The frames written since the last call, or `None` when not logging.
    pub(crate) fn clean_log_dirty(&self) -> Option<Vec<Gfn>> {
        let p2m = self.lock();
        let mut dirty = Vec::new();
        for (word, base) in p2m.log_dirty.as_ref()?.iter().zip((0_u64..).step_by(64)) {
            let bits = word.swap(0, Ordering::AcqRel);
            dirty.extend(
                (0..64)
                    .filter(|b| bits >> b & 1 == 1)
                    .map(|b| Gfn(base + b)),
            );
        }
        Some(dirty)
    }

    pub(crate) fn is_logging(&self) -> bool {
        self.lock().log_dirty.is_some()
    }

    /// `paging_mark_pfn_dirty`, for frames that have memory.
    pub(crate) fn mark_dirty(&self, gfn: u64) {
        let p2m = self.lock();
        if p2m.get(gfn).kind.is_ram() {
            p2m.mark_dirty(gfn);
        }
    }
}

impl FrameKind {
    fn is_ram(self) -> bool {
        matches!(
            self,
            Self::Ram
                | Self::RamReadOnly
                | Self::WriteProtected
                | Self::PagedOut(_)
                | Self::PopulateOnDemand
        )
    }

    /// Whether an access to it does not have to wait for its memory.
    fn is_present(self) -> bool {
        !matches!(self, Self::PagedOut(_) | Self::PopulateOnDemand)
    }
}

impl P2m {
    fn get(&self, gfn: u64) -> Frame {
        let frame = usize::try_from(gfn).ok().and_then(|i| self.frames.get(i));
        frame
            .or_else(|| self.more.get(&gfn))
            .copied()
            .unwrap_or(HOLE)
    }

    fn get_mut(&mut self, gfn: u64) -> Option<&mut Frame> {
        let built = usize::try_from(gfn).ok().filter(|i| *i < self.frames.len());
        match built {
            Some(i) => self.frames.get_mut(i),
            None => self.more.get_mut(&gfn),
        }
    }

    fn put(&mut self, gfn: u64, frame: Frame) {
        match self.get_mut(gfn) {
            Some(there) => *there = frame,
            None => {
                self.more.insert(gfn, frame);
                self.highest = self.highest.max(gfn);
            }
        }
    }

    fn set_lent(&mut self, gfn: u64, there: bool) {
        let frame = self.lent.get(&gfn).map_or(HOLE, |page| Frame {
            kind: FrameKind::Ram,
            page: *page,
        });
        self.put(gfn, if there { frame } else { HOLE });
    }

    fn any_protected(&self) -> bool {
        let mut frames = self.frames.iter().chain(self.more.values());
        frames.any(|f| f.kind == FrameKind::WriteProtected)
    }

    fn mark_dirty(&self, gfn: u64) {
        let word = usize::try_from(gfn / 64).ok();
        if let Some(log) = &self.log_dirty
            && let Some(word) = word.and_then(|w| log.get(w))
        {
            word.fetch_or(1 << (gfn % 64), Ordering::AcqRel);
        }
    }

    /// Gives a frame its memory (Xen arch/x86/mm/p2m-pod.c:
    /// p2m_pod_demand_populate, and what xenpaging does).
    fn bring_in(&mut self, gfn: u64, capacity: usize) {
        let page = match self.get(gfn).kind {
            FrameKind::PagedOut(_) => self.get(gfn).page,
            FrameKind::PopulateOnDemand => {
                if self.on_demand == 0 || self.next_page >= capacity {
                    self.exhausted = true;
                    return;
                }
                self.on_demand -= 1;
                self.next_page += 1;
                self.next_page - 1
            }
            _ => return,
        };
        let kind = FrameKind::Ram;
        self.put(gfn, Frame { kind, page });
    }

    fn foreign_page(&mut self, gfn: u64, access: Access, capacity: usize) -> Result<usize, Errno> {
        // P2M_ALLOC (Xen arch/x86/mm.c:mod_l1_entry).
        if self.get(gfn).kind == FrameKind::PopulateOnDemand {
            self.bring_in(gfn, capacity);
        }
        let frame = self.get_mut(gfn).ok_or(Errno::EINVAL)?;
        match frame.kind {
            FrameKind::Ram | FrameKind::WriteProtected => Ok(frame.page),
            FrameKind::RamReadOnly if access == Access::ReadOnly => Ok(frame.page),
            FrameKind::PagedOut(0) => {
                frame.kind = FrameKind::Ram;
                Ok(frame.page)
            }
            FrameKind::PagedOut(n) => {
                frame.kind = FrameKind::PagedOut(n - 1);
                Err(Errno::ENOENT)
            }
            FrameKind::Hole
            | FrameKind::MmioDm
            | FrameKind::RamReadOnly
            | FrameKind::PopulateOnDemand => Err(Errno::EINVAL),
        }
    }
}
