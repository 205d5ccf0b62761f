//! From the first dword to its row in a few loads.

use super::gen9::GEN9_ONLY;
use super::{BLT, Command, MEDIA, MI, RENDER, VIDEO};
use crate::Engine;

/// No row.
const NONE: u8 = u8::MAX;

/// The bits below the client.
const OPCODE: u32 = 0x1fff_ffff;

/// The rows of `engine` by the bits of the opcode from `low` to 28. A row
/// whose mask has fewer bits stands for all it matches, unless another says
/// more.
const fn build<const N: usize>(rows: &[Command], client: u32, low: u32, engine: Engine) -> [u8; N] {
    let mut index = [NONE; N];
    // From the widest to the narrowest, so that the narrower counts.
    let masks = [0xf800_0000, 0xff00_0000, u32::MAX << low];
    let mut m = 0;
    while m < masks.len() {
        let mut row = 0;
        while row < rows.len() {
            let c = &rows[row];
            if c.mask == masks[m] && c.value >> 29 == client && c.engines.contains(engine) {
                let mut code = ((c.value & OPCODE) >> low) as usize;
                let last = code + (!c.mask >> low) as usize;
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

/// Rows with where each opcode's is, for each client.
struct Part {
    rows: &'static [Command],
    index: &'static [u8],
}

impl Part {
    const fn new(rows: &'static [Command], index: &'static [u8]) -> Self {
        Self { rows, index }
    }

    #[inline]
    fn get(&self, dw0: u32, low: u32) -> Option<&'static Command> {
        let row = *self.index.get(((dw0 & OPCODE) >> low) as usize)?;
        self.rows.get(usize::from(row))
    }
}

/// The rows of a generation by client and engine.
pub(super) struct Index {
    mi: [Part; Engine::COUNT],
    blt: Part,
    render: Part,
    media: Part,
    vcs: Part,
    vecs: Part,
}

/// An index over these rows.
macro_rules! index {
    ($mi:expr, $blt:expr, $render:expr, $media:expr, $video:expr) => {
        Index {
            mi: [
                Part::new($mi, &const { build::<64>($mi, 0, 23, Engine::ALL[0]) }),
                Part::new($mi, &const { build::<64>($mi, 0, 23, Engine::ALL[1]) }),
                Part::new($mi, &const { build::<64>($mi, 0, 23, Engine::ALL[2]) }),
                Part::new($mi, &const { build::<64>($mi, 0, 23, Engine::ALL[3]) }),
            ],
            blt: Part::new($blt, &const { build::<128>($blt, 2, 22, Engine::Bcs) }),
            render: Part::new(
                $render,
                &const { build::<8192>($render, 3, 16, Engine::Rcs) },
            ),
            media: Part::new($media, &const { build::<8192>($media, 3, 16, Engine::Rcs) }),
            vcs: Part::new($video, &const { build::<8192>($video, 3, 16, Engine::Vcs) }),
            vecs: Part::new(
                $video,
                &const { build::<8192>($video, 3, 16, Engine::Vecs) },
            ),
        }
    };
}

/// Gen8's commands.
pub(super) static GEN8: Index = index!(MI, BLT, RENDER, MEDIA, VIDEO);
/// What Gen9 has in another form, or besides.
pub(super) static GEN9: Index = index!(GEN9_ONLY, GEN9_ONLY, GEN9_ONLY, GEN9_ONLY, GEN9_ONLY);

/// Bits 28:27 of a media packet of the render engine.
const MEDIA_PIPELINE: u32 = 2;

impl Index {
    /// The row for `dw0` on `engine`.
    #[inline]
    pub(super) fn find(&self, engine: Engine, dw0: u32) -> Option<&'static Command> {
        match (dw0 >> 29, engine) {
            (0, _) => self.mi.get(engine.index())?.get(dw0, 23),
            (2, Engine::Bcs) => self.blt.get(dw0, 22),
            (3, Engine::Rcs) if dw0 >> 27 & 3 == MEDIA_PIPELINE => self.media.get(dw0, 16),
            (3, Engine::Rcs) => self.render.get(dw0, 16),
            (3, Engine::Vcs) => self.vcs.get(dw0, 16),
            (3, Engine::Vecs) => self.vecs.get(dw0, 16),
            _ => None,
        }
    }
}
