//! A guest of 64 pages with one context: its ring is page 2, its image begins
//! at page 40, its tables at frame 8; the global table maps each page to the
//! frame of its number.

use guest_memory::GuestMemory;

use super::*;
use crate::dma::{DmaSpace, MapLimits};
use crate::registers::Registers;

pub struct Rig {
    memory: Arc<dyn GuestMemory>,
    map: Arc<GuestMap>,
    table: Few,
    tables: Arc<ShadowTables>,
    pub pages: Arc<HostPages>,
    pub windows: Arc<Windows>,
}

impl Rig {
    pub fn new(memory: Arc<dyn GuestMemory>) -> Self {
        let dma = Arc::new(DmaSpace::new());
        let limits = MapLimits::default();
        let map = Arc::new(GuestMap::new(Arc::clone(&dma), Arc::clone(&memory), limits));
        let pages = HostPages::new(dma, 4096);
        let gpu = Arc::new(Registers::new(Arc::new(Table::default())));
        let windows = Windows::new(gpu, pages.allocate().unwrap());
        let limits = crate::ppgtt::TableLimits::default();
        let tables = ShadowTables::new(Arc::clone(&map), Arc::clone(&pages), limits);
        let rig = Self {
            memory,
            map,
            table: Few((0..64).map(|page| page << 12 | 1).collect()),
            tables,
            pages,
            windows,
        };
        rig.set(lrc::RING_START, 0x2000);
        rig.set(lrc::RING_CTL, 1);
        rig.set(lrc::PDP0_LDW, 0x8000);
        rig
    }

    /// Sets a register of the context's image.
    pub fn set(&self, index: usize, value: u32) {
        let at = (41 << 12) + u64::try_from(index * 4).unwrap();
        self.memory.write_u32(at, value).unwrap();
    }

    pub fn prepare(&self, shadow: &mut Shadow) -> Result<Element, PrepareError> {
        let source = Source {
            gpu: &gen8::platform::BDW,
            vgpu: 1,
            map: &self.map,
            table: &self.table,
            tables: &self.tables,
            windows: &self.windows,
            pages: &self.pages,
            limits: AuditLimits::default(),
            scan: None,
        };
        let descriptor = Descriptor(40 << 12 | 1 | 3 << 3 | 1 << 8);
        prepare(&source, shadow, Engine::Rcs, descriptor, None)
    }
}
