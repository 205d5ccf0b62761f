//! The methods by name.

use std::fmt;
use std::io;

use super::{Blind, Compare, Detector, DigestOf, Fallback, Sampled};
use crate::nh::Key;

/// A way to find changed pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Exact compare with a retained copy, while memory lasts; then digests.
    Compare,
    /// A keyed digest. The default: see [`Method::default`].
    #[default]
    Digest,
    /// A few words first, then [`Method::Compare`].
    SampledCompare,
    /// A few words first, then [`Method::Digest`].
    SampledDigest,
    /// Nothing is looked at and everything is sent.
    Blind,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Compare,
        Self::Digest,
        Self::SampledCompare,
        Self::SampledDigest,
        Self::Blind,
    ];

    /// As figures and options call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Digest => "digest",
            Self::SampledCompare => "sampled_compare",
            Self::SampledDigest => "sampled_digest",
            Self::Blind => "blind",
        }
    }

    /// A detector, with a fresh key, of a guest's frames below `frames`. It
    /// uses about `limit` bytes.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn detector(self, frames: u64, limit: usize) -> io::Result<Box<dyn Detector>> {
        let (part, rest) = (limit / 16, limit - limit / 16);
        let digest = |limit| Ok::<_, io::Error>(DigestOf::new(frames, limit, Key::fresh()?));
        let compare = |part, rest| {
            // Digests of all pages take a hundredth of the pages' own memory.
            Ok::<_, io::Error>(Fallback::new(Compare::new(frames, rest), digest(part)?))
        };
        Ok(match self {
            Self::Compare => Box::new(compare(part, rest)?),
            Self::Digest => Box::new(digest(limit)?),
            Self::SampledCompare => {
                let rest = rest - part;
                Box::new(Sampled::new(frames, part, compare(part, rest)?))
            }
            Self::SampledDigest => {
                let half = limit / 2;
                Box::new(Sampled::new(frames, half, digest(limit - half)?))
            }
            Self::Blind => Box::new(Blind),
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
