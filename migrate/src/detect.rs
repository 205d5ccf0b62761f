//! Which pages differ from what the target was given.

mod blind;
mod compare;
mod digest;
mod fallback;
mod method;
mod sampled;
mod table;

use std::fmt;

use guest_memory::Gfn;

use crate::page::Page;

pub use blind::Blind;
pub use compare::Compare;
pub use digest::DigestOf;
pub use fallback::Fallback;
pub use method::Method;
pub use sampled::{Probes, Sampled};

/// A private copy of a guest page, and where it came from.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Its frame number.
    pub gfn: Gfn,
    /// Its bytes, copied once.
    pub page: &'a Page,
}

impl fmt::Debug for Frame<'_> {
    // Guests' data stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gfn)
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The target has these bytes.
    Same,
    /// The target has others.
    Changed,
    /// Nothing is retained of what the target has. The page must be sent.
    Unknown,
}

impl Verdict {
    /// Whether the page must be sent.
    #[must_use]
    pub fn must_send(self) -> bool {
        self != Self::Same
    }
}

fn same(same: bool) -> Verdict {
    if same {
        Verdict::Same
    } else {
        Verdict::Changed
    }
}

/// What a detector holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Pages of which something is retained.
    pub pages: usize,
    /// Bytes that takes, with what finds them.
    pub bytes: usize,
    /// Bytes it may take. Pages beyond are not retained, so they are sent
    /// when the guest stops.
    pub limit: usize,
}

/// Finds pages that changed since they were retained.
///
/// The verdict is only about bytes: a page that changed and changed back is
/// [`Verdict::Same`]. So [`Detector::retain`] must be given the very bytes
/// that the target gets. A carrier that reads the page again later, as libxc
/// does after a page was named to Xen, may catch it in between; then the
/// record is good only if nothing could have written the page from before
/// `retain` until the carrier is known to be past it, and must be
/// [forgotten](Detector::forget) otherwise: see
/// [`Settling`](crate::Settling).
///
/// All of it may be called from several threads. A page must not be retained
/// and verified at the same time.
pub trait Detector: Send + Sync {
    /// Which it is.
    fn method(&self) -> Method;

    /// Retains what is needed to know these pages again, in place of what was
    /// retained of them before. Says of each whether there was room; of those
    /// for which there was not, nothing is retained.
    fn retain(&self, frames: &[Frame<'_>]) -> Vec<bool>;

    /// Forgets a page: its next verdict is [`Verdict::Unknown`].
    fn forget(&self, gfn: Gfn);

    /// A verdict for each of these pages, in order.
    fn verify(&self, frames: &[Frame<'_>]) -> Vec<Verdict>;

    /// Which of these pages a look at a few words shows to have changed; of
    /// the others it shows nothing. Detectors without such a look show none.
    fn probe(&self, frames: &[Frame<'_>]) -> Vec<bool> {
        vec![false; frames.len()]
    }

    /// As [`Detector::verify`], without a look at a few words first.
    fn verify_whole(&self, frames: &[Frame<'_>]) -> Vec<Verdict> {
        self.verify(frames)
    }

    /// What it holds now.
    fn footprint(&self) -> Footprint;
}

#[cfg(test)]
mod tests;
