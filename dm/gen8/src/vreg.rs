//! The registers a guest sees, as data: where, how an access behaves, what
//! a reset leaves, how the value is saved, and where the fact was learnt.
//!
//! Offsets without a row are plain storage that starts at 0: that is what
//! most of the display and clock-gating registers need, since i915 reads
//! back what it wrote and complains about differences.

use crate::Engine;

pub mod display;
mod engine;
mod gt;
pub mod pch;
pub mod pvinfo;

/// Bytes of BAR0 that hold registers (Linux `intel_uncore.c:intel_uncore_setup_mmio`).
pub const REGISTER_BYTES: u32 = 2 << 20;

/// Where a register, or a row of like registers, lies in BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One register.
    At(u32),
    /// `count` registers, `stride` bytes apart.
    Row {
        /// Offset of the first.
        first: u32,
        /// How many.
        count: u32,
        /// Bytes from one to the next.
        stride: u32,
    },
    /// One register in each engine's block, at this offset from its base.
    Engines(u32),
    /// `count` registers, 4 bytes apart, in each engine's block.
    EngineRow {
        /// Offset of the first from the engine's base.
        first: u32,
        /// How many on each engine.
        count: u32,
    },
}

/// How reads and writes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads back what was written.
    Storage,
    /// Bits 31:16 of a write select which of bits 15:0 change; bits 31:16
    /// read 0.
    Masked,
    /// Writing 1 clears a bit.
    WriteOneToClear,
    /// Writes are ignored.
    ReadOnly,
    /// Device code answers; the handler's documentation says how.
    Handled(Handler),
}

/// Device code behind a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Handler {
    /// Ring registers: the running context's image while one runs.
    RingState,
    /// MI_MODE: masked; the idle bit follows the engine.
    MiMode,
    /// RESET_CTL: masked; ready follows request.
    ResetCtl,
    /// ELSP: four writes load a list.
    Elsp,
    /// EXECLIST_STATUS: the running context.
    ExeclistStatus,
    /// RING_TIMESTAMP: the device's clock in the platform's units.
    Timestamp,
    /// GDRST: resets engines, reads busy until vgpud has let go of them.
    Gdrst,
    /// The acknowledgement of a forcewake request, which is in the register
    /// that [`forcewake_request`] names.
    ForcewakeAck,
    /// MASTER_IRQ: which banks have something to deliver.
    Master,
    /// An interrupt bank's status.
    Isr,
    /// An interrupt bank's mask.
    Imr,
    /// An interrupt bank's identity, write one to clear.
    Iir,
    /// An interrupt bank's enables.
    Ier,
    /// A fence: storage that the aperture follows.
    Fence,
    /// PVINFO notification to the device model.
    Notify,
    /// LCPLL_CTL: lock and FCLK-done follow their requests.
    Lcpll,
    /// Bit 30, the state, follows bit 31, the request.
    Follows,
    /// DPLL_STATUS: each PLL that is enabled is locked.
    DpllStatus,
    /// Display power well: state follows the requests of all four registers.
    PowerWell,
    /// PIPECONF: the state bit follows the enable bit.
    PipeConf,
    /// PIPEDSL: the line being scanned out.
    ScanLine,
    /// Frames since the pipe was enabled.
    FrameCount,
    /// A plane's surface address: a write latches the plane.
    Surface,
    /// The surface being scanned out.
    SurfaceLive,
    /// DDI_BUF_CTL: idle while disabled.
    DdiBuffer,
    /// DisplayPort AUX control: every transfer times out at once.
    Aux,
    /// Sideband: done at once, successfully.
    Sideband,
    /// Power-controller mailbox: done at once, successfully; the platform's
    /// table says what some commands reply.
    Mailbox,
    /// GMBUS control and data.
    Gmbus,
}

/// The register with the request that the acknowledgement at `ack` answers
/// (Linux `gt/intel_gt_regs.h`: `FORCEWAKE_*`).
#[must_use]
pub const fn forcewake_request(ack: u32) -> u32 {
    match ack {
        0xd84 => 0xa278,
        0xd88 => 0xa270,
        _ => 0xa188,
    }
}

