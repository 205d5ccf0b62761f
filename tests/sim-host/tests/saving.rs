//! A guest at work is saved on one host and goes on on another.

use std::sync::Arc;
use std::time::Duration;

use fake_xen::Domain;
use gen8::Engine;
use guest_driver::{Driver, Finished, Frames, Random};
use guest_memory::Gfn;
use sim_host::{SharedGuest, SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use vgpu_dm::TableState;
use vgpu_migrate::stream::Before;
use vgpu_sched::ppgtt::{ShadowConfig, ShadowMode};
use vgpu_sched::saved::Saved;

/// So long that only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(20);

/// All of a domain's RAM.
fn copy(from: &Domain, to: &Domain) -> anyhow::Result<()> {
    let (source, target) = (from.ram(), to.ram());
    let mut page = [0; 4096];
    for gfn in 0..4096 {
        let at = Gfn(gfn).address().unwrap_or_default();
        source.read(at, &mut page)?;
        target.write(at, &page)?;
    }
    Ok(())
}

/// As it travels.
fn carried(saved: &Saved) -> Saved {
    let writer = saved.writer().unwrap();
    let bytes = writer.finish(Before::default()).unwrap();
    Saved::parse(&bytes).unwrap()
}

fn check(finished: Vec<Finished>) -> usize {
    let count = finished.len();
    for done in finished {
        done.result.unwrap();
    }
    count
}

/// Submits on random engines and takes what is through, a few steps of it;
/// how many were.
fn work(driver: &mut Driver<SharedGuest>, random: &mut Random) -> usize {
    let mut done = 0;
    for _ in 0..random.below(16) {
        let engine = Engine::ALL[random.below(4) as usize];
        if !driver.submit(engine).unwrap() {
            done += check(driver.wait().unwrap());
        }
    }
    done
}

fn finish(driver: &mut Driver<SharedGuest>) -> usize {
    let mut done = 0;
    while !driver.idle() {
        done += check(driver.wait().unwrap());
    }
    done
}

fn moved(from: &SimGuest, to: &SimHost, config: &SimGuestConfig) -> SharedGuest {
    let saved = carried(&from.save().unwrap());
    let guest = SimGuest::restore(to, config, &saved, |to| copy(from.domain(), to));
    SharedGuest(Arc::new(guest.unwrap()))
}

/// A host whose GPU is slow, and which protects all of its guests' tables.
fn slow() -> SimHostConfig {
    SimHostConfig {
        command_cost_ns: 20_000,
        shadow: ShadowConfig {
            mode: ShadowMode::Strict,
            ..ShadowConfig::default()
        },
        ..SimHostConfig::default()
    }
}

#[test]
fn work_goes_on_where_the_guest_does() {
    let slow = slow();
    let hosts = [(); 2].map(|()| SimHost::start(slow.clone()).unwrap());
    let config = SimGuestConfig::default();
    let mut random = Random::new(11);
    let guest = SimGuest::start(&hosts[0], &config).unwrap();
    let mut here = SharedGuest(Arc::new(guest));
    let mut driver = Driver::start_restless(here.clone(), Frames::new(256, 4096), 3).unwrap();
    let mut done = 0;
    let mut put_back = 0;
    let mut interrupted = 0;
    let mut in_flight = 0;
    for trip in 1..=9 {
        done += work(&mut driver, &mut random);
        here.0.begin_save().unwrap();
        // Xen can, as no frame is protected.
        assert_eq!(here.0.domain().enable_log_dirty(), Ok(()));
        done += work(&mut driver, &mut random);
        // What runs comes to its end, or is taken off in the middle.
        let limit = if trip % 3 == 0 { LIMIT } else { Duration::ZERO };
        let drained = here.0.suspend(limit).unwrap();
        put_back += drained.put_back;
        interrupted += drained.interrupted;
        in_flight += usize::from(!driver.idle());
        let there = moved(&here.0, &hosts[trip % 2], &config);
        driver = driver.moved(there.clone());
        assert_eq!(here.0.failure(), None);
        here = there;
    }
    done += finish(&mut driver);
    assert!(here.0.scheduled().tables.protects > 0);
    assert_eq!(here.0.failure(), None);
    assert_eq!(here.0.scheduled().refusals, []);
    let seen = (done, put_back, interrupted, in_flight);
    assert!(
        done > 50 && put_back > 2 && interrupted > 2 && in_flight > 2,
        "{seen:?}"
    );
}

#[test]
fn a_save_that_comes_to_nothing_leaves_the_guest_at_work() {
    let host = SimHost::start(slow()).unwrap();
    let config = SimGuestConfig::default();
    let mut random = Random::new(5);
    let here = SharedGuest(Arc::new(SimGuest::start(&host, &config).unwrap()));
    let mut driver = Driver::start_restless(here.clone(), Frames::new(256, 4096), 4).unwrap();
    let has = || here.0.domain().current_reservation();
    let before = has();
    let ram = here.0.server().table();
    for round in 0..6 {
        work(&mut driver, &mut random);
        here.0.begin_save().unwrap();
        assert_eq!(here.0.domain().enable_log_dirty(), Ok(()));
        assert_eq!(
            (has(), here.0.server().table()),
            (before - 2048, TableState::Trapped)
        );
        work(&mut driver, &mut random);
        // Ended by libxl before the guest stops, or behind that, or when all
        // was saved already.
        if round % 3 > 0 {
            here.0.suspend(Duration::ZERO).unwrap();
        }
        if round % 3 > 1 {
            let _saved = carried(&here.0.save().unwrap());
        }
        here.0.domain().disable_log_dirty();
        here.0.go_on().unwrap();
        assert_eq!(has(), before);
    }
    finish(&mut driver);
    assert!(here.0.scheduled().tables.traps > 0);
    let (TableState::Ram { gfn: was, .. }, TableState::Ram { gfn, .. }) =
        (ram, here.0.server().table())
    else {
        panic!("{:?}", here.0.server().table());
    };
    assert_eq!(gfn, was);
    assert_eq!(here.0.failure(), None);
}

#[test]
fn a_damaged_state_is_refused_or_harms_nobody() {
    let host = SimHost::start(SimHostConfig::default()).unwrap();
    let config = SimGuestConfig::default();
    let here = SharedGuest(Arc::new(SimGuest::start(&host, &config).unwrap()));
    let mut driver = Driver::start(here.clone(), Frames::new(256, 4096), 4).unwrap();
    let mut random = Random::new(2);
    work(&mut driver, &mut random);
    here.0.suspend(LIMIT).unwrap();
    let saved = here.0.save().unwrap();
    let mut refused = 0;
    for round in 0..12 {
        let mut bad = saved.clone();
        // Digits, mostly: what is JSON all the same.
        let at = random.below(u32::try_from(bad.device.len()).unwrap()) as usize;
        let digits = bad.device.iter().skip(at).position(u8::is_ascii_digit);
        bad.device[at + digits.unwrap_or(0)] ^= 1 << (round % 3);
        let writer = bad.writer().unwrap();
        let mut bytes = writer.finish(Before::default()).unwrap();
        if round % 4 == 0 {
            let bit = random.below(u32::try_from(bytes.len() * 8).unwrap()) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let restored = Saved::parse(&bytes).map_err(Into::into).and_then(|saved| {
            SimGuest::restore(&host, &config, &saved, |to| copy(here.0.domain(), to))
        });
        match restored {
            Ok(guest) => drop(guest),
            Err(e) => {
                let text = format!("{e:#}");
                assert!(!text.is_empty() && !text.contains('\n'), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3, "{refused}");
    // The guest it came from, and the host, are well.
    here.0.go_on().unwrap();
    finish(&mut driver);
    assert_eq!(here.0.failure(), None);
}
