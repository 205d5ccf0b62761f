//! How far an engine is, noted as it goes.
//!
//! A command that is begun again from its start does the same again, unless it
//! reads what it writes. Such a command notes what it is about to write first:
//! an atomic operation its result, a blit each row. What was noted comes back
//! in the context image, and the command goes on from it.

use gen8::csb::Descriptor;
use gpu_bus::Place;

use crate::bits::{hi, index, join, lo};
use crate::stream::Streamer;

/// First dwords of what is noted. They tell it from whatever else a driver
/// left there.
const ATOMIC: u32 = 0x5347_6101;
const ROW: u32 = 0x5347_6201;
const ONCE: u32 = 0x5347_6301;

/// Dwords of the longest.
#[cfg(test)]
pub(crate) const EFFECT_DWORDS: usize = 3 + ROW_BYTES / 4;

/// The longest row that is noted, in bytes: 256 pixels. A blit with longer
/// ones is not gone on with.
const ROW_BYTES: usize = 1024;

/// What an atomic operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    /// What memory held.
    pub(crate) before: u64,
    /// What it holds then.
    pub(crate) after: u64,
    pub(crate) returned: u64,
}

impl Atomic {
    fn dwords(self) -> [u32; 7] {
        let Self {
            before: b,
            after: a,
            returned: r,
        } = self;
        [ATOMIC, lo(b), hi(b), lo(a), hi(a), lo(r), hi(r)]
    }
}

/// A row of a blit, drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrawnRow {
    /// Its number in the order of drawing.
    pub(crate) number: u32,
    pub(crate) bytes: Vec<u8>,
}

/// What the first command after a restore may have done already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Atomic(Atomic),
    Row(DrawnRow),
    /// Nobody knows.
    Once,
}

impl Effect {
    fn dwords(&self) -> Vec<u32> {
        match self {
            Self::Atomic(atomic) => atomic.dwords().into(),
            Self::Row(row) => row_dwords(row.number, &row.bytes),
            Self::Once => vec![ONCE],
        }
    }

    /// From an image, which is the guest's to write: it can make a command of
    /// its own write other bytes, where that would write.
    fn of(dword: impl Fn(usize) -> u32) -> Option<Self> {
        match dword(0) {
            ATOMIC => {
                let wide = |i| join(dword(i), dword(i + 1));
                Some(Self::Atomic(Atomic {
                    before: wide(1),
                    after: wide(3),
                    returned: wide(5),
                }))
            }
            ROW => {
                let len = index(dword(2)).min(ROW_BYTES);
                let words = (3..3 + len.div_ceil(4)).map(&dword);
                let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
                bytes.truncate(len);
                Some(Self::Row(DrawnRow {
                    number: dword(1),
                    bytes,
                }))
            }
            ONCE => Some(Self::Once),
            _ => None,
        }
    }
}

fn row_dwords(number: u32, bytes: &[u8]) -> Vec<u32> {
    let mut dwords = vec![ROW, number, u32::try_from(bytes.len()).unwrap_or(0)];
    dwords.extend(bytes.chunks(4).map(|part| {
        let mut word = [0; 4];
        word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        u32::from_le_bytes(word)
    }));
    dwords
}

/// An engine's part of it.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The position changed since it was last noted.
    pub(crate) moved: bool,
    /// What a context keeps did.
    pub(crate) changed: bool,
    /// Of the command that comes first in a context that was restored.
    effect: Option<Effect>,
    /// The row that is being drawn, of a blit that must not draw one twice.
    pub(crate) row: Option<u32>,
}

impl Notes {
    /// What an image has to hold of the command that comes next.
    pub(crate) fn effect(&self) -> Vec<u32> {
        self.effect.as_ref().map_or_else(|| vec![0], Effect::dwords)
    }

    /// What the atomic operation that runs may have done already.
    pub(crate) fn atomic(&self) -> Option<Atomic> {
        match self.effect {
            Some(Effect::Atomic(atomic)) => Some(atomic),
            _ => None,
        }
    }

    /// What the blit that runs may have drawn already.
    pub(crate) fn drawn(&self) -> Option<Effect> {
        self.effect
            .clone()
            .filter(|e| !matches!(e, Effect::Atomic(_)))
    }
}

impl Streamer {
    /// A context is being loaded.
    pub(crate) fn begin_notes(&mut self, descriptor: Descriptor) {
        self.notes = Notes::default();
        if let Some(journal) = &self.core.journal {
            journal.began(self.engine.index(), descriptor.0);
        }
    }

    /// A context's image, from behind what it keeps, says what its next command
    /// may have done already.
    pub(crate) fn take_effect(&mut self, dword: impl Fn(usize) -> u32) {
        self.notes.effect = Effect::of(dword);
    }

    fn place(&self) -> Place {
        let b = self.batch_registers();
        Place {
            head: self.ring.head,
            batches: [(b.first, b.first_state), (b.second, b.second_state)],
        }
    }

    /// A context was loaded: it is where its image says.
    pub(crate) fn note_loaded(&mut self) {
        if let Some(journal) = &self.core.journal {
            let effect = self.notes.effect.as_ref().map(Effect::dwords);
            let (place, own) = (self.place(), self.own_state());
            let effect = effect.unwrap_or_default();
            journal.did(self.engine.index(), &place, Some(&own), &effect);
        }
        self.notes.moved = false;
        self.notes.changed = false;
    }

    /// A command is done, unless it waits.
    pub(crate) fn note(&mut self) {
        if !std::mem::take(&mut self.notes.moved) {
            return;
        }
        self.notes.effect = None;
        if let Some(journal) = &self.core.journal {
            let changed = std::mem::take(&mut self.notes.changed);
            let own = changed.then(|| self.own_state());
            journal.did(self.engine.index(), &self.place(), own.as_deref(), &[]);
        }
    }

    /// What runs is about to do this.
    pub(crate) fn about_atomic(&self, atomic: Atomic) {
        if let Some(journal) = &self.core.journal {
            journal.about(self.engine.index(), &atomic.dwords());
        }
    }

    /// The row that runs is about to become this.
    pub(crate) fn about_row(&self, bytes: &[u8]) {
        if let (Some(journal), Some(number)) = (&self.core.journal, self.notes.row) {
            let effect = if bytes.len() <= ROW_BYTES {
                row_dwords(number, bytes)
            } else {
                Effect::Once.dwords()
            };
            journal.about(self.engine.index(), &effect);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_come_back_from_an_image() {
        let row = |len| {
            Effect::Row(DrawnRow {
                number: 7,
                bytes: (0..len).map(|b: u32| b.to_le_bytes()[0]).collect(),
            })
        };
        for effect in [
            Effect::Atomic(Atomic {
                before: 1 << 40,
                after: u64::MAX,
                returned: 3,
            }),
            row(0),
            row(5),
            row(1024),
            Effect::Once,
        ] {
            let dwords = effect.dwords();
            assert!(dwords.len() <= EFFECT_DWORDS);
            let image = |i: usize| dwords.get(i).copied().unwrap_or(0xffff_ffff);
            assert_eq!(Effect::of(image), Some(effect));
        }
        assert_eq!(Effect::of(|_| 0), None);
        // A guest's.
        let huge = |i: usize| if i == 0 { ROW } else { u32::MAX };
        let Some(Effect::Row(row)) = Effect::of(huge) else {
            panic!("no row");
        };
        assert_eq!(row.bytes.len(), ROW_BYTES);
    }
}
