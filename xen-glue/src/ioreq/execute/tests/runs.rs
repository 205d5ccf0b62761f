//! String instructions on a device that is memory.

use guest_memory::{GuestMemory, VecMemory};
use proptest::prelude::*;

use super::super::{execute, item_bytes, value_of};
use super::{Holed, contents, model, request};
use crate::{IoHandler, IoKind, IoRequest};
use guest_memory::PAGE_SIZE;

/// Where the device that is memory begins; it has two pages.
const WINDOW: u64 = 0xf000_0000;

/// A device that is memory, and takes runs whole.
struct MemoryDevice {
    memory: VecMemory,
    /// Accesses it was asked for.
    accesses: usize,
}

impl MemoryDevice {
    fn new() -> Self {
        let memory = VecMemory::new(2);
        let bytes: Vec<u8> = (0..=250).cycle().take(2 * PAGE_SIZE).collect();
        memory.write(0, &bytes).unwrap();
        Self {
            memory,
            accesses: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2 * PAGE_SIZE];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }
}

impl IoHandler for MemoryDevice {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        let mut buf = [0xff; 8];
        self.accesses += 1;
        if kind == IoKind::Copy && self.is_memory(addr, item_bytes(size)) {
            let _ = self
                .memory
                .read(addr - WINDOW, &mut buf[..item_bytes(size)]);
        }
        u64::from_le_bytes(buf)
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        self.accesses += 1;
        if kind == IoKind::Copy && self.is_memory(addr, item_bytes(size)) {
            let value = value.to_le_bytes();
            let _ = self.memory.write(addr - WINDOW, &value[..item_bytes(size)]);
        }
    }

    fn is_memory(&self, addr: u64, len: usize) -> bool {
        let len = u64::try_from(len).unwrap();
        addr.checked_sub(WINDOW)
            .is_some_and(|at| at + len <= 2 * 4096)
    }

    fn read_run(&mut self, addr: u64, size: u32, buf: &mut [u8]) {
        if self.is_memory(addr, buf.len()) {
            self.accesses += 1;
            return self.memory.read(addr - WINDOW, buf).unwrap();
        }
        for (at, item) in (addr..)
            .step_by(item_bytes(size))
            .zip(buf.chunks_mut(item_bytes(size)))
        {
            let value = self.read(IoKind::Copy, at, size).to_le_bytes();
            item.copy_from_slice(&value[..item.len()]);
        }
    }

    fn write_run(&mut self, addr: u64, size: u32, data: &[u8]) {
        if self.is_memory(addr, data.len()) {
            self.accesses += 1;
            return self.memory.write(addr - WINDOW, data).unwrap();
        }
        for (at, item) in (addr..)
            .step_by(item_bytes(size))
            .zip(data.chunks(item_bytes(size)))
        {
            self.write(IoKind::Copy, at, size, value_of(item));
        }
    }
}

/// Requests that stay in the window, or begin or end outside it.
fn string_request() -> impl Strategy<Value = IoRequest> {
    let size = prop::sample::select(vec![1_u32, 2, 4, 8, 3]);
    let count = prop_oneof![8 => 0_u32..1100, 1 => any::<u32>()];
    let at = prop_oneof![9 => WINDOW..WINDOW + 0x2000, 1 => WINDOW - 64..WINDOW];
    (request(), size, count, at).prop_map(|(r, size, count, addr)| IoRequest {
        kind: IoKind::Copy,
        size,
        count,
        addr,
        ..r
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// In memory a string instruction of either direction is one run.
    #[test]
    fn runs_do_what_items_do(r in string_request()) {
        let (memory, expected_memory) = (Holed::new(), Holed::new());
        let (mut device, mut expected) = (MemoryDevice::new(), MemoryDevice::new());
        let answer = execute(&r, &mut device, &memory);
        let expected_answer = model(&r, &mut expected, &expected_memory);
        prop_assert!(device.bytes() == expected.bytes());
        prop_assert!(contents(&memory) == contents(&expected_memory));
        prop_assert_eq!(answer, expected_answer);
        // One access unless it leaves the window, or is `rep lods`.
        let bytes = u64::from(r.size) * u64::try_from(expected.accesses).unwrap();
        let first = if r.df { r.addr + u64::from(r.size) - bytes } else { r.addr };
        let inside = first >= WINDOW && first + bytes <= WINDOW + 0x2000;
        if inside && bytes > 0 && (r.data_is_ptr || !r.read) {
            prop_assert_eq!(device.accesses, 1);
        }
    }
}
