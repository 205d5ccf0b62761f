//! Memory as an engine's commands address it.

use std::sync::Arc;

use gen8::Engine;

use crate::core::{Core, Reach};
use crate::counters::count;
use crate::observer::Why;
use crate::ppgtt::{self, Tlb};

/// Which table translates an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The global one.
    Ggtt,
    /// The context's own.
    Ppgtt,
}

/// An address that reaches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressFault {
    pub(crate) address: u64,
    pub(crate) space: Space,
}

/// Bits 47:0 decode; the rest repeat bit 47 and are ignored.
const CANONICAL: u64 = (1 << 48) - 1;

const PAGE: u64 = 4096;

/// One engine's view of memory.
pub(crate) struct Memory {
    pub(crate) core: Arc<Core>,
    engine: Engine,
    tlb: Tlb,
    /// The running context's root table.
    root: u64,
    /// Whether anything was written since this was last cleared.
    pub(crate) touched: bool,
}

impl Memory {
    pub(crate) fn new(core: Arc<Core>, engine: Engine) -> Self {
        Self {
            core,
            engine,
            tlb: Tlb::new(),
            root: 0,
            touched: false,
        }
    }

    /// Uses the tables at `root` from now on.
    pub(crate) fn set_root(&mut self, root: u64) {
        self.root = root;
        self.tlb.flush();
    }

    pub(crate) fn flush_tlb(&mut self) {
        self.tlb.flush();
    }

    /// The bus address behind `address`; `None` when the access is a write
    /// and the page is read-only, which drops it (Linux
    /// `gem/selftests/i915_gem_context.c:igt_ctx_readonly` relies on it).
    fn bus(
        &mut self,
        space: Space,
        address: u64,
        write: bool,
    ) -> Result<Option<u64>, AddressFault> {
        let fault = AddressFault { address, space };
        match space {
            Space::Ggtt => {
                let a = u32::try_from(address).map_err(|_| fault)?;
                self.core.ggtt.translate(a).map(Some).ok_or(fault)
            }
            Space::Ppgtt => {
                let mapping = match self.tlb.get(address) {
                    Some(m) => m,
                    None => {
                        let by = Reach {
                            engine: self.engine,
                            why: Why::Tables,
                            global: false,
                            address,
                        };
                        let load = |at, raw: &mut [u8]| self.core.dma_read(by, at, raw);
                        let m = ppgtt::walk(load, self.root, address)
                            .map_err(|_| fault)?
                            .ok_or(fault)?;
                        self.tlb.put(address, m);
                        m
                    }
                };
                if write && !mapping.writable {
                    count(&self.core.unit(self.engine).counters.read_only_writes);
                    return Ok(None);
                }
                Ok(Some(mapping.frame | (address & (PAGE - 1))))
            }
        }
    }

    fn canonical(space: Space, address: u64) -> u64 {
        match space {
            Space::Ggtt => address,
            Space::Ppgtt => address & CANONICAL,
        }
    }

    const fn reach(&self, why: Why, space: Space, address: u64) -> Reach {
        Reach {
            engine: self.engine,
            why,
            global: matches!(space, Space::Ggtt),
            address,
        }
    }

    /// Reads what a command asks for.
    pub(crate) fn read(
        &mut self,
        space: Space,
        address: u64,
        buf: &mut [u8],
    ) -> Result<(), AddressFault> {
        self.read_for(Why::Data, space, address, buf)
    }

    pub(crate) fn read_for(
        &mut self,
        why: Why,
        space: Space,
        address: u64,
        buf: &mut [u8],
    ) -> Result<(), AddressFault> {
        let mut at = Self::canonical(space, address);
        let mut rest = buf;
        while !rest.is_empty() {
            let (part, tail) = rest.split_at_mut(Self::in_page(at, rest.len()));
            rest = tail;
            if let Some(bus) = self.bus(space, at, false)? {
                let by = self.reach(why, space, at);
                self.core
                    .dma_read(by, bus, part)
                    .map_err(|_| AddressFault { address: at, space })?;
            }
            at = Self::canonical(space, Self::next_page(at));
        }
        Ok(())
    }

    /// Writes what a command asks for.
    pub(crate) fn write(
        &mut self,
        space: Space,
        address: u64,
        data: &[u8],
    ) -> Result<(), AddressFault> {
        self.write_for(Why::Data, space, address, data)
    }

    pub(crate) fn write_for(
        &mut self,
        why: Why,
        space: Space,
        address: u64,
        data: &[u8],
    ) -> Result<(), AddressFault> {
        self.touched = true;
        let mut at = Self::canonical(space, address);
        let mut rest = data;
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(Self::in_page(at, rest.len()));
            rest = tail;
            if let Some(bus) = self.bus(space, at, true)? {
                let by = self.reach(why, space, at);
                self.core
                    .dma_write(by, bus, part)
                    .map_err(|_| AddressFault { address: at, space })?;
            }
            at = Self::canonical(space, Self::next_page(at));
        }
        Ok(())
    }

    /// How much of `len` bytes from `at` is in its page.
    fn in_page(at: u64, len: usize) -> usize {
        usize::try_from(PAGE - (at & (PAGE - 1))).map_or(len, |room| room.min(len))
    }

    fn next_page(at: u64) -> u64 {
        (at & !(PAGE - 1)).wrapping_add(PAGE)
    }

    pub(crate) fn read_u32(&mut self, space: Space, address: u64) -> Result<u32, AddressFault> {
        let mut b = [0; 4];
        self.read(space, address, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    pub(crate) fn read_u64(&mut self, space: Space, address: u64) -> Result<u64, AddressFault> {
        let mut b = [0; 8];
        self.read(space, address, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    pub(crate) fn write_u32(
        &mut self,
        space: Space,
        address: u64,
        value: u32,
    ) -> Result<(), AddressFault> {
        self.write(space, address, &value.to_le_bytes())
    }

    pub(crate) fn write_u64(
        &mut self,
        space: Space,
        address: u64,
        value: u64,
    ) -> Result<(), AddressFault> {
        self.write(space, address, &value.to_le_bytes())
    }
}
