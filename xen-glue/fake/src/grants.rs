//! Grants: pages of one domain in another.
//!
//! The rules are those of Xen (common/grant_table.c) and of Linux's two nodes
//! (drivers/xen/gntalloc.c, gntdev.c): a page is granted to one domain; it is
//! freed only when nobody maps it any more, and cannot be mapped once more
//! after its owner let go of it; each side can leave word that is sent when it
//! ends.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use guest_memory::PAGE_SIZE;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use xen_glue::{
    Access, DomId, GrantError, GrantHold, GrantMapping, GrantPages, GrantRef, GrantedPages,
    MapGrants, Mapping, MappingError, UnmapNotify,
};

use crate::events::PortState;
use crate::host::{Host, lock};

/// Pages that one domain can grant: what its gntalloc was told when it was
/// loaded.
const MOST_PAGES: usize = 8192;

/// Linux gives out none below (`NR_RESERVED_ENTRIES`).
const FIRST_REF: u32 = 8;

/// One granted page.
struct Grant {
    page: Page,
    to: DomId,
    /// How often it is mapped.
    mapped: u32,
    /// Its owner let go of it.
    ended: bool,
}

/// A page of the memory behind grants.
#[derive(Clone)]
struct Page {
    file: Arc<File>,
    number: usize,
}

impl Page {
    fn offset(&self) -> u64 {
        u64::try_from(self.number * PAGE_SIZE).unwrap_or(u64::MAX)
    }
}

/// All grants of all domains.
#[derive(Default)]
pub(crate) struct GrantTable {
    by_ref: HashMap<(DomId, u32), Grant>,
    made: u32,
}

impl GrantTable {
    /// References of `domid` that are not free.
    pub(crate) fn granted(&self, domid: DomId) -> usize {
        self.by_ref
            .keys()
            .filter(|(owner, _)| *owner == domid)
            .count()
    }

    /// Mappings that `domid` has.
    pub(crate) fn mapped(&self, domid: DomId) -> usize {
        let own = self.by_ref.values().filter(|g| g.to == domid);
        own.map(|g| usize::try_from(g.mapped).unwrap_or(0)).sum()
    }

    fn end(&mut self, domid: DomId, reference: GrantRef) {
        let key = (domid, reference.0);
        match self.by_ref.get_mut(&key) {
            Some(grant) if grant.mapped > 0 => grant.ended = true,
            _ => drop(self.by_ref.remove(&key)),
        }
    }

    fn unmap(&mut self, domid: DomId, reference: GrantRef) {
        let key = (domid, reference.0);
        if let Some(grant) = self.by_ref.get_mut(&key) {
            grant.mapped = grant.mapped.saturating_sub(1);
            if grant.ended && grant.mapped == 0 {
                self.by_ref.remove(&key);
            }
        }
    }

    /// The domain was destroyed: no page of its can be mapped any more, and
    /// those that are stay.
    pub(crate) fn end_all(&mut self, domid: DomId) {
        self.by_ref.retain(|(owner, _), grant| {
            grant.ended |= *owner == domid;
            *owner != domid || grant.mapped > 0
        });
    }

    /// The page, if `to` may map it.
    fn map(&mut self, domid: DomId, reference: GrantRef, to: DomId) -> Result<Page, Errno> {
        let grant = self.by_ref.get_mut(&(domid, reference.0));
        let grant = grant.filter(|g| g.to == to && !g.ended);
        let grant = grant.ok_or(Errno::EINVAL)?;
        grant.mapped += 1;
        Ok(grant.page.clone())
    }
}

/// What is sent when a page, or a mapping, goes.
struct Word {
    /// The byte to clear.
    byte: Option<(Page, u64)>,
    /// The port to signal; it stays open for this.
    port: Option<Arc<PortState>>,
}

impl Word {
    fn clear_byte(&self) {
        if let Some((page, offset)) = &self.byte {
            let at = page.offset() + offset;
            if let Err(e) = page.file.write_all_at(&[0], at) {
                log::error!("byte of a simulated grant: {e}");
            }
        }
    }
}

/// A handle, like an open gntalloc or gntdev.
pub(crate) struct FakeGrants {
    host: Arc<Host>,
    caller: DomId,
}

impl FakeGrants {
    pub(crate) fn new(host: Arc<Host>, caller: DomId) -> Self {
        Self { host, caller }
    }
}

/// Pages granted, or mapped, on a handle.
struct Hold {
    host: Arc<Host>,
    caller: DomId,
    /// Who granted them.
    owner: DomId,
    refs: Vec<GrantRef>,
    pages: Vec<Page>,
    /// By page for an owner, one for a mapping.
    words: Mutex<HashMap<usize, Word>>,
    maps: bool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("owner", &self.owner)
            .field("refs", &self.refs)
            .finish_non_exhaustive()
    }
}

