//! Requests that a device model's domain leaves when it ends.
//!
//! They wait in the page of an ioreq server that nobody can use any more, and
//! which Xen keeps as long as the guest. Who outlives the domain has mapped it
//! before, and moves them to the page of the next one ([`super::Slot`]).

use std::sync::Arc;

use super::{IoKind, IoreqError, IoreqPage, IoreqState, Slot};
use crate::{DeviceModel, DeviceModelError, DomId, Privcmd};

/// Ioreq servers that a domain may have (Xen `MAX_NR_IOREQ_SERVERS`).
const MOST_PAGES: usize = 8;

/// Why a page cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// The guest has no more servers.
    #[error("more than {MOST_PAGES} pages of requests")]
    TooMany,
    /// None was told of.
    #[error("there is no page of requests yet")]
    None,
    /// It cannot be mapped.
    #[error(transparent)]
    Domain(#[from] DeviceModelError),
    /// It has no slot for a vCPU.
    #[error(transparent)]
    Slot(#[from] IoreqError),
}

/// A page, and where it was in the guest.
struct Known {
    gfn: u64,
    page: Arc<IoreqPage>,
}

/// A vCPU that waits in another page than the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    vcpu: u32,
    home: usize,
}

/// The pages of a guest's device models, one after the other. All is done while
/// the guest is paused, but for [`IoreqPages::tend`].
pub struct IoreqPages {
    domid: DomId,
    privcmd: Arc<dyn Privcmd>,
    pages: Vec<Known>,
    /// To which requests are sent.
    present: Option<usize>,
    /// To which they are sent next.
    next: Option<usize>,
    waiting: Vec<Waiting>,
    /// What was in the last page, until it is in the next.
    lifted: Option<Vec<(u32, Slot)>>,
}

impl IoreqPages {
    /// Those of the guest `domid`, which has no device model yet.
    #[must_use]
    pub fn new(privcmd: Arc<dyn Privcmd>, domid: DomId) -> Self {
        Self {
            domid,
            privcmd,
            pages: Vec::new(),
            present: None,
            next: None,
            waiting: Vec::new(),
            lifted: None,
        }
    }

    /// The page of the next device model is the guest's frame `gfn`, for now.
    ///
    /// # Errors
    /// [`PagesError`].
    pub fn page_at(&mut self, gfn: u64) -> Result<(), PagesError> {
        if let Some(known) = self.pages.iter().position(|known| known.gfn == gfn) {
            self.next = Some(known);
            return Ok(());
        }
        if self.pages.len() >= MOST_PAGES {
            return Err(PagesError::TooMany);
        }
        let model = DeviceModel::new(Arc::clone(&self.privcmd), self.domid);
        let page = IoreqPage::of_frame(&*self.privcmd, self.domid, gfn, model.nr_vcpus()?)?;
        self.next = Some(self.pages.len());
        self.pages.push(Known {
            gfn,
            page: Arc::new(page),
        });
        Ok(())
    }

    fn page(&self, number: Option<usize>) -> Result<&Arc<IoreqPage>, PagesError> {
        let known = number.and_then(|number| self.pages.get(number));
        Ok(&known.ok_or(PagesError::None)?.page)
    }

    /// Takes what waits in the present page, whose device model is gone. Says for
    /// how many vCPUs.
    pub fn lift(&mut self) -> usize {
        // What is not yet in the next page is lost when the device model dies
        // that has cleared it, but not from here.
        if self.lifted.is_none()
            && let Ok(page) = self.page(self.present)
        {
            let slots = (0..page.vcpus()).filter_map(|vcpu| {
                let slot = page.lift(vcpu).ok().flatten();
                slot.map(|slot| (vcpu, slot))
            });
            self.lifted = Some(slots.collect());
        }
        self.lifted.as_ref().map_or(0, Vec::len)
    }

    /// Requests are sent to the next page from now on: puts there what was taken
    /// from the last.
    ///
    /// # Errors
    /// [`PagesError`].
    pub fn enabled(&mut self) -> Result<(), PagesError> {
        let next = self.next.take();
        let page = Arc::clone(self.page(next)?);
        let last = std::mem::replace(&mut self.present, next);
        let here = next.unwrap_or(0);
        for (vcpu, slot) in self.lifted.take().into_iter().flatten() {
            if let Some(last) = last
                && self.waiting.iter().all(|w| w.vcpu != vcpu)
            {
                if last != here && slot.state() == IoreqState::RespReady {
                    // It is where the vCPU finds it.
                    continue;
                }
                self.waiting.push(Waiting { vcpu, home: last });
            }
            page.lay(vcpu, &slot)?;
        }
        self.waiting.retain(|w| w.home != here);
        Ok(())
    }

    /// Moves answers to where vCPUs wait for them; says whether all are.
    pub fn settle(&mut self) -> bool {
        let Ok(present) = self.page(self.present).map(Arc::clone) else {
            return true;
        };
        let pages = &self.pages;
        self.waiting.retain(|w| {
            let home = pages.get(w.home);
            !home.is_some_and(|home| present.answer_to(&home.page, w.vcpu).unwrap_or(true))
        });
        self.waiting.is_empty()
    }

    /// Answers what Xen still sends to pages of domains that are gone: that
    /// frames left the guest, which it tells all, and accesses where the device
    /// was once. Says whether there was something; the vCPUs have to be woken
    /// then.
    #[must_use]
    pub fn tend(&self) -> bool {
        let gone = |(number, _): &(usize, &Known)| Some(*number) != self.present;
        let mut answered = false;
        for (_, known) in self.pages.iter().enumerate().filter(gone) {
            for vcpu in 0..known.page.vcpus() {
                let Ok(Some(request)) = known.page.take(vcpu) else {
                    continue;
                };
                if request.kind != IoKind::Invalidate {
                    log::debug!("{}: nothing is at {:#x}", self.domid, request.addr);
                }
                answered |= known.page.complete(vcpu, u64::MAX).is_ok();
            }
        }
        answered
    }
}
