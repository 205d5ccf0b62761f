//! The messages. A slot is four qwords: kind and small fields in the first,
//! the rest in the others. What does not decode is an error, never a guess.

/// Qwords of a slot.
pub const SLOT_QWORDS: usize = 4;

/// A message as it lies in a ring.
pub type Slot = [u64; SLOT_QWORDS];

/// What travels in a ring.
pub trait Message: Copy + Send {
    /// The slot that says this.
    fn encode(self) -> Slot;

    /// What a slot says.
    ///
    /// # Errors
    /// [`DecodeError`] names the field and its value.
    fn decode(slot: Slot) -> Result<Self, DecodeError>;
}

/// A slot that says nothing this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ring message: {field} is {value:#x}, allowed: {allowed}")]
pub struct DecodeError {
    /// The field.
    pub field: &'static str,
    /// What it held.
    pub value: u64,
    /// What it may hold.
    pub allowed: &'static str,
}

/// From a device model to vgpud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The guest loaded an execlist.
    Submit {
        /// Engine index, 0 to 3.
        engine: u8,
        /// Number of this load on its engine; each is greater than the one
        /// before.
        seq: u64,
        /// The two descriptors; 0 is an absent element. The first is present.
        desc: [u64; 2],
    },
    /// The guest reset engines. Nothing submitted before it on these engines
    /// may touch the guest's memory after the answer
    /// [`Event::ResetDone`].
    Reset {
        /// One bit an engine index.
        engines: u8,
        /// Returned in the answer.
        epoch: u64,
    },
    /// The guest wrote a register whose value the GPU needs.
    WriteRegister {
        /// BAR0 offset, a multiple of 4.
        offset: u32,
        /// The whole value, masks already applied.
        value: u32,
    },
    /// The guest announced a page table (PVINFO g2v): its root's
    /// guest-physical address.
    CreatePageTable {
        /// Guest-physical address of the PML4.
        root: u64,
    },
    /// The guest no longer uses a page table.
    DestroyPageTable {
        /// Guest-physical address of the PML4.
        root: u64,
    },
    /// The guest gave frames back to the hypervisor: mappings of its memory
    /// made before this may show frames it no longer has.
    InvalidateMemory,
    /// Asks for [`Event::Pong`].
    Ping {
        /// Returned in the answer.
        token: u64,
    },
    /// The device model can protect frames from now on, or cannot any more.
    /// Until the first of these it cannot. Either way no frame is protected
    /// now. One of the [`TableChanges`](crate::TableChanges).
    Protection {
        /// Whether it can.
        offered: bool,
    },
    /// An [`Event::Protect`] or [`Event::Unprotect`] was carried out, or
    /// could not be. Each has one of these.
    Protected {
        /// Number of the frame.
        gfn: u64,
        /// As in the order; 0 for [`Event::Unprotect`].
        serial: u32,
        /// What became of it.
        outcome: Outcome,
    },
    /// A protected frame was written. What is there now is for vgpud to read:
    /// it may have been written again. One of the
    /// [`TableChanges`](crate::TableChanges).
    TableWrite {
        /// Guest-physical address; the write ends in the same frame.
        gpa: u64,
        /// Bytes, 1 to 4096.
        size: u16,
        /// Nanoseconds from the vCPU's write before this one, if that was to
        /// a protected frame too and nothing came between; else 0.
        since_ns: u32,
    },
    /// A protected frame was written as tables are not, so it is no longer
    /// protected. One of the [`TableChanges`](crate::TableChanges).
    TableReleased {
        /// Number of the frame.
        gfn: u64,
    },
    /// Writes to protected frames were not told: there was no room.
    WritesMissed {
        /// How many, each one of the [`TableChanges`](crate::TableChanges).
        count: u64,
    },
    /// Another device model has taken the place of one that died. Like
    /// [`Request::Protection`], and what that one did not come to tell counts
    /// as told.
    Recovered {
        /// The number of [`TableChanges`](crate::TableChanges), this included.
        changes: u64,
        /// Whether it can protect frames.
        offered: bool,
    },
}

/// What became of an order to protect a frame, or not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// It is protected: each write from now on is told.
    Done = 1,
    /// It cannot be protected.
    Refused = 2,
    /// It is no longer protected.
    Ended = 3,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Done, Self::Refused, Self::Ended];
}

