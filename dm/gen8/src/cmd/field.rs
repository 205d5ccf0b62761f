//! The addresses and registers in a command.

use super::Command;

/// A condition on a dword of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Which dword.
    pub dword: u8,
    /// One of these bits must be set; 0 asks nothing.
    pub any: u32,
    /// None of these may be.
    pub none: u32,
}

impl Bits {
    /// Always.
    pub const ALWAYS: Self = Self::of(0, 0, 0);

    /// A condition.
    #[must_use]
    pub const fn of(dword: u8, any: u32, none: u32) -> Self {
        Self { dword, any, none }
    }

    /// Whether it holds for the command in `words`. A dword that is missing
    /// counts as 0.
    #[must_use]
    #[inline]
    pub fn hold(self, words: &[u32]) -> bool {
        let w = words.get(usize::from(self.dword)).copied().unwrap_or(0);
        (self.any == 0 || w & self.any != 0) && w & self.none == 0
    }
}

/// Which address space an address field names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Always the context's own page tables.
    Ppgtt,
    /// The global table when this bit of that dword is set, else the
    /// context's own.
    GgttIf {
        /// Dword of the command.
        dword: u8,
        /// Bit in it.
        bit: u8,
    },
    /// The global table when the bit of dword 0 is clear.
    GgttUnless {
        /// Bit in dword 0.
        bit: u8,
    },
    /// Always the global table.
    Ggtt,
}

impl Space {
    /// Whether an address of the command in `words` is in the global table.
    #[must_use]
    #[inline]
    pub fn is_global(self, words: &[u32]) -> bool {
        let bit = |dword: u8, bit: u8| {
            let w = words.get(usize::from(dword)).copied().unwrap_or(0);
            w >> (bit & 31) & 1 != 0
        };
        match self {
            Self::Ppgtt => false,
            Self::GgttIf { dword, bit: b } => bit(dword, b),
            Self::GgttUnless { bit: b } => !bit(0, b),
            Self::Ggtt => true,
        }
    }
}

/// What happens to memory at an address, sooner or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read and written.
    Both,
}

/// How wide an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One dword.
    Low,
    /// 48 bits: the next dword is the upper half.
    Split,
}

/// How many bytes are touched from an address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// This many.
    Known(u32),
    /// By a bit of dword 0.
    If {
        /// The bit.
        bit: u8,
        /// Bytes when it is set.
        set: u32,
        /// Bytes when it is clear.
        clear: u32,
    },
    /// At most this many.
    AtMost(u32),
    /// As wide as MI_ATOMIC works: 4, 8 or 16, by its operation or by bits
    /// 20:19, whichever says more.
    Atomic,
    /// What the command's rectangle, pitch and such tell.
    Shape,
    /// What other state or the work itself tells; no bound from here.
    State,
}

impl Bytes {
    /// At most how many, for the command that `dw0` starts; `None`: no bound
    /// follows from the command alone.
    #[must_use]
    #[inline]
    pub const fn bound(self, dw0: u32) -> Option<u32> {
        match self {
            Self::Known(n) | Self::AtMost(n) => Some(n),
            Self::If { bit, set, clear } => Some(if dw0 >> (bit & 31) & 1 != 0 {
                set
            } else {
                clear
            }),
            Self::Atomic => {
                let by_operation = dw0 >> 13 & 3;
                let by_field = dw0 >> 19 & 3;
                let wider = if by_operation > by_field {
                    by_operation
                } else {
                    by_field
                };
                Some(if wider > 1 { 16 } else { 4 << wider })
            }
            Self::Shape | Self::State => None,
        }
    }
}

/// Fields that come more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Each {
    /// Dwords from one to the next.
    pub stride: u8,
    /// How often; 0: to the command's end.
    pub count: u8,
}

const ONCE: Each = Each {
    stride: 1,
    count: 1,
};

/// A graphics address in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressField {
    /// Dword of it, or of its lower half.
    pub dword: u8,
    /// Its width.
    pub width: Width,
    /// Bits of the lower dword that are address; the others are flags.
    pub mask: u32,
    /// Which space it is in.
    pub space: Space,
    /// What happens there.
    pub touch: Touch,
    /// To how much.
    pub bytes: Bytes,
    /// When the field is an address at all.
    pub when: Bits,
    /// How often it comes.
    pub each: Each,
}

impl AddressField {
    const fn new(dword: u8, low_bit: u8, touch: Touch) -> Self {
        Self {
            dword,
            width: Width::Split,
            mask: u32::MAX << low_bit,
            space: Space::Ppgtt,
            touch,
            bytes: Bytes::State,
            when: Bits::ALWAYS,
            each: ONCE,
        }
    }

    pub(super) const fn ggtt(mut self, dword: u8, bit: u8) -> Self {
        self.space = Space::GgttIf { dword, bit };
        self
    }

    pub(super) const fn space(mut self, space: Space) -> Self {
        self.space = space;
        self
    }

    pub(super) const fn bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes;
        self
    }

    pub(super) const fn when(mut self, dword: u8, any: u32, none: u32) -> Self {
        self.when = Bits::of(dword, any, none);
        self
    }

    pub(super) const fn each(mut self, stride: u8, count: u8) -> Self {
        self.each = Each { stride, count };
        self
    }

    pub(super) const fn low(mut self) -> Self {
        self.width = Width::Low;
        self
    }

    /// Dwords it takes up.
    #[must_use]
    pub const fn dwords(&self) -> usize {
        match self.width {
            Width::Low => 1,
            Width::Split => 2,
        }
    }
}

