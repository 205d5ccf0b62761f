//! Pages that one domain grants and another maps.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vgpu_ring::layout::PAGE_WORDS;
use vgpu_ring::{AreaWords, WordMemory, Words};
use xen_glue::{
    Access, DomId, GrantAllocator, GrantMapping, GrantRef, GrantedPages, Hypervisor, MapGrants,
    Port, UnmapNotify,
};

use crate::offer::{MAX_PAGES, RegionOffer};
use crate::{GrantAreaError, Life};

/// First word of a link page: "VGPULINK" in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"VGPULINK");

/// Version of a link page.
const VERSION: u64 = 1;

/// The words of a link page.
pub(crate) mod link {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const PAGES: usize = 2;
    /// The life of the side that granted.
    pub(crate) const GRANTER: usize = 16;
    /// The life of the side that maps.
    pub(crate) const MAPPER: usize = 32;
}

/// References in a page of the directory.
const REFS: usize = 1023;

/// Bytes of a page.
const PAGE: usize = 4096;

/// What the words of a region lie in.
enum Held {
    Granted(GrantedPages),
    Mapped(GrantMapping),
}

impl Held {
    fn qwords(&self) -> &[AtomicU64] {
        let mapping = match self {
            Self::Granted(pages) => pages.mapping(),
            Self::Mapped(mapping) => mapping.mapping(),
        };
        // Both are for reading and writing.
        mapping.qwords().unwrap_or(&[])
    }

    fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantAreaError> {
        match self {
            Self::Granted(pages) => pages.set_unmap_notify(notify)?,
            Self::Mapped(mapping) => mapping.set_unmap_notify(notify)?,
        }
        Ok(())
    }
}

/// A part of what is held, and its owner.
struct Part {
    held: Arc<Held>,
    first: usize,
    end: usize,
}

impl WordMemory for Part {
    fn words(&self) -> &[AtomicU64] {
        let words = self.held.qwords().get(self.first..self.end);
        words.unwrap_or(&[])
    }
}

/// One end of a region.
pub(crate) struct Region {
    held: Arc<Held>,
    /// What the region is for: all but the link page.
    pub(crate) words: AreaWords,
    /// Of both sides.
    pub(crate) life: Life,
}

/// A region of ours, and how it is found.
pub(crate) struct OwnRegion {
    pub(crate) region: Region,
    /// Its references, which dom0 may read at any time.
    _directory: GrantedPages,
    first: GrantRef,
    pub(crate) pages: u32,
}

impl Region {
    fn new(held: Held, life: impl FnOnce(AreaWords) -> Life) -> Self {
        let held = Arc::new(held);
        let part = |first, end| {
            AreaWords::of(Arc::new(Part {
                held: Arc::clone(&held),
                first,
                end,
            }))
        };
        Self {
            words: part(PAGE_WORDS, held.qwords().len()),
            life: life(part(0, PAGE_WORDS)),
            held,
        }
    }

    /// One that another process of this domain granted and holds.
    pub(crate) fn lent(node: &OwnedFd, index: u64, pages: usize) -> Result<Self, GrantAreaError> {
        let pages = GrantAllocator::lent(node, index, pages)?;
        Ok(Self::new(Held::Granted(pages), Life::of_granter))
    }

    /// The node and the offset for another process of this domain.
    pub(crate) fn lend(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &*self.held {
            Held::Granted(pages) => pages.lend(),
            Held::Mapped(_) => None,
        }
    }

    /// Begins this side's life, and says how often that was. When it ends, our
    /// kernel clears it and signals `port`.
    pub(crate) fn begin(&self, port: Port) -> Result<u32, GrantAreaError> {
        self.held.set_unmap_notify(UnmapNotify {
            clear_byte: Some(self.life.byte()),
            send_event: Some(port),
        })?;
        Ok(self.life.begin())
    }

