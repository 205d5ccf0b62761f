//! The device model in a domain of its own.

pub mod init;

use anyhow::{Context, bail};
use grant_area::{GrantedArea, GrantedControl, Offer};
use vgpu_control::{PipeConnection, STUB_FAILED, STUB_FOLDER, STUB_OFFER};
use vgpu_ring::AreaConfig;
use xen_glue::{DomId, XenHost, Xenstore};

/// What vgpud is in.
const DOM0: DomId = DomId(0);

/// What is shared with vgpud. It ends with this process.
pub struct Shared {
    /// The area.
    pub area: GrantedArea,
    /// What vgpud says.
    pub control: PipeConnection,
    /// Holds the pipe's memory.
    pub pipe: GrantedControl,
}

/// Grants an area and a pipe to dom0 and offers them through xenstore.
///
/// # Errors
/// What is refused. Xenstore has it too.
pub fn offer() -> anyhow::Result<Shared> {
    // Paths that do not begin at the root are below our own domain's.
    let xenstore = Xenstore::open()?;
    let shared = share(&xenstore);
    if let Err(e) = &shared {
        let reason = format!("{e:#}").replace('\n', " ");
        xenstore.write(&format!("{STUB_FOLDER}/{STUB_FAILED}"), &reason)?;
    }
    shared
}

fn share(xenstore: &Xenstore) -> anyhow::Result<Shared> {
    let node = format!("{STUB_FOLDER}/{STUB_OFFER}");
    let before = xenstore.read_if_there(&node)?;
    let serial = match before.map(|text| text.parse::<Offer>()) {
        // One that died offered it.
        Some(Ok(offer)) => offer.serial.wrapping_add(1),
        Some(Err(e)) => bail!(e),
        None => 0,
    };
    let area = GrantedArea::create(&XenHost, DOM0, AreaConfig::default())?;
    let pipe = GrantedControl::create(&XenHost, DOM0)?;
    let (region, life) = area.offer();
    let offer = Offer {
        serial,
        area: region,
        life,
        control: pipe.offer(),
    };
    let control = PipeConnection::from(pipe.end()?);
    xenstore
        .write(&node, &offer.to_string())
        .context("cannot offer the shared area")?;
    Ok(Shared {
        area,
        control,
        pipe,
    })
}
