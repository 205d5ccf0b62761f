//! An engine that does not come back from a reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gen8::{Engine, ring};
use gpu_bus::Gpu;
use vgpu_ring::FaultReason;

use crate::driver::{Host, OWN_WINDOWS, cmd};

/// A GPU whose render engine can be made deaf to resets.
pub struct Deaf {
    pub gpu: Arc<dyn Gpu>,
    pub deaf: AtomicBool,
}

impl Deaf {
    fn hears(&self, offset: u32) -> bool {
        offset != Engine::Rcs.mmio_base() + ring::RESET_CTL || !self.deaf.load(Ordering::SeqCst)
    }
}

impl Gpu for Deaf {
    fn read32(&self, offset: u32) -> u32 {
        if self.hears(offset) {
            self.gpu.read32(offset)
        } else {
            0
        }
    }
    fn write32(&self, offset: u32, value: u32) {
        if self.hears(offset) {
            self.gpu.write32(offset, value);
        }
    }
    fn read64(&self, offset: u32) -> u64 {
        self.gpu.read64(offset)
    }
    fn write64(&self, offset: u32, value: u64) {
        self.gpu.write64(offset, value);
    }
}

#[test]
fn it_is_out_of_use_and_what_it_may_reach_is_never_reused() {
    let host = Host::new();
    let mut bad = host.guest(1, 256);
    let mut good = host.guest(2, 256);
    let mut c = bad.context(Engine::Rcs, 1);
    let code = bad.pages(1);
    bad.map(&c, 1 << 20, code);
    bad.write_words(code, &cmd::batch(1 << 20));
    bad.emit(&mut c, &cmd::batch(1 << 20));
    bad.submit(&c, None);
    host.deaf.deaf.store(true, Ordering::SeqCst);
    bad.reset(1);
    drop(bad);

    let view = host.scheduler.inspect();
    assert!(view.engines[0].dead.as_ref().unwrap().contains("rcs0"));
    // The windows and pages of the workload are still taken.
    assert_eq!(view.windows.pinned, OWN_WINDOWS + 2);
    // The guest's memory is not on the bus, whatever the engine does.
    assert_eq!(view.chunks, 1);

    // Others get an answer there, and work elsewhere.
    let mut r = good.context(Engine::Rcs, 1);
    good.emit(&mut r, &[0, 0]);
    assert_eq!(good.fails(&r).0, FaultReason::TimedOut);
    let mut b = good.context(Engine::Bcs, 1);
    let (gpa, address) = good.global_page();
    good.emit(&mut b, &cmd::store_global(address, 1));
    good.run(&b);
    assert_eq!(good.read(gpa), 1);
}
