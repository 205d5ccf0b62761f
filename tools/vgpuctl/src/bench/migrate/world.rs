//! A migration in simulated time.
//!
//! Real pages are looked at, sent and compared; what that takes is what was
//! measured, and the way to the target is a token bucket. So the figures do
//! not depend on who else uses the machine. The GPU draws whenever the clock
//! passes a tick, also while pages are looked at.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_memory::{Gfn, GuestMemory, PAGE_SIZE};
use vgpu_migrate::connection::Bucket;
use vgpu_migrate::precopy::{Candidates, Clock, Sender, Work};
use vgpu_migrate::{Frame, Page, is_zero};

use super::machine::Machine;
use super::pattern::{Pattern, Range};
use super::rates::Rates;

/// What may be on the way before who sends must wait.
const WINDOW: Duration = Duration::from_millis(4);

/// The source, the way, and the target.
pub struct World<'a> {
    rates: Rates,
    overlap: bool,
    pages: u64,
    first: u64,
    inner: Mutex<Inner<'a>>,
}

struct Inner<'a> {
    now: Duration,
    way: Bucket,
    machine: &'a mut dyn Machine,
    pattern: Pattern,
    writable: Vec<Vec<Range>>,
    next_tick: u32,
    /// Contexts that ran since the candidates were taken; `None` before.
    ran: Option<Vec<bool>>,
    /// Contexts that ran at all.
    ever: Vec<bool>,
    halted: bool,
    failure: Option<anyhow::Error>,
    target: &'a mut [Page],
    sent: Vec<bool>,
    counts: Sent,
}

/// What went over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Bytes.
    pub bytes: u64,
    /// Pages sent again although the target had these very bytes.
    pub in_vain: u64,
}

impl<'a> World<'a> {
    /// A guest that draws by `pattern` since long, and a target that has
    /// nothing of it.
    ///
    /// # Errors
    /// When the guest's driver cannot.
    pub fn new(
        machine: &'a mut dyn Machine,
        pattern: Pattern,
        rates: Rates,
        way: Bucket,
        target: &'a mut [Page],
    ) -> anyhow::Result<Self> {
        machine.prepare(pattern)?;
        machine.written();
        let pages = u64::try_from(target.len())?;
        for (page, number) in target.iter_mut().zip(0_u64..) {
            // Nothing that a guest has.
            let mark = [0xa5a5_5a5a_u64, number].map(u64::to_le_bytes);
            page[1024..1040].copy_from_slice(mark.as_flattened());
        }
        let writable = pattern.writable(pages);
        Ok(Self {
            rates,
            overlap: true,
            pages,
            first: machine.first(),
            inner: Mutex::new(Inner {
                now: Duration::ZERO,
                way,
                machine,
                pattern,
                ran: None,
                ever: vec![false; writable.len()],
                writable,
                next_tick: 0,
                halted: false,
                failure: None,
                sent: vec![false; target.len()],
                target,
                counts: Sent::default(),
            }),
        })
    }

    /// The same, with pages looked at and sent in turn.
    pub fn without_overlap(self) -> Self {
        Self {
            overlap: false,
            ..self
        }
    }

