//! Where a guest's device model is going to run, before it is told what to
//! serve: a shared area and what opens it at the other end.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use vgpu_config::VgpuSpec;
use vgpu_control::StartDm;
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, DeviceBells, EventBell, SharedArea};

use super::device_model::DeviceModel;
use super::dm::{DmCommand, DmProcess, memory_file};
use super::server::Host;
use super::stub::WaitingStub;

/// A device model to be.
pub enum Seat {
    /// A process of dom0, not yet started.
    Process {
        /// Its area.
        area: SharedArea,
        /// Its doorbells.
        bells: DeviceBells,
        /// How it is run.
        command: DmCommand,
        /// How long it may take.
        limit: Duration,
    },
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
    pub fn take(host: &Host, spec: &VgpuSpec, domid: u16) -> anyhow::Result<Taken> {
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
        let (ours, bells) = Bells::for_device_model()?;
        let wake = ours.submit.try_clone()?;
        let ours = area.daemon_end(ours);
        let seat = Self::Process {
            area,
            bells,
            command: host.dm.clone(),
            limit: host.limits.attach,
        };
        Ok(Taken { seat, ours, wake })
    }

    /// Has it attach to its guest, with the device to restore.
    ///
    /// # Errors
    /// What the device model says, or how it failed to say anything.
    pub fn attach(
        self,
        start: StartDm,
        device: Option<&[u8]>,
    ) -> anyhow::Result<Box<dyn DeviceModel>> {
        match self {
            Self::Process {
                area,
                bells,
                command,
                limit,
            } => {
                let device = device.map(memory_file).transpose();
                let device = device.context("no memory for the device's state")?;
                let mut fds: Vec<BorrowedFd<'_>> =
                    vec![area.as_fd(), bells.submit.as_fd(), bells.complete.as_fd()];
                fds.extend(device.as_ref().map(AsFd::as_fd));
                Ok(Box::new(DmProcess::start(&command, start, &fds, limit)?))
            }
            Self::Stub(stub) => Ok(Box::new(stub.attach(start, device)?)),
        }
    }
}
