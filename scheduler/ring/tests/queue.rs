//! A ring against a plain queue, and a ring between two threads, over both
//! transports.
#![cfg(not(loom))]

mod transports;

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use transports::{BOTH, Pair};
use vgpu_ring::{
    Area, AreaConfig, AreaWords, Consumer, EventBell, Producer, PushError, Request, Wake,
};

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Pop,
    Sleep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        3 => Just(Step::Pop),
        1 => Just(Step::Sleep),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        steps in steps(),
        slots in prop::sample::select(vec![2_u32, 4, 8]),
        transport in prop::sample::select(BOTH.to_vec()),
    ) {
        let config = AreaConfig { submit_slots: slots, complete_slots: 2 };
        let Pair { mut daemon, mut device, area } = transport.pair(config);
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
                Step::Sleep => {
                    let woken = daemon.requests.wait(Some(Duration::ZERO));
                    let there = woken.map(|w| w == Wake::Message);
                    prop_assert_eq!(there, Ok(!queue.is_empty()));
                }
            }
            let free = u64::try_from(capacity - queue.len()).unwrap();
            prop_assert_eq!(device.requests.free(), Ok(free));
        }
        prop_assert_eq!(area.words().count(), Area::size(config).unwrap());
    }
}

#[test]
fn nothing_is_lost_between_threads() {
    for transport in BOTH {
        let pair = transport.pair(AreaConfig {
            submit_slots: 8,
            complete_slots: 2,
        });
        let (requests, daemon) = (pair.device.requests, pair.daemon.requests);
        // Sleeping at every chance, and polling as usual.
        cross(requests, daemon.with_spin(Duration::ZERO));
        let pair = transport.pair(AreaConfig::default());
        cross(pair.device.requests, pair.daemon.requests);
    }
}

fn cross(
    mut requests: Producer<Request, AreaWords, EventBell>,
    mut daemon: Consumer<Request, AreaWords, EventBell>,
) {
    const COUNT: u64 = 20_000;
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
