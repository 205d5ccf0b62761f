//! Where a guest's device model is going to run, before it is told what to
//! serve: a shared area and what opens it at the other end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use vgpu_config::VgpuSpec;
use vgpu_control::{Place, StartDm};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, EventBell, SharedArea};

use super::device_model::DeviceModel;
use super::dm::{DmProcess, ProcessSeat, memory_file};
use super::server::Host;
use super::stub::WaitingStub;

/// A device model to be.
pub enum Seat {
    /// A process of dom0, not yet started.
    Process(Arc<ProcessSeat>),
    /// In a domain of its own, which runs.
    Stub(Box<WaitingStub>),
}

/// A seat, and vgpud's end of its area.
pub struct Taken {
    /// The seat.
    pub seat: Seat,
    /// Our end.
    pub ours: DaemonEnd,
    /// Wakes who waits for requests.
    pub wake: EventBell,
}

impl Seat {
    /// Takes the seat that `spec` wants for the guest `domid`. In a domain of
    /// its own the device model is running then.
    ///
    /// # Errors
    /// What there is too little of, or why the domain did not come up.
    pub fn take(
        host: &Host,
        spec: &VgpuSpec,
        domid: u16,
        orphan: Option<SharedArea>,
    ) -> anyhow::Result<Taken> {
        if let Some(area) = orphan {
            return Self::in_dom0(host, area, |area, bells| area.resumed_daemon_end(bells));
        }
        if spec.stub.unwrap_or(host.stub_default) {
            let stubs = host.stubs.as_ref();
            let stubs = stubs.context("this vgpud makes no domains for device models")?;
            let (stub, area) = WaitingStub::start(stubs, domid)?;
            let bells = area.bells()?;
            return Ok(Taken {
                seat: Self::Stub(Box::new(stub)),
                wake: bells.submit.try_clone()?,
                ours: area.daemon_end(bells),
            });
        }
        let area = SharedArea::create(AreaConfig::default())?;
        Self::in_dom0(host, area, |area, bells| area.daemon_end(bells))
    }

    /// One in dom0, with vgpud's end of `area` as `end` makes it.
    fn in_dom0(
        host: &Host,
        area: SharedArea,
        end: impl FnOnce(&SharedArea, Bells) -> DaemonEnd,
    ) -> anyhow::Result<Taken> {
        let (ours, bells) = Bells::for_device_model()?;
        let wake = ours.submit.try_clone()?;
        let ours = end(&area, ours);
        let seat = Self::Process(Arc::new(ProcessSeat {
            area,
            bells,
            command: host.dm.clone(),
            limit: host.limits.attach,
        }));
        Ok(Taken { seat, ours, wake })
    }

    /// The shared area, for the guest's QEMU to hold; none where the device
    /// model's domain has it.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn area(&self) -> std::io::Result<Option<OwnedFd>> {
        match self {
            Self::Process(seat) => seat.area.share().map(Some),
            Self::Stub(_) => Ok(None),
        }
    }

    /// Has it attach to its guest, with the device to restore.
    ///
    /// # Errors
    /// What the device model says, or how it failed to say anything.
    pub fn attach(
        self,
        start: StartDm,
        device: Option<&[u8]>,
        noted: &dyn Fn(Place),
    ) -> anyhow::Result<Arc<dyn DeviceModel>> {
        match self {
            Self::Process(seat) => {
                let device = device.map(memory_file).transpose();
                let device = device.context("no memory for the device's state")?;
                Ok(Arc::new(DmProcess::start(
                    seat,
                    start,
                    device.as_ref(),
                    noted,
                )?))
            }
            Self::Stub(stub) => Ok(Arc::new(stub.attach(start, device)?)),
        }
    }
}