/// How a register's value gets into a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// In the register image, by offset.
    Image,
    /// In the state of the part that handles it.
    Part,
    /// Not at all: the configuration or the clock gives it.
    Derived,
}

/// What a register holds after power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// This value.
    Value(u32),
    /// The engine's register base plus this.
    EngineBase(u32),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Name in the documentation.
    pub name: &'static str,
    /// Where.
    pub place: Place,
    /// How it behaves.
    pub access: Access,
    /// What it holds after power-on.
    pub reset: Reset,
    /// How it is saved.
    pub saved: Saved,
    /// Where the fact was learnt; `Linux` is 6.1's `drivers/gpu/drm/i915`.
    pub source: &'static str,
}

impl Register {
    const fn new(
        name: &'static str,
        place: Place,
        access: Access,
        reset: u32,
        saved: Saved,
        source: &'static str,
    ) -> Self {
        Self {
            name,
            place,
            access,
            reset: Reset::Value(reset),
            saved,
            source,
        }
    }

    /// How many registers the row stands for.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match self.place {
            Place::At(_) => 1,
            Place::Row { count, .. } => count,
            Place::Engines(_) => 4,
            Place::EngineRow { count, .. } => 4 * count,
        }
    }

    /// Whether the row stands for no register.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The BAR0 offset of register `index` of the row.
    #[must_use]
    pub fn offset(&self, index: u32) -> Option<u32> {
        if index >= self.len() {
            return None;
        }
        Some(match self.place {
            Place::At(offset) => offset,
            Place::Row { first, stride, .. } => first + index * stride,
            Place::Engines(rel) => engine_base(index)? + rel,
            Place::EngineRow { first, count } => {
                engine_base(index / count)? + first + (index % count) * 4
            }
        })
    }

    /// What register `index` of the row holds after power-on.
    #[must_use]
    pub fn reset_value(&self, index: u32) -> u32 {
        let base = match self.place {
            Place::Engines(_) => engine_base(index),
            Place::EngineRow { count, .. } => engine_base(index / count),
            Place::At(_) | Place::Row { .. } => None,
        };
        match self.reset {
            Reset::Value(value) => value,
            Reset::EngineBase(rel) => base.unwrap_or(0) + rel,
        }
    }

    /// The BAR0 offsets of the row.
    pub fn offsets(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|i| self.offset(i))
    }
}

fn engine_base(index: u32) -> Option<u32> {
    let index = usize::try_from(index).ok()?;
    Some(Engine::from_index(index)?.mmio_base())
}

const fn plain(name: &'static str, place: Place, reset: u32, source: &'static str) -> Register {
    Register::new(name, place, Access::Storage, reset, Saved::Image, source)
}

const fn masked(name: &'static str, place: Place, source: &'static str) -> Register {
    Register::new(name, place, Access::Masked, 0, Saved::Image, source)
}

const fn fixed(name: &'static str, place: Place, value: u32, source: &'static str) -> Register {
    Register::new(name, place, Access::ReadOnly, value, Saved::Derived, source)
}

const fn clearing(name: &'static str, place: Place, source: &'static str) -> Register {
    Register::new(
        name,
        place,
        Access::WriteOneToClear,
        0,
        Saved::Image,
        source,
    )
}

const fn handled(
    name: &'static str,
    place: Place,
    handler: Handler,
    reset: u32,
    saved: Saved,
    source: &'static str,
) -> Register {
    Register::new(name, place, Access::Handled(handler), reset, saved, source)
}

const fn at(offset: u32) -> Place {
    Place::At(offset)
}

const fn row(first: u32, count: u32, stride: u32) -> Place {
    Place::Row {
        first,
        count,
        stride,
    }
}

/// Registers that are described together.
#[derive(Debug)]
pub struct Area {
    /// What they are.
    pub title: &'static str,
    /// The registers.
    pub rows: &'static [Register],
}

/// The registers of a device.
#[derive(Debug)]
pub struct Map {
    /// By area.
    pub areas: &'static [&'static Area],
}

