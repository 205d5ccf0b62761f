//! The ioctl numbers of the Xen device nodes.
//!
//! Linux writes them with `_IOC(_IOC_NONE, type, nr, size)`, a macro that
//! bindgen cannot evaluate. The nodes use no direction bits.

use core::mem::size_of;

use crate::bindings::{
    domid_t, ioctl_evtchn_bind_interdomain, ioctl_evtchn_bind_unbound_port, ioctl_evtchn_notify,
    ioctl_evtchn_restrict_domid, ioctl_evtchn_unbind, ioctl_gntalloc_alloc_gref,
    ioctl_gntalloc_dealloc_gref, ioctl_gntalloc_unmap_notify, ioctl_gntdev_map_grant_ref,
    ioctl_gntdev_unmap_grant_ref, ioctl_gntdev_unmap_notify, privcmd_dm_op, privcmd_hypercall,
    privcmd_mmap_resource, privcmd_mmapbatch_v2,
};

/// `_IOC(_IOC_NONE, kind, nr, size)` of Linux `asm-generic/ioctl.h`.
const fn ioc_none(kind: u8, nr: u8, size: usize) -> u32 {
    assert!(
        size < 1 << 14,
        "the size field of an ioctl number has 14 bits"
    );
    // Checked above.
    #[expect(clippy::cast_possible_truncation, reason = "less than 1 << 14")]
    let size = size as u32;
    // `u32::from` is not const.
    (size << 16) | ((kind as u32) << 8) | nr as u32
}

/// privcmd: any hypercall; EPERM on a restricted handle.
pub const PRIVCMD_HYPERCALL: u32 = ioc_none(b'P', 0, size_of::<privcmd_hypercall>());
/// privcmd: map foreign frames over a whole mapping of the node.
pub const PRIVCMD_MMAPBATCH_V2: u32 = ioc_none(b'P', 4, size_of::<privcmd_mmapbatch_v2>());
/// privcmd: a device-model operation.
pub const PRIVCMD_DM_OP: u32 = ioc_none(b'P', 5, size_of::<privcmd_dm_op>());
/// privcmd: limit the handle to one domain, for good.
pub const PRIVCMD_RESTRICT: u32 = ioc_none(b'P', 6, size_of::<domid_t>());
/// privcmd: map a resource (such as ioreq pages) over a mapping.
pub const PRIVCMD_MMAP_RESOURCE: u32 = ioc_none(b'P', 7, size_of::<privcmd_mmap_resource>());

/// evtchn: bind to another domain's unbound port; returns the local port.
pub const EVTCHN_BIND_INTERDOMAIN: u32 =
    ioc_none(b'E', 1, size_of::<ioctl_evtchn_bind_interdomain>());
/// evtchn: a port for another domain to bind to; returns it.
pub const EVTCHN_BIND_UNBOUND_PORT: u32 =
    ioc_none(b'E', 2, size_of::<ioctl_evtchn_bind_unbound_port>());
/// evtchn: close a port.
pub const EVTCHN_UNBIND: u32 = ioc_none(b'E', 3, size_of::<ioctl_evtchn_unbind>());
/// evtchn: signal the other end of a port.
pub const EVTCHN_NOTIFY: u32 = ioc_none(b'E', 4, size_of::<ioctl_evtchn_notify>());
/// evtchn: limit later interdomain binds to one domain, for good.
pub const EVTCHN_RESTRICT_DOMID: u32 = ioc_none(b'E', 6, size_of::<ioctl_evtchn_restrict_domid>());

/// gntdev: reserve an offset at which other domains' grants can be mapped.
pub const GNTDEV_MAP_GRANT_REF: u32 = ioc_none(b'G', 0, size_of::<ioctl_gntdev_map_grant_ref>());
/// gntdev: give the offset back, after munmap.
pub const GNTDEV_UNMAP_GRANT_REF: u32 =
    ioc_none(b'G', 1, size_of::<ioctl_gntdev_unmap_grant_ref>());
/// gntdev: what happens when a mapped page goes away.
pub const GNTDEV_SET_UNMAP_NOTIFY: u32 = ioc_none(b'G', 7, size_of::<ioctl_gntdev_unmap_notify>());

/// gntalloc: allocate pages and grant them.
pub const GNTALLOC_ALLOC_GREF: u32 = ioc_none(b'G', 5, size_of::<ioctl_gntalloc_alloc_gref>());
/// gntalloc: end the grants.
pub const GNTALLOC_DEALLOC_GREF: u32 = ioc_none(b'G', 6, size_of::<ioctl_gntalloc_dealloc_gref>());
/// gntalloc: what happens when a granted page goes away.
pub const GNTALLOC_SET_UNMAP_NOTIFY: u32 =
    ioc_none(b'G', 7, size_of::<ioctl_gntalloc_unmap_notify>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_x86_64_kernel() {
        // Computed once with a C compiler from the kernel's own headers.
        let expected = [
            (PRIVCMD_HYPERCALL, 0x0030_5000),
            (PRIVCMD_MMAPBATCH_V2, 0x0020_5004),
            (PRIVCMD_DM_OP, 0x0010_5005),
            (PRIVCMD_RESTRICT, 0x0002_5006),
            (PRIVCMD_MMAP_RESOURCE, 0x0020_5007),
            (EVTCHN_BIND_INTERDOMAIN, 0x0008_4501),
            (EVTCHN_BIND_UNBOUND_PORT, 0x0004_4502),
            (EVTCHN_UNBIND, 0x0004_4503),
            (EVTCHN_NOTIFY, 0x0004_4504),
            (EVTCHN_RESTRICT_DOMID, 0x0002_4506),
            (GNTDEV_MAP_GRANT_REF, 0x0018_4700),
            (GNTDEV_UNMAP_GRANT_REF, 0x0010_4701),
            (GNTDEV_SET_UNMAP_NOTIFY, 0x0010_4707),
            (GNTALLOC_ALLOC_GREF, 0x0018_4705),
            (GNTALLOC_DEALLOC_GREF, 0x0010_4706),
            (GNTALLOC_SET_UNMAP_NOTIFY, 0x0010_4707),
        ];
        for (number, value) in expected {
            assert_eq!(number, value, "{number:#010x} is not {value:#010x}");
        }
    }
}
