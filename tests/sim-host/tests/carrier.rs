//! A guest's memory goes from one host to another while its GPU is at work.

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gen8::Engine;
use guest_driver::{Batch, Driver, Frames, Given, Kind, Rect, Surface, Tiling};
use guest_memory::{Gfn, GuestMemory, PAGE_SIZE};
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use softgpu::WriteLog;
use vgpu_migrate::Method;
use vgpu_migrate::connection::{Outgoing, confirm, receive};
use vgpu_migrate::precopy::{Candidates, Carrier, Convergence, Host, Options, Precopy, RealClock};
use vgpu_migrate::stream::{Known, Name, Section};
use xen_glue::{ForeignMemory, ForeignMemoryConfig, Hypervisor};

/// Graphics memory: the last 8 MiB of the guest's 16.
const FIRST: u64 = 2048;
const PAGES: u64 = 2048;
const VA: u64 = 0x40_0000_0000;

/// What the context could write, which runs all the time; and once at the end
/// all that the driver itself has.
struct Written(AtomicBool);

impl Candidates for Written {
    fn take(&self, each: &mut dyn FnMut(Gfn)) {
        let first = if self.0.load(Ordering::SeqCst) {
            0
        } else {
            FIRST
        };
        (first..FIRST + PAGES).map(Gfn).for_each(each);
    }
}

/// Fills a few pages, others each time.
fn fills(n: u32) -> Given {
    let mut batch = Batch::new();
    for i in 0..4 {
        let page = u64::from(n.wrapping_mul(0x9e37_79b9).rotate_left(8 * i)) % (PAGES / 2);
        let to = Surface {
            address: VA + (page << 12),
            pitch: 4096,
            tiling: Tiling::Linear,
        };
        let rect = Rect {
            x: 0,
            y: 0,
            w: 1024,
            h: 1 + n % 8,
        };
        batch.fill(&to, rect, n | 1);
    }
    batch.end();
    Given {
        kind: Kind::Blits,
        batch: batch.finish(),
        after: Vec::new(),
    }
}

fn foreign(host: &SimHost, guest: &SimGuest) -> Arc<dyn GuestMemory> {
    let privcmd = host.hypervisor().open_privcmd().unwrap();
    let config = ForeignMemoryConfig::default();
    Arc::new(ForeignMemory::new(privcmd, guest.domain().id(), config))
}

/// Draws until it is told to stop; on return the GPU is idle.
fn draw(guest: &SimGuest, stop: &AtomicBool, drew: &AtomicBool) {
    let mut driver = Driver::start(guest, Frames::new(256, FIRST), 3).unwrap();
    let maps = [(FIRST << 12, VA, PAGES)];
    let context = driver.add_context(Engine::Bcs, &maps).unwrap();
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        assert!(
            driver
                .submit_to(Engine::Bcs, context, |_| fills(n))
                .unwrap()
        );
        while !driver.idle() {
            for done in driver.wait().unwrap() {
                done.result.unwrap();
            }
        }
        drew.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_guest_at_work_comes_over_whole() {
    let log = Arc::new(WriteLog::new());
    let source_host = SimHost::start(SimHostConfig {
        write_log: Some(Arc::clone(&log)),
        ..SimHostConfig::default()
    })
    .unwrap();
    let target_host = SimHost::start(SimHostConfig::default()).unwrap();
    let source = SimGuest::start(&source_host, &SimGuestConfig::default()).unwrap();
    let target = SimGuest::start(&target_host, &SimGuestConfig::default()).unwrap();
    let (from, to) = (
        foreign(&source_host, &source),
        foreign(&target_host, &target),
    );

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let known = [Known {
        name: Name::SCHEDULER,
        oldest: 1,
        newest: 1,
    }];
    let (stop, drew) = (AtomicBool::new(false), AtomicBool::new(false));
    let came = thread::scope(|scope| {
        let target = scope.spawn(|| {
            let came = receive(&mut theirs, &*to, &known).unwrap();
            confirm(&mut theirs).unwrap();
            came
        });
        let drawing = scope.spawn(|| draw(&source, &stop, &drew));
        while !drew.load(Ordering::SeqCst) && !drawing.is_finished() {
            thread::yield_now();
        }
        let outgoing = Outgoing::start(ours, Some(1e9)).unwrap();
        let written = Written(AtomicBool::new(false));
        let clock = RealClock::start();
        let host = Host {
            memory: &*from,
            candidates: &written,
            carrier: Carrier::Sends(&outgoing),
            clock: &clock,
        };
        let frames = FIRST + PAGES;
        let options = Options {
            threads: NonZeroUsize::new(2).unwrap(),
            ..Options::default()
        };
        let detector = Method::SampledDigest.detector(frames, 8 << 20).unwrap();
        let mut precopy = Precopy::new(detector, frames, options);
        let mut convergence = Convergence::default();
        loop {
            precopy.round(&host).unwrap();
            let predicted = precopy.predicted_stop(host.carrier);
            if convergence.reached(predicted, vgpu_migrate::precopy::Clock::now(&clock)) {
                break;
            }
        }
        stop.store(true, Ordering::SeqCst);
        drawing.join().unwrap();
        written.0.store(true, Ordering::SeqCst);
        let last = precopy.stop(&host).unwrap();
        // All that the GPU wrote is looked at; most of it is the same.
        assert_eq!(last.candidates, FIRST + PAGES);
        outgoing
            .section(&Section::required(Name::SCHEDULER, 1, b"state"))
            .unwrap();
        let sent = outgoing.finish().unwrap();
        let came = target.join().unwrap();
        assert_eq!((sent.pages, sent.bytes), (came.pages, came.bytes));
        came
    });
    assert_eq!(&*came.sections[0].body, b"state");

    let page = |memory: &dyn GuestMemory, gfn: u64| {
        let mut page = [0; PAGE_SIZE];
        memory.read(gfn << 12, &mut page).map(|()| page)
    };
    let written = log.pages();
    let written: Vec<_> = (written.iter())
        .filter_map(|&bus| source_host.guest_frame(bus))
        .collect();
    assert!(written.len() > 8, "the GPU wrote {} pages", written.len());
    let missed = written
        .iter()
        .find(|gfn| page(&*from, gfn.0) != page(&*to, gfn.0));
    assert_eq!(missed, None, "a page that the GPU wrote");
    for gfn in 0..FIRST + PAGES {
        assert!(page(&*from, gfn) == page(&*to, gfn), "frame {gfn:#x}");
    }
}
