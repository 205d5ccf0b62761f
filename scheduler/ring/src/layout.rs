//! Where everything lies in a shared area. Offsets and sizes are in words of
//! 8 bytes unless they say otherwise.

/// Words in a page of 4 KiB.
pub const PAGE_WORDS: usize = 512;

/// Entries of the guest's global page table: 4 GiB of 4 KiB pages.
pub const GGTT_ENTRIES: usize = 1 << 20;

/// First word of the header: "VGPURING" in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VGPURING");

/// Version of this layout and of the messages.
pub const VERSION: u64 = 3;

/// Words in which a device model keeps what its successor needs when it dies:
/// a value for each register of BAR0's first 2 MiB, and 320 KiB for the rest.
pub const KEPT_WORDS: usize = (2 << 20) / 8 + 80 * PAGE_WORDS;

/// The words of the header.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 1;
    /// Bytes of the whole area.
    pub const BYTES: usize = 2;
    /// Slots of the submit ring.
    pub const SUBMIT_SLOTS: usize = 3;
    /// Slots of the complete ring.
    pub const COMPLETE_SLOTS: usize = 4;
    /// Entries of the global page table.
    pub const GGTT_ENTRIES: usize = 5;
}

/// The words of a ring's index page. 128 bytes apart: processors fetch cache
/// lines of 64 bytes in pairs.
pub mod index {
    /// Messages ever pushed. Written by the producer.
    pub const PRODUCER: usize = 0;
    /// Messages ever popped. Written by the consumer.
    pub const CONSUMER: usize = 16;
    /// Sleeps and wake-ups of the consumer, counted together: odd while it
    /// wants a ring of the doorbell, one for each odd number. Written by the
    /// consumer.
    pub const SLEEPS: usize = 32;
    /// Of the submit ring: see [`TableChanges`](crate::TableChanges). Written
    /// by the producer.
    pub const TABLE_CHANGES: usize = 48;
}

/// Words of the kept part that both sides know.
pub mod kept {
    /// vCPUs that a device model can serve.
    pub const VCPUS: usize = 128;
    /// Two words a vCPU: the request it has in hand, and what was read.
    pub const ANSWERS: usize = 1024;
    /// What the thread that hears vgpud has in hand.
    pub const EVENTS: usize = ANSWERS + 2 * VCPUS;
    /// In the words of what is in hand: the low bits say how far it is, the
    /// others count.
    pub const HAND: u64 = 3;
    /// It is being done. 0 when nothing ever was in hand.
    pub const IN_HAND: u64 = 1;
    /// It is done and has no data.
    pub const DONE: u64 = 2;
    /// It is done, and the word behind has the data.
    pub const READ: u64 = 3;
}

/// Where one ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Its index page.
    pub indices: usize,
    /// Its first slot.
    pub slots: usize,
    /// Its number of slots, a power of two.
    pub capacity: u64,
}

/// A number of slots a ring may have: a power of two from 2 to 65536.
#[must_use]
pub const fn slots_valid(slots: u64) -> bool {
    slots >= 2 && slots <= 1 << 16 && slots.is_power_of_two()
}

/// Where the parts of an area lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The submit ring.
    pub submit: RingPlace,
    /// The complete ring.
    pub complete: RingPlace,
    /// The first of the words a device model keeps.
    pub kept: usize,
    /// The first entry of the global page table.
    pub ggtt: usize,
    /// Words in all.
    pub words: usize,
}

impl Layout {
    /// The layout for these numbers of slots; `None` unless both are
    /// [`slots_valid`].
    #[must_use]
    pub fn new(submit_slots: u64, complete_slots: u64) -> Option<Self> {
        let ring = |at: usize, capacity: u64| {
            if !slots_valid(capacity) {
                return None;
            }
            let place = RingPlace {
                indices: at,
                slots: at + PAGE_WORDS,
                capacity,
            };
            let words = usize::try_from(capacity).ok()? * crate::SLOT_QWORDS;
            Some((place, place.slots + words.next_multiple_of(PAGE_WORDS)))
        };
        let (submit, end) = ring(PAGE_WORDS, submit_slots)?;
        let (complete, kept) = ring(end, complete_slots)?;
        let ggtt = kept + KEPT_WORDS;
        Some(Self {
            submit,
            complete,
            kept,
            ggtt,
            words: ggtt + GGTT_ENTRIES,
        })
    }

    /// Bytes in all.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.words * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_page_aligned_and_apart() {
        let l = Layout::new(2, 1 << 16).unwrap();
        assert_eq!(l.submit.slots, 2 * PAGE_WORDS);
        assert_eq!(l.complete.indices, 3 * PAGE_WORDS);
        assert_eq!(l.kept, 4 * PAGE_WORDS + (1 << 18));
        assert_eq!(l.ggtt, l.kept + KEPT_WORDS);
        assert!(l.ggtt.is_multiple_of(PAGE_WORDS));
        assert_eq!(l.bytes(), l.kept * 8 + (2 << 20) + (320 << 10) + (8 << 20));
    }

    #[test]
    fn odd_numbers_of_slots_are_refused() {
        for slots in [0, 1, 3, 100, 1 << 17, u64::MAX] {
            assert_eq!(Layout::new(slots, 2), None);
            assert_eq!(Layout::new(2, slots), None);
        }
    }
}
