//! Layout facts that a bit-field or a macro hides.
//!
//! A shared `struct ioreq` may change under the reader, so no reference to
//! one may exist and bindgen's accessors are of no use on it. These are the
//! byte offsets and bits to reach it with single loads and stores.

use core::mem::{offset_of, size_of};

use crate::bindings::{ioreq, xen_dm_op};

/// Bytes from one vCPU's request to the next in the synchronous page.
pub const IOREQ_SIZE: usize = size_of::<ioreq>();
/// Offset of `addr`, 8 bytes.
pub const IOREQ_ADDR: usize = offset_of!(ioreq, addr);
/// Offset of `data`, 8 bytes.
pub const IOREQ_DATA: usize = offset_of!(ioreq, data);
/// Offset of `count`, 4 bytes.
pub const IOREQ_COUNT: usize = offset_of!(ioreq, count);
/// Offset of `size`, 4 bytes.
pub const IOREQ_ACCESS_SIZE: usize = offset_of!(ioreq, size);
/// Offset of `vp_eport`, 4 bytes.
pub const IOREQ_VP_EPORT: usize = offset_of!(ioreq, vp_eport);
/// Offset of the byte that holds state, data_is_ptr, dir and df.
pub const IOREQ_FLAGS: usize = 30;
/// Offset of `type`, 1 byte.
pub const IOREQ_TYPE: usize = offset_of!(ioreq, type_);

/// In the byte at [`IOREQ_FLAGS`]: the state.
pub const IOREQ_FLAGS_STATE: u8 = 0x0f;
/// In the byte at [`IOREQ_FLAGS`]: `data` is a guest-physical address.
pub const IOREQ_FLAGS_DATA_IS_PTR: u8 = 1 << 4;
/// In the byte at [`IOREQ_FLAGS`]: set for a read, clear for a write.
pub const IOREQ_FLAGS_DIR: u8 = 1 << 5;
/// In the byte at [`IOREQ_FLAGS`]: the processor's direction flag.
pub const IOREQ_FLAGS_DF: u8 = 1 << 6;

/// Frame of an ioreq server resource that holds the synchronous requests
/// (`XENMEM_resource_ioreq_server_frame_ioreq(0)`).
pub const IOREQ_SERVER_FRAME_IOREQ: u32 = 1;

/// Bytes of a dm_op's first buffer.
pub const DM_OP_SIZE: usize = size_of::<xen_dm_op>();
/// Offset of the operation's own struct in it.
pub const DM_OP_UNION: usize = offset_of!(xen_dm_op, u);

/// `HVMMEM_ioreq_server` and its like as the 16 bits a dm_op carries.
pub mod hvmmem {
    /// Ordinary RAM.
    pub const RAM_RW: u16 = 0;
    /// RAM whose writes are dropped.
    pub const RAM_RO: u16 = 1;
    /// Every access goes to a device model.
    pub const MMIO_DM: u16 = 2;
    /// RAM whose writes go to the ioreq server that claimed the type.
    pub const IOREQ_SERVER: u16 = 4;
}

/// The domctls needed here. Domctls are no stable ABI, but these and the
/// struct's head are the same from Xen 4.17 to 4.22 except for the version
/// (Xen `public/domctl.h`).
pub mod domctl {
    /// `XEN_DOMCTL_pausedomain`.
    pub const PAUSE: u32 = 3;
    /// `XEN_DOMCTL_unpausedomain`.
    pub const UNPAUSE: u32 = 4;
    /// `XEN_DOMCTL_getdomaininfo`.
    pub const GET_DOMAIN_INFO: u32 = 5;
    /// `XEN_DOMCTL_max_mem`.
    pub const MAX_MEM: u32 = 11;
    /// `XEN_DOMCTL_set_target`.
    pub const SET_TARGET: u32 = 46;
    /// `XEN_DOMCTL_INTERFACE_VERSION` of Xen 4.17, 4.18, 4.19 to 4.21, 4.22.
    /// Xen answers EACCES to one that is not its own.
    pub const VERSIONS: [u32; 4] = [0x15, 0x16, 0x17, 0x18];
    /// Bytes of `struct xen_domctl`.
    pub const SIZE: usize = 144;
    /// Offset of `interface_version`, 4 bytes, behind `cmd`, 4 bytes.
    pub const VERSION: usize = 4;
    /// Offset of `domain`, 2 bytes.
    pub const DOMAIN: usize = 8;
    /// Offset of `max_mem.max_memkb`, 8 bytes.
    pub const MAX_MEM_KB: usize = 16;
    /// Offset of `getdomaininfo.domain`, 2 bytes.
    pub const INFO_DOMAIN: usize = 16;
    /// Offset of `getdomaininfo.flags`, 4 bytes. The third byte is why the
    /// domain shut down.
    pub const INFO_FLAGS: usize = 20;
    /// In the flags: the domain is being destroyed (`XEN_DOMINF_dying`).
    pub const INFO_DYING: u32 = 1 << 0;
    /// In the flags: it has shut down (`XEN_DOMINF_shutdown`).
    pub const INFO_SHUTDOWN: u32 = 1 << 2;
    /// Offset of `set_target.target`, 2 bytes.
    pub const TARGET: usize = 16;
}

