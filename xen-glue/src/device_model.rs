//! Device-model operations on one domain.

mod encode;
mod let_go;
mod protect;
mod server;

pub use server::{IoreqServer, IoreqServerId, IoreqServerInfo};

use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;

use nix::errno::Errno;
use xen_sys::layout::hvmmem;

use self::encode::DmOp;
use crate::{DomId, MAX_DM_OP_BUF, Privcmd, PrivcmdError};

/// Why a device-model operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} on {domid}: {errno}")]
pub struct DeviceModelError {
    /// The operation and the values that matter.
    pub op: String,
    /// The domain.
    pub domid: DomId,
    /// What came back.
    pub errno: Errno,
}

impl DeviceModelError {
    fn new(op: impl Into<String>, domid: DomId, e: &PrivcmdError) -> Self {
        Self {
            op: op.into(),
            domid,
            errno: e.errno(),
        }
    }
}

/// Some extents could not be marked as modified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "modified_memory on {domid}: extent {index} ({extent}) first of {failed} that failed: {errno}"
)]
pub struct ModifiedMemoryError {
    /// The domain.
    pub domid: DomId,
    /// Index of the first extent that failed.
    pub index: usize,
    /// That extent.
    pub extent: Extent,
    /// How many failed; all others have been marked.
    pub failed: usize,
    /// What came back for the first.
    pub errno: Errno,
}

/// A run of guest frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First frame.
    pub first_gfn: u64,
    /// Frames; Xen refuses 0.
    pub frames: u32,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames from {:#x}", self.frames, self.first_gfn)
    }
}

/// A PCI function's address, as Xen packs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sbdf {
    /// PCI segment; Xen's HVM guests have only 0.
    pub segment: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl Sbdf {
    /// Function 0 of a device on bus 0 of segment 0.
    #[must_use]
    pub const fn slot(device: u8) -> Self {
        Self {
            segment: 0,
            bus: 0,
            device,
            function: 0,
        }
    }

    /// `XEN_DMOP_PCI_SBDF`.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.segment) << 16
            | u32::from(self.bus) << 8
            | u32::from(self.device & 0x1f) << 3
            | u32::from(self.function & 7)
    }

    /// Takes an address apart.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        let [low, bus, seg_low, seg_high] = bits.to_le_bytes();
        Self {
            segment: u16::from_le_bytes([seg_low, seg_high]),
            bus,
            device: low >> 3,
            function: low & 7,
        }
    }
}

impl fmt::Display for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{}",
            self.segment, self.bus, self.device, self.function
        )
    }
}

/// What Xen does with guest accesses to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemType {
    /// Ordinary RAM.
    Ram,
    /// RAM whose writes are dropped.
    RamReadOnly,
    /// Every access goes to a device model.
    MmioDm,
    /// RAM whose writes become requests to the server that claimed this
    /// type with [`IoreqServer::claim_write_protection`]. Refused while
    /// log-dirty is on.
    WriteProtected,
}

impl MemType {
    fn bits(self) -> u16 {
        match self {
            Self::Ram => hvmmem::RAM_RW,
            Self::RamReadOnly => hvmmem::RAM_RO,
            Self::MmioDm => hvmmem::MMIO_DM,
            Self::WriteProtected => hvmmem::IOREQ_SERVER,
        }
    }
}

/// The device-model operations of one domain. Cheap to clone.
#[derive(Clone)]
pub struct DeviceModel {
    privcmd: Arc<dyn Privcmd>,
    domid: DomId,
}

impl fmt::Debug for DeviceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceModel").field(&self.domid.0).finish()
    }
}

impl DeviceModel {
    /// Operations on `domid` through `privcmd`.
    #[must_use]
    pub fn new(privcmd: Arc<dyn Privcmd>, domid: DomId) -> Self {
        Self { privcmd, domid }
    }

    /// The domain.
    #[must_use]
    pub fn domid(&self) -> DomId {
        self.domid
    }

    /// The handle the operations go through.
    #[must_use]
    pub fn privcmd(&self) -> &Arc<dyn Privcmd> {
        &self.privcmd
    }

    fn call(&self, op: &mut DmOp, name: impl FnOnce() -> String) -> Result<(), DeviceModelError> {
        self.privcmd
            .dm_op(self.domid, &mut [op.bytes()])
            .map_err(|e| DeviceModelError::new(name(), self.domid, &e))
    }

    /// Creates an ioreq server without a buffered page. It is disabled; it
    /// is destroyed when the value is dropped.
    ///
    /// # Errors
    /// ENOSPC when the domain has its 8 servers.
    pub fn create_ioreq_server(&self) -> Result<IoreqServer, DeviceModelError> {
        IoreqServer::create(self.clone())
    }

    /// Takes over a server that a former process of this domain left.
    #[must_use]
    pub fn attach_ioreq_server(&self, id: IoreqServerId) -> IoreqServer {
        IoreqServer::attach(self.clone(), id)
    }

    /// The number of vCPUs the domain was made with.
    ///
    /// # Errors
    /// EOPNOTSUPP before Xen 4.13.
    pub fn nr_vcpus(&self) -> Result<u32, DeviceModelError> {
        let mut op = DmOp::new(xen_sys::XEN_DMOP_nr_vcpus);
        self.call(&mut op, || "nr_vcpus".into())?;
        Ok(op.get_u32(offset_of!(xen_sys::xen_dm_op_nr_vcpus, vcpus)))
    }

