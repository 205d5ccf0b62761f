//! What the rings lie in, and what wakes whom.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use fake_xen::FakeXen;
use grant_area::{GrantedArea, MappedArea};
use serde::Serialize;
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, DeviceEnd, SharedArea};
use xen_glue::{DomId, Hypervisor, XenHost};

/// A way between a device model and vgpud.
#[derive(Clone, Copy)]
pub enum Transport {
    /// A memfd and eventfds.
    Memfd,
    /// Grants and event channels.
    Grant(Grants),
}

/// Whose grants and event channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grants {
    /// Xen's: dom0 grants to itself.
    Xen,
    /// Simulated ones in this process.
    FakeXen,
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xen => "Xen",
            Self::FakeXen => "fake-xen",
        })
    }
}

impl Grants {
    /// Xen's where there is one.
    pub fn here() -> Self {
        let nodes = ["/dev/xen/gntalloc", "/dev/xen/gntdev", "/dev/xen/evtchn"];
        if nodes.iter().all(|node| Path::new(node).exists()) {
            Self::Xen
        } else {
            Self::FakeXen
        }
    }
}

/// Both domains of a loop.
const DOM0: DomId = DomId(0);

impl Transport {
    /// Both ends of a new area. It lives as long as they do.
    ///
    /// # Errors
    /// When the system has no more descriptors or grants.
    pub fn ends(self) -> anyhow::Result<(DeviceEnd, DaemonEnd)> {
        match self {
            Self::Memfd => {
                let area = SharedArea::create(AreaConfig::default())?;
                let bells = Bells::new()?;
                let device = area.device_end(bells.try_clone()?);
                Ok((device, area.daemon_end(bells)))
            }
            Self::Grant(Grants::Xen) => granted(&XenHost).context(
                "the area over grants of dom0 to itself; 1024 pages are too few: \
                 see /sys/module/xen_gntalloc/parameters/limit",
            ),
            Self::Grant(Grants::FakeXen) => granted(&FakeXen::new()),
        }
    }
}

fn granted(xen: &dyn Hypervisor) -> anyhow::Result<(DeviceEnd, DaemonEnd)> {
    let device = GrantedArea::create(xen, DOM0, AreaConfig::default())?;
    let (region, life) = device.offer();
    let daemon = MappedArea::open(xen, DOM0, &region, life)?;
    let ends = (
        device.device_end(device.bells()?),
        daemon.daemon_end(daemon.bells()?),
    );
    Ok(ends)
}
