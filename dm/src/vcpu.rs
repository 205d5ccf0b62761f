//! The thread that answers one vCPU.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vgpu_device::kept::{self, Answer, Doer};
use vgpu_device::{Device, Kept};
use vgpu_ring::EventBell;
use xen_glue::{IoKind, IoRequest, IoreqState, Sbdf, VcpuIoreqs, VcpuIoreqsError, execute};

use crate::access::Access;
use crate::protection::Protection;
use crate::spin::Spin;

/// How long a look may last before it lets others run in between.
const POLITE_AFTER: Duration = Duration::from_micros(20);

/// What all vCPU threads count together.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests answered.
    pub(crate) requests: AtomicU64,
    /// Of those, found by looking instead of by an event.
    pub(crate) polled: AtomicU64,
    /// Times a thread slept.
    pub(crate) sleeps: AtomicU64,
}

pub(crate) struct VcpuLoop {
    pub(crate) ioreqs: VcpuIoreqs,
    pub(crate) device: Arc<Device>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) function: Sbdf,
    pub(crate) spin: Spin,
    /// When the last request came, if it was a write to no window.
    pub(crate) outside: Option<Instant>,
    /// When the last request was answered.
    pub(crate) answered: Instant,
    pub(crate) counts: Arc<Counts>,
    pub(crate) kept: Arc<dyn Kept>,
    pub(crate) stop: Arc<AtomicBool>,
    /// Rung, and left rung, to stop.
    pub(crate) bell: EventBell,
}

impl VcpuLoop {
    /// Runs until told to stop. What the vCPU asked before that is answered.
    pub(crate) fn run(mut self) {
        let vcpu = self.ioreqs.vcpu();
        if let Err(e) = self.serve() {
            log::error!("vcpu {vcpu}: {e}; its accesses are answered no more");
        }
    }

    fn serve(&mut self) -> Result<(), VcpuIoreqsError> {
        self.take_over()?;
        loop {
            let stopping = self.stop.load(Ordering::Acquire);
            if let Some(request) = self.look()? {
                self.spin.paid();
                self.counts.polled.fetch_add(1, Ordering::Relaxed);
                self.answer(&request)?;
            } else if stopping {
                return Ok(());
            } else {
                self.spin.wasted();
                // Events of requests that were found by looking are still
                // queued; without them the sleep would end at once.
                if self.take_event()? {
                    continue;
                }
                self.sleep();
                self.take_event()?;
            }
        }
    }

    /// Answers what a former process took and left. If that was committed, the
    /// answer is kept; if not, nothing was done that must not be done again.
    pub(crate) fn take_over(&mut self) -> Result<(), VcpuIoreqsError> {
        let vcpu = self.ioreqs.vcpu();
        let page = Arc::clone(self.ioreqs.page());
        match page.state(vcpu)? {
            IoreqState::InProcess => match kept::answer(&*self.kept, vcpu) {
                Some(Answer { data }) => self.give(data.unwrap_or(u64::MAX)),
                None => match page.take_unfinished(vcpu)? {
                    Some(request) => self.answer(&request),
                    None => Ok(()),
                },
            },
            // Xen may have been told nothing of an answer that is there.
            _ => Ok(self.ioreqs.channel().notify()?),
        }
    }

    /// Looks for a request for a while, at least once.
    fn look(&self) -> Result<Option<IoRequest>, VcpuIoreqsError> {
        let spin = self.spin.get();
        let start = Instant::now();
        loop {
            // A look at the clock costs more than one at the page.
            for _ in 0..16 {
                if let Some(request) = self.take()? {
                    return Ok(Some(request));
                }
                std::hint::spin_loop();
            }
            let looked = start.elapsed();
            if looked >= spin {
                return Ok(None);
            }
            if looked >= POLITE_AFTER {
                // A host with few CPUs has vgpud's work to do on this one.
                std::thread::yield_now();
            }
        }
    }

    fn take(&self) -> Result<Option<IoRequest>, VcpuIoreqsError> {
        let (page, vcpu) = (self.ioreqs.page(), self.ioreqs.vcpu());
        if page.state(vcpu)? != IoreqState::Ready {
            return Ok(None);
        }
        // Before Xen's page says that it is taken, the last one's answer must
        // not pass for this one's.
        kept::take_in_hand(&*self.kept, vcpu);
        self.kept.about_to();
        let request = page.take(vcpu)?;
        if request.is_none() {
            // Xen withdrew it.
            kept::nothing_in_hand(&*self.kept, vcpu);
        }
        Ok(request)
    }

    /// Takes a queued event, if there is one, and answers the request it
    /// announced; says whether there was a request.
    fn take_event(&mut self) -> Result<bool, VcpuIoreqsError> {
        let events = self.ioreqs.channel().events();
        if let Some(port) = events.wait(Some(Duration::ZERO))? {
            // Before looking, or an event in between is lost.
            events.unmask(port)?;
        }
        let Some(request) = self.take()? else {
            return Ok(false);
        };
        self.answer(&request)?;
        Ok(true)
    }

    fn answer(&mut self, request: &IoRequest) -> Result<(), VcpuIoreqsError> {
        self.spin.came(self.answered.elapsed());
        let since_ns = self.since_write(request);
        let vcpu = self.ioreqs.vcpu();
        let mut access = Access {
            transaction: self.device.begin(Doer::Vcpu(vcpu)),
            function: self.function,
            protection: &self.protection,
            since_ns,
        };
        let data = execute(request, &mut access, &*self.protection);
        if request.kind == IoKind::Invalidate {
            self.protection.frames_left();
            access.transaction.memory_changed();
        }
        let read = request.read && !request.data_is_ptr;
        access.transaction.finish(Some(Answer {
            data: read.then_some(data),
        }));
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let given = self.give(data);
        self.answered = Instant::now();
        given
    }

    /// Gives an answer that is committed.
    fn give(&self, data: u64) -> Result<(), VcpuIoreqsError> {
        self.kept.about_to();
        let vcpu = self.ioreqs.vcpu();
        let _answering = self.protection.answering(vcpu, &self.stop);
        self.ioreqs.page().complete(vcpu, data)?;
        self.kept.about_to();
        Ok(self.ioreqs.channel().notify()?)
    }

    /// Nanoseconds since the last request, if that and this are writes to no
    /// window: what such a write costs the vCPU, or somewhat more. Else 0.
    fn since_write(&mut self, r: &IoRequest) -> u32 {
        let outside = r.kind == IoKind::Copy && !r.read && self.device.locate(r.addr).is_none();
        let now = outside.then(Instant::now);
        let before = std::mem::replace(&mut self.outside, now);
        match (before, now) {
            (Some(before), Some(now)) => {
                let since = now.saturating_duration_since(before).as_nanos();
                u32::try_from(since).unwrap_or(u32::MAX).max(1)
            }
            _ => 0,
        }
    }

    /// Sleeps until there is an event of the vCPU or the order to stop.
    fn sleep(&self) {
        self.counts.sleeps.fetch_add(1, Ordering::Relaxed);
        let events = self.ioreqs.channel().events().poll_fd();
        let mut fds = [
            PollFd::new(events, PollFlags::POLLIN),
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Then the next look comes at once; better busy than deaf.
            Err(e) => log::warn!("waiting for vcpu {}: {e}", self.ioreqs.vcpu()),
        }
    }
}
