//! Requests that did not fit the ring yet. Bounded by what a guest can have
//! outstanding: nothing a guest waits for is dropped.

use std::collections::VecDeque;

use vgpu_ring::Request;

use crate::seams::GpuPort;

/// Page-table announcements kept. vgpud finds page tables from the contexts
/// too, so losing one costs time, not correctness.
const PAGE_TABLES: usize = 64;

/// Requests in the order they must go.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    requests: VecDeque<Request>,
    /// Handed over so far.
    handed: u64,
    /// Requests at the front that are as [`Backlog::unkept`] last gave them.
    kept: usize,
    /// Announcements dropped.
    dropped: u64,
}

impl Backlog {
    /// Requests that a former device left, `handed` of which it had handed
    /// over before.
    pub(crate) fn left(handed: u64, requests: Vec<Request>) -> Self {
        Self {
            kept: requests.len(),
            requests: requests.into(),
            handed,
            dropped: 0,
        }
    }

    /// Hands over what there is; says whether nothing is left.
    pub(crate) fn flush(&mut self, port: &dyn GpuPort) -> bool {
        while let Some(request) = self.requests.front() {
            let handed = self.handed.wrapping_add(1);
            if port.hand_over(*request, handed).is_err() {
                return false;
            }
            self.handed = handed;
            self.kept = self.kept.saturating_sub(1);
            self.requests.pop_front();
        }
        true
    }

    /// The requests that are not kept as they are, with their numbers, and
    /// the number behind the last: all handed over and all that wait.
    pub(crate) fn unkept(&mut self) -> (impl Iterator<Item = (u64, &Request)>, u64) {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let first = self.handed.wrapping_add(count(self.kept));
        let end = self.handed.wrapping_add(count(self.requests.len()));
        let from = std::mem::replace(&mut self.kept, self.requests.len());
        ((first..).zip(self.requests.iter().skip(from)), end)
    }

    /// Submission `seq` of `engine` was replaced by a later one: if vgpud has
    /// not seen it, it need not.
    pub(crate) fn replace(&mut self, of_engine: u8, replaced: u64) {
        self.retain(|r| match r {
            Request::Submit { engine, seq, .. } => *engine != of_engine || *seq != replaced,
            _ => true,
        });
    }

    fn retain(&mut self, keep: impl FnMut(&Request) -> bool) {
        let before = self.requests.len();
        self.requests.retain(keep);
        if self.requests.len() != before {
            self.kept = 0;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds a request.
    pub(crate) fn send(&mut self, request: Request) {
        match request {
            Request::Reset { engines, .. } => self.forget_engines(engines),
            Request::WriteRegister { offset, .. } => {
                // A later value may take an earlier one's place as long as no
                // submission lies between: that one needs the earlier value.
                for (at, waiting) in self.requests.iter_mut().enumerate().rev() {
                    match waiting {
                        Request::WriteRegister { offset: o, .. } if *o == offset => {
                            *waiting = request;
                            self.kept = self.kept.min(at);
                            return;
                        }
                        Request::Submit { .. } | Request::Reset { .. } => break,
                        _ => {}
                    }
                }
            }
            Request::CreatePageTable { .. } | Request::DestroyPageTable { .. } => {
                let announcements = self.requests.iter().filter(|r| {
                    matches!(
                        r,
                        Request::CreatePageTable { .. } | Request::DestroyPageTable { .. }
                    )
                });
                if announcements.count() >= PAGE_TABLES {
                    self.dropped += 1;
                    return;
                }
            }
            // One that waits will be told after all the guest did so far, and
            // before what waits behind it.
            Request::InvalidateMemory if self.requests.contains(&request) => return,
            Request::InvalidateMemory | Request::Submit { .. } => {}
            // No device sends these.
            Request::Protection { .. }
            | Request::Protected { .. }
            | Request::TableWrite { .. }
            | Request::TableReleased { .. }
            | Request::WritesMissed { .. }
            | Request::Recovered { .. } => return,
            Request::Ping { .. } => {
                self.retain(|r| !matches!(r, Request::Ping { .. }));
            }
        }
        self.requests.push_back(request);
    }

    /// A reset kills what was to be submitted before it, so vgpud need not
    /// see that, nor an earlier reset of engines this one covers.
    fn forget_engines(&mut self, engines: u8) {
        self.retain(|r| match r {
            Request::Submit { engine, .. } => engines & (1 << (engine & 7)) == 0,
            Request::Reset { engines: e, .. } => e & !engines != 0,
            _ => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::seams::Full;

    /// A ring with room for so many.
    struct Ring(Mutex<(usize, Vec<Request>)>);

    impl GpuPort for Ring {
        fn send(&self, request: Request) -> Result<(), Full> {
            let (room, sent) = &mut *self.0.lock().unwrap();
            *room = room.checked_sub(1).ok_or(Full)?;
            sent.push(request);
            Ok(())
        }
    }

    fn submit(engine: u8, seq: u64) -> Request {
        Request::Submit {
            engine,
            seq,
            desc: [1, 0],
        }
    }

    fn write(offset: u32, value: u32) -> Request {
        Request::WriteRegister { offset, value }
    }

    /// What goes out of a ring that was full while `requests` came.
    fn late(requests: &[Request]) -> Vec<Request> {
        let ring = Ring(Mutex::new((0, Vec::new())));
        let mut backlog = Backlog::default();
        for r in requests {
            backlog.send(*r);
            assert!(!backlog.flush(&ring));
        }
        ring.0.lock().unwrap().0 = usize::MAX;
        assert!(backlog.flush(&ring) && backlog.is_empty());
        ring.0.into_inner().unwrap().1
    }

    #[test]
    fn order_is_kept_and_registers_coalesce_between_submissions() {
        let sent = late(&[
            write(4, 1),
            write(8, 1),
            write(4, 2),
            submit(0, 0),
            write(4, 3),
        ]);
        let expected = [write(4, 2), write(8, 1), submit(0, 0), write(4, 3)];
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_reset_takes_the_submissions_it_kills_with_it() {
        let reset = |engines, epoch| Request::Reset { engines, epoch };
        let sent = late(&[
            submit(0, 0),
            submit(1, 0),
            reset(1, 1),
            submit(0, 1),
            reset(1, 2),
            submit(0, 2),
        ]);
        assert_eq!(sent, [submit(1, 0), reset(1, 2), submit(0, 2)]);
    }

    #[test]
    fn one_invalidation_stands_for_all_that_wait() {
        let sent = late(&[
            Request::InvalidateMemory,
            submit(0, 0),
            Request::InvalidateMemory,
        ]);
        assert_eq!(sent, [Request::InvalidateMemory, submit(0, 0)]);
    }

    #[test]
    fn announcements_are_bounded() {
        let announce = Request::CreatePageTable { root: 0x1000 };
        assert_eq!(late(&[announce; 1000]).len(), PAGE_TABLES);
    }
}