static ENGINES: Area = Area {
    title: "Engines",
    rows: engine::TABLE,
};
static ENGINES_KBL: Area = Area {
    title: "Engines: Kaby Lake's besides",
    rows: engine::KBL,
};
static CORE: Area = Area {
    title: "Graphics core",
    rows: gt::TABLE,
};
static CORE_BDW: Area = Area {
    title: "Graphics core: Broadwell's besides",
    rows: gt::BDW,
};
static CORE_KBL: Area = Area {
    title: "Graphics core: Kaby Lake's besides",
    rows: gt::KBL,
};
static PVINFO: Area = Area {
    title: "Paravirtual information page",
    rows: pvinfo::TABLE,
};
static DISPLAY: Area = Area {
    title: "Display",
    rows: display::TABLE,
};
static DISPLAY_BDW: Area = Area {
    title: "Display: Broadwell's besides",
    rows: display::BDW,
};
static DISPLAY_KBL: Area = Area {
    title: "Display: Kaby Lake's besides",
    rows: display::KBL,
};
static PCH: Area = Area {
    title: "South display (PCH)",
    rows: pch::TABLE,
};

/// Broadwell's registers.
pub static BDW: Map = Map {
    areas: &[
        &ENGINES,
        &CORE,
        &CORE_BDW,
        &PVINFO,
        &DISPLAY,
        &DISPLAY_BDW,
        &PCH,
    ],
};

/// Kaby Lake's registers.
pub static KBL: Map = Map {
    areas: &[
        &ENGINES,
        &ENGINES_KBL,
        &CORE,
        &CORE_KBL,
        &PVINFO,
        &DISPLAY,
        &DISPLAY_KBL,
        &PCH,
    ],
};

impl Map {
    /// Every row.
    pub fn rows(&self) -> impl Iterator<Item = &'static Register> + use<> {
        self.areas.iter().flat_map(|area| area.rows)
    }

    /// The row of the register at `offset` and its place in the row.
    #[must_use]
    pub fn find(&self, offset: u32) -> Option<(&'static Register, u32)> {
        self.rows().find_map(|r| {
            let index = (0..r.len()).find(|&i| r.offset(i) == Some(offset))?;
            Some((r, index))
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeMap;

    use super::*;
    use crate::platform::PLATFORMS;

    fn all() -> impl Iterator<Item = &'static Register> {
        PLATFORMS.iter().flat_map(|p| p.registers.rows())
    }

    #[test]
    fn each_offset_has_one_row_and_is_an_aligned_register() {
        for platform in PLATFORMS {
            let mut seen = BTreeMap::new();
            for row in platform.registers.rows() {
                assert!(!row.is_empty(), "{}", row.name);
                for offset in row.offsets() {
                    assert!(offset.is_multiple_of(4), "{} at {offset:#x}", row.name);
                    assert!(offset < REGISTER_BYTES, "{} at {offset:#x}", row.name);
                    let before = seen.insert(offset, row.name);
                    assert_eq!(before, None, "{} at {offset:#x}", row.name);
                }
            }
        }
    }

    #[test]
    fn switched_registers_are_in_the_table_and_agree_with_it() {
        for platform in PLATFORMS {
            let switched = platform.switched.registers();
            for s in switched.filter(|s| !s.is_volatile()) {
                let (row, index) = platform
                    .registers
                    .find(s.offset())
                    .unwrap_or_else(|| panic!("{platform}: {s} {:#x}", s.offset()));
                let is_masked = matches!(
                    row.access,
                    Access::Masked | Access::Handled(Handler::MiMode)
                );
                assert_eq!(is_masked, s.row.masked, "{s}");
                assert_eq!(row.reset_value(index), s.row.reset, "{s}");
            }
        }
    }

    #[test]
    fn what_the_gpu_masks_is_masked_here() {
        for row in all() {
            let is_masked = matches!(
                row.access,
                Access::Masked | Access::Handled(Handler::MiMode | Handler::ResetCtl)
            );
            for offset in row.offsets() {
                assert!(is_masked || !crate::regs::masked(offset), "{}", row.name);
            }
        }
    }

    #[test]
    fn each_row_names_its_source() {
        for row in all() {
            assert!(row.source.len() > 4, "{}", row.name);
        }
    }
}
