//! The pipe for control messages over grants.

use std::sync::Arc;

use vgpu_ring::{AreaWords, EventBell, PIPE_AREA_WORDS, Pipe, PipePlace};
use xen_glue::{DomId, Hypervisor};

use crate::channel::PortBell;
use crate::offer::RegionOffer;
use crate::region::{OwnRegion, Region};
use crate::{GrantAreaError, Life};

/// An end of the pipe.
pub type Control = Pipe<AreaWords, EventBell>;

/// The pipe in the domain of the device model, which grants it. It is gone
/// when this and its end are.
pub struct GrantedControl {
    own: OwnRegion,
    bell: Arc<PortBell>,
}

/// An end of a pipe in `region`.
fn end(
    region: &Region,
    bell: &Arc<PortBell>,
    directions: (PipePlace, PipePlace),
) -> Result<Control, GrantAreaError> {
    let bells = || -> std::io::Result<(EventBell, EventBell)> {
        Ok((
            EventBell::to_domain(bell.clone())?,
            EventBell::from_domain(bell.clone())?,
        ))
    };
    let bells = bells().map_err(GrantAreaError::Bell)?;
    let life = region.life.clone();
    let gone = move || life.peer_gone();
    Ok(Pipe::new(region.words.clone(), directions, bells, gone))
}

impl GrantedControl {
    /// A new pipe for `domid`.
    ///
    /// # Errors
    /// [`GrantAreaError`].
    pub fn create(xen: &dyn Hypervisor, domid: DomId) -> Result<Self, GrantAreaError> {
        let own = OwnRegion::create(xen, domid, PIPE_AREA_WORDS)?;
        let bell = PortBell::offer(xen, domid)?;
        own.region.begin(bell.port())?;
        Ok(Self { own, bell })
    }

    /// How it is found.
    #[must_use]
    pub fn offer(&self) -> RegionOffer {
        self.own.offer(self.bell.port())
    }

    /// The device model's end. Take it once.
    ///
    /// # Errors
    /// [`GrantAreaError::Bell`].
    pub fn end(&self) -> Result<Control, GrantAreaError> {
        let directions = (PipePlace::TO_DAEMON, PipePlace::TO_DEVICE);
        end(&self.own.region, &self.bell, directions)
    }

    /// Whether dom0 is there.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.own.region.life
    }
}

/// The pipe in dom0, which maps it. The pages are given back when this and its
/// end are gone.
pub struct MappedControl {
    region: Region,
    bell: Arc<PortBell>,
}

impl MappedControl {
    /// The pipe that the domain `domid` offers.
    ///
    /// # Errors
    /// [`GrantAreaError`] for whatever is not acceptable in the offer or
    /// behind it; nothing is kept then.
    pub fn open(
        xen: &dyn Hypervisor,
        domid: DomId,
        offer: &RegionOffer,
    ) -> Result<Self, GrantAreaError> {
        let region = Region::open(&*xen.open_map_grants()?, domid, offer)?;
        if region.words.count() != PIPE_AREA_WORDS {
            return Err(GrantAreaError::Field {
                field: "words of the control pipe",
                value: u64::try_from(region.words.count()).unwrap_or(u64::MAX),
                allowed: format!("{PIPE_AREA_WORDS:#x}"),
            });
        }
        let bell = PortBell::bind(xen, domid, offer.port)?;
        region.begin(bell.port())?;
        if !region.life.peer_there() {
            return Err(GrantAreaError::Gone);
        }
        Ok(Self { region, bell })
    }

    /// vgpud's end. Take it once.
    ///
    /// # Errors
    /// [`GrantAreaError::Bell`].
    pub fn end(&self) -> Result<Control, GrantAreaError> {
        let directions = (PipePlace::TO_DEVICE, PipePlace::TO_DAEMON);
        end(&self.region, &self.bell, directions)
    }

    /// Whether the device model is there.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.region.life
    }
}
