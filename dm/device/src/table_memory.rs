//! Memory through the guest's global page table. Never through the physical
//! table: an entry names a guest frame, and that is where the bytes are.

use gen8::pte;

use crate::core::Seams;

const PAGE: usize = 4096;

/// Bytes of one page: pieces that are a stride apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Global address of the first.
    pub(crate) address: u32,
    /// Bytes of each but the last.
    pub(crate) piece: usize,
    /// Bytes from one to the next.
    pub(crate) stride: usize,
}

impl Part {
    /// Bytes that lie together.
    pub(crate) fn whole(address: u32) -> Self {
        Self {
            address,
            piece: PAGE,
            stride: PAGE,
        }
    }
}

/// One access's way through the table. Each page's entry is read once, when
/// the access comes to it; an access that comes back to the page it was in
/// last finds it where it was.
pub(crate) struct Walk<'a> {
    seams: &'a Seams,
    /// The page it was in last, and the guest-physical address of it.
    last: Option<(u32, Option<u64>)>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(seams: &'a Seams) -> Self {
        Self { seams, last: None }
    }

    /// The guest-physical address behind a global address.
    fn translate(&mut self, address: u32) -> Option<u64> {
        let page = address >> 12;
        let frame = match self.last {
            Some((last, frame)) if last == page => frame,
            _ => {
                let entry = self.seams.ggtt.load(page);
                let frame = (entry & pte::PRESENT != 0).then_some(entry & pte::ADDRESS);
                self.last = Some((page, frame));
                frame
            }
        };
        Some(frame? | u64::from(address & 0xfff))
    }

    /// Reads a part; all ones when there is no memory. Says whether there is.
    pub(crate) fn read(&mut self, part: Part, buf: &mut [u8]) -> bool {
        let memory = &self.seams.memory;
        let there = self.translate(part.address).is_some_and(|gpa| {
            let read = if buf.len() <= part.piece {
                memory.read(gpa, buf)
            } else {
                memory.read_pieces(gpa, part.piece, part.stride, buf)
            };
            read.is_ok()
        });
        if !there {
            buf.fill(0xff);
        }
        there
    }

    /// Writes a part; nothing when there is no memory. Says whether there is.
    pub(crate) fn write(&mut self, part: Part, data: &[u8]) -> bool {
        let memory = &self.seams.memory;
        self.translate(part.address).is_some_and(|gpa| {
            let written = if data.len() <= part.piece {
                memory.write(gpa, data)
            } else {
                memory.write_pieces(gpa, part.piece, part.stride, data)
            };
            written.is_ok()
        })
    }
}

/// Bytes from an address to the end of its page.
fn to_page_end(address: u32) -> usize {
    PAGE - usize::try_from(address & 0xfff).unwrap_or(0)
}

/// Writes memory at a global address, which may wrap; what is not mapped is
/// dropped. Says whether everything was written.
pub(crate) fn write(seams: &Seams, address: u32, data: &[u8]) -> bool {
    let (first, rest) = data.split_at(data.len().min(to_page_end(address)));
    let mut all = Walk::new(seams).write(Part::whole(address), first);
    if !rest.is_empty() {
        let next = (address & !0xfff).wrapping_add(0x1000);
        all &= write(seams, next, rest);
    }
    all
}

/// Reads a dword at a global address, if there is memory.
pub(crate) fn read_u32(seams: &Seams, address: u32) -> Option<u32> {
    let mut bytes = [0; 4];
    let (first, rest) = bytes.split_at_mut(to_page_end(address).min(4));
    let mut walk = Walk::new(seams);
    let mut all = walk.read(Part::whole(address), first);
    if !rest.is_empty() {
        let next = (address & !0xfff).wrapping_add(0x1000);
        all &= walk.read(Part::whole(next), rest);
    }
    all.then(|| u32::from_le_bytes(bytes))
}
