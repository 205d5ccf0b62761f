//! Commands as i915 writes them.

use guest_driver::Batch;

/// Where a guest's global table maps something: behind the 22 pages of its
/// first context's image.
pub const MAPPED: u32 = 23 << 12;

const ARB_ON_OFF: u32 = 0x08 << 23;
const ARB_CHECK: u32 = 0x05 << 23;
const PIPE_CONTROL: u32 = 0x7a00_0004;
const CS_STALL: u32 = 1 << 20;

/// A render request's part of the ring (Linux `gt/gen8_engine_cs.c:
/// gen8_emit_flush_rcs`, `gen8_emit_init_breadcrumb`, `gen8_emit_bb_start`,
/// `gen8_emit_fini_breadcrumb_rcs`), of number `seqno`.
pub fn request(seqno: u32) -> Vec<u32> {
    let mut batch = Batch::new();
    batch
        .raw(&[PIPE_CONTROL, CS_STALL, 0, 0, 0, 0])
        // MI_STORE_DATA_IMM into the timeline.
        .raw(&[0x1040_0002, MAPPED, 0, seqno])
        .raw(&[ARB_CHECK, 0])
        .raw(&[ARB_ON_OFF | 1])
        .start(0x12_3456_7000)
        .raw(&[ARB_ON_OFF])
        .pipe_control_write(MAPPED, seqno)
        .interrupt()
        .raw(&[ARB_ON_OFF | 1, ARB_CHECK]);
    batch.finish()
}

/// Requests that fill so many bytes, no command across them.
pub fn ring(bytes: usize) -> Vec<u32> {
    let mut words = Vec::new();
    for seqno in 1.. {
        let next = request(seqno);
        if (words.len() + next.len()) * 4 > bytes {
            break;
        }
        words.extend(next);
    }
    words
}

/// A privileged batch of about so many bytes: state as in i915's golden
/// context (Linux `gt/gen8_renderstate.c`), registers, stores.
pub fn privileged(bytes: usize) -> Vec<u32> {
    // MI_STORE_DATA_IMM into the global table.
    state(bytes, &[0x1040_0002, MAPPED, 0, 7])
}

/// The same for a batch without privilege, with stores through its own tables.
pub fn user(bytes: usize) -> Vec<u32> {
    state(bytes, &[0x1000_0002, MAPPED, 0, 7])
}

fn state(bytes: usize, store: &[u32]) -> Vec<u32> {
    let mut batch = Batch::new();
    let mut piece = Batch::new();
    piece
        // 3DSTATE_CC_STATE_POINTERS, _SF, _CONSTANT_VS, _WM.
        .raw(&[0x780e_0000, 1])
        .raw(&[0x7813_0002, 0, 0, 0])
        .raw(&[0x7815_0009, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .raw(&[0x7814_0000, 0])
        .load_registers(&[(0x2600, 1), (0x2604, 2)])
        .raw(store)
        .raw(&[PIPE_CONTROL, CS_STALL, 0, 0, 0, 0]);
    let piece = piece.finish();
    for _ in 0..bytes / 4 / piece.len() {
        batch.raw(&piece);
    }
    batch.end();
    batch.finish()
}
