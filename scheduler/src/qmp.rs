//! The QMP proxy: stands between libxl and a guest's QEMU.
//!
//! libxl drives save, restore and migration by QMP commands, so whoever sits
//! on that socket can act at the right moments ([`Hooks`]). Everything else
//! passes: bytes unchanged, descriptors with the message they came with,
//! events and the greeting.
//!
//! One client is served at a time, as QEMU does; others wait in the
//! listener's queue. QEMU's socket is connected to when a client comes.

mod frame;
mod hooks;
mod proxy;
mod session;
mod stream;
#[cfg(test)]
mod tests;

pub use frame::{Frame, FrameError, Framer, MAX_MESSAGE};
pub use hooks::{Hooks, Verdict};
pub use proxy::{Proxy, ProxyError};