/// Parameters of HVM domains (Xen `public/hvm/hvm_op.h`, `params.h`).
pub mod hvm_param {
    /// `__HYPERVISOR_hvm_op`.
    pub const HYPERCALL: u32 = 34;
    /// `HVMOP_get_param`.
    pub const GET: u32 = 1;
    /// Bytes of `struct xen_hvm_param`, which begins with the domain.
    pub const SIZE: usize = 16;
    /// Offset of `index`, 4 bytes.
    pub const INDEX: usize = 4;
    /// Offset of `value`, 8 bytes.
    pub const VALUE: usize = 8;
    /// `HVM_PARAM_IOREQ_SERVER_PFN`.
    pub const IOREQ_SERVER_PFN: u32 = 32;
    /// `HVM_PARAM_NR_IOREQ_SERVER_PAGES`.
    pub const NR_IOREQ_SERVER_PAGES: u32 = 33;
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of, size_of};

    use super::*;
    use crate::bindings as b;

    fn bytes_of(r: b::ioreq) -> [u8; IOREQ_SIZE] {
        // A safe look at the bit-fields: the generated unit holds the bytes.
        let mut out = [0; IOREQ_SIZE];
        out[IOREQ_FLAGS] = u8::try_from(r._bitfield_1.get(0, 8)).unwrap();
        out
    }

    #[test]
    fn ioreq_is_as_xen_lays_it_out() {
        assert_eq!(size_of::<b::ioreq>(), 32);
        assert_eq!(
            [
                IOREQ_ADDR,
                IOREQ_DATA,
                IOREQ_COUNT,
                IOREQ_ACCESS_SIZE,
                IOREQ_VP_EPORT,
                IOREQ_TYPE
            ],
            [0, 8, 16, 20, 24, 31]
        );
        assert_eq!(offset_of!(b::ioreq, _bitfield_1), IOREQ_FLAGS);
        assert_eq!(size_of::<b::shared_iopage>(), 32);
    }

    #[test]
    fn ioreq_bits_are_those_of_the_bit_field() {
        let blank = || b::ioreq {
            addr: 0,
            data: 0,
            count: 0,
            size: 0,
            vp_eport: 0,
            _pad0: 0,
            _bitfield_align_1: [],
            _bitfield_1: b::ioreq::new_bitfield_1(0, 0, 0, 0, 0),
            type_: 0,
        };
        let mut r = blank();
        r.set_state(0xf);
        assert_eq!(bytes_of(r)[IOREQ_FLAGS], IOREQ_FLAGS_STATE);
        let mut r = blank();
        r.set_data_is_ptr(1);
        assert_eq!(bytes_of(r)[IOREQ_FLAGS], IOREQ_FLAGS_DATA_IS_PTR);
        let mut r = blank();
        r.set_dir(1);
        assert_eq!(bytes_of(r)[IOREQ_FLAGS], IOREQ_FLAGS_DIR);
        let mut r = blank();
        r.set_df(1);
        assert_eq!(bytes_of(r)[IOREQ_FLAGS], IOREQ_FLAGS_DF);
    }

    #[test]
    fn dm_op_is_32_bytes_with_a_24_byte_union() {
        assert_eq!((DM_OP_SIZE, DM_OP_UNION), (32, 8));
        assert_eq!(align_of::<b::xen_dm_op>(), 8);
        assert_eq!(size_of::<b::xen_dm_op_modified_memory_extent>(), 16);
    }

    #[test]
    fn memory_types_are_the_enumeration() {
        for (short, long) in [
            (hvmmem::RAM_RW, b::HVMMEM_ram_rw),
            (hvmmem::RAM_RO, b::HVMMEM_ram_ro),
            (hvmmem::MMIO_DM, b::HVMMEM_mmio_dm),
            (hvmmem::IOREQ_SERVER, b::HVMMEM_ioreq_server),
        ] {
            assert_eq!(u32::from(short), long);
        }
    }

    #[test]
    fn node_structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<b::privcmd_hypercall>(), 48);
        assert_eq!(size_of::<b::privcmd_mmapbatch_v2>(), 32);
        assert_eq!(size_of::<b::privcmd_dm_op_buf>(), 16);
        assert_eq!(size_of::<b::privcmd_mmap_resource>(), 32);
        assert_eq!(offset_of!(b::privcmd_mmap_resource, num), 16);
        assert_eq!(size_of::<b::ioctl_gntdev_grant_ref>(), 8);
        assert_eq!(offset_of!(b::ioctl_gntdev_map_grant_ref, refs), 16);
        assert_eq!(offset_of!(b::ioctl_gntalloc_alloc_gref, gref_ids), 16);
        assert_eq!(size_of::<b::xsd_sockmsg>(), 16);
    }
}
