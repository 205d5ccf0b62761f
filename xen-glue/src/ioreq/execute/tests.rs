//! Requests against a model that does one item at a time, as the processor
//! manual tells it.

use guest_memory::{GuestMemory, VecMemory};
use proptest::prelude::*;

use super::*;
use crate::Port;

const PAGES: usize = 3;

/// A device whose reads tell address and order, and that notes everything.
#[derive(Default)]
struct Recorder {
    log: Vec<(IoKind, u64, u32, Option<u64>)>,
}

fn low(value: u64, size: u32) -> u64 {
    if size >= 8 {
        value
    } else {
        value & ((1 << (size * 8)) - 1)
    }
}

impl IoHandler for Recorder {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        self.log.push((kind, addr, size, None));
        let n = u64::try_from(self.log.len()).unwrap();
        (addr ^ n << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        self.log.push((kind, addr, size, Some(low(value, size))));
    }
}

/// A memory of 3 pages of which the middle one is missing.
struct Holed(VecMemory);

impl Holed {
    fn new() -> Self {
        let memory = VecMemory::new(PAGES);
        let bytes: Vec<u8> = (0..=255).cycle().take(PAGES * PAGE_SIZE).collect();
        memory.write(0, &bytes).unwrap();
        Self(memory)
    }

    fn check(gpa: u64, len: usize) -> Result<(), guest_memory::MemoryError> {
        guest_memory::for_each_page(gpa, len, |gfn, _, _| {
            if gfn.0 == 1 {
                return Err(guest_memory::MemoryError::Unmapped(gfn));
            }
            Ok(())
        })
    }
}

impl GuestMemory for Holed {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), guest_memory::MemoryError> {
        Self::check(gpa, buf.len())?;
        self.0.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), guest_memory::MemoryError> {
        Self::check(gpa, data.len())?;
        self.0.write(gpa, data)
    }
}

/// The model: item by item, nothing clever.
fn model(r: &IoRequest, device: &mut impl IoHandler, memory: &Holed) -> u64 {
    let known = matches!(r.kind, IoKind::Pio | IoKind::Copy | IoKind::PciConfig);
    if !known || r.size == 0 || r.size > 8 {
        return u64::MAX;
    }
    let bytes = usize::try_from(r.size).unwrap();
    let mut answer = u64::MAX;
    for i in 0..u64::from(r.count).min(4096 / u64::from(r.size)) {
        let distance = i.wrapping_mul(u64::from(r.size));
        let go = |at: u64| {
            if r.df {
                at.wrapping_sub(distance)
            } else {
                at.wrapping_add(distance)
            }
        };
        let addr = if r.kind == IoKind::Copy {
            go(r.addr)
        } else {
            r.addr
        };
        let mut item = [0; 8];
        match (r.read, r.data_is_ptr) {
            (true, false) => answer = device.read(r.kind, addr, r.size),
            (false, false) => device.write(r.kind, addr, r.size, r.data),
            (true, true) => {
                let value = device.read(r.kind, addr, r.size).to_le_bytes();
                let _ = memory.write(go(r.data), &value[..bytes]);
            }
            (false, true) => {
                if memory.read(go(r.data), &mut item[..bytes]).is_err() {
                    item = [0xff; 8];
                }
                device.write(r.kind, addr, r.size, u64::from_le_bytes(item));
            }
        }
    }
    answer
}

fn contents(memory: &Holed) -> Vec<u8> {
    let mut bytes = vec![0; PAGES * PAGE_SIZE];
    memory.0.read(0, &mut bytes).unwrap();
    bytes
}

