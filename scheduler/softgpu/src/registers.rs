//! Storage behind the registers.
//!
//! Every register is an atomic word, so an engine publishes its live values
//! with plain stores and a reader needs no lock. Pages come into being when
//! they are first written: an idle GPU holds only the few that have reset
//! values.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gen8::regs::{self, Rules};
use gen8::{Engine, ring};

use crate::bits::index;

/// Bytes of register space: what lies between here and the global table is
/// reserved, reads zero and ignores writes.
pub(crate) const REGISTER_BYTES: u32 = 2 << 20;

const PAGE_DWORDS: usize = 1024;

pub(crate) type Page = [AtomicU32; PAGE_DWORDS];

pub(crate) struct Registers {
    rules: &'static Rules,
    pages: Vec<OnceLock<Box<Page>>>,
}

impl Registers {
    pub(crate) fn new(rules: &'static Rules) -> Self {
        let pages = index(REGISTER_BYTES) / (PAGE_DWORDS * 4);
        let this = Self {
            rules,
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
        };
        for e in Engine::ALL {
            this.reset_engine(e);
        }
        this
    }

    /// The page that holds `offset`, which is made if it is not there yet.
    /// `None` past the register space.
    pub(crate) fn page(&self, offset: u32) -> Option<&Page> {
        let slot = self.pages.get(index(offset) / (PAGE_DWORDS * 4))?;
        Some(slot.get_or_init(|| Box::new([const { AtomicU32::new(0) }; PAGE_DWORDS])))
    }

    fn word(&self, offset: u32) -> Option<&AtomicU32> {
        self.page(offset)?.get((index(offset) / 4) % PAGE_DWORDS)
    }

    pub(crate) fn get(&self, offset: u32) -> u32 {
        let Some(page) = self
            .pages
            .get(index(offset) / (PAGE_DWORDS * 4))
            .and_then(OnceLock::get)
        else {
            return 0;
        };
        page.get((index(offset) / 4) % PAGE_DWORDS)
            .map_or(0, |w| w.load(Relaxed))
    }

    pub(crate) fn set(&self, offset: u32, value: u32) {
        if let Some(w) = self.word(offset) {
            w.store(value, Relaxed);
        }
    }

    /// Replaces a register's value by a function of it, in one step.
    pub(crate) fn update(&self, offset: u32, f: impl Fn(u32) -> u32) {
        if let Some(w) = self.word(offset) {
            // The closure never declines, so this cannot fail.
            let _ = w.fetch_update(Relaxed, Relaxed, |v| Some(f(v)));
        }
    }

    /// Stores as the register does: masked where it is masked.
    pub(crate) fn store(&self, offset: u32, value: u32) {
        if regs::masked(offset) {
            self.update(offset, |old| regs::apply_masked(old, value));
        } else {
            self.set(offset, value);
        }
    }

    /// Puts an engine's block and its context's registers to reset values.
    pub(crate) fn reset_engine(&self, engine: Engine) {
        let base = engine.mmio_base();
        for o in (0..Engine::MMIO_BLOCK).step_by(4) {
            if self.get(base + o) != 0 {
                self.set(base + o, 0);
            }
        }
        self.reset_context_registers(engine);
        // Nothing is delivered and nothing is latched until a driver asks.
        self.set(base + ring::IMR, u32::MAX);
        self.set(base + ring::EMR, u32::MAX);
        // The next event goes to entry 0.
        self.set(base + ring::CSB_PTR, gen8::csb::ENTRIES - 1);
    }

    /// The registers of a context as one that was never saved finds them.
    pub(crate) fn reset_context_registers(&self, engine: Engine) {
        for offset in self.rules.context(engine) {
            if self.get(offset) != 0 {
                self.set(offset, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_sparse_and_masked() {
        let r = Registers::new(&regs::GEN8);
        let made = r.pages.iter().filter(|p| p.get().is_some()).count();
        assert_eq!(made, 4, "one page an engine");
        r.store(0x7300, 0x0003_0001);
        assert_eq!(r.get(0x7300), 1);
        r.store(0x1_0000, 77);
        assert_eq!(r.get(0x1_0000), 77);
        assert_eq!(r.get(0x1f_fffc), 0);
        r.set(REGISTER_BYTES, 1);
        assert_eq!(r.get(REGISTER_BYTES), 0);
    }

    #[test]
    fn a_reset_engine_has_its_defaults() {
        let r = Registers::new(&regs::GEN8);
        let base = Engine::Bcs.mmio_base();
        r.set(base + ring::HWS_PGA, 0x1000);
        r.set(base + ring::GPR0 + 8, 5);
        r.reset_engine(Engine::Bcs);
        assert_eq!(r.get(base + ring::HWS_PGA), 0);
        assert_eq!(r.get(base + ring::GPR0 + 8), 0);
        assert_eq!(r.get(base + ring::IMR), u32::MAX);
        assert_eq!(r.get(base + ring::CSB_PTR), 5);
    }
}
