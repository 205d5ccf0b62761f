//! The guest's page table, as the scheduler reads it.

use vgpu_ring::GgttTable;
use vgpu_sched::ggtt::GuestGgtt;
use xen_glue::{DomId, Hypervisor, HypervisorError, PARKING_GFN, TableError, TableFrames};

/// Where a guest's table is.
pub enum Table {
    /// RAM of the guest, which it writes directly.
    Ram(TableFrames),
    /// In the shared area, where the device model writes it.
    Trapped(GgttTable),
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Open(#[from] HypervisorError),
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Table {
    /// Makes the table RAM of the guest, or the one in the shared area when
    /// that cannot be.
    pub fn make(hypervisor: &dyn Hypervisor, domid: DomId, shared: GgttTable) -> Self {
        match Self::in_ram(hypervisor, domid) {
            Ok(frames) => Self::Ram(frames),
            Err(e) => {
                log::warn!(
                    "{domid}: its page table is trapped, which makes its driver slow to start: {e}"
                );
                Self::Trapped(shared)
            }
        }
    }

    fn in_ram(hypervisor: &dyn Hypervisor, domid: DomId) -> Result<TableFrames, Failed> {
        let memory = hypervisor.open_domain_memory()?;
        let privcmd = hypervisor.open_privcmd()?;
        Ok(TableFrames::create(&*memory, &*privcmd, domid)?)
    }

    /// Where a device model finds the table, if it is RAM of the guest.
    pub fn gfn(&self) -> Option<u64> {
        match self {
            Self::Ram(_) => Some(PARKING_GFN),
            Self::Trapped(_) => None,
        }
    }
}

impl GuestGgtt for Table {
    fn load(&self, index: u32) -> u64 {
        match self {
            Self::Ram(frames) => frames.load(index),
            Self::Trapped(table) => table.load(index),
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
