//! A stub domain and dom0 on a simulated hypervisor.

use fake_xen::{Domain, DomainConfig, FakeXen};
use grant_area::{GrantedArea, GrantedControl, MappedArea, MappedControl, Offer};
use vgpu_ring::AreaConfig;
use xen_glue::DomId;

pub const DOM0: DomId = DomId(0);

pub const SMALL: AreaConfig = AreaConfig {
    submit_slots: 4,
    complete_slots: 4,
};

/// The host, and a domain to be a stub domain.
pub struct World {
    pub xen: FakeXen,
    pub domain: Domain,
    pub stub: FakeXen,
}

/// What a device model in the stub domain has.
pub struct Device {
    pub area: GrantedArea,
    pub control: GrantedControl,
    pub offer: Offer,
}

/// What vgpud has.
pub struct Daemon {
    pub area: MappedArea,
    pub control: MappedControl,
}

impl World {
    pub fn new() -> Self {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).unwrap();
        let stub = xen.seen_from(domain.id());
        Self { xen, domain, stub }
    }

    pub fn device(&self) -> Device {
        let area = GrantedArea::create(&self.stub, DOM0, SMALL).unwrap();
        let control = GrantedControl::create(&self.stub, DOM0).unwrap();
        let (region, life) = area.offer();
        let offer = Offer {
            serial: 1,
            comings: 0,
            area: region,
            life,
            control: control.offer(),
        };
        Device {
            area,
            control,
            offer,
        }
    }

    pub fn daemon(&self, offer: &Offer) -> Daemon {
        let domid = self.domain.id();
        Daemon {
            area: MappedArea::open(&self.xen, domid, &offer.area, offer.life).unwrap(),
            control: MappedControl::open(&self.xen, domid, &offer.control).unwrap(),
        }
    }

    /// Grants, mappings and ports that are left.
    pub fn left(&self) -> [usize; 4] {
        let stub = self.domain.id();
        [
            self.xen.grants_of(stub),
            self.xen.grants_mapped_by(DOM0),
            self.xen.ports_of(stub),
            self.xen.ports_of(DOM0),
        ]
    }
}
