//! Guests' work comes out right, alone and side by side.

use gen8::platform::{KBL, PLATFORMS};
use gen8::{Engine, Platform};
use gpu_bus::Gpu;
use guest_driver::{Driver, Frames};
use guest_memory::Gfn;
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};

/// Runs `requests` requests on every engine and checks each.
fn run(guest: &SimGuest, seed: u64, requests: usize) {
    let frames = Frames::new(256, 4096);
    let mut driver = Driver::start(guest, frames, seed).unwrap();
    for done in driver.complete(requests).unwrap() {
        done.result.unwrap();
    }
}

fn host_of(gpu: &'static Platform) -> SimHost {
    SimHost::start(SimHostConfig {
        gpu,
        ..SimHostConfig::default()
    })
    .unwrap()
}

#[test]
fn one_guest_uses_all_engines() {
    for gpu in PLATFORMS {
        let host = host_of(gpu);
        let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
        run(&guest, 1, 50);
        assert_eq!(guest.failure(), None);
        // Its page table is its own RAM.
        let exits = guest.server().exits();
        assert_eq!((exits.ggtt_reads, exits.ggtt_writes), (0, 0));
    }
}

#[test]
fn guests_side_by_side_do_not_mix() {
    for gpu in PLATFORMS {
        let host = host_of(gpu);
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
}

/// Kaby Lake's tables of memory object control states are each guest's own:
/// those of an engine are carried over at a switch, the render engine's are
/// in its contexts, and a new one starts with what the driver wrote.
#[test]
fn each_kaby_lake_guest_has_its_own_mocs() {
    const TABLES: [(Engine, u32, u32); 5] = [
        (Engine::Rcs, 0xc800, 64),
        (Engine::Rcs, 0xb020, 32),
        (Engine::Vcs, 0xc900, 64),
        (Engine::Vecs, 0xcb00, 64),
        (Engine::Bcs, 0xcc00, 64),
    ];
    let host = host_of(&KBL);
    let guests = [1, 2].map(|mark| {
        let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
        (mark, guest)
    });
    let mut drivers: Vec<_> = guests
        .iter()
        .map(|(mark, guest)| {
            let frames = Frames::new(256, 4096);
            let mut driver = Driver::start(guest, frames, u64::from(*mark)).unwrap();
            for (_, first, count) in TABLES {
                for n in 0..count {
                    driver.write_register(first + n * 4, mark << 8 | n);
                }
            }
            (*mark, driver)
        })
        .collect();
    for _ in 0..3 {
        for (mark, driver) in &mut drivers {
            for engine in Engine::ALL {
                assert!(driver.submit(engine).unwrap());
            }
            while !driver.idle() {
                for done in driver.wait().unwrap() {
                    done.result.unwrap();
                }
            }
            for (engine, first, count) in TABLES {
                for n in 0..count {
                    let held = host.gpu().read32(first + n * 4);
                    assert_eq!(held, *mark << 8 | n, "{engine:?} {n}");
                }
            }
        }
    }
}

#[test]
fn what_is_paged_out_is_waited_for() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let guest = SimGuest::start(&host, &SimGuestConfig::default()).unwrap();
    let mut driver = Driver::start(&guest, Frames::new(256, 4095), 7).unwrap();
    for _ in 0..20 {
        // Tables, contexts, buffers: whatever the guest's CPU does not touch
        // is found on disk by vgpud, which has dropped its mappings.
        // What came back since the last time goes once more.
        let out = (256..4095)
            .filter(|gfn| guest.domain().page_out(Gfn(*gfn), 1).is_ok())
            .count();
        assert!(out > 0);
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
