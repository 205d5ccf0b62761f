//! Frames that the host cannot map.

use std::sync::Mutex;

use guest_memory::{GuestMemory, MemoryError, VecMemory};

use super::rig::Rig;
use super::*;
use crate::sync::lock;

/// Memory of which one frame is paged out.
struct Paged {
    memory: VecMemory,
    away: Mutex<Option<Gfn>>,
}

impl GuestMemory for Paged {
    fn read(&self, gpa: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        let gfn = Gfn::containing(gpa);
        if *lock(&self.away) == Some(gfn) {
            let reason = "paged out, and stays so".into();
            return Err(MemoryError::Host { gfn, reason });
        }
        self.memory.read(gpa, buf)
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(gpa, data)
    }
}

/// A context's ring or register page is on disk: the context is refused with
/// that reason, holds nothing, and runs when the page is back.
#[test]
fn a_page_on_disk_is_no_missing_page() {
    let memory = Arc::new(Paged {
        memory: VecMemory::new(PAGES),
        away: Mutex::default(),
    });
    let rig = Rig::new(Arc::clone(&memory) as _);
    rig.set(lrc::RING_TAIL, 8);
    let run = |away: Option<u64>| {
        *lock(&memory.away) = away.map(Gfn);
        rig.prepare(&mut Shadow::default()).map(drop)
    };
    for (gfn, address) in [(2, 0x2000), (41, 41 << 12)] {
        let error = run(Some(gfn)).unwrap_err();
        let gfn = Gfn(gfn);
        assert_eq!(error, NotMapped::Away { address, gfn }.into());
        assert_eq!(rig.windows.counts().pinned, 0);
    }
    assert_eq!(run(None), Ok(()));
}
