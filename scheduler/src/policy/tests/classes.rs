//! Priority classes.

use vgpu_config::Priority;

use super::*;

fn class(priority: Priority) -> Share {
    Share {
        priority,
        ..Share::default()
    }
}

#[test]
fn low_runs_in_what_the_others_leave() {
    let mut s = Simulation::new(1);
    let low = s.guest(class(Priority::Low), Load::steady(us(100)));
    let normal = s.guest(
        class(Priority::Normal),
        Load::steady(us(100)).sleeping(10, ms(1)),
    );
    s.run(ms(1000));
    // Half of the time is left, and only begun work is waited for.
    let had = s.total(normal);
    assert!(had > ms(470), "{had:?}");
    assert!(s.total(low) > ms(450));
    let waits = s.ran.iter().filter(|r| r.vgpu == normal);
    assert!(waits.clone().all(|r| r.start - r.ready <= us(100)));
}

#[test]
fn low_gets_nothing_while_another_wants_all() {
    let mut s = Simulation::new(2);
    let low = s.guest(class(Priority::Low), Load::steady(us(100)).from(ms(1)));
    s.guest(class(Priority::Normal), Load::steady(us(100)));
    s.run(ms(1000));
    assert_eq!(s.total(low), ms(0));
}

#[test]
fn high_goes_first_within_its_cap() {
    let mut s = Simulation::new(2);
    let share = Share {
        cap: 30,
        ..class(Priority::High)
    };
    let high = s.guest(share, Load::steady(us(200)));
    let a = s.guest(weight(100), Load::steady(us(100)));
    let b = s.guest(weight(100), Load::steady(us(300)));
    s.run(ms(5000));
    assert!(
        s.total(high).abs_diff(ms(1500)) < ms(40),
        "{:?}",
        s.total(high)
    );
    assert!(s.total(a).abs_diff(s.total(b)) < ms(3));
}

#[test]
fn within_a_class_weights_decide() {
    for priority in [Priority::Low, Priority::High] {
        let mut s = Simulation::new(2);
        let [a, b] = [100, 300].map(|weight| {
            let share = Share {
                weight,
                ..class(priority)
            };
            s.guest(share, Load::steady(us(70)))
        });
        s.run(ms(1000));
        assert!(s.total(a).abs_diff(ms(250)) < ms(3));
        assert!(s.total(b).abs_diff(ms(750)) < ms(3));
    }
}

#[test]
fn who_changes_class_takes_its_debt_along() {
    let mut policy = Policy::new();
    for v in 1..3 {
        policy.set_share(v, class(Priority::Low), ms(0));
        policy.ready(v, ms(0));
    }
    assert_eq!(policy.take(ms(0)), Some(1));
    policy.charge(1, ms(50), ms(50));
    policy.ready(1, ms(50));
    for v in 1..3 {
        policy.set_share(v, class(Priority::Normal), ms(50));
    }
    let mut now = ms(50);
    for _ in 0..45 {
        assert_eq!(policy.take(now), Some(2));
        policy.ready(2, now);
        now += ms(1);
        policy.charge(2, ms(1), now);
    }
}
