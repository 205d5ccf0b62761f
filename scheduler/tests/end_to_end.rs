//! One guest's work through the scheduler and the software GPU.

mod driver;

use std::time::Duration;

use driver::{Host, cmd};
use gen8::{Engine, lrc};
use vgpu_ring::Event;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_store_in_the_ring_reaches_the_guest_and_is_reported_in_order() {
    let host = Host::new(LIMIT);
    let mut guest = host.guest(1, 256);
    for engine in Engine::ALL {
        let mut c = guest.context(engine, 1);
        let (gpa, address) = guest.global_page();
        guest.emit(&mut c, &cmd::store_global(address + 0x10, 0xcafe));
        guest.emit(&mut c, &[cmd::USER_INTERRUPT, 0]);
        let events = guest.run(&c);
        let e = engine.index().try_into().unwrap();
        assert_eq!(
            events,
            [
                Event::Interrupt { engine: e, bits: 1 },
                Event::ContextDone {
                    engine: e,
                    element: 0,
                    seq: u64::from(e) + 1
                }
            ]
        );
        assert_eq!(guest.read(gpa + 0x10), 0xcafe);
        assert_eq!(guest.image(&c, lrc::RING_HEAD), c.tail);
        assert_eq!(guest.image(&c, lrc::CONTEXT_CONTROL) & 1, 0);
    }
}
