use proptest::prelude::*;

use gen8::platform::BDW;

use super::*;

mod away;
mod copies;
mod rig;

#[test]
fn a_guest_chooses_values_of_its_register_page_and_nothing_else() {
    for engine in Engine::ALL {
        // Every dword hostile.
        let hostile = [0xff; PAGE_SIZE];
        let image = Image::new(&BDW, engine, &hostile).bytes();
        let word = |i: usize| {
            let b = image[i * 4..i * 4 + 4].try_into().unwrap();
            u32::from_le_bytes(b)
        };
        let mut values = Vec::new();
        for load in BDW.image(engine).loads {
            let count = u32::try_from(load.registers.len()).unwrap();
            assert_eq!(word(load.header), 0x1100_0000 | (2 * count - 1));
            for (n, register) in load.registers.iter().enumerate() {
                values.push(load.value(n));
                let offset = word(load.value(n) - 1);
                assert_eq!(offset, engine.mmio_base() + register);
            }
        }
        let headers: Vec<usize> = BDW.image(engine).loads.iter().map(|l| l.header).collect();
        for i in 0..lrc::PRIVATE {
            if values.contains(&i) {
                assert_eq!(word(i), u32::MAX);
            } else if !values.contains(&(i + 1)) && !headers.contains(&i) {
                assert_eq!(word(i), 0, "{i:#x}");
            }
        }
    }
}

#[test]
fn what_would_lead_past_the_audit_is_cleared() {
    let mut image = Image::new(&BDW, Engine::Rcs, &[0xff; PAGE_SIZE]);
    image.no_batch_state();
    assert!(image.control());
    image.set_root(0x12_3456_7000);
    let bytes = image.bytes();
    let word = |i: usize| u32::from_le_bytes(bytes[i * 4..i * 4 + 4].try_into().unwrap());
    assert_eq!((word(lrc::BB_HEAD), word(lrc::SBB_HEAD)), (0, 0));
    assert_eq!((word(lrc::BB_HEAD_UDW), word(lrc::SBB_HEAD_UDW)), (0, 0));
    assert_eq!(word(lrc::BB_STATE), gen8::ring::BB_STATE_PPGTT);
    assert_eq!(word(lrc::CONTEXT_CONTROL) & lrc::SAVE_INHIBIT, 0);
    assert_eq!(word(lrc::PDP3_UDW), 0);
    assert_eq!(
        (word(lrc::PDP0_UDW), word(lrc::PDP0_LDW)),
        (0x12, 0x3456_7000)
    );
}

#[test]
fn only_what_changed_of_the_gpus_part_is_copied_back() {
    let before = [0; 64];
    let mut after = [0; 64];
    assert_eq!(changed(&before, &after, 16), None);
    // In front of its part changes do not count.
    after[12] = 1;
    assert_eq!(changed(&before, &after, 16), None);
    after[21] = 1;
    assert_eq!(changed(&before, &after, 16), Some((20, 24)));
    after[63] = 1;
    assert_eq!(changed(&before, &after, 16), Some((20, 64)));
}

/// The entries of a global table, as the GPU has them.
#[derive(Default)]
struct Table(std::sync::Mutex<std::collections::HashMap<u32, u64>>);

impl gpu_bus::Gpu for Table {
    fn read32(&self, _offset: u32) -> u32 {
        0
    }
    fn write32(&self, _offset: u32, _value: u32) {}
    fn read64(&self, _offset: u32) -> u64 {
        0
    }
    fn write64(&self, offset: u32, value: u64) {
        crate::sync::lock(&self.0).insert(offset, value);
    }
}

/// A guest's global table of a few pages.
struct Few(Vec<u64>);

impl GuestGgtt for Few {
    fn load(&self, index: u32) -> u64 {
        let at = usize::try_from(index).ok();
        at.and_then(|i| self.0.get(i)).copied().unwrap_or(0)
    }
}

const PAGES: usize = 64;

/// Where the batch stands, a page of guest memory and of the global table.
const BATCH: u32 = 16;

/// A command; most of them pass.
fn any_command() -> impl Strategy<Value = Vec<u32>> {
    let address = || (5u32..66, 0u32..1024).prop_map(|(p, o)| p << 12 | o << 2);
    prop_oneof![
        6 => address().prop_map(|a| vec![0x1040_0002, a, 0, 7]),
        2 => address().prop_map(|a| vec![0x1060_0003, a, 0, 7, 8]),
        2 => address().prop_map(|a| vec![0x1300_4002, a | 4, 0, 7]),
        2 => (address(), address()).prop_map(|(a, b)| vec![0x1760_0003, a, 0, b, 0]),
        2 => Just(vec![0x1100_0001, 0x2600, 7]),
        2 => address().prop_map(|a| vec![0x1880_0101, a, 0]),
        2 => Just(vec![0x1880_0001, BATCH << 12, 0]),
        2 => Just(vec![0, 0]),
        1 => prop::collection::vec(any::<u32>(), 1..3),
    ]
}

