//! Choices taken from bytes, in order, so that what a mutation of the bytes
//! changes stays local.

/// Bytes, from the front; zeros when there are no more.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Choices from `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether all were taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// A byte's lowest bit.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// True once in `n` on average, and never when the bytes are used up.
    pub fn rarely(&mut self, n: u8) -> bool {
        self.u8() % n == n - 1
    }

    /// One of `items`, which are at most 65536 and at least one.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        let n = if items.len() <= 256 {
            usize::from(self.u8())
        } else {
            usize::from(self.u16())
        };
        items[n % items.len()]
    }

    /// 64 bits, those with a meaning more often than others.
    pub fn value(&mut self) -> u64 {
        match self.u8() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.u8() % 64),
            // A masked register write.
            3 => {
                let bits = u64::from(self.u16());
                bits << 16 | bits
            }
            4 => self.u32().into(),
            _ => self.u64(),
        }
    }

    /// 32 bits, those with a meaning more often than others.
    pub fn value_u32(&mut self) -> u32 {
        low(self.value())
    }

    /// A size a processor's access can have.
    pub fn size(&mut self) -> u32 {
        self.pick(&[4, 8, 1, 2])
    }
}

/// The low dword.
pub(crate) fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The high dword.
pub(crate) fn high(value: u64) -> u32 {
    low(value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_then_zeros() {
        let mut b = Bytes::new(&[1, 2, 3, 4, 5]);
        assert_eq!((b.u8(), b.u16()), (1, 0x0302));
        assert_eq!(b.u32(), 0x0504);
        assert!(b.is_empty());
        assert_eq!(b.u64(), 0);
        assert!(!b.rarely(2));
        assert_eq!(b.pick(&[7, 8]), 7);
    }
}
