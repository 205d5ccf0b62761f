//! A small guest, its GPU, and ways to the target.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use guest_memory::{GuestMemory, MemoryError};

use super::super::*;
use crate::detect::Frame;

/// Frames of the guest that anything happens to, in three regions.
const GFNS: [u64; PAGES] = [0, 1, 511, 512, 513, 1300];
/// How many.
pub const PAGES: usize = 6;
pub const FRAMES: u64 = 1536;
pub const CONTEXTS: usize = 2;

/// What each context can write.
pub fn writable(context: usize) -> &'static [usize] {
    [&[0, 1, 2, 3][..], &[2, 3, 4, 5]][context]
}

/// How pages get to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At once.
    Sends,
    /// Behind what is under way.
    Queues,
    /// They are named, and read some time.
    ReadsAgain,
}

/// What tells pages apart: all bytes but the last, and the last.
type Content = (u8, u8);

#[derive(Default)]
struct Inner {
    guest: BTreeMap<u64, Content>,
    target: BTreeMap<u64, Content>,
    broken: BTreeSet<u64>,
    running: [bool; CONTEXTS],
    /// Ran at any time since the candidates were taken.
    ran: [bool; CONTEXTS],
    /// Written while the migration is at work.
    during: VecDeque<(usize, u8)>,
    /// Named to the carrier, and taken by it.
    named: BTreeSet<u64>,
    round: BTreeSet<u64>,
    began: bool,
    cut: bool,
    sent: u64,
}

pub struct World {
    kind: Kind,
    inner: Mutex<Inner>,
}