/// Why an element of an execlist was not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FaultReason {
    /// The descriptor is not one of a 48-bit context.
    Descriptor = 1,
    /// The context image, ring or a page they need is not mapped.
    Unmapped = 2,
    /// The audit refused a command.
    Refused = 3,
    /// The GPU could not decode a command.
    Instruction = 4,
    /// The GPU reached an address without memory.
    PageFault = 5,
    /// The workload ran beyond its limit and was reset.
    TimedOut = 6,
    /// vgpud has no room for the tables or windows the context needs.
    Exhausted = 7,
}

impl FaultReason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Descriptor,
        Self::Unmapped,
        Self::Refused,
        Self::Instruction,
        Self::PageFault,
        Self::TimedOut,
        Self::Exhausted,
    ];
}

/// From vgpud to a device model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An element ran to its tail and its image was written back. What was
    /// submitted on the engine before it is done, too, even if that was not
    /// said: a later list may have taken its place.
    ContextDone {
        /// Engine index.
        engine: u8,
        /// Which element of the list, 0 or 1.
        element: u8,
        /// Interrupts the engine raised before, as in [`Event::Interrupt`].
        /// They come together so that the guest is interrupted once.
        bits: u16,
        /// The load's number.
        seq: u64,
    },
    /// The engine raised interrupts while this vGPU ran on it.
    Interrupt {
        /// Engine index.
        engine: u8,
        /// Bits of the engine's half of the GT interrupt registers
        /// (`gen8::irq`).
        bits: u16,
    },
    /// An element failed; the engine is stopped for this vGPU until a reset.
    Fault {
        /// Engine index.
        engine: u8,
        /// Which element of the list, 0 or 1.
        element: u8,
        /// Why.
        reason: FaultReason,
        /// The header of the command concerned, or 0.
        ipehr: u32,
        /// The load's number.
        seq: u64,
    },
    /// The answer to [`Request::Reset`].
    ResetDone {
        /// The engines of the request.
        engines: u8,
        /// As in the request.
        epoch: u64,
    },
    /// The answer to [`Request::Ping`].
    Pong {
        /// As in the request.
        token: u64,
    },
    /// Writes to a frame are to be told. Answered with
    /// [`Request::Protected`]. At most 64 of these and of
    /// [`Event::Unprotect`] are unanswered at a time.
    Protect {
        /// Number of the frame.
        gfn: u64,
        /// Returned in the answer.
        serial: u32,
    },
    /// Writes to a frame need not be told any more. Answered as well.
    Unprotect {
        /// Number of the frame.
        gfn: u64,
    },
}

const SUBMIT: u8 = 1;
const RESET: u8 = 2;
const WRITE_REGISTER: u8 = 3;
const CREATE_PAGE_TABLE: u8 = 4;
const DESTROY_PAGE_TABLE: u8 = 5;
const PING: u8 = 6;
const INVALIDATE_MEMORY: u8 = 7;
const PROTECTION: u8 = 8;
const PROTECTED: u8 = 9;
const TABLE_WRITE: u8 = 10;
const TABLE_RELEASED: u8 = 11;
const WRITES_MISSED: u8 = 12;
const RECOVERED: u8 = 13;

const CONTEXT_DONE: u8 = 0x81;
const INTERRUPT: u8 = 0x82;
const FAULT: u8 = 0x83;
const RESET_DONE: u8 = 0x84;
const PONG: u8 = 0x85;
const PROTECT: u8 = 0x86;
const UNPROTECT: u8 = 0x87;

/// The first qword: kind, two small fields, a 32-bit one.
const fn head(kind: u8, a: u8, b: u8, c: u8, d: u32) -> u64 {
    let d = d.to_le_bytes();
    u64::from_le_bytes([kind, a, b, c, d[0], d[1], d[2], d[3]])
}

fn engine(value: u8) -> Result<u8, DecodeError> {
    if value < 4 {
        return Ok(value);
    }
    Err(DecodeError {
        field: "engine",
        value: value.into(),
        allowed: "0 to 3",
    })
}

fn engines(value: u8) -> Result<u8, DecodeError> {
    if value < 16 {
        return Ok(value);
    }
    Err(DecodeError {
        field: "engines",
        value: value.into(),
        allowed: "bits 0 to 3",
    })
}

fn element(value: u8) -> Result<u8, DecodeError> {
    if value < 2 {
        return Ok(value);
    }
    Err(DecodeError {
        field: "element",
        value: value.into(),
        allowed: "0 or 1",
    })
}

