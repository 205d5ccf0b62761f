//! Register, command, context and page-table layouts of Gen8 and Gen9
//! graphics, as data.
//!
//! Nothing here acts. The device model, the scheduler and the software GPU
//! take their dispatch, checks and tests from these tables. Each fact names
//! where it was learnt: `Linux` is 6.1's `drivers/gpu/drm/i915`.

#![no_std]
#![forbid(unsafe_code)]

pub mod access;
pub mod cmd;
pub mod csb;
pub mod engine;
pub mod fence;
pub mod irq;
pub mod lrc;
pub mod platform;
pub mod pte;
pub mod regs;
pub mod ring;
pub mod switched;
pub mod vreg;

pub use engine::{Engine, EngineSet};
pub use platform::Platform;
