//! What the blitter tiles, a CPU reads in rows through a fence.

use gen8::fence::{self, Fence};

use super::{Blit, Surface, Tiling, bench};

/// The fence Linux would set over 1024 by 64 bytes at a page.
fn fence(page: u64, tiling: Tiling) -> Fence {
    let last = (page + 15) << 12;
    let y = if tiling == Tiling::Y {
        fence::TILE_Y
    } else {
        0
    };
    let pitch = u64::from(1024 / fence::PITCH_UNIT - 1);
    let register = (last | pitch) << 32 | page << 12 | y | fence::VALID;
    Fence::decode(register).unwrap().unwrap()
}

#[test]
fn a_tiled_copy_is_rows_again_behind_a_fence() {
    let mut b = bench();
    for tiling in [Tiling::X, Tiling::Y] {
        let before = b.fill(11);
        let surface = |page, tiling| Surface {
            page,
            pitch: 1024,
            tiling,
        };
        let blit = Blit {
            dst: surface(32, tiling),
            src: Some(surface(0, Tiling::Linear)),
            to: (0, 0),
            from: (0, 0),
            size: (256, 64),
            depth: 3,
            mask: 3,
            rop: 0xcc,
            colour: 0,
            clip: None,
        };
        b.run(&blit.packets());
        let (canvas, fence) = (b.canvas(), fence(32, tiling));
        let seen: Vec<u8> = (fence.start()..)
            .take(1024 * 64)
            .map(|at| canvas[usize::try_from(fence.locate(at).address).unwrap()])
            .collect();
        assert!(seen == before[..1024 * 64], "{tiling:?}");
    }
}
