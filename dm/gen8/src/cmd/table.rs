//! The commands of a generation.

use super::index::{self, Index};
use super::{BLT, Command, MEDIA, MI, RENDER, VIDEO, Walk};
use crate::Engine;

/// The commands that a generation of GPUs has.
pub struct Table {
    /// Its name.
    pub name: &'static str,
    base: &'static Index,
    /// Looked at first.
    own: Option<&'static Index>,
    own_rows: &'static [Command],
}

/// Broadwell's commands.
pub static GEN8: Table = Table {
    name: "gen8",
    base: &index::GEN8,
    own: None,
    own_rows: &[],
};

/// Kaby Lake's commands: Gen8's, and those of Gen9 instead where they differ.
pub static GEN9: Table = Table {
    name: "gen9",
    base: &index::GEN8,
    own: Some(&index::GEN9),
    own_rows: super::gen9::GEN9_ONLY,
};

/// Gen8's rows, by client.
pub static CLIENTS: [(&str, &[Command]); 5] = [
    ("MI", MI),
    ("Blitter", BLT),
    ("Render", RENDER),
    ("Media and GPGPU", MEDIA),
    ("Video", VIDEO),
];

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl Table {
    /// The command that `dw0` starts on `engine`, or `None` when the command
    /// streamer cannot decode it.
    #[must_use]
    #[inline]
    pub fn decode(&self, engine: Engine, dw0: u32) -> Option<&'static Command> {
        if dw0 == 0 {
            // Padding, by far the most frequent.
            return MI.first();
        }
        self.own
            .and_then(|own| own.find(engine, dw0))
            .or_else(|| self.base.find(engine, dw0))
    }

    /// The commands in `words`, which `engine` would run one after the other.
    ///
    /// It goes on behind MI_BATCH_BUFFER_END: what stands there may be
    /// reached by a jump. No allocation; never past the end.
    #[must_use]
    pub const fn walk<'a>(&'static self, engine: Engine, words: &'a [u32]) -> Walk<'a> {
        Walk::new(self, engine, words)
    }

    /// Every row: first the generation's own, then those of Gen8 that it has
    /// no other form of.
    pub fn rows(&self) -> impl Iterator<Item = &'static Command> + use<> {
        let own = self.own_rows;
        let base = CLIENTS.iter().flat_map(|(_, rows)| *rows);
        let replaced = move |c: &Command| own.iter().any(|o| o.name == c.name);
        own.iter().chain(base.filter(move |c| !replaced(c)))
    }
}
