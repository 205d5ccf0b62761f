//! Carrying a request out: repetitions, directions, and data in guest memory.
//!
//! Shapes of requests: Xen arch/x86/hvm/emulate.c:hvmemul_do_io and
//! hvmemul_do_io_addr. `rep stos` to MMIO is a count of stores of one value;
//! `rep movs` between MMIO and RAM has `data_is_ptr`; `rep ins` and `outs`
//! have it too, at a port that stays. Xen cuts a repetition at a page.

use guest_memory::{GuestMemory, PAGE_SIZE};

use super::{IoKind, IoRequest};

/// What a read gives where nothing answers.
const ALL_ONES: u64 = u64::MAX;

/// A device's answer to accesses. Values are little-endian in the low
/// `size` bytes; higher bytes are ignored.
///
/// `kind` is `Pio`, `Copy` or `PciConfig`. `size` is 1 to 8, as the guest
/// wished, at any alignment; an access must always be answered, and at once.
/// A write-protected frame's write comes as a `Copy` at its address, and the
/// handler performs it.
pub trait IoHandler {
    /// Reads `size` bytes.
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64;

    /// Writes `size` bytes.
    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64);

    /// Whether all of `[addr, addr + len)` is memory: how often, in what
    /// sizes and in which order bytes are accessed makes no difference. A
    /// string instruction is one run there, whatever its direction.
    fn is_memory(&self, _addr: u64, _len: usize) -> bool {
        false
    }

    /// Reads `buf.len() / size` items of MMIO from ascending addresses: a
    /// string instruction, at most a page. An aperture can do it in one go.
    fn read_run(&mut self, addr: u64, size: u32, buf: &mut [u8]) {
        let mut at = addr;
        for item in buf.chunks_exact_mut(item_bytes(size)) {
            let value = self.read(IoKind::Copy, at, size).to_le_bytes();
            item.copy_from_slice(&value[..item.len()]);
            at = at.wrapping_add(u64::from(size));
        }
    }

    /// Writes `data.len() / size` items of MMIO to ascending addresses.
    fn write_run(&mut self, addr: u64, size: u32, data: &[u8]) {
        let mut at = addr;
        for item in data.chunks_exact(item_bytes(size)) {
            self.write(IoKind::Copy, at, size, value_of(item));
            at = at.wrapping_add(u64::from(size));
        }
    }
}

impl<H: IoHandler + ?Sized> IoHandler for &mut H {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        (**self).read(kind, addr, size)
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        (**self).write(kind, addr, size, value);
    }

    fn is_memory(&self, addr: u64, len: usize) -> bool {
        (**self).is_memory(addr, len)
    }

    fn read_run(&mut self, addr: u64, size: u32, buf: &mut [u8]) {
        (**self).read_run(addr, size, buf);
    }

    fn write_run(&mut self, addr: u64, size: u32, data: &[u8]) {
        (**self).write_run(addr, size, data);
    }
}

/// Bytes of an item, held to what a request may have.
fn item_bytes(size: u32) -> usize {
    // 1 to 8 fits any usize.
    usize::try_from(size.clamp(1, 8)).unwrap_or(8)
}

/// The value of up to 8 little-endian bytes.
fn value_of(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    let n = bytes.len().min(8);
    value[..n].copy_from_slice(&bytes[..n]);
    u64::from_le_bytes(value)
}

/// Carries `request` out and gives the data to answer it with.
///
/// Every request has an answer. A size outside 1 to 8 reads all-ones and
/// writes nothing; `count` is cut to what fits a page; guest memory that is
/// not there reads all-ones and drops writes; an unknown kind does nothing.
pub fn execute<H: IoHandler + ?Sized>(
    request: &IoRequest,
    handler: &mut H,
    memory: &dyn GuestMemory,
) -> u64 {
    match request.kind {
        IoKind::Pio | IoKind::Copy | IoKind::PciConfig => {}
        IoKind::Invalidate => {
            memory.invalidate();
            return ALL_ONES;
        }
        IoKind::TimeOffset | IoKind::Other(_) => return ALL_ONES,
    }
    if !(1..=8).contains(&request.size) {
        return ALL_ONES;
    }
    if request.count == 1 && !request.data_is_ptr {
        return single(request, handler);
    }
    let bytes = item_bytes(request.size);
    let most = PAGE_SIZE / bytes;
    let count = usize::try_from(request.count).map_or(most, |c| c.min(most));
    if count == 0 {
        return ALL_ONES;
    }
    let upwards = upwards(request, count * bytes, handler);
    match (request.data_is_ptr, upwards) {
        (false, Some(run)) if !run.read => fill(&run, count * bytes, handler),
        (false, _) => repeat(request, count, handler),
        (true, Some(run)) if !overlaps(&run, count * bytes) => {
            copy_run(&run, count * bytes, handler, memory)
        }
        (true, _) => copy_items(request, count, handler, memory),
    }
}

