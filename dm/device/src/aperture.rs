//! Memory through the guest's global page table: the aperture, and what the
//! device itself reads and writes there. Never through the physical table:
//! an entry names a guest frame, and that is where the bytes are.

use gen8::pte;

use crate::core::Seams;

const PAGE: usize = 4096;

/// The guest-physical address behind a global address.
fn translate(seams: &Seams, address: u32) -> Option<u64> {
    let entry = seams.ggtt.load(address >> 12);
    if entry & pte::PRESENT == 0 {
        return None;
    }
    Some(entry & pte::ADDRESS | u64::from(address & 0xfff))
}

/// Splits an access at pages and calls `f` with the address of each part and
/// its range in the caller's buffer. Addresses wrap at 4 GiB.
fn for_each_page(address: u32, len: usize, mut f: impl FnMut(u32, std::ops::Range<usize>)) {
    let mut done = 0;
    let mut address = address;
    while done < len {
        let in_page = usize::try_from(address & 0xfff).unwrap_or(0);
        let n = (PAGE - in_page).min(len - done);
        f(address, done..done + n);
        done += n;
        // At most a page.
        address = address.wrapping_add(u32::try_from(n).unwrap_or(0));
    }
}

/// Reads memory at a global address; what is not mapped, or is no memory,
/// reads all ones. Says whether everything was there.
pub(crate) fn read(seams: &Seams, address: u32, buf: &mut [u8]) -> bool {
    let mut all = true;
    for_each_page(address, buf.len(), |at, range| {
        let part = &mut buf[range];
        let gpa = translate(seams, at);
        if gpa.is_none_or(|gpa| seams.memory.read(gpa, part).is_err()) {
            part.fill(0xff);
            all = false;
        }
    });
    all
}

/// Writes memory at a global address; what is not mapped is dropped. Says
/// whether everything was written.
pub(crate) fn write(seams: &Seams, address: u32, data: &[u8]) -> bool {
    let mut all = true;
    for_each_page(address, data.len(), |at, range| {
        let gpa = translate(seams, at);
        all &= gpa.is_some_and(|gpa| seams.memory.write(gpa, &data[range]).is_ok());
    });
    all
}

/// Reads a dword at a global address, if there is memory.
pub(crate) fn read_u32(seams: &Seams, address: u32) -> Option<u32> {
    let mut bytes = [0; 4];
    read(seams, address, &mut bytes).then(|| u32::from_le_bytes(bytes))
}
