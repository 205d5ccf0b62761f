//! An ioreq server of this process.

use std::fmt;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use xen_sys::layout::IOREQ_SERVER_FRAME_IOREQ;

use super::encode::DmOp;
use super::{DeviceModel, DeviceModelError, Sbdf};
use crate::{IoreqPage, Port, Resource};

/// The number Xen gave a server; one of 8 in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoreqServerId(pub u16);

impl fmt::Display for IoreqServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ioreq server {}", self.0)
    }
}

/// What Xen tells of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoreqServerInfo {
    /// The port of the buffered page; 0 when there is none.
    pub bufioreq_port: Port,
}

/// An ioreq server, destroyed on drop unless [`IoreqServer::into_id`] or
/// [`IoreqServer::persist`] said otherwise.
///
/// Xen keeps a server when its process dies, with the guest's vCPU waiting
/// in it. So a device model that may be restarted writes the id down,
/// persists the server, and its successor attaches to it.
#[derive(Debug)]
pub struct IoreqServer {
    dm: DeviceModel,
    id: IoreqServerId,
    destroy: AtomicBool,
}

impl IoreqServer {
    pub(super) fn create(dm: DeviceModel) -> Result<Self, DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_create_ioreq_server;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_create_ioreq_server);
        // HVM_IOREQSRV_BUFIOREQ_OFF is 0. Only addresses below 1 MiB can be
        // buffered, which no BAR of ours is.
        dm.call(&mut op, || "create_ioreq_server".into())?;
        Ok(Self {
            id: IoreqServerId(op.get_u16(offset_of!(Arg, id))),
            dm,
            destroy: AtomicBool::new(true),
        })
    }

    pub(super) fn attach(dm: DeviceModel, id: IoreqServerId) -> Self {
        Self {
            dm,
            id,
            destroy: AtomicBool::new(true),
        }
    }

    /// The server's number.
    #[must_use]
    pub fn id(&self) -> IoreqServerId {
        self.id
    }

    /// The operations of its domain.
    #[must_use]
    pub fn device_model(&self) -> &DeviceModel {
        &self.dm
    }

    /// Leaves the server alive when this value is dropped, or not.
    pub fn persist(&self, persist: bool) {
        self.destroy.store(!persist, Ordering::Relaxed);
    }

    /// Forgets the server without destroying it.
    #[must_use]
    pub fn into_id(self) -> IoreqServerId {
        self.persist(true);
        self.id
    }

    /// Destroys the server now, telling whether that worked.
    ///
    /// # Errors
    /// ENOENT when it is gone.
    pub fn destroy(self) -> Result<(), DeviceModelError> {
        self.persist(true);
        self.destroy_now()
    }

    fn destroy_now(&self) -> Result<(), DeviceModelError> {
        let mut op = self.op(xen_sys::XEN_DMOP_destroy_ioreq_server);
        self.dm
            .call(&mut op, || format!("destroy_ioreq_server {}", self.id.0))
    }

    /// An operation on this server: in each struct that has one, the id
    /// comes first, but for create, where it is the answer.
    fn op(&self, number: u32) -> DmOp {
        let mut op = DmOp::new(number);
        op.put(0, &self.id.0.to_le_bytes());
        op
    }

    /// What Xen tells of the server, without making legacy ioreq pages.
    ///
    /// # Errors
    /// ENOENT when there is no such server, EPERM when it is another
    /// domain's.
    pub fn info(&self) -> Result<IoreqServerInfo, DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_get_ioreq_server_info;
        let mut op = self.op(xen_sys::XEN_DMOP_get_ioreq_server_info);
        // XEN_DMOP_no_gfns is bit 0 of a 16-bit field.
        op.put(offset_of!(Arg, flags), &1_u16.to_le_bytes());
        self.dm
            .call(&mut op, || format!("get_ioreq_server_info {}", self.id.0))?;
        Ok(IoreqServerInfo {
            bufioreq_port: Port(op.get_u32(offset_of!(Arg, bufioreq_port))),
        })
    }

    /// Where in the guest the page of synchronous requests is while the server
    /// is disabled (Xen `arch/x86/hvm/ioreq.c:hvm_map_ioreq_gfn`). To be
    /// asked before [`Self::map_page`] was, whose page is in no guest. Other
    /// domains that may map the guest's memory can then map the page, too, and
    /// keep it: it is still the server's when enabling takes it out of the guest.
    /// Enabling and disabling clear it.
    ///
    /// # Errors
    /// ENOMEM when the guest has no frame for it left, EPERM when the page is in
    /// no guest or the server another domain's, ENOENT when there is no such
    /// server.
    pub fn frame(&self) -> Result<u64, DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_get_ioreq_server_info;
        let mut op = self.op(xen_sys::XEN_DMOP_get_ioreq_server_info);
        self.dm
            .call(&mut op, || format!("get_ioreq_server_info {}", self.id.0))?;
        Ok(op.get_u64(offset_of!(Arg, ioreq_gfn)))
    }

    /// Maps the page of synchronous requests, for as many vCPUs as the
    /// domain has.
    ///
    /// # Errors
    /// ENOENT when there is no such server, EPERM when it is another
    /// domain's.
    pub fn map_page(&self, vcpus: u32) -> Result<IoreqPage, DeviceModelError> {
        let resource = Resource {
            kind: xen_sys::XENMEM_resource_ioreq_server,
            id: u32::from(self.id.0),
            frame: IOREQ_SERVER_FRAME_IOREQ,
            count: 1,
        };
        self.dm
            .privcmd
            .map_resource(self.dm.domid, resource)
            .map(|mapping| IoreqPage::new(mapping, vcpus))
            .map_err(|e| {
                let op = format!("map the page of {}", self.id);
                DeviceModelError::new(op, self.dm.domid, &e)
            })
    }

    /// Starts or stops requests coming to this server. The requests' ports
    /// are valid only after the first enable. Pauses the domain.
    ///
    /// # Errors
    /// ENOENT when there is no such server.
    pub fn set_enabled(&self, enabled: bool) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_set_ioreq_server_state;
        let mut op = self.op(xen_sys::XEN_DMOP_set_ioreq_server_state);
        op.put(offset_of!(Arg, enabled), &[u8::from(enabled)]);
        self.dm.call(&mut op, || {
            format!("set_ioreq_server_state {} {enabled}", self.id.0)
        })
    }

    /// Takes a range of guest-physical addresses, ends included.
    ///
    /// # Errors
    /// EEXIST when it overlaps another of this server, ENOMEM when that has
    /// 256.
    pub fn map_mmio(&self, range: &RangeInclusive<u64>) -> Result<(), DeviceModelError> {
        self.range(true, xen_sys::XEN_DMOP_IO_RANGE_MEMORY, range)
    }

    /// Gives a range back, or part of one.
    ///
    /// # Errors
    /// ENOENT when it is not wholly this server's.
    pub fn unmap_mmio(&self, range: &RangeInclusive<u64>) -> Result<(), DeviceModelError> {
        self.range(false, xen_sys::XEN_DMOP_IO_RANGE_MEMORY, range)
    }

    /// Takes a range of I/O ports, ends included.
    ///
    /// # Errors
    /// As [`IoreqServer::map_mmio`].
    pub fn map_ports(&self, range: &RangeInclusive<u16>) -> Result<(), DeviceModelError> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.range(true, xen_sys::XEN_DMOP_IO_RANGE_PORT, &range)
    }

    /// Gives a range of I/O ports back.
    ///
    /// # Errors
    /// As [`IoreqServer::unmap_mmio`].
    pub fn unmap_ports(&self, range: &RangeInclusive<u16>) -> Result<(), DeviceModelError> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.range(false, xen_sys::XEN_DMOP_IO_RANGE_PORT, &range)
    }

    /// Takes a PCI function's configuration space.
    ///
    /// # Errors
    /// EEXIST when this server has it already.
    pub fn map_pci(&self, function: Sbdf) -> Result<(), DeviceModelError> {
        let sbdf = u64::from(function.bits());
        self.range(true, xen_sys::XEN_DMOP_IO_RANGE_PCI, &(sbdf..=sbdf))
    }

    /// Gives a PCI function's configuration space back.
    ///
    /// # Errors
    /// ENOENT when it is not this server's.
    pub fn unmap_pci(&self, function: Sbdf) -> Result<(), DeviceModelError> {
        let sbdf = u64::from(function.bits());
        self.range(false, xen_sys::XEN_DMOP_IO_RANGE_PCI, &(sbdf..=sbdf))
    }

    fn range(
        &self,
        map: bool,
        kind: u32,
        range: &RangeInclusive<u64>,
    ) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_ioreq_server_range;
        let (number, name) = if map {
            (xen_sys::XEN_DMOP_map_io_range_to_ioreq_server, "map")
        } else {
            (xen_sys::XEN_DMOP_unmap_io_range_from_ioreq_server, "unmap")
        };
        let mut op = self.op(number);
        op.put(offset_of!(Arg, type_), &kind.to_le_bytes());
        op.put(offset_of!(Arg, start), &range.start().to_le_bytes());
        op.put(offset_of!(Arg, end), &range.end().to_le_bytes());
        self.dm.call(&mut op, || {
            let (start, end) = (range.start(), range.end());
            format!(
                "{name} io range kind {kind} {start:#x}..={end:#x} of {}",
                self.id
            )
        })
    }

    /// Makes this the server that gets writes to
    /// [`super::MemType::WriteProtected`] frames. One server a domain.
    ///
    /// # Errors
    /// EBUSY when a server has it or frames of an earlier one are left,
    /// EOPNOTSUPP without HAP.
    pub fn claim_write_protection(&self) -> Result<(), DeviceModelError> {
        self.map_mem_type(xen_sys::XEN_DMOP_IOREQ_MEM_ACCESS_WRITE)
    }

    /// Ends it, and makes all such frames plain RAM again. To be done before
    /// log-dirty is switched on, which Xen refuses otherwise, and before the
    /// server is destroyed: a vCPU that writes to a frame left behind tries
    /// for ever.
    ///
    /// # Errors
    /// EINVAL when this server does not have it.
    pub fn release_write_protection(&self) -> Result<(), DeviceModelError> {
        self.map_mem_type(0)
    }

    fn map_mem_type(&self, flags: u32) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_map_mem_type_to_ioreq_server;
        let mut op = self.op(xen_sys::XEN_DMOP_map_mem_type_to_ioreq_server);
        op.put(
            offset_of!(Arg, type_),
            &xen_sys::layout::hvmmem::IOREQ_SERVER.to_le_bytes(),
        );
        op.put(offset_of!(Arg, flags), &flags.to_le_bytes());
        self.dm.call(&mut op, || {
            format!("map_mem_type_to_ioreq_server {} flags {flags}", self.id.0)
        })
    }
}

impl Drop for IoreqServer {
    fn drop(&mut self) {
        if !self.destroy.load(Ordering::Relaxed) {
            return;
        }
        if let Err(e) = self.destroy_now() {
            // The domain is destroyed before its device models, often.
            log::debug!("{e}");
        }
    }
}
