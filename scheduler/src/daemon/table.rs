//! The guest's page table, as the scheduler reads it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use vgpu_ring::GgttTable;
use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::saved::PackedTable;
use xen_glue::{
    DomId, DomainMemory, Hypervisor, HypervisorError, PARKING_GFN, Privcmd, TableError, TableFrames,
};

/// A guest's table: RAM of the guest, which it writes directly, or else in the
/// shared area, where the device model writes it.
pub struct Table {
    shared: RwLock<GgttTable>,
    ram: RwLock<Option<TableFrames>>,
    xen: Option<Xen>,
}

/// What makes guest RAM.
struct Xen {
    domid: DomId,
    memory: Arc<dyn DomainMemory>,
    privcmd: Arc<dyn Privcmd>,
}

/// Why a table cannot be RAM of the guest.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Xen's nodes.
    #[error(transparent)]
    Open(#[from] HypervisorError),
    /// The frames.
    #[error(transparent)]
    Table(#[from] TableError),
    /// It is not to be.
    #[error("the table is one that is always trapped")]
    Trapped,
}

impl Table {
    /// Makes the table RAM of the guest, or the one in the shared area when
    /// that cannot be.
    pub fn make(hypervisor: &dyn Hypervisor, domid: DomId, shared: GgttTable) -> Self {
        let mut table = Self::trapped(shared);
        let made = Xen::open(hypervisor, domid).and_then(|xen| {
            let frames = xen.create();
            table.xen = Some(xen);
            frames
        });
        match made {
            Ok(frames) => table.set(Some(frames)),
            Err(e) => {
                // Tried once: later it would be no better.
                table.xen = None;
                log::warn!(
                    "{domid}: its page table is trapped, which makes its driver slow to start: {e}"
                );
            }
        }
        table
    }

    /// The one in the shared area, as it was or as it seems for now: it was
    /// another vgpud's.
    pub fn orphan(hypervisor: &dyn Hypervisor, domid: DomId, shared: GgttTable) -> Self {
        let xen = Xen::open(hypervisor, domid);
        let lost = |e: &Failed| log::warn!("{domid}: its page table: {e}");
        Self {
            xen: xen.inspect_err(lost).ok(),
            ..Self::trapped(shared)
        }
    }

    /// Reads the guest's RAM at `gfn` from now on, where the device model says
    /// that the table is.
    ///
    /// # Errors
    /// What Xen says.
    pub fn find(&self, gfn: u64) -> Result<(), Failed> {
        let xen = self.xen.as_ref().ok_or(Failed::Trapped)?;
        self.set(Some(TableFrames::open(&*xen.privcmd, xen.domid, gfn)?));
        Ok(())
    }

    /// The one in the shared area, always.
    pub fn trapped(shared: GgttTable) -> Self {
        Self {
            shared: RwLock::new(shared),
            ram: RwLock::new(None),
            xen: None,
        }
    }

    /// The shared area is another one from now on, with the same entries.
    pub fn share(&self, shared: GgttTable) {
        let mut now = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        *now = shared;
    }

    fn shared(&self) -> RwLockReadGuard<'_, GgttTable> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<TableFrames>> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, frames: Option<TableFrames>) {
        let mut ram = self.ram.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *ram, frames);
        drop(ram);
        // Unmapping needs no lock.
        drop(before);
    }

    /// Where a device model finds the table, if it is RAM of the guest.
    pub fn gfn(&self) -> Option<u64> {
        self.read().as_ref().map(|_| PARKING_GFN)
    }

    /// Sets every entry as saved, before a device model is there.
    pub fn unpack(&self, saved: &PackedTable) {
        // The guest stands still: the lock is taken once, not 2^20 times.
        match &*self.read() {
            Some(frames) => saved.unpack(|index, entry| frames.store(index, entry)),
            None => {
                let shared = self.shared();
                saved.unpack(|index, entry| shared.store(index, entry));
            }
        }
    }

    /// Reads the shared area from now on, and has the RAM mapped no more.
    pub fn leave_ram(&self) {
        self.set(None);
    }

    /// Takes the RAM, which lies at its parking place and is mapped nowhere,
    /// from the guest.
    ///
    /// # Errors
    /// What Xen says.
    pub fn withdraw(&self) -> Result<(), Failed> {
        let xen = self.xen.as_ref().ok_or(Failed::Trapped)?;
        Ok(TableFrames::remove(&*xen.memory, xen.domid)?)
    }

    /// Gives the guest RAM at the parking place, which is not read yet. `None`
    /// when the table never was RAM, or is.
    ///
    /// # Errors
    /// What Xen says.
    pub fn populate(&self) -> Result<Option<TableFrames>, Failed> {
        match &self.xen {
            Some(xen) if self.gfn().is_none() => xen.create().map(Some),
            _ => Ok(None),
        }
    }

    /// Reads that RAM from now on.
    pub fn enter_ram(&self, frames: TableFrames) {
        self.set(Some(frames));
    }

    /// The whole table, packed.
    pub fn pack(&self) -> PackedTable {
        match &*self.read() {
            Some(frames) => PackedTable::pack(|index| frames.load(index)),
            None => {
                let shared = self.shared();
                PackedTable::pack(|index| shared.load(index))
            }
        }
    }
}