    /// The source's memory.
    pub fn memory(&self) -> Arc<dyn GuestMemory> {
        self.lock().machine.memory()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<'a>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time goes on until `time`.
    pub fn wait_until(&self, time: Duration) {
        let mut inner = self.lock();
        let time = time.max(inner.now);
        inner.advance(time, self.pages);
    }

    /// The guest and its GPU stand still from now on.
    pub fn halt(&self) {
        self.lock().halted = true;
    }

    /// Sends `bytes` that are no pages, and waits until all of it is over.
    pub fn flush(&self, bytes: u32) {
        let mut inner = self.lock();
        let now = inner.now;
        let over = inner.way.take(bytes, now);
        inner.counts.bytes += u64::from(bytes);
        inner.advance(over, self.pages);
    }

    /// What went over so far.
    pub fn sent(&self) -> Sent {
        self.lock().counts
    }

    /// Pages that the GPU wrote and that the target has otherwise.
    ///
    /// # Errors
    /// When the guest's driver failed, the GPU wrote what no context could, or
    /// a page that it did not write differs.
    pub fn missed(&self) -> anyhow::Result<u64> {
        let mut inner = self.lock();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        let written = inner.machine.written();
        let mut by_gpu = vec![false; inner.target.len()];
        for page in written {
            let at = usize::try_from(page)?;
            if at >= by_gpu.len() {
                // The driver's: rings, contexts, batches.
                continue;
            }
            anyhow::ensure!(
                inner.could_be_written(page),
                "the GPU wrote page {page:#x}, which is no candidate"
            );
            by_gpu[at] = true;
        }
        let memory = inner.machine.memory();
        let mut missed = 0;
        let mut bytes = [0; PAGE_SIZE];
        for (at, page) in (self.first..).zip(inner.target.iter()) {
            memory.read(at << 12, &mut bytes)?;
            if bytes != *page {
                let number = at - self.first;
                let by_gpu = by_gpu.get(usize::try_from(number)?);
                anyhow::ensure!(
                    by_gpu == Some(&true),
                    "page {number:#x} differs, and the GPU did not write it"
                );
                missed += 1;
            }
        }
        Ok(missed)
    }
}

impl Inner<'_> {
    /// Time goes on until `time`, and the GPU with it.
    fn advance(&mut self, time: Duration, pages: u64) {
        while !self.halted && Pattern::at(self.next_tick) <= time {
            let fills = self.pattern.tick(self.next_tick, pages);
            for fill in &fills {
                self.ever[fill.context] = true;
                if let Some(ran) = &mut self.ran {
                    ran[fill.context] = true;
                }
            }
            if let Err(error) = self.machine.draw(&fills) {
                self.failure.get_or_insert(error);
            }
            self.next_tick += 1;
        }
        self.now = self.now.max(time);
    }

    fn could_be_written(&self, page: u64) -> bool {
        let has = |&(first, len): &Range| (first..first + len).contains(&page);
        let contexts = self.writable.iter().zip(&self.ever);
        contexts
            .filter(|(_, ever)| **ever)
            .any(|(ranges, _)| ranges.iter().any(has))
    }
}

impl Candidates for World<'_> {
    fn take(&self, each: &mut dyn FnMut(Gfn)) {
        let mut inner = self.lock();
        let contexts = inner.writable.len();
        let Some(ran) = inner.ran.replace(vec![false; contexts]) else {
            // All that was ever written.
            (self.first..self.first + self.pages)
                .map(Gfn)
                .for_each(each);
            return;
        };
        for (ranges, ran) in inner.writable.iter().zip(ran) {
            for &(first, len) in ranges.iter().filter(|_| ran) {
                let first = self.first + first;
                (first..first + len).map(Gfn).for_each(&mut *each);
            }
        }
    }
}

impl Sender for World<'_> {
    fn send(&self, frames: &[Frame<'_>]) -> io::Result<()> {
        let mut inner = self.lock();
        // A section's header and count, and a number for each page.
        let mut bytes = 48;
        for frame in frames {
            let at = usize::try_from(frame.gfn.0 - self.first).unwrap_or(usize::MAX);
            let Inner {
                target,
                sent,
                counts,
                ..
            } = &mut *inner;
            let (Some(page), Some(sent)) = (target.get_mut(at), sent.get_mut(at)) else {
                return Err(io::Error::other("no such page"));
            };
            if std::mem::replace(sent, true) && page == frame.page {
                counts.in_vain += 1;
            }
            *page = *frame.page;
            bytes += if is_zero(frame.page) { 8 } else { 4096 + 8 };
        }
        inner.counts.bytes += u64::from(bytes);
        let now = inner.now;
        inner.way.take(bytes, now);
        let window = if self.overlap { WINDOW } else { Duration::ZERO };
        let wait = inner.way.backlog(now).saturating_sub(window);
        inner.advance(now + wait, self.pages);
        Ok(())
    }

    fn backlog(&self) -> Option<Duration> {
        let inner = self.lock();
        self.overlap.then(|| inner.way.backlog(inner.now))
    }

    fn bytes_per_second(&self) -> f64 {
        self.lock().way.bytes_per_second()
    }
}

impl Clock for World<'_> {
    fn now(&self) -> Duration {
        self.lock().now
    }

    fn spent(&self, work: Work) {
        let mut inner = self.lock();
        let until = inner.now + self.rates.of(work);
        inner.advance(until, self.pages);
    }
}
