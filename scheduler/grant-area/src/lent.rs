//! A granted area in more than one process of its domain.
//!
//! One process holds the area for as long as the domain lives, and lends it to
//! the device model, which may die and have a successor.

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use vgpu_ring::{Area, BellChannel, Bells, EventBell};
use xen_glue::Port;

use crate::channel::PortBell;
use crate::region::Region;
use crate::{GrantAreaError, GrantedArea};

/// What another process needs to know beside the two descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Pages of the region.
    pub pages: u32,
    /// Their offset in the node.
    pub index: u64,
    /// The doorbell's port.
    pub port: Port,
}

impl GrantedArea {
    /// What [`LentArea::open`] takes in another process: the terms, the node of
    /// the pages and that of the doorbell. None on a simulated hypervisor.
    #[must_use]
    pub fn lend(&self) -> Option<(Loan, [BorrowedFd<'_>; 2])> {
        let (node, index) = self.own.region.lend()?;
        let loan = Loan {
            pages: self.own.pages,
            index,
            port: self.bell.port(),
        };
        Some((loan, [node, self.bell.fd()]))
    }
}

/// The area in a process that did not grant it.
pub struct LentArea {
    area: Area,
    bell: Arc<PortBell>,
    _region: Region,
}

impl LentArea {
    /// The area that [`GrantedArea::lend`] lent.
    ///
    /// # Errors
    /// [`GrantAreaError`].
    pub fn open(loan: Loan, fds: [OwnedFd; 2]) -> Result<Self, GrantAreaError> {
        let [node, bell] = fds;
        let pages = usize::try_from(loan.pages).unwrap_or(usize::MAX);
        let region = Region::lent(&node, loan.index, pages)?;
        Ok(Self {
            area: Area::check(region.words.clone())?,
            bell: PortBell::lent(bell, loan.port),
            _region: region,
        })
    }

    /// The doorbells of [`Area::device_end`].
    ///
    /// # Errors
    /// [`GrantAreaError::Bell`].
    pub fn bells(&self) -> Result<Bells, GrantAreaError> {
        let make = || -> std::io::Result<Bells> {
            Ok(Bells {
                submit: EventBell::to_domain(self.bell.clone())?,
                complete: EventBell::from_domain(self.bell.clone())?,
            })
        };
        make().map_err(GrantAreaError::Bell)
    }
}

impl Deref for LentArea {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}