impl Xen {
    fn open(hypervisor: &dyn Hypervisor, domid: DomId) -> Result<Self, Failed> {
        Ok(Self {
            domid,
            memory: hypervisor.open_domain_memory()?,
            privcmd: hypervisor.open_privcmd()?,
        })
    }

    fn create(&self) -> Result<TableFrames, Failed> {
        let (memory, privcmd) = (&*self.memory, &*self.privcmd);
        Ok(TableFrames::create(memory, privcmd, self.domid)?)
    }
}

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        match &*self.read() {
            Some(frames) => frames.load(index),
            None => self.shared().load(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use fake_xen::{Domain, DomainConfig, FakeXen};
    use vgpu_ring::{AreaConfig, Bells, SharedArea};
    use xen_glue::Extent;

    use super::*;

    fn guest() -> (FakeXen, Domain, GgttTable) {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let area = SharedArea::create(AreaConfig::default()).unwrap();
        let shared = area.device_end(Bells::new().unwrap()).ggtt;
        (xen, domain, shared)
    }

    #[test]
    fn what_the_guest_writes_is_read() {
        let (xen, domain, shared) = guest();
        shared.store(3, 0xdead_0001);
        let table = Table::make(&xen, domain.id(), shared);
        assert_eq!(table.gfn(), Some(PARKING_GFN));
        assert_eq!(table.load(3), 0);
        let vcpu = domain.vcpu(0).unwrap();
        vcpu.mmio_write((PARKING_GFN << 12) + 24, 8, 0x7001)
            .unwrap();
        assert_eq!(table.load(3), 0x7001);
    }

    #[test]
    fn it_leaves_the_guests_ram_and_comes_back() {
        let (xen, domain, shared) = guest();
        let before = domain.current_reservation();
        let table = Table::make(&xen, domain.id(), shared.clone());
        assert_eq!(domain.current_reservation(), before + 2048);
        let saved = PackedTable::pack(|index| if index == 3 { 0x7001 } else { 0 });
        table.unpack(&saved);
        assert_eq!(table.pack(), saved);
        assert!(table.populate().unwrap().is_none());
        shared.store(3, table.load(3));
        table.leave_ram();
        table.withdraw().unwrap();
        assert_eq!((table.gfn(), table.load(3)), (None, 0x7001));
        assert_eq!(domain.current_reservation(), before);
        let frames = table.populate().unwrap().unwrap();
        frames.store(3, 0x8001);
        assert_eq!(table.load(3), 0x7001);
        table.enter_ram(frames);
        assert_eq!((table.gfn(), table.load(3)), (Some(PARKING_GFN), 0x8001));
        assert_eq!(domain.current_reservation(), before + 2048);
    }

    #[test]
    fn without_room_in_the_guest_the_shared_area_has_it() {
        let (xen, domain, shared) = guest();
        // Something lies in the way.
        let memory = xen.open_domain_memory().unwrap();
        let there = Extent {
            first_gfn: PARKING_GFN,
            frames: 7,
        };
        assert_eq!(memory.populate(domain.id(), there).unwrap(), 7);
        shared.store(3, 0x7001);
        let table = Table::make(&xen, domain.id(), shared);
        assert_eq!(table.gfn(), None);
        assert_eq!(table.load(3), 0x7001);
    }
}