impl World {
    pub fn new(kind: Kind, during: Vec<(usize, u8)>) -> Self {
        let guest = GFNS.map(|gfn| (gfn, (1, 1)));
        Self {
            kind,
            inner: Mutex::new(Inner {
                guest: guest.into(),
                during: during.into(),
                ..Inner::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn host(&self) -> Host<'_> {
        Host {
            memory: self,
            candidates: self,
            carrier: self.carrier(),
            clock: self,
        }
    }

    pub fn carrier(&self) -> Carrier<'_> {
        match self.kind {
            Kind::Sends | Kind::Queues => Carrier::Sends(self),
            Kind::ReadsAgain => Carrier::Names(self),
        }
    }

    pub fn run(&self, context: usize, run: bool) {
        let mut inner = self.lock();
        inner.running[context] = run;
        inner.ran[context] |= run;
    }

    pub fn write(&self, page: usize, value: u8) {
        self.lock().write(page, value);
    }

    pub fn balloon(&self, page: usize, there: bool) {
        let Inner { guest, ran, .. } = &mut *self.lock();
        let gfn = GFNS[page];
        if !there {
            guest.remove(&gfn);
        } else if let Entry::Vacant(place) = guest.entry(gfn) {
            // A context that maps it has it as of now.
            place.insert((0, 0));
            for (context, ran) in ran.iter_mut().enumerate() {
                *ran |= writable(context).contains(&page);
            }
        }
    }

    pub fn break_page(&self, page: usize, broken: bool) {
        let mut inner = self.lock();
        if broken {
            inner.broken.insert(GFNS[page]);
        } else {
            inner.broken.remove(&GFNS[page]);
        }
    }

    pub fn cut(&self) {
        self.lock().cut = true;
    }

    /// The GPU does nothing more, and all can be read.
    pub fn stand_still(&self) {
        let mut inner = self.lock();
        inner.running = [false; CONTEXTS];
        inner.during.clear();
        inner.broken.clear();
    }

    /// The carrier reads all of the last round, then takes what is named.
    pub fn begin(&self) {
        let mut inner = self.lock();
        inner.read_round();
        inner.round = std::mem::take(&mut inner.named);
        inner.began = true;
    }

    pub fn read_again(&self, page: usize) {
        let mut inner = self.lock();
        if inner.round.remove(&GFNS[page]) {
            inner.read(GFNS[page]);
        }
    }

    /// Whether a round began since this was last asked.
    pub fn saw_a_round(&self) -> bool {
        std::mem::take(&mut self.lock().began)
    }

    /// The carrier reads all that it has to.
    pub fn finish(&self) {
        self.begin();
        self.lock().read_round();
    }

    /// Frames that the target has otherwise: of those that the GPU could
    /// write, as others are not this module's.
    pub fn missed(&self) -> Vec<u64> {
        let inner = self.lock();
        let written = |gfn: &&u64| inner.guest[*gfn] != (1, 1) || inner.target.contains_key(*gfn);
        (inner.guest.keys().filter(written))
            .filter(|gfn| inner.guest.get(gfn) != inner.target.get(gfn))
            .copied()
            .collect()
    }
}

impl Inner {
    /// A context writes that can.
    fn write(&mut self, page: usize, value: u8) {
        let can = (0..CONTEXTS).any(|c| self.running[c] && writable(c).contains(&page));
        if let (true, Some(content)) = (can, self.guest.get_mut(&GFNS[page])) {
            let (first, last) = *content;
            *content = if value == 2 {
                (first, last ^ 1)
            } else {
                (value, last)
            };
        }
    }

    fn read(&mut self, gfn: u64) {
        if let Some(&content) = self.guest.get(&gfn) {
            self.target.insert(gfn, content);
        }
    }

    fn read_round(&mut self) {
        for gfn in std::mem::take(&mut self.round) {
            self.read(gfn);
        }
    }
}

impl GuestMemory for World {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let inner = self.lock();
        let gfn = Gfn::containing(gpa);
        if inner.broken.contains(&gfn.0) {
            let reason = "broken".into();
            return Err(MemoryError::Host { gfn, reason });
        }
        let content = inner.guest.get(&gfn.0).ok_or(MemoryError::Unmapped(gfn))?;
        let (last, rest) = buf.split_last_mut().unwrap();
        rest.fill(content.0);
        *last = content.1;
        Ok(())
    }

    fn write(&self, _gpa: u64, _data: &[u8]) -> Result<(), MemoryError> {
        unreachable!("a migration writes nothing at the source");
    }
}

impl Candidates for World {
    fn take(&self, each: &mut dyn FnMut(Gfn)) {
        let mut inner = self.lock();
        for context in 0..CONTEXTS {
            if inner.ran[context] {
                for &page in writable(context) {
                    each(Gfn(GFNS[page]));
                }
            }
        }
        inner.ran = inner.running;
        // Nobody need believe this.
        each(Gfn(FRAMES + 7));
    }
}

impl Sender for World {
    fn send(&self, frames: &[Frame<'_>]) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.cut {
            return Err(io::Error::other("cut"));
        }
        for frame in frames {
            inner.sent += 1;
            let content = (frame.page[0], frame.page[4095]);
            inner.target.insert(frame.gfn.0, content);
        }
        Ok(())
    }

    fn backlog(&self) -> Option<Duration> {
        // Now busy, now idle.
        let busy = self.lock().sent % 3;
        (self.kind == Kind::Queues).then(|| Duration::from_secs(busy))
    }

    fn bytes_per_second(&self) -> f64 {
        1e9
    }
}

impl Namer for World {
    fn name(&self, gfns: &[Gfn]) -> io::Result<()> {
        let mut inner = self.lock();
        inner.sent += 1;
        inner.named.extend(gfns.iter().map(|gfn| gfn.0));
        Ok(())
    }

    fn bytes_per_second(&self) -> f64 {
        1e9
    }
}

impl Clock for World {
    fn now(&self) -> Duration {
        Duration::from_micros(self.lock().sent)
    }

    /// The GPU goes on meanwhile.
    fn spent(&self, _work: Work) {
        let mut inner = self.lock();
        if let Some((page, value)) = inner.during.pop_front() {
            inner.write(page, value);
        }
    }
}