/// An address that is read from; `low_bit` is its lowest bit.
pub(super) const fn read(dword: u8, low_bit: u8) -> AddressField {
    AddressField::new(dword, low_bit, Touch::Read)
}

/// An address that is written to.
pub(super) const fn write(dword: u8, low_bit: u8) -> AddressField {
    AddressField::new(dword, low_bit, Touch::Write)
}

/// An address that is read from and written to.
pub(super) const fn both(dword: u8, low_bit: u8) -> AddressField {
    AddressField::new(dword, low_bit, Touch::Both)
}

/// A register named by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterField {
    /// Dword with its BAR0 offset, bits 22:2.
    pub dword: u8,
    /// Whether it is written, else read.
    pub write: bool,
    /// Dword with the value written, counted from `dword`, if the command
    /// has it.
    pub value: Option<u8>,
    /// When the field is a register at all.
    pub when: Bits,
    /// How often it comes.
    pub each: Each,
}

/// Bits of a dword that are a register's BAR0 offset
/// (Linux `i915_cmd_parser.c`, the `reg` masks).
pub const REGISTER_MASK: u32 = 0x007f_fffc;

pub(super) const fn register(dword: u8, write: bool) -> RegisterField {
    RegisterField {
        dword,
        write,
        value: None,
        when: Bits::ALWAYS,
        each: ONCE,
    }
}

impl RegisterField {
    pub(super) const fn value(mut self, after: u8) -> Self {
        self.value = Some(after);
        self
    }

    pub(super) const fn when(mut self, dword: u8, any: u32, none: u32) -> Self {
        self.when = Bits::of(dword, any, none);
        self
    }

    pub(super) const fn each(mut self, stride: u8, count: u8) -> Self {
        self.each = Each { stride, count };
        self
    }
}

/// An offset into a status page, to which up to 8 bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusField {
    /// Dword with the offset.
    pub dword: u8,
    /// Bits of it that are flags.
    pub flags: u32,
    /// When it is an offset.
    pub when: Bits,
    /// When something is written.
    pub writes: Bits,
    /// The bit of dword 0 by which the page is the context's own and not the
    /// engine's; 0: it always is.
    pub own: u32,
}

impl StatusField {
    /// Whether the command in `words` writes to a status page.
    #[must_use]
    pub fn holds(&self, words: &[u32]) -> bool {
        self.when.hold(words) && self.writes.hold(words)
    }
}

/// A register of the engine that a command writes without naming it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The register's name.
    pub register: &'static str,
    /// Its offset in the engine's block, as in [`crate::ring`].
    pub offset: u32,
    /// How many dwords from there on may change.
    pub dwords: u32,
    /// When.
    pub when: Bits,
}

/// An address found in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Dword of the command where it stands, or its lower half.
    pub dword: usize,
    /// The address, without the flags below it.
    pub address: u64,
    /// Whether it is in the global table.
    pub global: bool,
    /// What happens there.
    pub touch: Touch,
    /// Bytes from there on, at most; `None`: no bound follows from the
    /// command alone.
    pub bytes: Option<u32>,
}

/// Where a field stands in a command of `len` dwords. One that the command
/// cuts off counts.
fn places(dword: u8, each: Each, len: usize) -> impl Iterator<Item = usize> {
    let most = match each.count {
        0 => usize::MAX,
        n => usize::from(n),
    };
    (usize::from(dword)..len)
        .step_by(usize::from(each.stride).max(1))
        .take(most)
}

impl Command {
    /// The addresses in the command whose dwords are `words`, in order. A
    /// dword that is missing counts as 0.
    #[inline]
    pub fn addresses_in<'a>(&'a self, words: &'a [u32]) -> impl Iterator<Item = Address> + 'a {
        let dw0 = words.first().copied().unwrap_or(0);
        self.addresses
            .iter()
            .filter(|f| f.when.hold(words))
            .flat_map(move |f| {
                places(f.dword, f.each, words.len()).map(move |at| {
                    let word = |i: usize| u64::from(words.get(i).copied().unwrap_or(0));
                    let low = word(at) & u64::from(f.mask);
                    let high = match f.width {
                        Width::Low => 0,
                        Width::Split => word(at + 1),
                    };
                    Address {
                        dword: at,
                        address: high << 32 | low,
                        global: f.space.is_global(words),
                        touch: f.touch,
                        bytes: f.bytes.bound(dw0),
                    }
                })
            })
    }

    /// The registers in the command whose dwords are `words`: BAR0 offset,
    /// the field, and the value written if the command has it.
    pub fn registers_in<'a>(
        &'a self,
        words: &'a [u32],
    ) -> impl Iterator<Item = (u32, &'a RegisterField, Option<u32>)> + 'a {
        self.registers
            .iter()
            .filter(|f| f.when.hold(words))
            .flat_map(move |f| {
                places(f.dword, f.each, words.len()).map(move |at| {
                    let word = |i: usize| words.get(i).copied().unwrap_or(0);
                    let value = f.value.map(|after| word(at + usize::from(after)));
                    (word(at) & REGISTER_MASK, f, value)
                })
            })
    }
}
