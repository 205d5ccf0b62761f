//! Device-model operations, from their bytes (Xen arch/x86/hvm/dm.c:dm_op
//! and common/ioreq.c:ioreq_server_dm_op).

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use xen_glue::{DomId, MemType};
use xen_sys::layout::{DM_OP_UNION, hvmmem};

use crate::domain::DomainState;
use crate::host::{Host, lock};

/// The struct of an operation, checked for length. Offsets come from
/// `offset_of!` on that struct.
struct Arg<'a>(&'a mut [u8]);

impl Arg<'_> {
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.get(at))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.get(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Pads must be zero.
    fn zero(&self, at: usize, len: usize) -> Result<(), Errno> {
        if self.0[at..at + len].iter().any(|b| *b != 0) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
}

/// Bytes of an operation's struct, or `None` for an unknown operation.
fn arg_len(op: u32) -> Option<usize> {
    use xen_sys as x;
    Some(match op {
        x::XEN_DMOP_create_ioreq_server => size_of::<x::xen_dm_op_create_ioreq_server>(),
        x::XEN_DMOP_get_ioreq_server_info => size_of::<x::xen_dm_op_get_ioreq_server_info>(),
        x::XEN_DMOP_map_io_range_to_ioreq_server | x::XEN_DMOP_unmap_io_range_from_ioreq_server => {
            size_of::<x::xen_dm_op_ioreq_server_range>()
        }
        x::XEN_DMOP_set_ioreq_server_state => size_of::<x::xen_dm_op_set_ioreq_server_state>(),
        x::XEN_DMOP_destroy_ioreq_server => size_of::<x::xen_dm_op_destroy_ioreq_server>(),
        x::XEN_DMOP_set_pci_intx_level => size_of::<x::xen_dm_op_set_pci_intx_level>(),
        x::XEN_DMOP_modified_memory => size_of::<x::xen_dm_op_modified_memory>(),
        x::XEN_DMOP_set_mem_type => size_of::<x::xen_dm_op_set_mem_type>(),
        x::XEN_DMOP_relocate_memory => size_of::<x::xen_dm_op_relocate_memory>(),
        x::XEN_DMOP_inject_msi => size_of::<x::xen_dm_op_inject_msi>(),
        x::XEN_DMOP_map_mem_type_to_ioreq_server => {
            size_of::<x::xen_dm_op_map_mem_type_to_ioreq_server>()
        }
        x::XEN_DMOP_nr_vcpus => size_of::<x::xen_dm_op_nr_vcpus>(),
        _ => return None,
    })
}

/// What an operation is to make of frames.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    /// RAM, of protected ones.
    ToRam,
    /// Protected ones.
    ToProtected,
}

impl Change {
    pub(crate) fn of(op: &mut [u8]) -> Option<Self> {
        let number = u32::from_le_bytes(*op.first_chunk()?);
        let arg = Arg(op.get_mut(DM_OP_UNION..)?.get_mut(..arg_len(number)?)?);
        match number {
            xen_sys::XEN_DMOP_set_mem_type => {
                let at = offset_of!(xen_sys::xen_dm_op_set_mem_type, mem_type);
                match arg.u16(at) {
                    hvmmem::RAM_RW => Some(Self::ToRam),
                    hvmmem::IOREQ_SERVER => Some(Self::ToProtected),
                    _ => None,
                }
            }
            xen_sys::XEN_DMOP_map_mem_type_to_ioreq_server => {
                let at = offset_of!(xen_sys::xen_dm_op_map_mem_type_to_ioreq_server, flags);
                (arg.u32(at) == 0).then_some(Self::ToRam)
            }
            _ => None,
        }
    }
}

