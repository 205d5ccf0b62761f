//! A command's row.

use super::field::{AddressField, Bits, Effect, RegisterField, StatusField};
use crate::EngineSet;

/// How the number of dwords follows from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Always this many.
    Fixed(u32),
    /// A field of the first dword plus a constant.
    Field {
        /// The field, whose lowest bit is bit 0.
        mask: u32,
        /// What is added.
        bias: u32,
    },
}

/// Which lengths make sense, in dwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dwords {
    /// This one.
    Exactly(u32),
    /// From the first to the second, both included.
    Between(u32, u32),
    /// This many or more.
    AtLeast(u32),
    /// As Gen7's form and a dword more for each address: no source tells of
    /// Gen8's. Not to be enforced.
    Inferred(u32, u32),
    /// No source tells: only where the length field is, is known.
    Unsure,
}

impl Dwords {
    /// Whether a command may be `dwords` long, as far as that is known.
    #[must_use]
    #[inline]
    pub const fn allow(self, dwords: u32) -> bool {
        match self {
            Self::Exactly(n) => dwords == n,
            Self::Between(least, most) => least <= dwords && dwords <= most,
            Self::AtLeast(n) => dwords >= n,
            Self::Inferred(..) | Self::Unsure => true,
        }
    }

    /// The shortest form there is, as far as that is known.
    #[must_use]
    pub const fn least(self) -> u32 {
        match self {
            Self::Exactly(n) | Self::Between(n, _) | Self::AtLeast(n) | Self::Inferred(n, _) => n,
            Self::Unsure => 2,
        }
    }

    /// The longest form, if there is one and it is known.
    #[must_use]
    pub const fn most(self) -> Option<u32> {
        match self {
            Self::Exactly(n) | Self::Between(_, n) | Self::Inferred(_, n) => Some(n),
            Self::AtLeast(_) | Self::Unsure => None,
        }
    }
}

/// What the hardware does with a command outside privileged buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Runs it; its register and global accesses are limited there.
    Any,
    /// Ignores it: it has an effect only in a ring or privileged batch.
    Privileged,
}

/// Whether guests may use a command where it has its full effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// Yes, once checked.
    Allowed,
    /// It would wait for the physical display, or concern it: it becomes
    /// MI_NOOPs.
    Nothing,
    /// No: it would reach what only vgpud may touch, or go on where no check
    /// follows.
    Refused,
}

/// Where the command streamer goes after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next one.
    Next,
    /// Into the batch at its address.
    StartsBatch,
    /// Back to where the batch was started.
    EndsBatch,
    /// Back, if memory says so.
    MayEndBatch,
    /// To the next one, once memory says so.
    Waits,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name in the hardware documentation.
    pub name: &'static str,
    /// Bits of dword 0 that identify it.
    pub mask: u32,
    /// Their value.
    pub value: u32,
    /// How long it is.
    pub length: Length,
    /// Which lengths it may have.
    pub lengths: Dwords,
    /// Where it exists.
    pub engines: EngineSet,
    /// What it does without privilege.
    pub privilege: Privilege,
    /// Whether guests may use it with privilege.
    pub guests: Guests,
    /// The graphics addresses it carries by itself.
    pub addresses: &'static [AddressField],
    /// The place in a status page that it names instead of an address.
    pub status: Option<StatusField>,
    /// The registers it names.
    pub registers: &'static [RegisterField],
    /// The registers of its engine that it writes without naming them.
    pub sets: &'static [Effect],
    /// What follows.
    pub flow: Flow,
    /// When it raises the user or the notify interrupt.
    pub interrupt: Option<Bits>,
    /// The bit of dword 0 that makes it depend on MI_PREDICATE's result.
    pub predicate: Option<u8>,
    /// Whether it, or the threads it starts, reaches memory through what
    /// earlier state set up: base addresses, surfaces, buffers.
    pub through_state: bool,
}

impl Command {
    /// Number of dwords, from the first. Never 0.
    #[must_use]
    #[inline]
    pub const fn dwords(&self, dw0: u32) -> u32 {
        match self.length {
            Length::Fixed(n) => n,
            Length::Field { mask, bias } => (dw0 & mask) + bias,
        }
    }

    /// Whether the row stands for whatever else a group of opcodes holds.
    #[must_use]
    pub const fn is_group(&self) -> bool {
        self.value >> 29 == 3 && self.mask != 0xffff_0000
    }

    pub(super) const fn new(name: &'static str, mask: u32, value: u32, engines: EngineSet) -> Self {
        Self {
            name,
            mask,
            value,
            length: Length::Fixed(1),
            lengths: Dwords::Exactly(1),
            engines,
            privilege: Privilege::Any,
            guests: Guests::Allowed,
            addresses: &[],
            status: None,
            registers: &[],
            sets: &[],
            flow: Flow::Next,
            interrupt: None,
            predicate: None,
            through_state: false,
        }
    }

    /// A length field in the lowest `bits` bits, two less than the length.
    pub(super) const fn field(mut self, bits: u32, lengths: Dwords) -> Self {
        let mask = (1 << bits) - 1;
        self.length = Length::Field { mask, bias: 2 };
        self.lengths = lengths;
        self
    }

    /// The usual length field, bits 7:0.
    pub(super) const fn long(self, dwords: u32) -> Self {
        self.field(8, Dwords::Exactly(dwords))
    }

    pub(super) const fn addresses(mut self, addresses: &'static [AddressField]) -> Self {
        self.addresses = addresses;
        self
    }

    pub(super) const fn status(mut self, status: StatusField) -> Self {
        self.status = Some(status);
        self
    }

    pub(super) const fn registers(mut self, registers: &'static [RegisterField]) -> Self {
        self.registers = registers;
        self
    }

    pub(super) const fn sets(mut self, sets: &'static [Effect]) -> Self {
        self.sets = sets;
        self
    }

    pub(super) const fn flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    pub(super) const fn interrupts(mut self, when: Bits) -> Self {
        self.interrupt = Some(when);
        self
    }

    pub(super) const fn predicated(mut self, bit: u8) -> Self {
        self.predicate = Some(bit);
        self
    }

    pub(super) const fn privileged(mut self) -> Self {
        self.privilege = Privilege::Privileged;
        self
    }

    pub(super) const fn refused(mut self) -> Self {
        self.guests = Guests::Refused;
        self
    }

    pub(super) const fn nothing(mut self) -> Self {
        self.guests = Guests::Nothing;
        self
    }

    pub(super) const fn through_state(mut self) -> Self {
        self.through_state = true;
        self
    }
}
