//! Registers that belong to whichever guest an engine runs: what a switch
//! between guests must carry over.
//!
//! Two tables, [`GEN8`] and [`GEN9`]. Each has what GVT-g switches (Linux
//! `gvt/mmio_context.c`) and what guests can change besides: a test compares
//! it with all that [`crate::access`] and [`crate::regs`] let them write.

mod gen8;
mod gen9;

use core::fmt;

use crate::{Engine, ring};
pub use gen8::GEN8;
pub use gen9::GEN9;

/// How the hardware keeps a register across context switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Outside the context image: only software can carry it over.
    Outside,
    /// Inside the context image: the hardware saves and restores it.
    InContext,
}

/// Who changes a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Software alone: what was written is what it holds.
    Static,
    /// The hardware too, in these bits.
    Hardware {
        /// The bits.
        bits: u32,
        /// Whether they belong to the guest, so that a switch must read
        /// them. Otherwise they tell of the moment, or clear themselves.
        carried: bool,
    },
    /// Batches without privilege, and nothing in it is worth keeping: a
    /// switch puts the reset value back, so that nothing passes from one
    /// guest to the next.
    Volatile,
}

/// What registers belong together: guests that agree in one of a group
/// mostly agree in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// How the command streamer works.
    Streamer,
    /// FORCE_TO_NONPRIV.
    NonPriv,
    /// Memory interface and page attributes.
    Memory,
    /// The L3 cache.
    L3,
    /// Workarounds in the pipeline.
    Pipeline,
    /// Cacheability by memory object control state.
    Mocs,
    /// The same for L3.
    L3cc,
    /// What only lasts a moment.
    Moment,
}

impl Group {
    /// Every group, in the order they are written.
    pub const ALL: [Self; 8] = [
        Self::Streamer,
        Self::NonPriv,
        Self::Memory,
        Self::L3,
        Self::Pipeline,
        Self::Mocs,
        Self::L3cc,
        Self::Moment,
    ];

    /// Number of groups.
    pub const COUNT: usize = Self::ALL.len();

    /// The index in [`Group::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Consecutive registers that are alike.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in the documentation.
    pub name: &'static str,
    /// The engine they belong to.
    pub engine: Engine,
    /// BAR0 offset of the first.
    pub first: u32,
    /// How many, 4 bytes each.
    pub count: u32,
    /// Whether bits 31:16 of a write select which of bits 15:0 change.
    pub masked: bool,
    /// Where the hardware keeps them.
    pub kept: Kept,
    /// Who changes them.
    pub change: Change,
    /// Registers of a group with an order other than 0 are written by
    /// ascending order, after those with none.
    pub order: u8,
    /// The value after an engine reset; 0 where no source says.
    pub reset: u32,
    /// What they belong to.
    pub group: Group,
    /// Where this was learnt.
    pub source: &'static str,
}

impl Row {
    const fn new(
        name: &'static str,
        engine: Engine,
        first: u32,
        group: Group,
        source: &'static str,
    ) -> Self {
        Self {
            name,
            engine,
            first,
            count: 1,
            masked: false,
            kept: Kept::Outside,
            change: Change::Static,
            order: 0,
            reset: 0,
            group,
            source,
        }
    }

    const fn masked(mut self) -> Self {
        self.masked = true;
        self
    }

    const fn in_context(mut self) -> Self {
        self.kept = Kept::InContext;
        self
    }

    const fn times(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    const fn reset(mut self, value: u32) -> Self {
        self.reset = value;
        self
    }

    const fn order(mut self, order: u8) -> Self {
        self.order = order;
        self
    }

    const fn change(mut self, change: Change) -> Self {
        self.change = change;
        self
    }
}

/// One register that a switch concerns.
#[derive(Clone, Copy, Debug)]
pub struct Switched {
    /// Its row.
    pub row: &'static Row,
    /// Its place in the row.
    pub index: u32,
}

impl Switched {
    /// BAR0 offset.
    #[must_use]
    pub const fn offset(&self) -> u32 {
        self.row.first + self.index * 4
    }

    /// Whether nothing in it is worth keeping.
    #[must_use]
    pub const fn is_volatile(&self) -> bool {
        matches!(self.row.change, Change::Volatile)
    }