    /// The region that `offer` of the domain `domid` names, mapped, with
    /// `words` words for use.
    ///
    /// # Errors
    /// [`GrantAreaError`].
    pub(crate) fn open(
        grants: &dyn MapGrants,
        domid: DomId,
        offer: &RegionOffer,
    ) -> Result<Self, GrantAreaError> {
        let pages = usize::try_from(offer.pages).unwrap_or(usize::MAX);
        let most = usize::try_from(MAX_PAGES).unwrap_or(0);
        if pages < 2 || pages > most {
            return Err(field("pages", offer.pages.into(), "0x2 to 0x1000"));
        }
        let refs = read_directory(grants, domid, offer.directory, pages)?;
        let mapping = grants.map(domid, &refs, Access::ReadWrite)?;
        let region = Self::new(Held::Mapped(mapping), Life::of_mapper);
        let word = |at| {
            region
                .held
                .qwords()
                .get(at)
                .map(|w: &AtomicU64| w.load(Ordering::Acquire))
        };
        for (name, at, allowed) in [
            ("magic of the link page", link::MAGIC, MAGIC),
            ("version of the link page", link::VERSION, VERSION),
            ("pages in the link page", link::PAGES, offer.pages.into()),
        ] {
            let value = word(at).unwrap_or(0);
            if value != allowed {
                return Err(field(name, value, format!("{allowed:#x}")));
            }
        }
        Ok(region)
    }
}

impl OwnRegion {
    /// `words` words of zeroes that `domid` may map.
    ///
    /// # Errors
    /// [`GrantAreaError`]: ENOSPC when the node's limit is below what is
    /// needed.
    pub(crate) fn create(
        xen: &dyn Hypervisor,
        domid: DomId,
        words: usize,
    ) -> Result<Self, GrantAreaError> {
        let grants = xen.open_grant_pages()?;
        let count = words.div_ceil(PAGE_WORDS).saturating_add(1);
        let pages = u32::try_from(count).unwrap_or(u32::MAX);
        if pages > MAX_PAGES {
            return Err(field("pages", pages.into(), "0x2 to 0x1000"));
        }
        let granted = grants.grant(domid, count)?;
        let directory = grants.grant(domid, count.div_ceil(REFS))?;
        let first = write_directory(&directory, granted.refs())?;
        let region = Region::new(Held::Granted(granted), Life::of_granter);
        let link = AreaWords::of(Arc::new(Part {
            held: Arc::clone(&region.held),
            first: 0,
            end: PAGE_WORDS,
        }));
        for (at, value) in [
            (link::PAGES, pages.into()),
            (link::VERSION, VERSION),
            (link::MAGIC, MAGIC),
        ] {
            link.store(at, value, Ordering::Release);
        }
        Ok(Self {
            region,
            _directory: directory,
            first,
            pages,
        })
    }

    /// How it is found, with its doorbell's port.
    pub(crate) fn offer(&self, port: Port) -> RegionOffer {
        RegionOffer {
            pages: self.pages,
            directory: self.first,
            port,
        }
    }
}

fn field(field: &'static str, value: u64, allowed: impl Into<String>) -> GrantAreaError {
    GrantAreaError::Field {
        field,
        value,
        allowed: allowed.into(),
    }
}

/// Fills the directory; the reference of its first page.
fn write_directory(
    directory: &GrantedPages,
    refs: &[GrantRef],
) -> Result<GrantRef, GrantAreaError> {
    for (page, refs) in refs.chunks(REFS).enumerate() {
        let next = directory.refs().get(page + 1).map_or(0, |r| r.0);
        let dwords = std::iter::once(next).chain(refs.iter().map(|r| r.0));
        let bytes: Vec<u8> = dwords.flat_map(u32::to_le_bytes).collect();
        directory.mapping().write(page * PAGE, &bytes)?;
    }
    Ok(directory.refs().first().copied().unwrap_or(GrantRef(0)))
}

/// Reads `pages` references. Each page of the directory is mapped once, for
/// reading, and copied.
fn read_directory(
    grants: &dyn MapGrants,
    domid: DomId,
    first: GrantRef,
    pages: usize,
) -> Result<Vec<GrantRef>, GrantAreaError> {
    let mut refs = Vec::with_capacity(pages);
    let mut page = first;
    while refs.len() < pages {
        let mut bytes = [0; PAGE];
        let mapping = grants.map(domid, &[page], Access::ReadOnly)?;
        mapping.mapping().read(0, &mut bytes)?;
        drop(mapping);
        let mut dwords = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b));
        page = GrantRef(dwords.next().unwrap_or(0));
        refs.extend(dwords.map(GrantRef).take(pages - refs.len()));
    }
    Ok(refs)
}
