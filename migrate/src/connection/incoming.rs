//! The target's end. Whoever sends is not trusted: what comes harms the guest
//! that it is to be, and nothing else.

use std::io::{self, Read, Write};

use guest_memory::{GuestMemory, MemoryError, PAGE_SIZE};

use super::pages::{PagesError, decode};
use super::{DONE, END, VERSION};
use crate::stream::{Known, MAX_LEN, Name, Section, StreamError, read_section};

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The state's sections, each known and there once.
    pub sections: Vec<Section<'static>>,
    /// Pages, as often as they came.
    pub pages: u64,
    /// Those of them that were zero.
    pub zero: u64,
    /// Bytes of all sections.
    pub bytes: u64,
}

/// Why a guest does not come to be here.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// A section is damaged, too long, or not known.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A section of pages is none.
    #[error("at byte {at}: {source}")]
    Pages {
        /// Where the section begins.
        at: u64,
        /// What is wrong with it.
        source: PagesError,
    },
    /// The guest has no such page.
    #[error("at byte {at}: {source}")]
    Memory {
        /// Where the section begins.
        at: u64,
        /// What is wrong with the page.
        source: MemoryError,
    },
    /// The source sent something else than came.
    #[error("{came} pages came, {came_zero} of them zero; {sent} and {sent_zero} were sent")]
    Lost {
        /// Pages that came.
        came: u64,
        /// Those of them that were zero.
        came_zero: u64,
        /// Pages that the source says it sent.
        sent: u64,
        /// Those of them that were zero.
        sent_zero: u64,
    },
    /// The `end` has not the length it must have.
    #[error("the end has {len} bytes, not 16")]
    End {
        /// Bytes it has.
        len: usize,
    },
}

/// Receives a guest's pages into `memory`, and its state, in those sections
/// and versions that are `known`. Only when it returns is all of it there.
///
/// # Errors
/// When anything is damaged, missing, too much or not known. The memory is
/// nobody's then.
pub fn receive(
    from: &mut impl Read,
    memory: &dyn GuestMemory,
    known: &[Known],
) -> Result<Incoming, ReceiveError> {
    let mut came = Incoming::default();
    let mut state = 0;
    loop {
        let at = came.bytes;
        // State that waits to be read takes memory, pages do not.
        let most = MAX_LEN.saturating_sub(state);
        let section = read_section(from, at, most)?.ok_or(StreamError::Missing(END))?;
        came.bytes = at.saturating_add(section.stream_len());
        match section.name {
            Name::PAGES | END if section.version != VERSION => {
                return Err(unknown(&section).into());
            }
            Name::PAGES => came.write(&section.body, at, memory)?,
            END => {
                came.check(&section.body)?;
                return Ok(came);
            }
            _ if !is_known(&section, known) => {
                if section.required {
                    return Err(unknown(&section).into());
                }
            }
            name if came.sections.iter().any(|s| s.name == name) => {
                return Err(StreamError::Twice(name).into());
            }
            _ => {
                state = state.saturating_add(section.stream_len());
                came.sections.push(section);
            }
        }
    }
}

/// Confirms that all of it is here, and the guest with it.
///
/// # Errors
/// When the source cannot be reached: whether it lets the guest go on there is
/// not known.
pub fn confirm(to: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    Section::required(DONE, VERSION, &[]).write(&mut bytes);
    to.write_all(&bytes)?;
    to.flush()
}

fn is_known(section: &Section<'_>, known: &[Known]) -> bool {
    known.iter().any(|known| {
        known.name == section.name && (known.oldest..=known.newest).contains(&section.version)
    })
}

fn unknown(section: &Section<'_>) -> StreamError {
    StreamError::Unknown {
        name: section.name,
        version: section.version,
    }
}

impl Incoming {
    fn write(
        &mut self,
        body: &[u8],
        at: u64,
        memory: &dyn GuestMemory,
    ) -> Result<(), ReceiveError> {
        let pages = decode(body).map_err(|source| ReceiveError::Pages { at, source })?;
        for (gfn, page) in pages {
            let address = gfn.address().ok_or(MemoryError::Unmapped(gfn));
            let bytes = page.unwrap_or(&[0; PAGE_SIZE]);
            address
                .and_then(|address| memory.write(address, bytes))
                .map_err(|source| ReceiveError::Memory { at, source })?;
            self.pages = self.pages.saturating_add(1);
            self.zero = self.zero.saturating_add(u64::from(page.is_none()));
        }
        Ok(())
    }

    fn check(&self, body: &[u8]) -> Result<(), ReceiveError> {
        let numbers = body.as_chunks::<8>();
        let ([sent, sent_zero], []) = numbers else {
            return Err(ReceiveError::End { len: body.len() });
        };
        let (sent, sent_zero) = (u64::from_le_bytes(*sent), u64::from_le_bytes(*sent_zero));
        if (sent, sent_zero) != (self.pages, self.zero) {
            return Err(ReceiveError::Lost {
                came: self.pages,
                came_zero: self.zero,
                sent,
                sent_zero,
            });
        }
        Ok(())
    }
}