    /// Whether the hardware changes it in a way that belongs to the guest.
    #[must_use]
    pub const fn must_be_read(&self) -> bool {
        matches!(self.row.change, Change::Hardware { carried: true, .. })
    }

    /// Bits that tell of the moment and are nobody's to keep.
    #[must_use]
    pub const fn momentary(&self) -> u32 {
        match self.row.change {
            Change::Hardware {
                bits,
                carried: false,
            } => bits,
            _ => 0,
        }
    }

    /// The bits that hold a value.
    #[must_use]
    pub const fn width(&self) -> u32 {
        if self.row.masked { 0xffff } else { u32::MAX }
    }
}

impl fmt::Display for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row.name)?;
        if self.row.count > 1 {
            write!(f, "{}", self.index)?;
        }
        Ok(())
    }
}

/// A generation's registers.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name, as in "gen8".
    pub name: &'static str,
    /// The registers.
    pub rows: &'static [Row],
    /// Whether GVT-g reads and writes registers of the context too at a
    /// switch (Linux `gvt/mmio_context.c:switch_mmio`: on Gen9 it does not).
    pub touches_context: bool,
}

impl Table {
    /// Every register.
    pub fn registers(&self) -> impl Iterator<Item = Switched> + use<> {
        self.rows
            .iter()
            .flat_map(|row| (0..row.count).map(move |index| Switched { row, index }))
    }

    /// Whether the GPU needs the value that a guest's register at `offset`
    /// has.
    #[must_use]
    pub fn is_carried(&self, offset: u32) -> bool {
        self.find(offset).is_some_and(|s| !s.is_volatile())
    }

    /// The register at a BAR0 offset.
    #[must_use]
    pub fn find(&self, offset: u32) -> Option<Switched> {
        self.rows.iter().find_map(|row| {
            let index = offset.checked_sub(row.first)? / 4;
            let found = offset.is_multiple_of(4) && index < row.count;
            found.then_some(Switched { row, index })
        })
    }
}

/// TRTTE: whether the render engine walks tables for tiled resources, by
/// addresses that lie in other registers. Nobody moves those, so no guest is
/// granted it.
pub const TRTTE: u32 = 0x4df4;

const GVT: &str = "Linux gvt/mmio_context.c";

/// MI_MODE: the hardware says in bit 9 that the ring is idle.
const fn mi_mode(engine: Engine, source: &'static str) -> Row {
    Row::new(
        "MI_MODE",
        engine,
        engine.mmio_base() + ring::MI_MODE,
        Group::Streamer,
        source,
    )
    .masked()
    .change(Change::Hardware {
        bits: ring::MI_MODE_IDLE,
        carried: false,
    })
}

/// INSTPM: bits 9 and 5 ask for a TLB invalidation and a flush, and clear
/// when that is done (Linux `gt/intel_ring_submission.c:flush_cs_tlb`).
const fn instpm(engine: Engine, source: &'static str) -> Row {
    Row::new(
        "INSTPM",
        engine,
        engine.mmio_base() + ring::INSTPM,
        Group::Streamer,
        source,
    )
    .masked()
    .change(Change::Hardware {
        bits: 1 << 9 | 1 << 5,
        carried: false,
    })
}

/// EXCC: bits 4:0 are condition codes that software sets; above them the
/// hardware reports conditions that MI_WAIT_FOR_EVENT can wait for. A guest
/// cannot wait for those here.
const fn excc(engine: Engine) -> Row {
    Row::new(
        "EXCC",
        engine,
        engine.mmio_base() + 0x28,
        Group::Streamer,
        GVT,
    )
    .masked()
    .change(Change::Hardware {
        bits: 0xffe0,
        carried: false,
    })
}

/// What batches without privilege write outside the context.
const fn moment(name: &'static str, engine: Engine, offset: u32, source: &'static str) -> Row {
    Row::new(
        name,
        engine,
        engine.mmio_base() + offset,
        Group::Moment,
        source,
    )
    .change(Change::Volatile)
}

const USER: &str = "igt tests/i915/gem_ctx_isolation.c:nonpriv_registers";
const NOOP: &str = "gen8::cmd: MI_NOOP sets it";

#[cfg(test)]
mod tests;
