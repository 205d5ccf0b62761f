//! Both ways between a device model and vgpud.

use fake_xen::FakeXen;
use grant_area::{GrantedArea, MappedArea};
use vgpu_ring::{Area, AreaConfig, Bells, DaemonEnd, DeviceEnd, SharedArea};
use xen_glue::DomId;

#[derive(Clone, Copy, Debug)]
pub enum Transport {
    /// A memfd and eventfds, as vgpud hands them to a process.
    Memfd,
    /// Grants and event channels of a simulated hypervisor.
    Grant,
}

pub const BOTH: [Transport; 2] = [Transport::Memfd, Transport::Grant];

/// Both ends of an area.
pub struct Pair {
    pub daemon: DaemonEnd,
    pub device: DeviceEnd,
    /// What a hostile peer writes to.
    pub area: Area,
}

impl Transport {
    pub fn pair(self, config: AreaConfig) -> Pair {
        match self {
            Self::Memfd => {
                let area = SharedArea::create(config).unwrap();
                let (bells, theirs) = Bells::for_device_model().unwrap();
                let other = SharedArea::open(area.share().unwrap()).unwrap();
                Pair {
                    device: other.device_end(Bells::from_daemon(theirs).unwrap()),
                    daemon: area.daemon_end(bells),
                    area: (*area).clone(),
                }
            }
            Self::Grant => {
                let (dom0, stub) = (DomId(0), DomId(5));
                let xen = FakeXen::new();
                let device = GrantedArea::create(&xen.seen_from(stub), dom0, config).unwrap();
                let (region, life) = device.offer();
                let daemon = MappedArea::open(&xen, stub, &region, life).unwrap();
                Pair {
                    device: device.device_end(device.bells().unwrap()),
                    daemon: daemon.daemon_end(daemon.bells().unwrap()),
                    area: (*daemon).clone(),
                }
            }
        }
    }
}
