//! From the first dword to its row in a few loads.

use super::{BLT, Command, MEDIA, MI, RENDER, VIDEO};
use crate::Engine;

/// No row.
const NONE: u8 = u8::MAX;

/// The bits below the client.
const OPCODE: u32 = 0x1fff_ffff;

/// The rows of `engine` by the bits of the opcode from `low` to 28. A row
/// whose mask has fewer bits stands for all it matches, unless another says
/// more.
const fn build<const N: usize>(rows: &[Command], low: u32, engine: Engine) -> [u8; N] {
    let mut index = [NONE; N];
    // From the widest to the narrowest, so that the narrower counts.
    let masks = [0xf800_0000, 0xff00_0000, u32::MAX << low];
    let mut m = 0;
    while m < masks.len() {
        let mut row = 0;
        while row < rows.len() {
            if rows[row].mask == masks[m] && rows[row].engines.contains(engine) {
                let mut code = ((rows[row].value & OPCODE) >> low) as usize;
                let last = code + (!rows[row].mask >> low) as usize;
                while code <= last {
                    index[code] = byte(row);
                    code += 1;
                }
            }
            row += 1;
        }
        m += 1;
    }
    index
}

/// A row's number; more rows than fit do not compile.
const fn byte(row: usize) -> u8 {
    assert!(row < NONE as usize, "too many rows for an index of bytes");
    row.to_le_bytes()[0]
}

static RENDER_INDEX: [u8; 8192] = build(RENDER, 16, Engine::Rcs);
static MEDIA_INDEX: [u8; 8192] = build(MEDIA, 16, Engine::Rcs);
static VIDEO_INDEX: [u8; 8192] = build(VIDEO, 16, Engine::Vcs);
static ENHANCER_INDEX: [u8; 8192] = build(VIDEO, 16, Engine::Vecs);
static BLT_INDEX: [u8; 128] = build(BLT, 22, Engine::Bcs);
static MI_INDEX: [[u8; 64]; 4] = {
    let mut all = [[NONE; 64]; 4];
    let mut i = 0;
    while i < all.len() {
        let engine = Engine::ALL[i];
        all[engine.index()] = build(MI, 23, engine);
        i += 1;
    }
    all
};

/// Bits 28:27 of a media packet of the render engine.
const MEDIA_PIPELINE: u32 = 2;

/// The row for `dw0` on `engine`.
#[inline]
pub(super) fn find(engine: Engine, dw0: u32) -> Option<&'static Command> {
    if dw0 == 0 {
        // Padding, by far the most frequent.
        return MI.first();
    }
    let code = |low: u32| ((dw0 & OPCODE) >> low) as usize;
    let (rows, row): (&'static [Command], _) = match (dw0 >> 29, engine) {
        (0, _) => (MI, MI_INDEX.get(engine.index())?.get(code(23))),
        (2, Engine::Bcs) => (BLT, BLT_INDEX.get(code(22))),
        (3, Engine::Rcs) if dw0 >> 27 & 3 == MEDIA_PIPELINE => (MEDIA, MEDIA_INDEX.get(code(16))),
        (3, Engine::Rcs) => (RENDER, RENDER_INDEX.get(code(16))),
        (3, Engine::Vcs) => (VIDEO, VIDEO_INDEX.get(code(16))),
        (3, Engine::Vecs) => (VIDEO, ENHANCER_INDEX.get(code(16))),
        _ => return None,
    };
    rows.get(usize::from(*row?))
}
