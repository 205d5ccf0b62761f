//! The area of a vGPU over grants.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vgpu_ring::{Area, AreaConfig, BellChannel, Bells, EventBell};
use xen_glue::{DomId, Hypervisor, Port};

use crate::channel::PortBell;
use crate::offer::RegionOffer;
use crate::region::{OwnRegion, Region};
use crate::{GrantAreaError, Life};

/// The area in the domain of the device model, which grants it. It is gone
/// when this, its ends and their parts are.
pub struct GrantedArea {
    area: Area,
    pub(crate) own: OwnRegion,
    pub(crate) bell: Arc<PortBell>,
    life: Arc<PortBell>,
}

impl GrantedArea {
    /// A new area for `domid`, with empty rings and an empty page table.
    ///
    /// # Errors
    /// [`GrantAreaError`].
    pub fn create(
        xen: &dyn Hypervisor,
        domid: DomId,
        config: AreaConfig,
    ) -> Result<Self, GrantAreaError> {
        let own = OwnRegion::create(xen, domid, Area::size(config)?)?;
        let area = Area::format(own.region.words.clone(), config)?;
        let bell = PortBell::offer(xen, domid)?;
        let life = PortBell::offer(xen, domid)?;
        own.region.begin(life.port())?;
        Ok(Self {
            area,
            own,
            bell,
            life,
        })
    }

    /// How it is found, and the port that signals the end of this side.
    #[must_use]
    pub fn offer(&self) -> (RegionOffer, Port) {
        (self.own.offer(self.bell.port()), self.life.port())
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

    /// Whether dom0 is there.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.own.region.life
    }

    /// The same, to wait for.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        Lifeline {
            bell: Arc::clone(&self.life),
            life: self.life().clone(),
        }
    }
}

impl Deref for GrantedArea {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

/// The area in dom0, which maps it. The pages are given back when this, its
/// ends and their parts are gone.
pub struct MappedArea {
    area: Area,
    region: Region,
    bell: Arc<PortBell>,
    life: Arc<PortBell>,
    coming: u32,
}

impl MappedArea {
    /// The area that the domain `domid` offers. Whoever granted it is told that
    /// somebody came.
    ///
    /// # Errors
    /// [`GrantAreaError`] for whatever is not acceptable in the offer or
    /// behind it; nothing is kept then.
    pub fn open(
        xen: &dyn Hypervisor,
        domid: DomId,
        offer: &RegionOffer,
        life: Port,
    ) -> Result<Self, GrantAreaError> {
        let region = Region::open(&*xen.open_map_grants()?, domid, offer)?;
        let area = Area::check(region.words.clone())?;
        let bell = PortBell::bind(xen, domid, offer.port)?;
        let life = PortBell::bind(xen, domid, life)?;
        let coming = region.begin(life.port())?;
        if !region.life.peer_there() {
            return Err(GrantAreaError::Gone);
        }
        life.ring();
        Ok(Self {
            area,
            region,
            bell,
            life,
            coming,
        })
    }

    /// How often dom0 opened this area so far, this time counted.
    #[must_use]
    pub fn coming(&self) -> u32 {
        self.coming
    }

    /// The doorbells of [`Area::daemon_end`].
    ///
    /// # Errors
    /// [`GrantAreaError::Bell`].
    pub fn bells(&self) -> Result<Bells, GrantAreaError> {
        let make = || -> std::io::Result<Bells> {
            Ok(Bells {
                submit: EventBell::from_domain(self.bell.clone())?,
                complete: EventBell::to_domain(self.bell.clone())?,
            })
        };
        make().map_err(GrantAreaError::Bell)
    }

    /// Whether the device model is there.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.region.life
    }

    /// The same, to wait for.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        Lifeline {
            bell: Arc::clone(&self.life),
            life: self.life().clone(),
        }
    }
}

impl Deref for MappedArea {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

/// Tells of the other side's end, as a pidfd does of a process's, and of dom0's
/// coming. It holds on to the pages.
pub struct Lifeline {
    bell: Arc<PortBell>,
    life: Life,
}

impl Lifeline {
    /// A descriptor that becomes readable when the other side ends or comes
    /// again, and once or twice besides.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Whether it has ended; makes the descriptor not readable.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.bell.take();
        self.life.peer_gone()
    }

    /// How often the other side came; makes the descriptor not readable.
    #[must_use]
    pub fn comings(&self) -> u32 {
        self.bell.take();
        self.life.peer_comings()
    }
}
