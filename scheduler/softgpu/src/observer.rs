//! Each access of an engine to memory, for tests of isolation.

use std::fmt;

use gen8::Engine;

/// Why an engine reached memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// To load or save a context.
    Context,
    /// To follow a context's page tables.
    Tables,
    /// To fetch commands.
    Commands,
    /// A command said so.
    Data,
    /// To tell the driver what it did.
    Status,
}

/// One access that reached memory.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Whose.
    pub engine: Engine,
    /// What for.
    pub why: Why,
    /// Whether the address was one of the global table.
    pub global: bool,
    /// Whether it wrote.
    pub write: bool,
    /// The graphics address; 0 where there is none.
    pub address: u64,
    /// Where that is: a bus address.
    pub bus: u64,
    /// Bytes, which do not cross a page.
    pub len: usize,
    /// The header of the command that runs, or ran last (IPEHR).
    pub header: u32,
}

/// Who is told of each access. Only tests may have one: a driver could not.
pub trait Observer: fmt::Debug + Send + Sync {
    /// An engine has done this. Called on the engine's thread right after
    /// memory was reached; must not call back into the GPU.
    fn reached(&self, access: &Access);
}