    /// Sets the level of an INTx line (0 to 3 for A to D) of a device on
    /// bus 0. Level-triggered: assert again what is still asserted.
    ///
    /// # Errors
    /// EINVAL for another bus, device or line.
    pub fn set_pci_intx_level(
        &self,
        device: u8,
        line: u8,
        asserted: bool,
    ) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_set_pci_intx_level;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_set_pci_intx_level);
        op.put(offset_of!(Arg, device), &[device]);
        op.put(offset_of!(Arg, intx), &[line]);
        op.put(offset_of!(Arg, level), &[u8::from(asserted)]);
        self.call(&mut op, || {
            format!("set_pci_intx_level device {device} line {line} level {asserted}")
        })
    }

    /// Delivers an MSI. Address and data go to Xen as the guest wrote them:
    /// vector 0 means that the guest mapped the MSI to a pirq, which Xen
    /// takes from the address.
    ///
    /// # Errors
    /// What Xen says of the address and data.
    pub fn inject_msi(&self, addr: u64, data: u32) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_inject_msi;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_inject_msi);
        op.put(offset_of!(Arg, data), &data.to_le_bytes());
        op.put(offset_of!(Arg, addr), &addr.to_le_bytes());
        self.call(&mut op, || {
            format!("inject_msi addr {addr:#x} data {data:#x}")
        })
    }

    /// Changes what guest accesses to `extent` do.
    ///
    /// # Errors
    /// EINVAL when a frame's present type does not allow it (as while
    /// log-dirty is on) or no server claimed [`MemType::WriteProtected`];
    /// EOPNOTSUPP without HAP. Frames before the failing one have changed.
    pub fn set_mem_type(&self, extent: Extent, to: MemType) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_set_mem_type;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_set_mem_type);
        op.put(offset_of!(Arg, nr), &extent.frames.to_le_bytes());
        op.put(offset_of!(Arg, mem_type), &to.bits().to_le_bytes());
        op.put(offset_of!(Arg, first_pfn), &extent.first_gfn.to_le_bytes());
        self.call(&mut op, || format!("set_mem_type {extent} to {to:?}"))
    }

    /// Moves the RAM at `extent` to `to_gfn` and the frames after it. RAM
    /// that was there is freed; a frame that is there already stays. Foreign
    /// mappings keep showing the moved memory. Each vCPU has all device
    /// models drop their mappings (INVALIDATE) at the end of its present
    /// request or next hypercall.
    ///
    /// # Errors
    /// EINVAL when a frame has no RAM, EPERM when the target is another
    /// device's memory, ENOMEM when Xen has no room for the guest's page
    /// tables, EOVERFLOW when either end wraps. Frames before the failing
    /// one have moved.
    pub fn relocate_memory(&self, extent: Extent, to_gfn: u64) -> Result<(), DeviceModelError> {
        type Arg = xen_sys::xen_dm_op_relocate_memory;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_relocate_memory);
        op.put(offset_of!(Arg, size), &extent.frames.to_le_bytes());
        op.put(offset_of!(Arg, src_gfn), &extent.first_gfn.to_le_bytes());
        op.put(offset_of!(Arg, dst_gfn), &to_gfn.to_le_bytes());
        self.call(&mut op, || {
            format!("relocate_memory {extent} to {to_gfn:#x}")
        })
    }

    /// Tells log-dirty of frames this process wrote through foreign
    /// mappings, which Xen cannot see. Returns at once when log-dirty is off.
    ///
    /// # Errors
    /// [`ModifiedMemoryError`], after marking every extent that can be: an
    /// extent of 0 frames, or one that reaches past the domain's highest
    /// frame. (Xen's check is off by one and refuses that frame itself.)
    pub fn modified_memory(&self, extents: &[Extent]) -> Result<(), ModifiedMemoryError> {
        let mut first_error: Option<ModifiedMemoryError> = None;
        for (n, chunk) in extents.chunks(EXTENTS_PER_CALL).enumerate() {
            if self.modified_chunk(chunk).is_ok() {
                continue;
            }
            // Xen works from the last extent to the first and does not copy
            // its progress back with an error (Xen arch/x86/hvm/dm.c:dm_op),
            // so which one failed is found by asking for each alone.
            for (i, extent) in chunk.iter().enumerate() {
                if let Err(errno) = self.modified_chunk(std::slice::from_ref(extent)) {
                    let error = first_error.get_or_insert(ModifiedMemoryError {
                        domid: self.domid,
                        index: n * EXTENTS_PER_CALL + i,
                        extent: *extent,
                        failed: 0,
                        errno,
                    });
                    error.failed += 1;
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn modified_chunk(&self, chunk: &[Extent]) -> Result<(), Errno> {
        type Arg = xen_sys::xen_dm_op_modified_memory;
        let mut op = DmOp::new(xen_sys::XEN_DMOP_modified_memory);
        // At most EXTENTS_PER_CALL.
        let nr = u32::try_from(chunk.len()).map_err(|_| Errno::E2BIG)?;
        op.put(offset_of!(Arg, nr_extents), &nr.to_le_bytes());
        let mut table = encode::extents(chunk);
        self.privcmd
            .dm_op(self.domid, &mut [op.bytes(), &mut table])
            .map_err(|e| e.errno())
    }
}

/// Extents that fit a buffer of a dm_op: 256.
const EXTENTS_PER_CALL: usize =
    MAX_DM_OP_BUF / size_of::<xen_sys::xen_dm_op_modified_memory_extent>();