pub(crate) fn run(
    host: &Host,
    domain: &DomainState,
    caller: DomId,
    op: &mut [u8],
    rest: &mut [&mut [u8]],
) -> Result<(), Errno> {
    let (head, arg) = op.split_at_mut_checked(DM_OP_UNION).ok_or(Errno::EFAULT)?;
    let (number, pad) = head.split_at(4);
    let number = number.try_into().map(u32::from_le_bytes);
    let number = number.map_err(|_| Errno::EFAULT)?;
    let len = arg_len(number).ok_or(Errno::EOPNOTSUPP)?;
    let arg = arg.get_mut(..len).ok_or(Errno::EFAULT)?;
    if pad.iter().any(|b| *b != 0) {
        return Err(Errno::EINVAL);
    }
    let mut arg = Arg(arg);
    match number {
        xen_sys::XEN_DMOP_create_ioreq_server => create(host, domain, caller, &mut arg),
        xen_sys::XEN_DMOP_get_ioreq_server_info => info(domain, caller, &mut arg),
        xen_sys::XEN_DMOP_map_io_range_to_ioreq_server => range(domain, caller, &arg, true),
        xen_sys::XEN_DMOP_unmap_io_range_from_ioreq_server => range(domain, caller, &arg, false),
        xen_sys::XEN_DMOP_set_ioreq_server_state => set_state(domain, caller, &arg),
        xen_sys::XEN_DMOP_destroy_ioreq_server => destroy(domain, caller, &arg),
        xen_sys::XEN_DMOP_set_pci_intx_level => intx(domain, &arg),
        xen_sys::XEN_DMOP_modified_memory => modified_memory(domain, &arg, rest),
        xen_sys::XEN_DMOP_set_mem_type => set_mem_type(domain, &arg),
        xen_sys::XEN_DMOP_relocate_memory => relocate_memory(domain, &arg),
        xen_sys::XEN_DMOP_inject_msi => inject_msi(domain, &arg),
        xen_sys::XEN_DMOP_map_mem_type_to_ioreq_server => map_mem_type(domain, caller, &arg),
        xen_sys::XEN_DMOP_nr_vcpus => {
            let at = offset_of!(xen_sys::xen_dm_op_nr_vcpus, vcpus);
            arg.put(at, &domain.config.vcpus.to_le_bytes());
            Ok(())
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn create(
    host: &Host,
    domain: &DomainState,
    caller: DomId,
    arg: &mut Arg<'_>,
) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_create_ioreq_server;
    arg.zero(offset_of!(A, pad), 3)?;
    // A buffered page is a thing of QEMU's, not simulated.
    if arg.u8(offset_of!(A, handle_bufioreq)) != 0 {
        return Err(Errno::EINVAL);
    }
    let vcpus = domain.config.vcpus;
    let id = lock(&domain.servers).create(domain.id, caller, vcpus, &mut host.ports())?;
    arg.put(offset_of!(A, id), &id.to_le_bytes());
    Ok(())
}

fn info(domain: &DomainState, caller: DomId, arg: &mut Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_get_ioreq_server_info;
    let flags = arg.u16(offset_of!(A, flags));
    if flags & !1 != 0 {
        return Err(Errno::EINVAL);
    }
    let server = lock(&domain.servers).get(arg.u16(offset_of!(A, id)), caller)?;
    if flags & 1 == 0 {
        let gfn = server.frame(&domain.memory)?;
        arg.put(offset_of!(A, ioreq_gfn), &gfn.to_le_bytes());
    }
    arg.put(offset_of!(A, bufioreq_port), &[0; 4]);
    Ok(())
}

fn range(domain: &DomainState, caller: DomId, arg: &Arg<'_>, map: bool) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_ioreq_server_range;
    arg.zero(offset_of!(A, pad), 2)?;
    let (start, end) = (arg.u64(offset_of!(A, start)), arg.u64(offset_of!(A, end)));
    if start > end {
        return Err(Errno::EINVAL);
    }
    let mut servers = lock(&domain.servers);
    let id = arg.u16(offset_of!(A, id));
    let ranges = servers.ranges(id, caller, arg.u32(offset_of!(A, type_)))?;
    if map {
        ranges.add(start, end)
    } else {
        ranges.remove(start, end)
    }
}

fn set_state(domain: &DomainState, caller: DomId, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_set_ioreq_server_state;
    arg.zero(offset_of!(A, pad), 1)?;
    let enabled = arg.u8(offset_of!(A, enabled)) != 0;
    // Whatever it is already.
    let _paused = domain.cpus.pause();
    let id = arg.u16(offset_of!(A, id));
    lock(&domain.servers).set_enabled(id, caller, enabled, &domain.memory)
}

fn destroy(domain: &DomainState, caller: DomId, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_destroy_ioreq_server;
    arg.zero(offset_of!(A, pad), 2)?;
    // Frames it had protected stay so, with nobody to write them: only the
    // end of its claim makes them RAM (Xen arch/x86/hvm/ioreq.c:
    // arch_ioreq_server_destroy and arch_ioreq_server_map_mem_type_completed).
    let _paused = domain.cpus.pause();
    lock(&domain.servers).destroy(arg.u16(offset_of!(A, id)), caller)
}

fn intx(domain: &DomainState, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_set_pci_intx_level;
    if arg.u16(offset_of!(A, domain)) != 0 || arg.u8(offset_of!(A, bus)) != 0 {
        return Err(Errno::EINVAL);
    }
    domain.interrupts.intx(
        arg.u8(offset_of!(A, device)),
        arg.u8(offset_of!(A, intx)),
        arg.u8(offset_of!(A, level)),
    )
}

fn inject_msi(domain: &DomainState, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_inject_msi;
    arg.zero(offset_of!(A, pad), 4)?;
    domain
        .interrupts
        .msi(arg.u64(offset_of!(A, addr)), arg.u32(offset_of!(A, data)))
}

/// Works from the last extent to the first; on an error those done stay
/// done and the header is as it was.
fn modified_memory(
    domain: &DomainState,
    arg: &Arg<'_>,
    rest: &mut [&mut [u8]],
) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_modified_memory;
    type E = xen_sys::xen_dm_op_modified_memory_extent;
    if !domain.memory.is_logging() {
        return Ok(());
    }
    let table: &[u8] = rest.first().map_or(&[], |b| b);
    let nr = usize::try_from(arg.u32(offset_of!(A, nr_extents))).map_err(|_| Errno::EINVAL)?;
    if table.len() / size_of::<E>() < nr {
        return Err(Errno::EINVAL);
    }
    let maximum = domain.memory.maximum_gpfn();
    for extent in table.chunks_exact(size_of::<E>()).take(nr).rev() {
        let mut bytes = extent.to_vec();
        let extent = Arg(&mut bytes);
        extent.zero(offset_of!(E, pad), 4)?;
        let first = extent.u64(offset_of!(E, first_pfn));
        let end = first.wrapping_add(u64::from(extent.u32(offset_of!(E, nr))));
        if end <= first || end > maximum {
            return Err(Errno::EINVAL);
        }
        for gfn in first..end {
            domain.memory.mark_dirty(gfn);
        }
    }
    Ok(())
}

fn set_mem_type(domain: &DomainState, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_set_mem_type;
    arg.zero(offset_of!(A, pad), 2)?;
    let first = arg.u64(offset_of!(A, first_pfn));
    let nr = arg.u32(offset_of!(A, nr));
    let last = first.wrapping_add(u64::from(nr)).wrapping_sub(1);
    if first > last || last > domain.memory.maximum_gpfn() {
        return Err(Errno::EINVAL);
    }
    let to = match arg.u16(offset_of!(A, mem_type)) {
        hvmmem::RAM_RW => MemType::Ram,
        hvmmem::RAM_RO => MemType::RamReadOnly,
        hvmmem::MMIO_DM => MemType::MmioDm,
        hvmmem::IOREQ_SERVER => MemType::WriteProtected,
        _ => return Err(Errno::EINVAL),
    };
    let _types = domain.memory.change_types();
    // Held, so that the claim cannot end in between.
    let servers = lock(&domain.servers);
    if to == MemType::WriteProtected {
        if !domain.config.hap {
            return Err(Errno::EOPNOTSUPP);
        }
        servers.protection().ok_or(Errno::EINVAL)?;
    }
    for gfn in first..=last {
        domain.memory.set_type(gfn, to)?;
    }
    drop(servers);
    Ok(())
}

/// Xen common/memory.c:xenmem_add_to_physmap. Frames before one that cannot
/// be moved have moved.
fn relocate_memory(domain: &DomainState, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_relocate_memory;
    arg.zero(offset_of!(A, pad), 4)?;
    let size = u64::from(arg.u32(offset_of!(A, size)));
    let (from, to) = (
        arg.u64(offset_of!(A, src_gfn)),
        arg.u64(offset_of!(A, dst_gfn)),
    );
    if to == u64::MAX {
        return Err(Errno::EINVAL);
    }
    if from.checked_add(size).is_none() || to.checked_add(size).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    domain.mapcache_invalidate.store(true, Ordering::Release);
    (0..size).try_for_each(|i| domain.memory.relocate(from + i, to + i))
}

fn map_mem_type(domain: &DomainState, caller: DomId, arg: &Arg<'_>) -> Result<(), Errno> {
    type A = xen_sys::xen_dm_op_map_mem_type_to_ioreq_server;
    if !domain.config.hap {
        return Err(Errno::EOPNOTSUPP);
    }
    let flags = arg.u32(offset_of!(A, flags));
    let write = xen_sys::XEN_DMOP_IOREQ_MEM_ACCESS_WRITE;
    if arg.u16(offset_of!(A, type_)) != hvmmem::IOREQ_SERVER || flags & !write != 0 {
        return Err(Errno::EINVAL);
    }
    let _types = domain.memory.change_types();
    let mut servers = lock(&domain.servers);
    let frames_left = domain.memory.any_protected();
    let id = arg.u16(offset_of!(A, id));
    servers.set_protection(id, caller, flags != 0, frames_left)?;
    if flags == 0 {
        domain.memory.unprotect_all();
    }
    drop(servers);
    Ok(())
}