fn interrupt_bits(value: u32) -> Result<u16, DecodeError> {
    u16::try_from(value).map_err(|_| DecodeError {
        field: "interrupt bits",
        value: value.into(),
        allowed: "16 bits",
    })
}

/// A frame that has an address.
fn frame(value: u64) -> Result<u64, DecodeError> {
    if value >> 52 == 0 {
        return Ok(value);
    }
    Err(DecodeError {
        field: "frame",
        value,
        allowed: "52 bits",
    })
}

/// A field of either value.
fn flag(field: &'static str, value: u8) -> Result<bool, DecodeError> {
    if value < 2 {
        return Ok(value == 1);
    }
    Err(DecodeError {
        field,
        value: value.into(),
        allowed: "0 or 1",
    })
}

fn table_write(gpa: u64, size: u16, since_ns: u32) -> Result<Request, DecodeError> {
    if !(1..=4096).contains(&size) {
        return Err(DecodeError {
            field: "size of a write",
            value: size.into(),
            allowed: "1 to 4096",
        });
    }
    if (gpa & 0xfff) + u64::from(size) > 0x1000 {
        return Err(DecodeError {
            field: "address of a write",
            value: gpa,
            allowed: "what ends in the same frame",
        });
    }
    Ok(Request::TableWrite {
        gpa,
        size,
        since_ns,
    })
}

impl Message for Request {
    fn encode(self) -> Slot {
        match self {
            Self::Submit { engine, seq, desc } => {
                [head(SUBMIT, engine, 0, 0, 0), seq, desc[0], desc[1]]
            }
            Self::Reset { engines, epoch } => [head(RESET, engines, 0, 0, 0), epoch, 0, 0],
            Self::WriteRegister { offset, value } => {
                [head(WRITE_REGISTER, 0, 0, 0, offset), value.into(), 0, 0]
            }
            Self::CreatePageTable { root } => [head(CREATE_PAGE_TABLE, 0, 0, 0, 0), root, 0, 0],
            Self::DestroyPageTable { root } => [head(DESTROY_PAGE_TABLE, 0, 0, 0, 0), root, 0, 0],
            Self::InvalidateMemory => [head(INVALIDATE_MEMORY, 0, 0, 0, 0), 0, 0, 0],
            Self::Ping { token } => [head(PING, 0, 0, 0, 0), token, 0, 0],
            Self::Protection { offered } => [head(PROTECTION, u8::from(offered), 0, 0, 0), 0, 0, 0],
            Self::Protected {
                gfn,
                serial,
                outcome,
            } => [head(PROTECTED, outcome as u8, 0, 0, serial), gfn, 0, 0],
            Self::TableWrite {
                gpa,
                size,
                since_ns,
            } => {
                let [low, high] = size.to_le_bytes();
                [head(TABLE_WRITE, low, high, 0, since_ns), gpa, 0, 0]
            }
            Self::TableReleased { gfn } => [head(TABLE_RELEASED, 0, 0, 0, 0), gfn, 0, 0],
            Self::WritesMissed { count } => [head(WRITES_MISSED, 0, 0, 0, 0), count, 0, 0],
            Self::Recovered { changes, offered } => {
                [head(RECOVERED, u8::from(offered), 0, 0, 0), changes, 0, 0]
            }
        }
    }

