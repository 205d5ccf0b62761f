//! The policy on a simulated engine.

mod caps;
mod classes;
mod fluid;
mod holds;
mod shares;
mod slices;
mod waking;

use std::time::Duration;

use vgpu_config::Share;

use super::Policy;
use super::simulation::{Load, Simulation};

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn weight(weight: u16) -> Share {
    Share {
        weight,
        ..Share::default()
    }
}

#[test]
fn each_gets_its_turn_before_anyone_gets_another() {
    let mut policy = Policy::new();
    let mut ran = Vec::new();
    for v in [1, 2, 3] {
        policy.ready(v, ms(0));
    }
    for i in 0..7 {
        let v = policy.take(ms(i)).unwrap();
        ran.push(v);
        policy.ready(v, ms(i));
        policy.charge(v, ms(1), ms(i + 1));
    }
    assert_eq!(ran, [1, 2, 3, 1, 2, 3, 1]);
}

#[test]
fn ready_twice_is_one_turn_and_a_removed_one_has_none() {
    let mut policy = Policy::new();
    policy.ready(1, ms(0));
    policy.ready(1, ms(0));
    policy.ready(2, ms(0));
    policy.ready(3, ms(0));
    assert_eq!(policy.waiting(), 3);
    policy.remove(1);
    policy.withdraw(3);
    assert_eq!(policy.take(ms(0)), Some(2));
    assert_eq!(policy.take(ms(0)), None);
    assert_eq!(policy.waiting(), 0);
}

#[test]
fn what_is_not_under_way_cannot_be_charged() {
    let mut policy = Policy::new();
    policy.ready(1, ms(0));
    policy.charge(1, ms(500), ms(0));
    policy.charge(7, ms(500), ms(0));
    policy.ready(2, ms(0));
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.remove(1);
    policy.charge(1, ms(1), ms(1));
    assert_eq!(policy.take(ms(1)), Some(2));
}

#[test]
fn a_long_life_of_many_guests_leaves_nothing_behind() {
    let mut policy = Policy::new();
    for v in 0..1000 {
        let now = ms(v);
        policy.set_share(v, weight(1 + u16::try_from(v).unwrap()), now);
        policy.ready(v, now);
        assert_eq!(policy.take(now), Some(v));
        match v % 3 {
            0 => policy.charge(v, ms(1), now),
            1 => policy.ready(v, now),
            _ => {}
        }
        policy.remove(v);
    }
    assert_eq!(policy.waiting(), 0);
    assert!(policy.claims.is_empty() && policy.flights.is_empty());
    assert!(policy.classes.iter().all(|c| c.weight() == 0));
}
