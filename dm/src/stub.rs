//! The device model in a domain of its own.
//!
//! Two processes of one program. The first holds what must outlive a device
//! model, the shared area, and lends it ([`Holder`]); the device model grants
//! the pipe to vgpud and offers both ([`offer`]). A successor offers the same
//! area and another pipe, which is how vgpud learns of it.

mod child;
pub mod init;
pub mod keeper;

use std::os::fd::OwnedFd;

use anyhow::{Context, anyhow};
use grant_area::{GrantedArea, GrantedControl, LentArea, Lifeline, Loan, Offer};
use serde::{Deserialize, Serialize};
use vgpu_control::{Connection, PipeConnection, STUB_FAILED, STUB_FOLDER, STUB_OFFER};
use vgpu_ring::{AreaConfig, KeptPart};
use xen_glue::{DomId, Port, XenHost, Xenstore};

/// What vgpud is in.
const DOM0: DomId = DomId(0);

/// From the first process to a device model, with the descriptors of the
/// area.
#[derive(Serialize, Deserialize)]
struct Lent {
    /// The offer; the pipe in it is not yet one.
    offer: String,
    pages: u32,
    index: u64,
    port: u32,
}

/// Holds the area.
pub struct Holder {
    area: GrantedArea,
}

impl Holder {
    /// Grants an area to dom0.
    ///
    /// # Errors
    /// What is refused; xenstore has it too.
    pub fn new() -> anyhow::Result<Self> {
        let area = GrantedArea::create(&XenHost, DOM0, AreaConfig::default());
        let area = area.context("cannot grant an area").inspect_err(tell)?;
        Ok(Self { area })
    }

    /// What the device model keeps for its successor.
    pub fn kept(&self) -> KeptPart {
        self.area.kept()
    }

    /// Tells when dom0 comes and goes.
    pub fn lifeline(&self) -> Lifeline {
        self.area.lifeline()
    }

    /// Lends the area to the device model at the other end of `connection`,
    /// number `serial` of this domain, started when dom0 had come `comings` times.
    ///
    /// # Errors
    /// When it is gone.
    pub fn lend(&self, connection: &Connection, serial: u32, comings: u32) -> anyhow::Result<()> {
        let (area, life) = self.area.offer();
        let offer = Offer {
            serial,
            comings,
            area,
            life,
            control: area,
        };
        let (loan, fds) = self.area.lend().context("the area is not one of Xen's")?;
        let lent = Lent {
            offer: offer.to_string(),
            pages: loan.pages,
            index: loan.index,
            port: loan.port.0,
        };
        Ok(connection.send(&lent, &fds)?)
    }
}

/// What a device model shares with vgpud.
pub struct Shared {
    /// The area.
    pub area: LentArea,
    /// What vgpud says.
    pub control: PipeConnection,
    /// Holds the pipe's memory.
    pub pipe: GrantedControl,
}

/// Takes the area that the first process lends, and offers it to dom0 with a
/// pipe through xenstore.
///
/// # Errors
/// What is refused; xenstore has it too.
pub fn offer(holder: &Connection) -> anyhow::Result<Shared> {
    share(holder).inspect_err(tell)
}

/// Tells vgpud why there is no offer.
fn tell(error: &anyhow::Error) {
    let reason = format!("{error:#}").replace('\n', " ");
    // Paths that do not begin at the root are below our own domain's.
    let node = format!("{STUB_FOLDER}/{STUB_FAILED}");
    let told = Xenstore::open().and_then(|xenstore| xenstore.write(&node, &reason));
    if let Err(e) = told {
        log::error!("{e}");
    }
}

fn share(holder: &Connection) -> anyhow::Result<Shared> {
    let (lent, fds) = holder.recv::<Lent>().context("the area")?;
    let count = fds.len();
    let fds = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|_| anyhow!("the area came with {count} descriptors, allowed: 2"))?;
    let loan = Loan {
        pages: lent.pages,
        index: lent.index,
        port: Port(lent.port),
    };
    let area = LentArea::open(loan, fds)?;
    let pipe = GrantedControl::create(&XenHost, DOM0)?;
    let offer = Offer {
        control: pipe.offer(),
        ..lent.offer.parse()?
    };
    let control = PipeConnection::from(pipe.end()?);
    let node = format!("{STUB_FOLDER}/{STUB_OFFER}");
    Xenstore::open()?
        .write(&node, &offer.to_string())
        .context("cannot offer the shared area")?;
    Ok(Shared {
        area,
        control,
        pipe,
    })
}
