//! Frames that the host cannot map.

use std::sync::Mutex;

use guest_memory::{GuestMemory, MemoryError, VecMemory};

use super::rig::Rig;
use vgpu_ring::FaultReason;

use super::*;
use crate::ppgtt::ShadowError;
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

/// A table of a context is on disk: not taken for an empty one.
#[test]
fn a_page_table_on_disk_is_no_empty_one() {
    let memory = Arc::new(Paged {
        memory: VecMemory::new(PAGES),
        away: Mutex::default(),
    });
    let rig = Rig::new(Arc::clone(&memory) as _);
    rig.set(lrc::RING_TAIL, 8);
    memory.write_u64(8 << 12, 9 << 12 | 3).unwrap();
    for gfn in [8, 9].map(Gfn) {
        *lock(&memory.away) = Some(gfn);
        let error = rig.prepare(&mut Shadow::default()).map(drop).unwrap_err();
        assert_eq!(error, ShadowError::Away { gfn }.into());
        assert_eq!(error.reason(), FaultReason::Unmapped);
        assert_eq!(rig.windows.counts().pinned, 0);
    }
    *lock(&memory.away) = None;
    assert!(rig.prepare(&mut Shadow::default()).is_ok());
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
