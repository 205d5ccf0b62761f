//! Frames that the host cannot map.

use std::sync::Mutex;

use guest_memory::{GuestMemory, MemoryError, VecMemory};

use super::*;
use crate::dma::{DmaSpace, MapLimits};
use crate::registers::Registers;
use crate::sync::lock;

/// Memory of which one frame is paged out.
struct Paged {
    memory: VecMemory,
    away: Mutex<Option<Gfn>>,
}

impl GuestMemory for Paged {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let gfn = Gfn::containing(gpa);
        if *lock(&self.away) == Some(gfn) {
            let reason = "paged out, and stays so".into();
            return Err(MemoryError::Host { gfn, reason });
        }
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(gpa, data)
    }
}

/// A context's ring or register page is on disk: the context is refused with
/// that reason, holds nothing, and runs when the page is back.
#[test]
fn a_page_on_disk_is_no_missing_page() {
    let dma = Arc::new(DmaSpace::new());
    let memory = Arc::new(Paged {
        memory: VecMemory::new(PAGES),
        away: Mutex::default(),
    });
    let shared: Arc<dyn GuestMemory> = Arc::clone(&memory) as _;
    let map = GuestMap::new(Arc::clone(&dma), shared, MapLimits::default());
    let map = Arc::new(map);
    let pages = HostPages::new(dma, 4096);
    let gpu = Arc::new(Registers::new(Arc::new(Table::default())));
    let windows = Windows::new(gpu, pages.allocate().unwrap());
    let limits = crate::ppgtt::TableLimits::default();
    let tables = ShadowTables::new(Arc::clone(&map), Arc::clone(&pages), limits);
    let source = Source {
        vgpu: 1,
        map: &map,
        table: &Few((0..64).map(|page| page << 12 | 1).collect()),
        tables: &tables,
        windows: &windows,
        pages: &pages,
        limits: AuditLimits::default(),
    };
    for (index, value) in [
        (lrc::RING_START, 0x2000),
        (lrc::RING_CTL, 1),
        (lrc::RING_TAIL, 8),
        (lrc::PDP0_LDW, 0x8000),
    ] {
        let at = (41 << 12) + u64::try_from(index * 4).unwrap();
        memory.write_u32(at, value).unwrap();
    }
    let run = |away: Option<u64>| {
        *lock(&memory.away) = away.map(Gfn);
        let descriptor = Descriptor(40 << 12 | 1 | 3 << 3 | 1 << 8);
        prepare(&source, &mut Shadow::default(), Engine::Rcs, descriptor).map(drop)
    };
    for (gfn, address) in [(2, 0x2000), (41, 41 << 12)] {
        let error = run(Some(gfn)).unwrap_err();
        let gfn = Gfn(gfn);
        assert_eq!(error, NotMapped::Away { address, gfn }.into());
        assert_eq!(windows.counts().pinned, 0);
    }
    assert_eq!(run(None), Ok(()));
}
