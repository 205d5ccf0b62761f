//! Command fetch: in bulk, and afresh after every jump.

use crate::bits::index;
use crate::memory::{AddressFault, Memory, Space};
use crate::observer::Why;

const PAGE: u64 = 4096;
/// Fetched first after a jump: most batches are short.
const FIRST: u64 = 256;

/// A window of commands read ahead, never across a page.
pub(crate) struct Fetcher {
    buf: Box<[u8; 4096]>,
    len: u64,
    base: u64,
    space: Space,
    fresh: bool,
}

impl Fetcher {
    pub(crate) fn new() -> Self {
        Self {
            buf: Box::new([0; 4096]),
            len: 0,
            base: 0,
            space: Space::Ggtt,
            fresh: true,
        }
    }

    /// Forgets what was read ahead.
    pub(crate) fn invalidate(&mut self) {
        self.len = 0;
        self.fresh = true;
    }

    /// The dword at `at` (4-byte aligned). No more than `limit` bytes (at
    /// least 4) are read ahead.
    pub(crate) fn dword(
        &mut self,
        memory: &mut Memory,
        space: Space,
        at: u64,
        limit: u64,
    ) -> Result<u32, AddressFault> {
        if let Some(v) = self.cached(space, at) {
            return Ok(v);
        }
        let ahead = if self.fresh { FIRST } else { PAGE };
        let n = (PAGE - at % PAGE).min(ahead).min(limit.max(4)) & !3;
        self.len = 0;
        let n = u32::try_from(n).unwrap_or(4);
        if let Some(part) = self.buf.get_mut(..index(n)) {
            memory.read_for(Why::Commands, space, at, part)?;
        }
        self.base = at;
        self.space = space;
        self.len = u64::from(n);
        self.fresh = false;
        self.cached(space, at)
            .ok_or(AddressFault { address: at, space })
    }

    fn cached(&self, space: Space, at: u64) -> Option<u32> {
        let o = at.checked_sub(self.base)?;
        if o.checked_add(4)? > self.len || space != self.space {
            return None;
        }
        let o = usize::try_from(o).ok()?;
        let b = self.buf.get(o..o + 4)?;
        b.try_into().ok().map(u32::from_le_bytes)
    }
}
