//! How far a GPU is, for those who come after its driver's process.
//!
//! Hardware goes on when its driver dies, and can be asked. A GPU that is part
//! of the driver's process dies with it, at any instant; so it says as it goes
//! what a context image would hold if the context were saved now.

/// Where a command stream is between two commands, as a context image has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Offset in the ring of the next command, in bytes.
    pub head: u32,
    /// Where the batch is that the ring started, and the one that called:
    /// address with bit 0 set, 0 for none; and the batch's state.
    pub batches: [(u64, u32); 2],
}

/// Takes notes of each engine. Called on that engine's thread.
///
/// Dwords of the GPU's own are those that it keeps in a context image where
/// the image is its own affair.
pub trait Journal: std::fmt::Debug + Send + Sync {
    /// Engine number `engine` was loaded with a context: its descriptor.
    fn began(&self, engine: usize, descriptor: u64);

    /// All commands before `place` are done, and of the next one no more than
    /// `effect` says. `own` are the GPU's own dwords, if they changed since the
    /// last call.
    fn did(&self, engine: usize, place: &Place, own: Option<&[u32]>, effect: &[u32]);

    /// The command at that place is about to do what it must not do twice.
    /// Dwords of the GPU's own, to follow the others: with them it finds out
    /// whether it has. None of them: there is no such thing.
    fn about(&self, engine: usize, effect: &[u32]);
}
