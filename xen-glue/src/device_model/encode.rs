//! The bytes of a dm_op, built so that every pad is zero.

use std::mem::offset_of;

use xen_sys::layout::{DM_OP_SIZE, DM_OP_UNION};

use super::Extent;

/// A `struct xen_dm_op`, in writable memory because Xen answers in place and
/// Linux pins it for writing.
pub(super) struct DmOp([u8; DM_OP_SIZE]);

impl DmOp {
    /// An operation whose own struct is all zero.
    pub(super) fn new(op: u32) -> Self {
        let mut bytes = [0; DM_OP_SIZE];
        bytes[..4].copy_from_slice(&op.to_le_bytes());
        Self(bytes)
    }

    /// Stores a field of the operation's struct. `offset` comes from
    /// `offset_of!` on that struct, so it is in range.
    pub(super) fn put(&mut self, offset: usize, field: &[u8]) {
        let at = DM_OP_UNION + offset;
        self.0[at..at + field.len()].copy_from_slice(field);
    }

    /// The whole struct.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// A 16-bit field of the answer.
    pub(super) fn get_u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.get(offset))
    }

    /// A 32-bit field of the answer.
    pub(super) fn get_u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.get(offset))
    }

    /// A 64-bit field of the answer.
    pub(super) fn get_u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.get(offset))
    }

    fn get<const N: usize>(&self, offset: usize) -> [u8; N] {
        let at = DM_OP_UNION + offset;
        let mut field = [0; N];
        field.copy_from_slice(&self.0[at..at + N]);
        field
    }
}

/// An array of `struct xen_dm_op_modified_memory_extent`.
pub(super) fn extents(list: &[Extent]) -> Vec<u8> {
    type Raw = xen_sys::xen_dm_op_modified_memory_extent;
    let mut bytes = vec![0; list.len() * size_of::<Raw>()];
    for (raw, extent) in bytes.chunks_exact_mut(size_of::<Raw>()).zip(list) {
        let nr = offset_of!(Raw, nr);
        raw[nr..nr + 4].copy_from_slice(&extent.frames.to_le_bytes());
        let first = offset_of!(Raw, first_pfn);
        raw[first..first + 8].copy_from_slice(&extent.first_gfn.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_the_abi_has_them() {
        let mut op = DmOp::new(3);
        type Arg = xen_sys::xen_dm_op_ioreq_server_range;
        op.put(offset_of!(Arg, id), &0x1122_u16.to_le_bytes());
        op.put(offset_of!(Arg, type_), &1_u32.to_le_bytes());
        op.put(offset_of!(Arg, start), &0xf000_0000_u64.to_le_bytes());
        op.put(offset_of!(Arg, end), &0xf0ff_ffff_u64.to_le_bytes());
        assert_eq!(
            op.bytes(),
            [
                3, 0, 0, 0, 0, 0, 0, 0, // op, pad
                0x22, 0x11, 0, 0, 1, 0, 0, 0, // id, pad, type
                0, 0, 0, 0xf0, 0, 0, 0, 0, // start
                0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 0, // end
            ]
        );
        assert_eq!(op.get_u16(0), 0x1122);
        assert_eq!(op.get_u32(4), 1);
    }

    #[test]
    fn an_extent_is_16_bytes_with_a_zero_pad() {
        let list = [Extent {
            first_gfn: 0x1_0000_0002,
            frames: 7,
        }];
        assert_eq!(
            extents(&list),
            [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]
        );
    }
}