fn request() -> impl Strategy<Value = IoRequest> {
    let kind = prop_oneof![
        3 => Just(IoKind::Copy),
        1 => Just(IoKind::Pio),
        1 => Just(IoKind::PciConfig),
        1 => any::<u8>().prop_map(IoKind::from_raw),
    ];
    let size = prop_oneof![
        8 => prop::sample::select(vec![1_u32, 2, 4, 8]),
        1 => 0_u32..12,
        1 => any::<u32>(),
    ];
    let count = prop_oneof![3 => Just(1_u32), 6 => 0_u32..64, 1 => any::<u32>()];
    let addr = prop_oneof![4 => 0xf000_0000_u64..0xf000_2000, 1 => any::<u64>()];
    let end = u64::try_from(PAGES * PAGE_SIZE).unwrap();
    let data = prop_oneof![8 => 0..end, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (kind, size, count, addr, data, flags).prop_map(
        |(kind, size, count, addr, data, (read, df, data_is_ptr))| IoRequest {
            vcpu: 0,
            kind,
            addr,
            data,
            count,
            size,
            read,
            df,
            data_is_ptr,
            vp_eport: Port(1),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_request_does_what_the_model_does(r in request()) {
        let (memory, expected_memory) = (Holed::new(), Holed::new());
        let (mut device, mut expected) = (Recorder::default(), Recorder::default());
        let answer = execute(&r, &mut device, &memory);
        let expected_answer = model(&r, &mut expected, &expected_memory);
        prop_assert_eq!(device.log, expected.log);
        prop_assert_eq!(contents(&memory), contents(&expected_memory));
        prop_assert_eq!(answer, expected_answer);
    }
}

/// A device that takes runs whole.
#[derive(Default)]
struct Aperture {
    runs: Vec<(u64, u32, Vec<u8>)>,
}

impl IoHandler for Aperture {
    fn read(&mut self, _: IoKind, _: u64, _: u32) -> u64 {
        panic!("a run is read whole");
    }

    fn write(&mut self, _: IoKind, _: u64, _: u32, _: u64) {
        panic!("a run is written whole");
    }

    fn read_run(&mut self, _: u64, _: u32, buf: &mut [u8]) {
        buf.fill(0x5a);
    }

    fn write_run(&mut self, addr: u64, size: u32, data: &[u8]) {
        self.runs.push((addr, size, data.to_vec()));
    }
}

fn copy(read: bool, data: u64, data_is_ptr: bool) -> IoRequest {
    IoRequest {
        vcpu: 0,
        kind: IoKind::Copy,
        addr: 0xe000_0000,
        data,
        count: 3,
        size: 4,
        read,
        df: false,
        data_is_ptr,
        vp_eport: Port(1),
    }
}

#[test]
fn a_handler_may_take_a_run_in_one_go() {
    let memory = VecMemory::new(1);
    memory.write(0x100, b"twelve bytes").unwrap();
    let mut device = Aperture::default();
    execute(&copy(false, 0x100, true), &mut device, &memory);
    execute(&copy(false, 0x0403_0201, false), &mut device, &memory);
    let filled = [1, 2, 3, 4].repeat(3);
    assert_eq!(
        device.runs,
        [
            (0xe000_0000, 4, b"twelve bytes".to_vec()),
            (0xe000_0000, 4, filled),
        ]
    );
    execute(&copy(true, 0x200, true), &mut device, &memory);
    let mut back = [0; 13];
    memory.read(0x200, &mut back).unwrap();
    assert_eq!(back[..12], [0x5a; 12]);
    assert_eq!(back[12], 0);
}

mod runs;

/// Memory that is written through requests, as a protected frame is.
struct Protected<'a>(&'a VecMemory);

impl IoHandler for Protected<'_> {
    fn read(&mut self, _kind: IoKind, _addr: u64, _size: u32) -> u64 {
        ALL_ONES
    }

    fn write(&mut self, _kind: IoKind, addr: u64, size: u32, value: u64) {
        let size = usize::try_from(size).unwrap();
        self.0.write(addr, &value.to_le_bytes()[..size]).unwrap();
    }

    fn is_memory(&self, _addr: u64, _len: usize) -> bool {
        true
    }

    fn write_run(&mut self, addr: u64, _size: u32, data: &[u8]) {
        self.0.write(addr, data).unwrap();
    }
}

proptest! {
    /// A copy within a protected frame, whichever way the ends overlap.
    #[test]
    fn a_copy_onto_itself_is_done_item_by_item(
        from in 0..64_u64,
        to in 0..64_u64,
        size in prop::sample::select(&[1_u32, 2, 4, 8][..]),
        count in 1..16_u32,
        df in any::<bool>(),
    ) {
        let start = |at: u64| if df { at + u64::from(size * (count - 1)) } else { at };
        let request = IoRequest {
            vcpu: 0,
            kind: IoKind::Copy,
            addr: start(to),
            data: start(from),
            count,
            size,
            read: false,
            df,
            data_is_ptr: true,
            vp_eport: Port(0),
        };
        let memory = VecMemory::new(1);
        let mut expected: Vec<u8> = (0..=255).collect();
        memory.write(0, &expected).unwrap();
        execute(&request, &mut Protected(&memory), &memory);
        let size = usize::try_from(size).unwrap();
        let count = usize::try_from(count).unwrap();
        for i in 0..count {
            let i = if df { count - 1 - i } else { i };
            let at = usize::try_from(from).unwrap() + i * size;
            let item = expected[at..at + size].to_vec();
            let at = usize::try_from(to).unwrap() + i * size;
            expected[at..at + size].copy_from_slice(&item);
        }
        let mut found = vec![0; 256];
        memory.read(0, &mut found).unwrap();
        prop_assert_eq!(found, expected);
    }
}
