//! A shared area: its parts, its two ends, and their doorbells.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use crate::layout::{GGTT_ENTRIES, Layout, MAGIC, PAGE_WORDS, VERSION, header, index, slots_valid};
use crate::{
    AreaWords, Consumer, Event, EventBell, GgttTable, KeptPart, Producer, Request, TableChanges,
    Words,
};

/// Sizes of an area's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaConfig {
    /// Slots of the submit ring: a power of two from 2 to 65536.
    pub submit_slots: u32,
    /// Slots of the complete ring: likewise.
    pub complete_slots: u32,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self {
            submit_slots: 1024,
            complete_slots: 1024,
        }
    }
}

/// Why there is no area.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// The system refused memory or a descriptor.
    #[error("shared area: cannot {what}")]
    System {
        /// What was refused.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Its size can still change.
    #[error("shared area: the descriptor is not a memfd sealed against shrinking and growing")]
    NotSealed,
    /// A field of the header, or of the configuration, is not acceptable.
    #[error("shared area: {field} is {value:#x}, allowed: {allowed}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it held.
        value: u64,
        /// What it may hold.
        allowed: String,
    },
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> AreaError {
    move |source| AreaError::System { what, source }
}

pub(crate) fn expect_field(
    field: &'static str,
    value: u64,
    allowed: impl TryInto<u64>,
) -> Result<(), AreaError> {
    let allowed = allowed.try_into().unwrap_or(u64::MAX);
    if value == allowed {
        return Ok(());
    }
    Err(AreaError::Field {
        field,
        value,
        allowed: format!("{allowed:#x}"),
    })
}

fn layout(submit_slots: u64, complete_slots: u64) -> Result<Layout, AreaError> {
    Layout::new(submit_slots, complete_slots).ok_or_else(|| {
        let (field, value) = if slots_valid(submit_slots) {
            ("slots of the complete ring", complete_slots)
        } else {
            ("slots of the submit ring", submit_slots)
        };
        AreaError::Field {
            field,
            value,
            allowed: "powers of two from 0x2 to 0x10000".into(),
        }
    })
}

/// The layout that a header tells of. Its fields are copied once; what the peer
/// changes later is of no consequence.
pub(crate) fn checked_layout(words: &AreaWords) -> Result<Layout, AreaError> {
    if words.count() < PAGE_WORDS {
        return Err(AreaError::Field {
            field: "size in bytes",
            value: in_bytes(words.count()),
            allowed: "at least 0x1000".into(),
        });
    }
    let field = |at| words.load(at, Ordering::Acquire);
    expect_field("magic", field(header::MAGIC), MAGIC)?;
    expect_field("version", field(header::VERSION), VERSION)?;
    expect_field(
        "entries of the page table",
        field(header::GGTT_ENTRIES),
        GGTT_ENTRIES,
    )?;
    let layout = layout(field(header::SUBMIT_SLOTS), field(header::COMPLETE_SLOTS))?;
    expect_field("size in the header", field(header::BYTES), layout.bytes())?;
    Ok(layout)
}

fn expect_words(words: &AreaWords, layout: &Layout) -> Result<(), AreaError> {
    expect_field("size in bytes", in_bytes(words.count()), layout.bytes())
}

fn in_bytes(words: usize) -> u64 {
    u64::try_from(words).map_or(u64::MAX, |n| n.saturating_mul(8))
}

/// The two doorbells of an area.
#[derive(Debug)]
pub struct Bells {
    /// Rung by the device model, waited on by vgpud.
    pub submit: EventBell,
    /// Rung by vgpud, waited on by the device model.
    pub complete: EventBell,
}

impl Bells {
    /// Two doorbells nobody has rung.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            submit: EventBell::new()?,
            complete: EventBell::new()?,
        })
    }

    /// Other handles of the same doorbells.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            submit: self.submit.try_clone()?,
            complete: self.complete.try_clone()?,
        })
    }
}

/// What a device model in another process gets of vgpud's doorbells.
#[derive(Debug)]
pub struct DeviceBells {
    /// The eventfd it rings.
    pub submit: OwnedFd,
    /// What it waits on.
    pub complete: OwnedFd,
}

impl Bells {
    /// Two doorbells of vgpud's, and what it gives a device model that it
    /// does not trust.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn for_device_model() -> io::Result<(Self, DeviceBells)> {
        let submit = OwnedFd::from(EventBell::new()?);
        let complete = EventBell::new()?;
        let theirs = DeviceBells {
            submit: submit.try_clone()?,
            complete: complete.ear()?,
        };
        let ours = Self {
            submit: EventBell::with_peer(submit)?,
            complete,
        };
        Ok((ours, theirs))
    }

    /// A device model's doorbells, from what vgpud gave it.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn from_daemon(given: DeviceBells) -> io::Result<Self> {
        Ok(Self {
            submit: EventBell::from_fd(given.submit),
            complete: EventBell::with_peer(given.complete)?,
        })
    }
}

/// vgpud's end of an area.
pub struct DaemonEnd {
    /// Requests of the device model.
    pub requests: Consumer<Request, AreaWords, EventBell>,
    /// Events for it.
    pub events: Producer<Event, AreaWords, EventBell>,
    /// The guest's global page table.
    pub ggtt: GgttTable,
    /// Counts changes of protected frames.
    pub changes: TableChanges,
    /// What the device model keeps for its successor.
    pub kept: KeptPart,
}

