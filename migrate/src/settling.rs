//! Whether a carrier that reads pages later has read what was retained.
//!
//! libxc reads a page some time after it was named to Xen. If the page is
//! retained, then changes, is read, and changes back, it looks unchanged when
//! the guest stops, and the target has what it was in between: a cursor that
//! blinks, a surface that is cleared before each frame. No compare and no
//! digest can tell. So what is retained of a page counts only if nothing could
//! have written the page from before it was retained until libxc was past it.
//!
//! libxc goes round by round: it takes the set of named pages and clears it,
//! then reads them all. That a round began shows at a page named to Xen for
//! this alone: its bit is cleared, and it is named again. The first time that
//! this is seen, the round may have begun before other pages were named, for
//! it is not known when the bit was cleared. The second time, a round has
//! begun that has them or comes behind one that had, and the third time that
//! round is over: one begins when the one before has read all of its pages.

use std::collections::BTreeMap;

use guest_memory::Gfn;

/// Pages that were retained and named, and are not known to have been read.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    /// How often it was seen since each was named that a round had begun.
    open: BTreeMap<Gfn, u8>,
}

/// How often it must be seen that a round began, until a page named before has
/// been read.
const SEEN: u8 = 3;

impl Settling {
    /// These pages were retained and then named to the carrier.
    pub fn named(&mut self, gfns: impl IntoIterator<Item = Gfn>) {
        self.open.extend(gfns.into_iter().map(|gfn| (gfn, 0)));
    }

    /// It was seen that the carrier has begun a round since this was seen
    /// last, at some time.
    pub fn round_began(&mut self) {
        self.open.retain(|_, seen| {
            *seen += 1;
            *seen < SEEN
        });
    }

    /// Something may have written this page. Says whether what is retained of
    /// it must be [forgotten](crate::Detector::forget), as the carrier may
    /// have read something else.
    #[must_use]
    pub fn may_be_written(&mut self, gfn: Gfn) -> bool {
        self.open.remove(&gfn).is_some()
    }

    /// Pages still open. When the guest stops now, what is retained of them
    /// is good all the same: nothing writes them any more before they are
    /// read.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::detect::{Frame, Method, Verdict};

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The GPU writes this to a page.
        Write(u64, u8),
        /// The page is retained and named.
        Name(u64),
        /// The carrier takes the set of named pages.
        Begin,
        /// It reads the page, if it is to.
        Read(u64),
        /// It is looked whether a round began.
        Look,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3_u64, 0..2_u8).prop_map(|(gfn, value)| Step::Write(gfn, value)),
            (0..3_u64).prop_map(Step::Name),
            Just(Step::Begin),
            (0..3_u64).prop_map(Step::Read),
            Just(Step::Look),
        ]
    }

    proptest! {
        /// Whatever the carrier reads when: a page that is the same when the
        /// guest stops is the same at the target, once the carrier is done.
        #[test]
        fn no_page_is_taken_for_one_it_was_before(
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let detector = Method::Digest.detector(3, 1 << 20).unwrap();
            let mut settling = Settling::default();
            let (mut guest, mut target) = ([0_u8; 3], [0xff_u8; 3]);
            let (mut named, mut round) = ([false; 3], [false; 3]);
            let mut began = false;
            let at = |gfn: u64| usize::try_from(gfn).unwrap();
            for step in steps {
                match step {
                    Step::Write(gfn, value) => {
                        guest[at(gfn)] = value;
                        if settling.may_be_written(Gfn(gfn)) {
                            detector.forget(Gfn(gfn));
                        }
                    }
                    Step::Name(gfn) => {
                        let page = [guest[at(gfn)]; 4096];
                        detector.retain(&[Frame { gfn: Gfn(gfn), page: &page }]);
                        settling.named([Gfn(gfn)]);
                        named[at(gfn)] = true;
                    }
                    Step::Begin => {
                        // A round ends before the next begins.
                        for gfn in 0..3 {
                            if round[gfn] {
                                target[gfn] = guest[gfn];
                            }
                        }
                        round = std::mem::take(&mut named);
                        began = true;
                    }
                    Step::Look => {
                        if std::mem::take(&mut began) {
                            settling.round_began();
                        }
                    }
                    Step::Read(gfn) => {
                        if std::mem::take(&mut round[at(gfn)]) {
                            target[at(gfn)] = guest[at(gfn)];
                        }
                    }
                }
            }
            // The guest stops. What is named or under way is still read.
            for gfn in 0..3 {
                if round[gfn] || named[gfn] {
                    target[gfn] = guest[gfn];
                }
                let page = [guest[gfn]; 4096];
                let frame = Frame { gfn: Gfn(gfn as u64), page: &page };
                if detector.verify(&[frame]) == [Verdict::Same] {
                    prop_assert_eq!(target[gfn], guest[gfn]);
                }
            }
        }
    }

    #[test]
    fn three_rounds_settle_a_page() {
        let mut settling = Settling::default();
        settling.named([Gfn(1), Gfn(2)]);
        settling.round_began();
        settling.round_began();
        assert_eq!(settling.open(), 2);
        assert!(settling.may_be_written(Gfn(1)));
        // Named again, it waits for three more.
        settling.named([Gfn(1)]);
        settling.round_began();
        assert_eq!(settling.open(), 1);
        assert!(!settling.may_be_written(Gfn(2)));
        settling.round_began();
        settling.round_began();
        assert_eq!(settling.open(), 0);
    }
}