/// Whether the two ends of a copy are in part the same memory, as they can be
/// when the device's is a write-protected frame. Then an item may be one
/// that was written before.
fn overlaps(r: &IoRequest, len: usize) -> bool {
    let len = u64::try_from(len).unwrap_or(u64::MAX);
    r.addr.abs_diff(r.data) < len
}

/// The request as one that goes upwards, if there is one that does the same:
/// in memory, items that go downwards are the same bytes from the last
/// item's address on. `len` is the bytes of all items.
fn upwards<H: IoHandler + ?Sized>(r: &IoRequest, len: usize, handler: &H) -> Option<IoRequest> {
    if r.kind != IoKind::Copy {
        return None;
    }
    if !r.df {
        return Some(*r);
    }
    // At least one item.
    let below = u64::try_from(len).ok()?.checked_sub(r.size.into())?;
    let addr = r.addr.checked_sub(below)?;
    handler.is_memory(addr, len).then_some(IoRequest {
        addr,
        // What data is beyond the ends of memory is missing item by item.
        data: if r.data_is_ptr {
            r.data.wrapping_sub(below)
        } else {
            r.data
        },
        df: false,
        ..*r
    })
}

fn single<H: IoHandler + ?Sized>(r: &IoRequest, handler: &mut H) -> u64 {
    if r.read {
        return handler.read(r.kind, r.addr, r.size);
    }
    handler.write(r.kind, r.addr, r.size, r.data);
    ALL_ONES
}

/// What to add to the device's address after each item.
fn device_step(r: &IoRequest) -> u64 {
    if r.kind == IoKind::Copy {
        memory_step(r)
    } else {
        0
    }
}

/// What to add to the address in guest memory after each item.
fn memory_step(r: &IoRequest) -> u64 {
    let size = u64::from(r.size);
    if r.df { size.wrapping_neg() } else { size }
}

/// One value stored `count` times upwards.
fn fill<H: IoHandler + ?Sized>(r: &IoRequest, len: usize, handler: &mut H) -> u64 {
    let mut page = [0; PAGE_SIZE];
    let value = r.data.to_le_bytes();
    let run = &mut page[..len];
    for item in run.chunks_exact_mut(item_bytes(r.size)) {
        item.copy_from_slice(&value[..item.len()]);
    }
    handler.write_run(r.addr, r.size, run);
    ALL_ONES
}

/// The same register read or written `count` times.
fn repeat<H: IoHandler + ?Sized>(r: &IoRequest, count: usize, handler: &mut H) -> u64 {
    let mut addr = r.addr;
    let mut answer = ALL_ONES;
    for _ in 0..count {
        if r.read {
            answer = handler.read(r.kind, addr, r.size);
        } else {
            handler.write(r.kind, addr, r.size, r.data);
        }
        addr = addr.wrapping_add(device_step(r));
    }
    answer
}

/// MMIO to RAM or back, upwards, as one run.
fn copy_run<H: IoHandler + ?Sized>(
    r: &IoRequest,
    len: usize,
    handler: &mut H,
    memory: &dyn GuestMemory,
) -> u64 {
    let mut page = [0xff; PAGE_SIZE];
    let run = &mut page[..len];
    let step = item_bytes(r.size);
    if r.read {
        handler.read_run(r.addr, r.size, run);
        if memory.write(r.data, run).is_err() {
            // Some of it may be there: item by item what can be.
            let mut at = r.data;
            for item in run.chunks_exact(step) {
                put(memory, at, item);
                at = at.wrapping_add(u64::from(r.size));
            }
        }
    } else {
        if memory.read(r.data, run).is_err() {
            let mut at = r.data;
            for item in run.chunks_exact_mut(step) {
                get(memory, at, item);
                at = at.wrapping_add(u64::from(r.size));
            }
        }
        handler.write_run(r.addr, r.size, run);
    }
    ALL_ONES
}

/// Device to RAM or back, an item at a time.
fn copy_items<H: IoHandler + ?Sized>(
    r: &IoRequest,
    count: usize,
    handler: &mut H,
    memory: &dyn GuestMemory,
) -> u64 {
    let mut addr = r.addr;
    let mut at = r.data;
    let bytes = item_bytes(r.size);
    for _ in 0..count {
        if r.read {
            let value = handler.read(r.kind, addr, r.size).to_le_bytes();
            put(memory, at, &value[..bytes]);
        } else {
            let mut item = [0; 8];
            get(memory, at, &mut item[..bytes]);
            handler.write(r.kind, addr, r.size, u64::from_le_bytes(item));
        }
        addr = addr.wrapping_add(device_step(r));
        at = at.wrapping_add(memory_step(r));
    }
    ALL_ONES
}

/// Reads an item, all-ones where there is no memory.
fn get(memory: &dyn GuestMemory, at: u64, item: &mut [u8]) {
    if let Err(e) = memory.read(at, item) {
        log::trace!("data of a request: {e}");
        item.fill(0xff);
    }
}

/// Writes an item; dropped where there is no memory.
fn put(memory: &dyn GuestMemory, at: u64, item: &[u8]) {
    if let Err(e) = memory.write(at, item) {
        log::trace!("data of a request: {e}");
    }
}

#[cfg(test)]
mod tests;
