//! The switch of an engine's registers between guests.
//!
//! [`RegisterFile`] is what one vGPU wants in one engine's registers,
//! [`Effects`] what one of its workloads does to them by commands, and
//! [`Switcher`] brings the GPU from one vGPU to the next. Which registers
//! there are and how each behaves is data: `gen8::switched`.

mod bits;
mod delta;
mod digest;
mod effects;
mod file;
mod grant;
mod handover;
mod image;
mod layout;
mod mode;
mod plain;
mod switcher;

pub use effects::Effects;
pub(crate) use effects::Saved;
pub use file::RegisterFile;
pub use grant::allowed_nonpriv;
pub use handover::{MAX_PROLOGUE, prologue_commands};
pub use mode::{SwitchMode, UnknownMode};
pub use switcher::{SwitchCost, Switcher};

use gen8::Engine;
use gen8::switched::Table;

/// The engine whose switch carries the register of `table` at `offset` over,
/// if a guest may set it.
#[must_use]
pub fn engine_of(table: &Table, offset: u32) -> Option<Engine> {
    let found = table.find(offset).filter(|s| !s.is_volatile());
    found.map(|s| s.row.engine)
}

#[cfg(test)]
mod tests;