impl GrantHold for Hold {
    fn set_unmap_notify(&self, notify: UnmapNotify) -> Result<(), GrantError> {
        let failed = |errno| GrantError::Call {
            op: "unmap_notify",
            domid: self.owner,
            pages: self.refs.len(),
            errno,
        };
        let byte = notify.clear_byte.unwrap_or(0);
        let page = self.pages.get(byte / PAGE_SIZE).cloned();
        let page = page.ok_or_else(|| failed(Errno::ENOENT))?;
        let port = match notify.send_event {
            None => None,
            Some(port) => {
                let found = self.host.ports().find(self.caller, port.0);
                Some(found.ok_or_else(|| failed(Errno::EINVAL))?)
            }
        };
        let offset = u64::try_from(byte % PAGE_SIZE).unwrap_or(0);
        let word = Word {
            byte: notify.clear_byte.map(|_| (page, offset)),
            port,
        };
        let key = if self.maps { 0 } else { byte / PAGE_SIZE };
        lock(&self.words).insert(key, word);
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // As gntdev does it: the byte, the pages, the event.
        let words = std::mem::take(&mut *lock(&self.words));
        words.values().for_each(Word::clear_byte);
        let mut table = self.host.grants();
        for reference in &self.refs {
            if self.maps {
                table.unmap(self.owner, *reference);
            } else {
                table.end(self.owner, *reference);
            }
        }
        drop(table);
        for port in words.into_values().filter_map(|word| word.port) {
            port.notify();
        }
    }
}

/// New pages of zeroes.
fn allocate(pages: usize) -> Result<Arc<File>, Errno> {
    let name = CString::default();
    let file = memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?;
    let bytes = pages.checked_mul(PAGE_SIZE).ok_or(Errno::EFBIG)?;
    ftruncate(&file, i64::try_from(bytes).map_err(|_| Errno::EFBIG)?)?;
    Ok(Arc::new(File::from(file)))
}

impl GrantPages for FakeGrants {
    fn grant(&self, domid: DomId, pages: usize) -> Result<GrantedPages, GrantError> {
        const OP: &str = "grant";
        let failed = |errno| GrantError::Call {
            op: OP,
            domid,
            pages,
            errno,
        };
        let mut table = self.host.grants();
        if pages == 0 {
            return Err(failed(Errno::EINVAL));
        }
        if pages > MOST_PAGES.saturating_sub(table.granted(self.caller)) {
            return Err(failed(Errno::ENOSPC));
        }
        let file = allocate(pages).map_err(failed)?;
        let mapping = Mapping::shared(&*file, 0, pages, Access::ReadWrite);
        let mapping = mapping.map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        let pages: Vec<Page> = (0..pages)
            .map(|number| Page {
                file: Arc::clone(&file),
                number,
            })
            .collect();
        let refs = pages.iter().map(|page| {
            let reference = FIRST_REF + table.made;
            table.made += 1;
            let grant = Grant {
                page: page.clone(),
                to: domid,
                mapped: 0,
                ended: false,
            };
            table.by_ref.insert((self.caller, reference), grant);
            GrantRef(reference)
        });
        let refs: Vec<GrantRef> = refs.collect();
        let hold = Hold {
            host: Arc::clone(&self.host),
            caller: self.caller,
            owner: self.caller,
            refs: refs.clone(),
            pages,
            words: Mutex::default(),
            maps: false,
        };
        Ok(GrantedPages::new(mapping, Box::new(hold), refs))
    }
}

impl MapGrants for FakeGrants {
    fn map(
        &self,
        domid: DomId,
        refs: &[GrantRef],
        access: Access,
    ) -> Result<GrantMapping, GrantError> {
        const OP: &str = "map of grants";
        let mut hold = Hold {
            host: Arc::clone(&self.host),
            caller: self.caller,
            owner: domid,
            refs: Vec::new(),
            pages: Vec::new(),
            words: Mutex::default(),
            maps: true,
        };
        {
            let mut table = self.host.grants();
            for reference in refs {
                match table.map(domid, *reference, self.caller) {
                    Ok(page) => {
                        hold.refs.push(*reference);
                        hold.pages.push(page);
                    }
                    Err(errno) => {
                        drop(table);
                        // Those before are unmapped with `hold`.
                        return Err(GrantError::Call {
                            op: OP,
                            domid,
                            pages: refs.len(),
                            errno,
                        });
                    }
                }
            }
        }
        let place = || -> Result<Mapping, MappingError> {
            let mut mapping = Mapping::reserve(refs.len(), access)?;
            // Pages that follow each other in memory are placed at once.
            let mut first = 0;
            while let Some(page) = hold.pages.get(first) {
                let rest = hold.pages.iter().skip(first);
                let run = rest
                    .enumerate()
                    .take_while(|(i, p)| {
                        Arc::ptr_eq(&p.file, &page.file) && p.number == page.number + i
                    })
                    .count();
                let offset = i64::try_from(page.offset()).unwrap_or(i64::MAX);
                mapping.place(first, &*page.file, offset, run)?;
                first += run;
            }
            Ok(mapping)
        };
        let mapping = place().map_err(|source| GrantError::Mapping {
            op: OP,
            domid,
            source,
        })?;
        Ok(GrantMapping::new(mapping, Box::new(hold)))
    }
}
