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

#[test]
fn work_goes_on_where_the_guest_does() {
    let slow = SimHostConfig {
        command_cost_ns: 20_000,
        ..SimHostConfig::default()
    };
    let hosts = [(); 2].map(|()| SimHost::start(slow.clone()).unwrap());
    let config = SimGuestConfig::default();
    let mut random = Random::new(11);
    let guest = SimGuest::start(&hosts[0], &config).unwrap();
    let mut here = SharedGuest(Arc::new(guest));
    let mut driver = Driver::start(here.clone(), Frames::new(256, 4096), 3).unwrap();
    let mut done = 0;
    let mut put_back = 0;
    let mut in_flight = 0;
    for trip in 1..=12 {
        done += work(&mut driver, &mut random);
        here.0.begin_save().unwrap();
        done += work(&mut driver, &mut random);
        put_back += here.0.suspend(LIMIT).unwrap().put_back;
        in_flight += usize::from(!driver.idle());
        let there = moved(&here.0, &hosts[trip % 2], &config);
        driver = driver.moved(there.clone());
        assert_eq!(here.0.failure(), None);
        here = there;
    }
    done += finish(&mut driver);
    assert_eq!(here.0.failure(), None);
    assert_eq!(here.0.scheduled().refusals, Vec::<String>::new());
    assert!(
        done > 50 && put_back > 5 && in_flight > 5,
        "{done} {put_back} {in_flight}"
    );
}

#[test]
fn a_save_that_comes_to_nothing_leaves_the_guest_at_work() {
    let slow = SimHostConfig {
        command_cost_ns: 20_000,
        ..SimHostConfig::default()
    };
    let host = SimHost::start(slow).unwrap();
    let config = SimGuestConfig::default();
    let mut random = Random::new(5);
    let here = SharedGuest(Arc::new(SimGuest::start(&host, &config).unwrap()));
    let mut driver = Driver::start(here.clone(), Frames::new(256, 4096), 4).unwrap();
    let has = || here.0.domain().current_reservation();
    let before = has();
    let ram = here.0.server().table();
    for round in 0..9 {
        work(&mut driver, &mut random);
        here.0.begin_save().unwrap();
        assert_eq!(
            (has(), here.0.server().table()),
            (before - 2048, TableState::Trapped)
        );
        work(&mut driver, &mut random);
        // Ended by libxl before the guest stops, or behind that, or when all
        // was saved already.
        if round % 3 > 0 {
            here.0.suspend(LIMIT).unwrap();
        }
        if round % 3 > 1 {
            let _saved = carried(&here.0.save().unwrap());
        }
        here.0.go_on().unwrap();
        assert_eq!(has(), before);
    }
    finish(&mut driver);
    let (TableState::Ram { gfn: was, .. }, TableState::Ram { gfn, .. }) =
        (ram, here.0.server().table())
    else {
        panic!("{:?}", here.0.server().table());
    };
    assert_eq!(gfn, was);
    assert_eq!(here.0.failure(), None);
}