/// The device model's end of an area.
pub struct DeviceEnd {
    /// Requests to vgpud.
    pub requests: Producer<Request, AreaWords, EventBell>,
    /// Its events.
    pub events: Consumer<Event, AreaWords, EventBell>,
    /// The guest's global page table.
    pub ggtt: GgttTable,
    /// Counts changes of protected frames.
    pub changes: TableChanges,
    /// What the device model keeps for its successor.
    pub kept: KeptPart,
}

/// The memory that vgpud and the device model of one vGPU share, wherever it
/// comes from.
#[derive(Clone)]
pub struct Area {
    pub(crate) words: AreaWords,
    pub(crate) layout: Layout,
}

impl Area {
    /// How many words an area with rings of these sizes has.
    ///
    /// # Errors
    /// [`AreaError::Field`] for a bad number of slots.
    pub fn size(config: AreaConfig) -> Result<usize, AreaError> {
        Ok(layout(config.submit_slots.into(), config.complete_slots.into())?.words)
    }

    /// Makes `words`, which are 0, an area with empty rings and an empty page
    /// table.
    ///
    /// # Errors
    /// [`AreaError::Field`] for a bad number of slots, or when there are not as
    /// many words as [`Area::size`] says.
    pub fn format(words: AreaWords, config: AreaConfig) -> Result<Self, AreaError> {
        let layout = layout(config.submit_slots.into(), config.complete_slots.into())?;
        expect_words(&words, &layout)?;
        let entries = u64::try_from(GGTT_ENTRIES).unwrap_or(u64::MAX);
        for (at, value) in [
            (header::VERSION, VERSION),
            (header::BYTES, in_bytes(layout.words)),
            (header::SUBMIT_SLOTS, layout.submit.capacity),
            (header::COMPLETE_SLOTS, layout.complete.capacity),
            (header::GGTT_ENTRIES, entries),
            (header::MAGIC, MAGIC),
        ] {
            words.store(at, value, Ordering::Release);
        }
        Ok(Self { words, layout })
    }

    /// The area that the other side made of `words`.
    ///
    /// # Errors
    /// [`AreaError::Field`] when its header is not one of this version, or does
    /// not go with the number of words.
    pub fn check(words: AreaWords) -> Result<Self, AreaError> {
        let layout = checked_layout(&words)?;
        expect_words(&words, &layout)?;
        Ok(Self { words, layout })
    }

    /// All of it.
    #[must_use]
    pub fn words(&self) -> &AreaWords {
        &self.words
    }

    /// Copies all of it to `to`: what a device model that died left goes to
    /// its successor's area.
    ///
    /// # Errors
    /// [`AreaError::Field`] when the areas are not of one size.
    pub fn copy_to(&self, to: &Self) -> Result<(), AreaError> {
        for (field, ours, theirs) in [
            (
                "slots of the submit ring",
                self.layout.submit,
                to.layout.submit,
            ),
            (
                "slots of the complete ring",
                self.layout.complete,
                to.layout.complete,
            ),
        ] {
            expect_field(field, theirs.capacity, ours.capacity)?;
        }
        for at in PAGE_WORDS..self.layout.words {
            to.words.store(
                at,
                self.words.load(at, Ordering::Relaxed),
                Ordering::Relaxed,
            );
        }
        self.words.fence();
        Ok(())
    }

    /// What the device model keeps for its successor.
    #[must_use]
    pub fn kept(&self) -> KeptPart {
        KeptPart::new(self.words.clone(), self.layout.kept)
    }

    fn changes(&self) -> TableChanges {
        let at = self.layout.submit.indices + index::TABLE_CHANGES;
        TableChanges::new(self.words.clone(), at)
    }

    /// vgpud's end. Take it once: a ring has one consumer and one producer.
    #[must_use]
    pub fn daemon_end(&self, bells: Bells) -> DaemonEnd {
        DaemonEnd {
            requests: Consumer::new(self.words.clone(), bells.submit, self.layout.submit),
            events: Producer::new(self.words.clone(), bells.complete, self.layout.complete),
            ggtt: GgttTable::new(self.words.clone(), self.layout.ggtt),
            changes: self.changes(),
            kept: self.kept(),
        }
    }

    /// The device model's end. Take it once: a ring has one consumer and one
    /// producer.
    #[must_use]
    pub fn device_end(&self, bells: Bells) -> DeviceEnd {
        DeviceEnd {
            requests: Producer::new(self.words.clone(), bells.submit, self.layout.submit),
            events: Consumer::new(self.words.clone(), bells.complete, self.layout.complete),
            ggtt: GgttTable::new(self.words.clone(), self.layout.ggtt),
            changes: self.changes(),
            kept: self.kept(),
        }
    }

    /// [`Area::device_end`] for the successor of a device model that
    /// died: it goes on in the rings where that one was.
    #[must_use]
    pub fn resumed_device_end(&self, bells: Bells) -> DeviceEnd {
        let end = self.device_end(bells);
        DeviceEnd {
            requests: end.requests.resumed(),
            events: end.events.resumed(),
            ..end
        }
    }

    /// [`Area::daemon_end`] for the successor of a vgpud that died,
    /// likewise.
    #[must_use]
    pub fn resumed_daemon_end(&self, bells: Bells) -> DaemonEnd {
        let end = self.daemon_end(bells);
        DaemonEnd {
            requests: end.requests.resumed(),
            events: end.events.resumed(),
            ..end
        }
    }
}
