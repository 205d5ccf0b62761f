//! Section names.

use std::fmt;

/// The name of a section: up to 16 of `a`–`z`, `0`–`9` and `-`. It travels,
/// so that who does not know the section can still say which it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; Name::LEN]);

impl Name {
    /// Bytes of it in a stream, zeros behind it.
    pub const LEN: usize = 16;

    /// The device that vgpu-dm emulates.
    pub const DEVICE: Self = Self::of("device");
    /// What vgpud holds of the vGPU: registers that a switch carries over, and
    /// contexts that were taken off in the middle.
    pub const SCHEDULER: Self = Self::of("scheduler");
    /// The host the state comes from: which GPU, which vgpud.
    pub const HOST: Self = Self::of("host");
    /// Guest pages, as our own carrier sends them.
    pub const PAGES: Self = Self::of("pages");

    /// This name, for constants.
    ///
    /// # Panics
    /// When it is not one.
    #[must_use]
    pub const fn of(name: &str) -> Self {
        let bytes = name.as_bytes();
        assert!(bytes.len() <= Self::LEN);
        let mut padded = [0; Self::LEN];
        let (start, _) = padded.split_at_mut(bytes.len());
        start.copy_from_slice(bytes);
        match Self::from_bytes(padded) {
            Some(name) => name,
            None => panic!("a section's name is lower-case letters, digits and dashes"),
        }
    }

    /// The name that these bytes are, if they are one.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let mut at = 0;
        let mut ended = false;
        while at < Self::LEN {
            match bytes[at] {
                b'a'..=b'z' | b'0'..=b'9' | b'-' if !ended => {}
                0 if at > 0 => ended = true,
                _ => return None,
            }
            at += 1;
        }
        Some(Self(bytes))
    }

    /// The bytes in a stream.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = self.0.iter().take_while(|&&byte| byte != 0);
        letters
            .map(|&byte| char::from(byte))
            .try_for_each(|c| write!(f, "{c}"))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
