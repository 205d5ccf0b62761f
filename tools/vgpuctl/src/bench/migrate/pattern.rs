//! What guests draw: who writes which pages when.
//!
//! A tick is a 240th of a second. Sizes are parts of the guest's graphics
//! memory, so that a larger memory is a busier guest.

use std::time::Duration;

/// Ticks of a second.
const HZ: u32 = 240;

/// A way to use graphics memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Windows: two programs at a time redraw theirs, a third of each changes,
    /// and a compositor shows them.
    Desktop,
    /// A decoder writes surface after surface of a ring, 60 a second, and a
    /// compositor shows them. All of it changes.
    Video,
    /// A tenth of a second of results over a third of the memory, then a
    /// pause of three times that.
    ComputeBurst,
    /// Textures are written again and again as they come from disk, most of
    /// them with what was there; a frame is drawn from them.
    Streaming,
}

/// Pages that a context can write: the first, and how many.
pub type Range = (u64, u64);

/// A rectangle filled: pages of one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The context that does it.
    pub context: usize,
    /// The pages.
    pub pages: Range,
    /// What they are filled with. The same again changes nothing.
    pub colour: u32,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Desktop,
        Self::Video,
        Self::ComputeBurst,
        Self::Streaming,
    ];

    /// As figures call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Desktop => "desktop",
            Self::Video => "video",
            Self::ComputeBurst => "compute_burst",
            Self::Streaming => "streaming",
        }
    }

    /// When tick `n` is.
    pub fn at(n: u32) -> Duration {
        Duration::from_secs(1) * n / HZ
    }

    /// What each context can write, of `all` pages. What no context here can
    /// write belongs to some that wrote once and do not run now.
    pub fn writable(self, all: u64) -> Vec<Vec<Range>> {
        let part = |n: u64, of: u64| all * n / of;
        // The compositor's two frames, and what it shows.
        let frames = (0, part(1, 32));
        match self {
            Self::Desktop => {
                let program = |i: u64| vec![(part(2 + i, 16), part(1, 16))];
                let mut contexts = vec![vec![frames, (part(2, 16), part(6, 16))]];
                contexts.extend((0..6).map(program));
                contexts
            }
            Self::Video => {
                let ring = (part(1, 8), part(1, 4));
                vec![vec![frames, ring], vec![ring]]
            }
            Self::ComputeBurst => vec![vec![frames], vec![(part(1, 8), part(5, 8))]],
            Self::Streaming => vec![vec![frames], vec![(part(1, 8), part(3, 4))]],
        }
    }

    /// What is drawn at tick `n`, of `all` pages.
    pub fn tick(self, n: u32, all: u64) -> Vec<Fill> {
        let part = |n: u64, of: u64| all * n / of;
        let mut fills = Vec::new();
        let mut fill = |context, first, pages: u64, colour| {
            let pages = (first, pages.max(1));
            fills.push(Fill {
                context,
                pages,
                colour,
            });
        };
        let frame = n / 4;
        let back = u64::from(frame % 2) * part(1, 64);
        match (self, n % 4) {
            // A third of what is shown is new.
            (Self::Desktop, 3) => fill(0, back, part(1, 192), frame),
            (Self::Desktop, phase @ (0 | 1)) => {
                // Two seconds each.
                let program = (frame / 120 * 2 + phase) % 6;
                let first = part(2 + u64::from(program), 16);
                let (new, all) = (part(1, 192), part(1, 64));
                let context = 1 + usize::try_from(program).unwrap_or(0);
                fill(context, first, new, frame);
                fill(context, first + new, all - new, program + 1);
            }
            (Self::Video, 0) => {
                let surface = u64::from(frame % 16) * part(1, 64);
                fill(1, part(1, 8) + surface, part(1, 64), frame);
            }
            (Self::Video, 2) => fill(0, back, part(1, 64), frame),
            (Self::ComputeBurst, _) if n % 96 < 24 => {
                let at = u64::from(n % 24) * part(1, 72);
                fill(1, part(1, 8) + at, part(1, 72), n);
            }
            (Self::ComputeBurst, 0) => fill(0, back, part(1, 128), frame),
            (Self::Streaming, 1 | 3) => {
                // Two of five textures are new ones.
                let slot = (n / 2) % 256;
                let colour = if slot % 5 < 2 { n } else { slot + 1 };
                let first = part(1, 8) + u64::from(slot) * part(1, 384);
                fill(1, first, part(1, 384), colour);
            }
            (Self::Streaming, 2) => fill(0, back, part(1, 64), frame),
            _ => {}
        }
        fills
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is what its context can write.
    #[test]
    fn contexts_write_what_they_can() {
        for all in [32768, 131_072, 524_288] {
            for pattern in Pattern::ALL {
                let writable = pattern.writable(all);
                for n in 0..2000 {
                    for fill in pattern.tick(n, all) {
                        let (first, pages) = fill.pages;
                        let inside = |&(from, len): &Range| {
                            from <= first && first + pages <= from + len && from + len <= all
                        };
                        assert!(
                            writable[fill.context].iter().any(inside),
                            "{pattern:?}, tick {n}: {fill:?}"
                        );
                    }
                }
            }
        }
    }
}
