//! Guests' work comes out right, alone and side by side.

use gen8::Engine;
use guest_driver::{Driver, Frames};
use guest_memory::Gfn;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};

/// Runs `requests` requests on every engine and checks each.
fn run(guest: &SimGuest, seed: u64, requests: usize) {
    let frames = Frames::new(256, 4096);
    let mut driver = Driver::start(guest, frames, seed).unwrap();
    let mut wanted = [requests; Engine::COUNT];
    let mut finished = 0;
    while finished < requests * Engine::COUNT {
        for engine in Engine::ALL {
            while wanted[engine.index()] > 0 && driver.submit(engine).unwrap() {
                wanted[engine.index()] -= 1;
            }
        }
        for done in driver.wait().unwrap() {
            done.result.unwrap();
            finished += 1;
        }
    }
}

#[test]
fn one_guest_uses_all_engines() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    run(&guest, 1, 50);
    assert_eq!(guest.failure(), None);
    // Its page table is its own RAM.
    let exits = guest.server().exits();
    assert_eq!((exits.ggtt_reads, exits.ggtt_writes), (0, 0));
}

#[test]
fn guests_side_by_side_do_not_mix() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    std::thread::scope(|scope| {
        for id in 1..=4 {
            let host = &host;
            scope.spawn(move || {
                let guest = SimGuest::start(host, &SimGuestConfig::default()).unwrap();
                run(&guest, id, 30);
                assert_eq!(guest.failure(), None);
            });
        }
    });
}

#[test]
fn what_is_paged_out_is_waited_for() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    let mut driver = Driver::start(&guest, Frames::new(256, 4095), 7).unwrap();
    for _ in 0..20 {
        // Tables, contexts, buffers: whatever the guest's CPU does not touch
        // is found on disk by vgpud, which has dropped its mappings.
        for gfn in 256..4095 {
            let _ = guest.domain().page_out(Gfn(gfn), 1);
        }
        let vcpu = guest.vcpu();
        vcpu.decrease_reservation(&[Gfn(4095)]).unwrap().unwrap();
        vcpu.populate(&[Gfn(4095)]).unwrap().unwrap();
        for engine in Engine::ALL {
            assert!(driver.submit(engine).unwrap());
        }
        while !driver.idle() {
            for done in driver.wait().unwrap() {
                done.result.unwrap();
            }
        }
    }
    assert_eq!(guest.scheduled().refusals, []);
    assert_eq!(guest.failure(), None);
}

#[test]
fn a_ring_can_be_gone_round() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    let mut driver = Driver::start(&guest, Frames::new(256, 4096), 5).unwrap();
    // One at a time, so that all go to one context: 16 KiB of ring take
    // about 400 requests.
    for _ in 0..450 {
        assert!(driver.submit(Engine::Rcs).unwrap());
        while !driver.idle() {
            for done in driver.wait().unwrap() {
                done.result.unwrap();
            }
        }
    }
    assert_eq!(guest.scheduled().refusals, []);
}
