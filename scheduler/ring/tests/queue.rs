//! A ring against a plain queue, and a ring between two threads.

use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;
use vgpu_ring::{AreaConfig, Bells, PushError, Request, SharedArea, Wake};

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Pop,
    Arm,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        3 => Just(Step::Pop),
        1 => Just(Step::Arm),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(steps in steps(), slots in prop::sample::select(vec![2_u32, 4, 8])) {
        let area = SharedArea::create(AreaConfig { submit_slots: slots, complete_slots: 2 }).unwrap();
        let bells = Bells::new().unwrap();
        let mut device = area.device_end(bells.try_clone().unwrap());
        let mut daemon = area.daemon_end(bells);
        let capacity = usize::try_from(slots).unwrap();
        let mut queue = VecDeque::new();
        for step in steps {
            match step {
                Step::Push(token) => {
                    let pushed = device.requests.push(Request::Ping { token });
                    if queue.len() == capacity {
                        prop_assert_eq!(pushed, Err(PushError::Full));
                    } else {
                        prop_assert_eq!(pushed, Ok(()));
                        queue.push_back(token);
                    }
                }
                Step::Pop => {
                    let expected = queue.pop_front().map(|token| Request::Ping { token });
                    prop_assert_eq!(daemon.requests.pop(), Ok(expected));
                }
                Step::Arm => {
                    prop_assert_eq!(daemon.requests.arm(), Ok(!queue.is_empty()));
                    if queue.is_empty() {
                        daemon.requests.disarm();
                    }
                }
            }
            let free = u64::try_from(capacity - queue.len()).unwrap();
            prop_assert_eq!(device.requests.free(), Ok(free));
        }
    }
}

#[test]
fn nothing_is_lost_between_threads() {
    const COUNT: u64 = 100_000;
    let area = SharedArea::create(AreaConfig {
        submit_slots: 8,
        complete_slots: 2,
    })
    .unwrap();
    let bells = Bells::new().unwrap();
    let mut requests = area.device_end(bells.try_clone().unwrap()).requests;
    let mut daemon = area.daemon_end(bells).requests;
    thread::scope(|s| {
        s.spawn(move || {
            let mut token = 0;
            while token < COUNT {
                match requests.push(Request::Ping { token }) {
                    Ok(()) => token += 1,
                    Err(PushError::Full) => thread::yield_now(),
                    Err(PushError::Broken(e)) => panic!("{e}"),
                }
            }
        });
        let mut next = 0;
        while next < COUNT {
            assert_ne!(daemon.wait(None), Ok(Wake::TimedOut));
            while let Some(request) = daemon.pop().unwrap() {
                assert_eq!(request, Request::Ping { token: next });
                next += 1;
            }
        }
    });
}
