//! What takes long to prepare.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gen8::Engine;
use guest_memory::{GuestMemory, MemoryError, VecMemory};
use vgpu_ring::Request;
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Guest, Host, cmd};

/// Longest that somebody is held up: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A guest's memory of which a page can be made to keep its readers.
struct Sticky {
    memory: Arc<VecMemory>,
    state: Mutex<Stuck>,
    changed: Condvar,
}

#[derive(Default)]
struct Stuck {
    page: Option<u64>,
    readers: usize,
}

impl Sticky {
    fn hold(&self, page: u64) {
        self.state.lock().unwrap().page = Some(page);
    }

    fn until_read(&self) {
        let state = self.state.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(state, PATIENCE, |s| s.readers == 0);
        assert!(!wait.unwrap().1.timed_out());
    }

    fn let_go(&self) {
        self.state.lock().unwrap().page = None;
        self.changed.notify_all();
    }
}

impl GuestMemory for Sticky {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let mut state = self.state.lock().unwrap();
        if state.page == Some(gpa & !0xfff) {
            state.readers += 1;
            self.changed.notify_all();
            let held = |s: &mut Stuck| s.page.is_some();
            let (mut state, wait) = self
                .changed
                .wait_timeout_while(state, PATIENCE, held)
                .unwrap();
            state.readers -= 1;
            assert!(!wait.timed_out());
        }
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(gpa, data)
    }
}

#[test]
fn it_does_not_hold_up_the_requests_behind_it() {
    let host = Host::new();
    let memory = Arc::new(VecMemory::new(256));
    let sticky = Arc::new(Sticky {
        memory: Arc::clone(&memory),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let config = VgpuConfig {
        id: 1,
        ..VgpuConfig::default()
    };
    let mut guest = Guest::seen_as(&host.scheduler, config, memory, Arc::clone(&sticky) as _);
    let mut rcs = guest.context(Engine::Rcs, 1);
    let (data, address) = guest.global_page();
    guest.emit(&mut rcs, &cmd::store_global(address, 1));

    // Known to take long is what has done so.
    sticky.hold(rcs.ring);
    let first = Request::Submit {
        engine: 0,
        seq: 0,
        desc: [rcs.descriptor, 0],
    };
    std::thread::scope(|scope| {
        scope.spawn(|| guest.handle.handle(first).unwrap());
        sticky.until_read();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            std::thread::yield_now();
        }
        sticky.let_go();
    });
    guest.wait(0, 0);
    assert_eq!(guest.read(data), 1);

    sticky.hold(rcs.ring);
    guest.emit(&mut rcs, &cmd::store_global(address, 2));
    let long = guest.submit(&rcs, None);
    sticky.until_read();
    let mut bcs = guest.context(Engine::Bcs, 1);
    let (other, at) = guest.global_page();
    guest.emit(&mut bcs, &cmd::store_global(at, 3));
    guest.run(&bcs);
    assert_eq!((guest.read(data), guest.read(other)), (1, 3));
    sticky.let_go();
    guest.wait(long, 0);
    assert_eq!(guest.read(data), 2);
}
