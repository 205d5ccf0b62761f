//! What the device keeps in memory that outlives it, so that a successor goes
//! on from any instant at which it died (`docs/crash.md`).
//!
//! Everything the device does is a transaction: one request of a vCPU, one
//! event of vgpud's, one tick. While it lasts only this process's memory
//! changes, and the guest's. Its end is the commit: the words that differ are
//! written to a log, one store makes the log count, then the words go to their
//! places. A successor first finishes what a log that counts says. So what is
//! kept is always what it was between two transactions, with what the vCPU is
//! to be answered, what vgpud is to be told and which event comes next.

mod keeper;
mod recover;

pub(crate) use keeper::Keeper;
pub use recover::{Doing, First, RecoverError, doing};

use vgpu_ring::layout::kept as shared;

use crate::seams::Kept;

/// Where things are, in words.
pub(crate) mod place {
    use vgpu_ring::layout::{KEPT_WORDS, kept};

    /// [`super::FORMAT`], once everything is there.
    pub(crate) const FORMAT: usize = 0;
    /// How many entries of the log count.
    pub(crate) const LOG_LEN: usize = 1;
    /// What is being done whose effects can be seen already.
    pub(crate) const DOING: usize = 2;
    /// Requests handed over, the low halves of: how many the ring ever had,
    /// and how many of them were the device's.
    pub(crate) const HANDED: usize = 3;
    /// Not 0 while what is kept is not all there is to keep.
    pub(crate) const PARTIAL: usize = 5;
    /// The first of the words for whoever serves the device.
    pub(crate) const SERVER: usize = 64;
    /// Words there.
    pub(crate) const SERVER_WORDS: usize = 448;

    /// The first word whose value is known here, for comparison.
    pub(crate) const PARTS: usize = 1536;
    /// Events taken.
    pub(crate) const EVENTS_TAKEN: usize = PARTS;
    /// MiB of global address space.
    pub(crate) const GGTT_MIB: usize = PARTS + 1;
    /// Requests handed over and waiting, together.
    pub(crate) const WAITING_END: usize = PARTS + 2;
    /// A bit for each page of registers.
    pub(crate) const PAGES: usize = PARTS + 8;
    pub(crate) const INTERRUPTS: usize = PARTS + 16;
    pub(crate) const PCI: usize = PARTS + 48;
    pub(crate) const GMBUS: usize = PARTS + 80;
    pub(crate) const PIPES: usize = PARTS + 96;
    /// Words of a pipe.
    pub(crate) const PIPE: usize = 8;
    pub(crate) const ENGINES_EPOCH: usize = PARTS + 120;
    pub(crate) const ENGINES_GDRST: usize = PARTS + 121;
    pub(crate) const ENGINES: usize = PARTS + 128;
    /// Words of an engine.
    pub(crate) const ENGINE: usize = 32;
    /// Requests that wait to be handed over, by number.
    pub(crate) const WAITING: usize = 4096;
    /// Of so many.
    pub(crate) const MOST_WAITING: usize = 1024;
    pub(crate) const PARTS_END: usize = WAITING + MOST_WAITING * vgpu_ring::SLOT_QWORDS;
    /// The log: place and value of each entry.
    pub(crate) const LOG: usize = 8192;
    /// Entries it has room for.
    pub(crate) const MOST_LOGGED: usize = 8192;
    pub(crate) const LOG_END: usize = LOG + 2 * MOST_LOGGED;
    pub(crate) const REGISTERS: usize = 40960;

    const _: () = {
        assert!(SERVER + SERVER_WORDS <= kept::ANSWERS && kept::EVENTS < PARTS);
        assert!(ENGINES + 4 * ENGINE <= WAITING);
        assert!(PARTS_END <= LOG && LOG_END <= REGISTERS);
        assert!(REGISTERS + (2 << 20) / 8 <= KEPT_WORDS);
    };
}

