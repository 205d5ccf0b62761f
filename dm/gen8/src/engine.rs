//! The four engines of a GT2 part.

/// An engine, by its place in every per-engine array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// Render: 3D, media pipeline, general MI.
    Rcs,
    /// Blitter.
    Bcs,
    /// Video decode.
    Vcs,
    /// Video enhancement.
    Vecs,
}

impl Engine {
    /// Every engine, in index order.
    pub const ALL: [Self; 4] = [Self::Rcs, Self::Bcs, Self::Vcs, Self::Vecs];

    /// Number of engines.
    pub const COUNT: usize = Self::ALL.len();

    /// The index in [`Engine::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Rcs => 0,
            Self::Bcs => 1,
            Self::Vcs => 2,
            Self::Vecs => 3,
        }
    }

    /// The engine with this index, if there is one.
    #[must_use]
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The name i915 shows in sysfs (Linux `gt/intel_engine_user.c`).
    #[must_use]
    pub const fn sysfs_name(self) -> &'static str {
        match self {
            Self::Rcs => "rcs0",
            Self::Bcs => "bcs0",
            Self::Vcs => "vcs0",
            Self::Vecs => "vecs0",
        }
    }

    /// Offset of the engine's register block in BAR0
    /// (Linux `gt/intel_engine_regs.h`, `i915_reg.h`: `*_RING_BASE`).
    #[must_use]
    pub const fn mmio_base(self) -> u32 {
        match self {
            Self::Rcs => 0x2000,
            Self::Bcs => 0x2_2000,
            Self::Vcs => 0x1_2000,
            Self::Vecs => 0x1_a000,
        }
    }

    /// Bytes of an engine's register block that are handled alike on all
    /// engines: the distance within which `mmio_base + offset` is its own.
    pub const MMIO_BLOCK: u32 = 0x800;

    /// The engine and the offset in its block for a BAR0 offset.
    #[must_use]
    pub fn from_mmio(offset: u32) -> Option<(Self, u32)> {
        Self::ALL.into_iter().find_map(|e| {
            let o = offset.checked_sub(e.mmio_base())?;
            (o < Self::MMIO_BLOCK).then_some((e, o))
        })
    }

    /// The bit in GDRST that resets the engine
    /// (Linux `gt/intel_gt_regs.h`: `GEN6_GRDOM_*`).
    #[must_use]
    pub const fn reset_domain(self) -> u32 {
        match self {
            Self::Rcs => 1 << 1,
            Self::Vcs => 1 << 2,
            Self::Bcs => 1 << 3,
            Self::Vecs => 1 << 4,
        }
    }
}

/// A set of engines, one bit each by [`Engine::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSet(u8);

impl EngineSet {
    /// No engine.
    pub const NONE: Self = Self(0);
    /// All engines.
    pub const ALL: Self = Self(0b1111);

    /// The set with the given bits; bits that name no engine are dropped.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The set of the engines listed.
    #[must_use]
    pub const fn of(engines: &[Engine]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < engines.len() {
            bits |= 1 << engines[i].index();
            i += 1;
        }
        Self(bits)
    }

    /// One bit an engine.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether `engine` is in the set.
    #[must_use]
    pub const fn contains(self, engine: Engine) -> bool {
        self.0 & (1 << engine.index()) != 0
    }

    /// The engines in the set, in index order.
    pub fn iter(self) -> impl Iterator<Item = Engine> {
        Engine::ALL.into_iter().filter(move |e| self.contains(*e))
    }

    /// The engines that a write of `value` to GDRST resets: bit 0 is all
    /// (Linux `gt/intel_gt_regs.h:GEN6_GRDOM_FULL`).
    #[must_use]
    pub fn from_gdrst(value: u32) -> Self {
        if value & 1 != 0 {
            return Self::ALL;
        }
        let mut bits = 0;
        for e in Engine::ALL {
            if value & e.reset_domain() != 0 {
                bits |= 1 << e.index();
            }
        }
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_belongs_to_one_engine() {
        assert_eq!(Engine::from_mmio(0x2230), Some((Engine::Rcs, 0x230)));
        assert_eq!(Engine::from_mmio(0x1_a0d0), Some((Engine::Vecs, 0xd0)));
        assert_eq!(Engine::from_mmio(0x2800), None);
        assert_eq!(Engine::from_mmio(0), None);
    }

    #[test]
    fn gdrst_bit_0_is_every_engine() {
        assert_eq!(EngineSet::from_gdrst(1), EngineSet::ALL);
        assert_eq!(
            EngineSet::from_gdrst(1 << 3 | 1 << 1),
            EngineSet::of(&[Engine::Rcs, Engine::Bcs])
        );
    }
}
