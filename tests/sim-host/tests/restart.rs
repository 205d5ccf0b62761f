//! vgpud and its GPU end at any step, and guests at work go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gen8::platform::PLATFORMS;
use gen8::{Engine, Platform};
use guest_driver::{Driver, Finished, Frames, Random};
use sim_host::{Doom, LogWords, SharedGuest, SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_sched::ppgtt::{ShadowConfig, ShadowMode};

fn check(finished: Vec<Finished>) -> usize {
    let count = finished.len();
    for done in finished {
        done.result.unwrap();
    }
    count
}

/// Submits on random engines and takes what is through until `stop`; how many
/// requests were right.
fn work(guest: SharedGuest, seed: u64, stop: &AtomicBool) -> usize {
    let mut random = Random::new(seed);
    let mut driver = Driver::start_restless(guest, Frames::new(256, 4096), seed).unwrap();
    let mut done = 0;
    while !stop.load(Ordering::SeqCst) {
        let engine = Engine::ALL[random.below(4) as usize];
        if !driver.submit(engine).unwrap() {
            done += check(driver.wait().unwrap());
        }
    }
    while !driver.idle() {
        done += check(driver.wait().unwrap());
    }
    done
}

/// vgpud ends `ends` times while guests are at work; requests that were right.
fn crash(gpu: &'static Platform, mode: ShadowMode, seed: u64, ends: usize) -> usize {
    let words = LogWords::default();
    let config = |doom: &Arc<Doom>| SimHostConfig {
        gpu,
        doom: Some((Arc::clone(doom), words.clone())),
        shadow: ShadowConfig {
            mode,
            ..ShadowConfig::default()
        },
        ..SimHostConfig::default()
    };
    let mut doom = Arc::new(Doom::default());
    let host = SimHost::start(config(&doom)).unwrap();
    let xen = host.hypervisor().clone();
    let guests = [(); 2].map(|()| {
        let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
        SharedGuest(Arc::new(guest))
    });
    // It outlives the guests' threads.
    let mut host = Some(host);
    let stop = AtomicBool::new(false);
    let done = Mutex::new(0);
    let mut random = Random::new(seed);
    std::thread::scope(|scope| {
        for (seed, guest) in (seed..).zip(&guests) {
            let (guest, stop, done) = (guest.clone(), &stop, &done);
            scope.spawn(move || {
                let right = work(guest, seed, stop);
                *done.lock().unwrap() += right;
            });
        }
        for _ in 0..ends {
            let most = 1 << random.below(13);
            doom.arm(1 + u64::from(random.below(most)));
            doom.wait();
            let orphans = guests.each_ref().map(|guest| guest.0.orphan().unwrap());
            doom = Arc::new(Doom::default());
            drop(host.take());
            let next = SimHost::start_on(xen.clone(), config(&doom)).unwrap();
            for (guest, orphan) in guests.iter().zip(orphans) {
                guest.0.adopt(orphan, &next).unwrap();
            }
            next.scheduler().adopted_all();
            host = Some(next);
        }
        stop.store(true, Ordering::SeqCst);
    });
    for guest in &guests {
        assert_eq!(guest.0.failure(), None);
        assert_eq!(guest.0.scheduled().refusals, []);
    }
    done.into_inner().unwrap()
}

#[test]
fn no_request_is_lost_or_run_twice_wherever_vgpud_ends() {
    for (seed, gpu) in (1..).zip(PLATFORMS) {
        let done = crash(gpu, ShadowMode::default(), seed, 60);
        assert!(done > 60, "{done}");
    }
}

#[test]
fn nor_when_tables_are_protected() {
    let done = crash(PLATFORMS[0], ShadowMode::Strict, 9, 30);
    assert!(done > 30, "{done}");
}