    fn decode(slot: Slot) -> Result<Self, DecodeError> {
        let [kind, a, b, _, d @ ..] = slot[0].to_le_bytes();
        Ok(match kind {
            SUBMIT => Self::Submit {
                engine: engine(a)?,
                seq: slot[1],
                desc: [slot[2], slot[3]],
            },
            RESET => Self::Reset {
                engines: engines(a)?,
                epoch: slot[1],
            },
            WRITE_REGISTER => {
                let offset = u32::from_le_bytes(d);
                if offset % 4 != 0 || offset >= 0x80_0000 {
                    return Err(DecodeError {
                        field: "register offset",
                        value: offset.into(),
                        allowed: "multiples of 4 below 0x800000",
                    });
                }
                let value = u32::try_from(slot[1]).map_err(|_| DecodeError {
                    field: "register value",
                    value: slot[1],
                    allowed: "32 bits",
                })?;
                Self::WriteRegister { offset, value }
            }
            CREATE_PAGE_TABLE => Self::CreatePageTable { root: slot[1] },
            DESTROY_PAGE_TABLE => Self::DestroyPageTable { root: slot[1] },
            INVALIDATE_MEMORY => Self::InvalidateMemory,
            PING => Self::Ping { token: slot[1] },
            PROTECTION => Self::Protection {
                offered: flag("offer of protection", a)?,
            },
            PROTECTED => Self::Protected {
                gfn: frame(slot[1])?,
                serial: u32::from_le_bytes(d),
                outcome: Outcome::ALL
                    .into_iter()
                    .find(|o| *o as u8 == a)
                    .ok_or(DecodeError {
                        field: "outcome",
                        value: a.into(),
                        allowed: "1 to 3",
                    })?,
            },
            TABLE_WRITE => table_write(slot[1], u16::from_le_bytes([a, b]), u32::from_le_bytes(d))?,
            TABLE_RELEASED => Self::TableReleased {
                gfn: frame(slot[1])?,
            },
            WRITES_MISSED => Self::WritesMissed { count: slot[1] },
            RECOVERED => Self::Recovered {
                changes: slot[1],
                offered: flag("offer of protection", a)?,
            },
            other => {
                return Err(DecodeError {
                    field: "kind of request",
                    value: other.into(),
                    allowed: "1 to 13",
                });
            }
        })
    }
}

impl Message for Event {
    fn encode(self) -> Slot {
        match self {
            Self::ContextDone {
                engine,
                element,
                bits,
                seq,
            } => [
                head(CONTEXT_DONE, engine, element, 0, bits.into()),
                seq,
                0,
                0,
            ],
            Self::Interrupt { engine, bits } => {
                [head(INTERRUPT, engine, 0, 0, bits.into()), 0, 0, 0]
            }
            Self::Fault {
                engine,
                element,
                reason,
                ipehr,
                seq,
            } => [head(FAULT, engine, element, reason as u8, ipehr), seq, 0, 0],
            Self::ResetDone { engines, epoch } => [head(RESET_DONE, engines, 0, 0, 0), epoch, 0, 0],
            Self::Pong { token } => [head(PONG, 0, 0, 0, 0), token, 0, 0],
            Self::Protect { gfn, serial } => [head(PROTECT, 0, 0, 0, serial), gfn, 0, 0],
            Self::Unprotect { gfn } => [head(UNPROTECT, 0, 0, 0, 0), gfn, 0, 0],
        }
    }

