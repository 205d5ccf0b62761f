//! The format in which a vGPU's state travels and rests: see
//! `docs/migration-format.md`.
//!
//! A fixed header, sections, a trailer. A section has a name, a version and a
//! body that is none of this module's business. The trailer makes the stream
//! findable from the end of a file that begins with somebody else's bytes, as
//! QEMU's save file does.

mod error;
mod file;
mod header;
mod name;
mod reader;
mod section;
mod trailer;
mod wire;
mod writer;

pub use error::{Part, StreamError};
pub use file::{find, read_file};
pub use header::{Before, FORMAT, Header};
pub use name::Name;
pub use reader::{Known, Stream};
pub use section::{Section, read_section};
pub use writer::Writer;

/// Bytes a stream may have. A vGPU's state is a few hundred KiB; what the
/// guest waits for while it is stopped must not be more than a few MiB.
pub const MAX_LEN: u64 = 64 << 20;

#[cfg(test)]
mod tests;