fn any_entry() -> impl Strategy<Value = u64> {
    prop_oneof![
        30 => (0..64u64, 0..8u64).prop_map(|(gfn, flags)| gfn << 12 | flags | 1),
        1 => (64..700u64).prop_map(|gfn| gfn << 12 | 1),
        1 => any::<u64>(),
        1 => Just(0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a guest puts in its memory and table: no panic, and the
    /// tables the GPU uses name that guest's memory and vgpud's pages only.
    #[test]
    fn nothing_leads_to_another_guest(
        ring in prop::collection::vec(any_command(), 0..12),
        batch in prop::collection::vec(any_command(), 0..6),
        table in prop::collection::vec(any_entry(), PAGES),
        tables in prop::collection::vec((0..512usize, any_entry()), 0..40),
        registers in prop::collection::vec((2..0x44usize, any::<u32>()), 0..2),
        engine in prop::sample::select(Engine::ALL.to_vec()),
    ) {
        use crate::dma::{DmaSpace, MapLimits};
        use crate::registers::Registers;
        use guest_memory::{GuestMemory, VecMemory};

        let dma = Arc::new(DmaSpace::new());
        let guest = |_| {
            let memory = Arc::new(VecMemory::new(PAGES));
            let map = GuestMap::new(
                Arc::clone(&dma),
                Arc::clone(&memory) as _,
                MapLimits::default(),
            );
            (memory, Arc::new(map))
        };
        let [(memory, map), (_other, other_map)] = [0, 1].map(guest);
        let other = other_map.chunk(Gfn(0)).unwrap();

        // The image stands from page 40 on, the ring in page 2, the root
        // table in frame 8; the rest of the table is anything.
        let mut table = table;
        for (page, entry) in (0u64..).zip(table.iter_mut()) {
            if page >= 40 || page == 2 || page == u64::from(BATCH) {
                *entry = page << 12 | 1;
            }
        }
        let put = |gpa: u64, commands: &[Vec<u32>]| -> u32 {
            let words: Vec<u32> = commands.concat();
            for (at, w) in (0u64..).zip(&words) {
                memory.write_u32(gpa + at * 4, *w).unwrap();
            }
            u32::try_from(words.len() * 4).unwrap()
        };
        let end = put(0x2000, &ring);
        let mut batch = batch;
        batch.push(vec![0x0500_0000]);
        put(u64::from(BATCH) << 12, &batch);
        for (index, entry) in tables {
            let at = u64::try_from(index * 8).unwrap();
            memory.write_u64(0x8000 + at, entry).unwrap();
        }
        let set = |index: usize, value: u32| {
            let at = (41 << 12) + u64::try_from(index * 4).unwrap();
            memory.write_u32(at, value).unwrap();
        };
        set(lrc::RING_START, 0x2000);
        set(lrc::RING_CTL, 1);
        set(lrc::RING_TAIL, (end + 7) & !7);
        set(lrc::PDP0_LDW, 0x8000);
        for (index, value) in registers {
            set(index, value);
        }

        let gpu = Arc::new(Table::default());
        let counted = Arc::new(Registers::new(Arc::clone(&gpu) as _));
        let pages = HostPages::new(Arc::clone(&dma), 4096);
        let scratch = pages.allocate().unwrap();
        let windows = Windows::new(counted, scratch);
        let shadow_tables = ShadowTables::new(
            Arc::clone(&map),
            Arc::clone(&pages),
            crate::ppgtt::TableLimits::default(),
        );
        let source = Source {
            gpu: &BDW,
            vgpu: 1,
            map: &map,
            table: &Few(table),
            tables: &shadow_tables,
            windows: &windows,
            pages: &pages,
            limits: AuditLimits { dwords: 8192, depth: 3 },
            scan: None,
        };
        let mut shadow = Shadow::default();
        let descriptor = Descriptor(40 << 12 | 1 | 3 << 3 | 1 << 8);
        let element = prepare(&source, &mut shadow, engine, descriptor, None);

        let is_other = |bus: u64| bus >> 21 == other >> 21;
        for entry in crate::sync::lock(&gpu.0).values() {
            prop_assert!(!is_other(entry & gen8::pte::ADDRESS), "{:#x}", entry);
            prop_assert!(dma.mapped(entry & gen8::pte::ADDRESS));
        }
        for entry in shadow_tables.entries() {
            prop_assert!(!is_other(entry & gen8::pte::ADDRESS), "{:#x}", entry);
            prop_assert!(dma.mapped(entry & gen8::pte::ADDRESS));
        }
        // All of it can be let go again.
        drop(element);
        windows.forget_vgpu(1);
        prop_assert!(!shadow_tables.clear());
        drop(shadow);
        prop_assert_eq!(pages.used(), 1);
        prop_assert_eq!(windows.counts().windows, 0);
    }
}

/// Batches of one dword each, as many as a ring names: what one guest may
/// take of the host's pages and windows is bounded.
#[test]
fn a_ring_of_tiny_batches_does_not_use_up_the_host() {
    use crate::audit::AuditError;
    use crate::dma::{DmaSpace, MapLimits};
    use crate::registers::Registers;
    use guest_memory::{GuestMemory, VecMemory};

    const LIMIT: usize = 64;
    let dma = Arc::new(DmaSpace::new());
    let memory = Arc::new(VecMemory::new(PAGES));
    let shared = Arc::clone(&memory) as _;
    let map = Arc::new(GuestMap::new(
        Arc::clone(&dma),
        shared,
        MapLimits::default(),
    ));
    let pages = HostPages::new(Arc::clone(&dma), 4096);
    let gpu = Arc::new(Registers::new(Arc::new(Table::default())));
    let windows = Windows::new(gpu, pages.allocate().unwrap());
    let tables = ShadowTables::new(
        Arc::clone(&map),
        Arc::clone(&pages),
        crate::ppgtt::TableLimits::default(),
    );
    let entries = (0..64).map(|page| page << 12 | 1).collect();
    let source = Source {
        gpu: &BDW,
        vgpu: 1,
        map: &map,
        table: &Few(entries),
        tables: &tables,
        windows: &windows,
        pages: &pages,
        limits: AuditLimits::default(),
        scan: None,
    };
    // The last dword of a page: the copy costs the audit's budget one dword.
    let batch = (BATCH << 12) + 0xffc;
    memory.write_u32(batch.into(), 0x0500_0000).unwrap();
    let set = |index: usize, value: u32| {
        let at = (41 << 12) + u64::try_from(index * 4).unwrap();
        memory.write_u32(at, value).unwrap();
    };
    set(lrc::RING_START, 0x2000);
    set(lrc::RING_CTL, 1);
    set(lrc::PDP0_LDW, 0x8000);
    let run = |batches: usize| {
        // With a no-op each, so that the tail is a qword's.
        for n in 0..batches {
            for (i, word) in (0u64..).zip([0x1880_0001, batch, 0, 0]) {
                let at = 0x2000 + u64::try_from(n * 16).unwrap() + i * 4;
                memory.write_u32(at, word).unwrap();
            }
        }
        set(lrc::RING_TAIL, u32::try_from(batches * 16).unwrap());
        let descriptor = Descriptor(40 << 12 | 1 | 3 << 3 | 1 << 8);
        prepare(
            &source,
            &mut Shadow::default(),
            Engine::Rcs,
            descriptor,
            None,
        )
        .map(drop)
    };
    assert_eq!(run(LIMIT), Ok(()));
    let Err(PrepareError::Audit(AuditError::Exhausted(why))) = run(LIMIT + 1) else {
        panic!("a ring of {} batches passed", LIMIT + 1);
    };
    assert_eq!(why, "commands name more than 64 privileged batches");
}

/// A guest whose ring of `ring_pages` pages at page 64 of its table runs from
/// `head` to `tail`, and holds its own offsets as no-ops with an identity
/// (MI_NOOP takes any value in its low bits).
fn with_ring(ring_pages: u32, head: u32, tail: u32, check: impl FnOnce(&mut Workload)) {
    use crate::dma::{DmaSpace, MapLimits};
    use crate::registers::Registers;
    use guest_memory::{GuestMemory, VecMemory};

    let dma = Arc::new(DmaSpace::new());
    let frames = 64 + u64::from(ring_pages);
    let memory = Arc::new(VecMemory::new(usize::try_from(frames).unwrap()));
    let map = Arc::new(GuestMap::new(
        Arc::clone(&dma),
        Arc::clone(&memory) as _,
        MapLimits::default(),
    ));
    let pages = HostPages::new(Arc::clone(&dma), 4096);
    let gpu = Arc::new(Registers::new(Arc::new(Table::default())));
    let windows = Windows::new(gpu, pages.allocate().unwrap());
    let tables = ShadowTables::new(
        Arc::clone(&map),
        Arc::clone(&pages),
        crate::ppgtt::TableLimits::default(),
    );
    let table = Few((0..frames).map(|page| page << 12 | 1).collect());
    let source = Source {
        gpu: &BDW,
        vgpu: 1,
        map: &map,
        table: &table,
        tables: &tables,
        windows: &windows,
        pages: &pages,
        limits: AuditLimits::default(),
        scan: None,
    };
    let set = |index: usize, value: u32| {
        let at = (41 << 12) + u64::try_from(index * 4).unwrap();
        memory.write_u32(at, value).unwrap();
    };
    set(lrc::RING_START, 64 << 12);
    set(lrc::RING_CTL, (ring_pages - 1) << 12 | 1);
    set(lrc::RING_HEAD, head);
    set(lrc::RING_TAIL, tail);
    set(lrc::PDP0_LDW, 0x8000);
    for at in (0..ring_pages * 4096).step_by(4) {
        memory
            .write_u32((64 << 12) + u64::from(at), at / 4)
            .unwrap();
    }
    let descriptor = Descriptor(40 << 12 | 1 | 3 << 3 | 1 << 8);
    let prepared = prepare(
        &source,
        &mut Shadow::default(),
        Engine::Bcs,
        descriptor,
        None,
    );
    match prepared.unwrap() {
        Element::Work(mut work) => check(&mut work),
        Element::Empty => panic!("nothing to run"),
    }
}

impl Workload {
    fn register(&self, index: usize) -> u32 {
        self.registers.read_u32(index * 4)
    }

    /// The dword at an offset of the shadow ring.
    fn ring_word(&self, offset: u32) -> u32 {
        let at = usize::try_from(offset).unwrap();
        self.held.as_ref().unwrap().ring.pages[at / PAGE_SIZE].read_u32(at % PAGE_SIZE)
    }
}

#[test]
fn commands_stand_in_one_piece_with_room_at_both_ends() {
    // Around the end of the guest's ring, from an odd dword on.
    with_ring(2, 0x1fec, 0x18, |work| {
        let head = work.register(lrc::RING_HEAD);
        let tail = work.register(lrc::RING_TAIL);
        assert_eq!((head % 8, tail % 8, tail - head), (4, 0, 0x2c));
        let guest: Vec<u32> = (0x1fec..0x2000)
            .chain(0..0x18)
            .step_by(4)
            .map(|at| at / 4)
            .collect();
        let words: Vec<u32> = (head..tail)
            .step_by(4)
            .map(|at| work.ring_word(at))
            .collect();
        assert_eq!(words, guest);
        assert_eq!(work.guest_tail(), 0x18);
        assert_eq!(work.register(lrc::RING_CTL), 1);

        assert!(work.set_prologue(&[5, 6, 7]));
        let start = work.register(lrc::RING_HEAD);
        assert_eq!(head - start, 16);
        let words: Vec<u32> = (start..head)
            .step_by(4)
            .map(|at| work.ring_word(at))
            .collect();
        assert_eq!(words, [5, 6, 7, 0]);
        assert!(!work.set_prologue(&[1; 130]));
        assert!(work.set_prologue(&[]));
        assert_eq!(work.register(lrc::RING_HEAD), head);

        let moves = work.reloads();
        for n in 1..=moves {
            assert!(work.reload());
            assert_eq!(work.register(lrc::RING_TAIL), tail + 8 * n);
            assert_eq!(work.ring_word(tail + 8 * n - 4), 0);
        }
        assert!(moves > 2 && !work.reload());
    });
}

#[test]
fn a_ring_as_full_as_can_be_runs_without_room() {
    let size = 512 * 4096;
    for (head, tail) in [(8, 0), (4, 0)] {
        with_ring(512, head, tail, |work| {
            assert_eq!((work.reloads(), work.reload()), (0, false));
            assert!(work.set_prologue(&[]) && !work.set_prologue(&[5]));
            let start = work.register(lrc::RING_HEAD);
            assert_eq!(work.register(lrc::RING_CTL), (size - 0x1000) | 1);
            assert_eq!((start + size - head) % size, work.register(lrc::RING_TAIL));
            assert_eq!(work.ring_word(start), head / 4);
            assert_eq!(work.ring_word(start + size - head - 4), size / 4 - 1);
        });
    }
}