    fn decode(slot: Slot) -> Result<Self, DecodeError> {
        let [kind, a, b, c, d @ ..] = slot[0].to_le_bytes();
        let d = u32::from_le_bytes(d);
        Ok(match kind {
            CONTEXT_DONE => Self::ContextDone {
                engine: engine(a)?,
                element: element(b)?,
                bits: interrupt_bits(d)?,
                seq: slot[1],
            },
            INTERRUPT => Self::Interrupt {
                engine: engine(a)?,
                bits: interrupt_bits(d)?,
            },
            FAULT => Self::Fault {
                engine: engine(a)?,
                element: element(b)?,
                reason: FaultReason::ALL.into_iter().find(|r| *r as u8 == c).ok_or(
                    DecodeError {
                        field: "fault reason",
                        value: c.into(),
                        allowed: "1 to 7",
                    },
                )?,
                ipehr: d,
                seq: slot[1],
            },
            RESET_DONE => Self::ResetDone {
                engines: engines(a)?,
                epoch: slot[1],
            },
            PONG => Self::Pong { token: slot[1] },
            PROTECT => Self::Protect {
                gfn: frame(slot[1])?,
                serial: d,
            },
            UNPROTECT => Self::Unprotect {
                gfn: frame(slot[1])?,
            },
            other => {
                return Err(DecodeError {
                    field: "kind of event",
                    value: other.into(),
                    allowed: "0x81 to 0x87",
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_survives_its_slot() {
        let requests = [
            Request::Submit {
                engine: 3,
                seq: u64::MAX,
                desc: [1, 2],
            },
            Request::Reset {
                engines: 0b1010,
                epoch: 7,
            },
            Request::WriteRegister {
                offset: 0x2098,
                value: u32::MAX,
            },
            Request::CreatePageTable { root: 0x1234_5000 },
            Request::DestroyPageTable { root: 0x1234_5000 },
            Request::InvalidateMemory,
            Request::Ping { token: 9 },
            Request::Protection { offered: true },
            Request::Protection { offered: false },
            Request::TableWrite {
                gpa: 0x1234_5ff8,
                size: 8,
                since_ns: 5000,
            },
            Request::TableWrite {
                gpa: 0x1234_5000,
                size: 4096,
                since_ns: 0,
            },
            Request::TableReleased { gfn: 0x1_2345 },
            Request::WritesMissed { count: u64::MAX },
            Request::Recovered {
                changes: u64::MAX,
                offered: true,
            },
        ];
        for r in requests {
            assert_eq!(Request::decode(r.encode()), Ok(r));
        }
        for outcome in Outcome::ALL {
            let r = Request::Protected {
                gfn: (1 << 52) - 1,
                serial: u32::MAX,
                outcome,
            };
            assert_eq!(Request::decode(r.encode()), Ok(r));
        }
        for reason in FaultReason::ALL {
            let e = Event::Fault {
                engine: 1,
                element: 1,
                reason,
                ipehr: 0xdead_beef,
                seq: 4,
            };
            assert_eq!(Event::decode(e.encode()), Ok(e));
        }
        let events = [
            Event::ContextDone {
                engine: 2,
                element: 1,
                bits: 0x101,
                seq: 5,
            },
            Event::Interrupt {
                engine: 0,
                bits: 0x101,
            },
            Event::ResetDone {
                engines: 0xf,
                epoch: 1,
            },
            Event::Pong { token: 3 },
            Event::Protect { gfn: 9, serial: 8 },
            Event::Unprotect { gfn: 9 },
        ];
        for e in events {
            assert_eq!(Event::decode(e.encode()), Ok(e));
        }
    }

    proptest::proptest! {
        /// Whatever a slot says is a message or an error, and a message says
        /// the same once more.
        #[test]
        fn any_slot_is_understood_or_refused(
            kind in proptest::prop_oneof![0..16_u8, 0x80..0x90_u8, proptest::num::u8::ANY],
            small in proptest::array::uniform3(proptest::prop_oneof![
                0..10_u8,
                proptest::num::u8::ANY,
            ]),
            rest in proptest::num::u32::ANY,
            qwords in proptest::array::uniform3(proptest::prop_oneof![
                0..0x2000_u64,
                proptest::num::u64::ANY,
            ]),
        ) {
            let [a, b, c] = small;
            let [x, y, z] = qwords;
            let slot = [head(kind, a, b, c, rest), x, y, z];
            if let Ok(r) = Request::decode(slot) {
                proptest::prop_assert_eq!(Request::decode(r.encode()), Ok(r));
            }
            if let Ok(e) = Event::decode(slot) {
                proptest::prop_assert_eq!(Event::decode(e.encode()), Ok(e));
            }
        }
    }

    #[test]
    fn a_bad_field_is_named() {
        let bad = |slot| Request::decode(slot).unwrap_err().field;
        assert_eq!(bad([0; 4]), "kind of request");
        assert_eq!(bad([head(SUBMIT, 4, 0, 0, 0), 0, 0, 0]), "engine");
        assert_eq!(bad([head(RESET, 16, 0, 0, 0), 0, 0, 0]), "engines");
        assert_eq!(
            bad([head(WRITE_REGISTER, 0, 0, 0, 2), 0, 0, 0]),
            "register offset"
        );
        assert_eq!(
            bad([head(WRITE_REGISTER, 0, 0, 0, 4), 1 << 32, 0, 0]),
            "register value"
        );
        for (low, high, gpa, field) in [
            (0, 0, 0, "size of a write"),
            (1, 16, 0, "size of a write"),
            (8, 0, 0x1ff9, "address of a write"),
            (2, 0, u64::MAX, "address of a write"),
            (0, 16, 1, "address of a write"),
        ] {
            assert_eq!(bad([head(TABLE_WRITE, low, high, 0, 0), gpa, 0, 0]), field);
        }
        assert_eq!(
            bad([head(TABLE_RELEASED, 0, 0, 0, 0), 1 << 52, 0, 0]),
            "frame"
        );
        assert_eq!(
            bad([head(PROTECTION, 2, 0, 0, 0), 0, 0, 0]),
            "offer of protection"
        );
        assert_eq!(bad([head(PROTECTED, 4, 0, 0, 0), 0, 0, 0]), "outcome");
        assert_eq!(
            Event::decode([head(FAULT, 0, 0, 8, 0), 0, 0, 0])
                .unwrap_err()
                .field,
            "fault reason"
        );
    }
}
