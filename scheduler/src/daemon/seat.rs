//! Where a guest's device model is going to run, before it is told what to
//! serve: a shared area and what opens it at the other end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use grant_area::MappedArea;
use vgpu_config::VgpuSpec;
use vgpu_control::StartDm;
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, EventBell, SharedArea};

use super::device_model::{DeviceModel, unless_dead};
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

/// What another vgpud left of a guest's device model.
pub enum LeftSeat {
    /// The area, in memory of dom0.
    Memory(SharedArea),
    /// A domain of its own, and the area that it grants.
    Stub(Box<WaitingStub>, MappedArea),
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
    /// Takes the seat that `spec` wants for the guest `domid`, or the one that
    /// another vgpud `left`. In a domain of its own the device model is running
    /// then.
    ///
    /// # Errors
    /// What there is too little of, or why the domain did not come up.
    pub fn take(
        host: &Host,
        spec: &VgpuSpec,
        domid: u16,
        left: Option<LeftSeat>,
    ) -> anyhow::Result<Taken> {
        let left = match left {
            Some(LeftSeat::Stub(stub, area)) => {
                let bells = area.bells()?;
                return Ok(Taken {
                    seat: Self::Stub(stub),
                    wake: bells.submit.try_clone()?,
                    ours: area.resumed_daemon_end(bells),
                });
            }
            None if spec.stub.unwrap_or(host.stub_default) => {
                let (stub, area) = WaitingStub::start(host.stubs()?, &host.records, domid)?;
                let bells = area.bells()?;
                return Ok(Taken {
                    seat: Self::Stub(Box::new(stub)),
                    wake: bells.submit.try_clone()?,
                    ours: area.daemon_end(bells),
                });
            }
            Some(LeftSeat::Memory(area)) => Some(area),
            None => None,
        };
        let (ours, bells) = Bells::for_device_model()?;
        let wake = ours.submit.try_clone()?;
        let (area, ours) = match left {
            Some(area) => {
                let end = area.resumed_daemon_end(ours);
                (area, end)
            }
            None => {
                let area = SharedArea::create(AreaConfig::default())?;
                let end = area.daemon_end(ours);
                (area, end)
            }
        };
        let seat = Self::Process(Arc::new(ProcessSeat {
            area,
            bells,
            command: host.dm.clone(),
            limit: host.limits.attach,
        }));
        Ok(Taken { seat, ours, wake })
    }

    /// The shared area, if it is memory of dom0.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn area(&self) -> std::io::Result<Option<OwnedFd>> {
        match self {
            Self::Process(seat) => seat.area.share().map(Some),
            Self::Stub(_) => Ok(None),
        }
    }

    /// Has it attach to its guest, with the device to restore, and at most
    /// `deaths` times another when it dies before that is done. The id of a
    /// process is `noted` before that hears anything.
    ///
    /// # Errors
    /// What the device model says, or how it failed to say anything.
    pub fn attach(
        self,
        start: &StartDm,
        device: Option<&[u8]>,
        deaths: usize,
        noted: &dyn Fn(i32),
    ) -> anyhow::Result<Arc<dyn DeviceModel>> {
        match self {
            Self::Process(seat) => {
                let device = device.map(memory_file).transpose();
                let device = device.context("no memory for the device's state")?;
                Ok(Arc::new(unless_dead(deaths, |_| {
                    let seat = Arc::clone(&seat);
                    DmProcess::start(seat, start.clone(), device.as_ref(), noted)
                })?))
            }
            Self::Stub(stub) => Ok(Arc::new(stub.attach(start, device, deaths)?)),
        }
    }
}