/// Says that a device is kept, in this form.
const FORMAT: u64 = u64::from_le_bytes(*b"VGPUKEP1");

/// Two halves as a word.
pub(crate) fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A word's halves.
pub(crate) fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

/// A word's low half.
pub(crate) fn low(word: u64) -> u32 {
    split(word).0
}

/// For whom a transaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doer {
    /// Nobody who waits for an answer.
    #[default]
    Nobody,
    /// A vCPU that waits in its ioreq slot.
    Vcpu(u32),
    /// An event of vgpud's: the one with which so many were taken.
    Event(u64),
}

impl Doer {
    /// As [`place::DOING`] has it.
    fn word(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Vcpu(n) => 2 + u64::from(n),
            Self::Event(_) => 1,
        }
    }
}

/// What a vCPU is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it read, if it read.
    pub data: Option<u64>,
}

/// The words of a vCPU's answer.
fn answer_at(vcpu: u32) -> Option<usize> {
    let n = usize::try_from(vcpu).ok().filter(|n| *n < shared::VCPUS)?;
    Some(shared::ANSWERS + 2 * n)
}

/// The word of what is in hand, in another state.
const fn with_state(word: u64, state: u64) -> u64 {
    word & !shared::HAND | state
}

/// Notes that a vCPU's next request is about to be taken: what was committed
/// of the last is of no meaning any more.
pub fn take_in_hand(kept: &dyn Kept, vcpu: u32) {
    if let Some(at) = answer_at(vcpu) {
        hand(kept, at);
    }
}

/// Notes that there was no request after all.
pub fn nothing_in_hand(kept: &dyn Kept, vcpu: u32) {
    if let Some(at) = answer_at(vcpu) {
        kept.store(at, with_state(kept.load(at), 0));
    }
}

/// Notes that the next event is about to be handled.
pub fn take_event_in_hand(kept: &dyn Kept) {
    hand(kept, shared::EVENTS);
}

/// Notes that it is handled, or that nobody is at it any more.
pub fn event_done(kept: &dyn Kept) {
    let word = kept.load(shared::EVENTS);
    kept.store(shared::EVENTS, with_state(word, shared::DONE));
}

fn hand(kept: &dyn Kept, at: usize) {
    let next = kept.load(at).wrapping_add(shared::HAND + 1);
    kept.store(at, with_state(next, shared::IN_HAND));
}

/// Notes that what [`doing`] said comes first was done again.
pub fn done_again(kept: &dyn Kept) {
    kept.store(place::DOING, 0);
}

/// What a vCPU's request was answered with, if it is done: a former device
/// may not have come to say so.
#[must_use]
pub fn answer(kept: &dyn Kept, vcpu: u32) -> Option<Answer> {
    let at = answer_at(vcpu)?;
    match kept.load(at) & shared::HAND {
        shared::DONE => Some(Answer { data: None }),
        shared::READ => Some(Answer {
            data: Some(kept.load(at + 1)),
        }),
        _ => None,
    }
}

/// Notes an answer to a request that changed nothing that is kept.
pub(crate) fn note_answer(kept: &dyn Kept, vcpu: u32, answer: Answer) {
    let Some(at) = answer_at(vcpu) else { return };
    let state = match answer.data {
        None => shared::DONE,
        Some(data) => {
            kept.store(at + 1, data);
            shared::READ
        }
    };
    kept.store(at, with_state(kept.load(at), state));
}

/// Notes how many messages the submit ring ever had, the last of them the
/// device's, which has handed over `count` then.
pub fn note_handed(kept: &dyn Kept, in_ring: u64, count: u64) {
    kept.store(place::HANDED, join(low(in_ring), low(count)));
}

/// The words for whoever serves the device: the `n`th of 448.
#[must_use]
pub const fn server_word(n: usize) -> usize {
    assert!(n < place::SERVER_WORDS, "a word of the server's");
    place::SERVER + n
}
