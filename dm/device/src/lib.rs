//! A virtual Gen8 or Gen9 GPU: PCI, registers, execlists, interrupts, display.
//!
//! [`Device`] is what a guest's driver sees: a Broadwell or Kaby Lake GT2 with
//! the PVINFO page that makes i915 leave power management alone. It knows no
//! hypervisor and owns no thread; [`Seams`] are what it needs from its surroundings.
//! Work goes to vgpud as [`vgpu_ring::Request`]s and comes back as
//! [`vgpu_ring::Event`]s.

#![forbid(unsafe_code)]

mod aperture;
mod backlog;
mod config;
mod core;
mod device;
mod display;
mod edid;
mod engines;
mod execlist;
mod fences;
mod gmbus;
mod inspect;
mod interrupts;
pub mod kept;
mod mmio;
mod pci;
mod pipe;
mod registers;
mod seams;
mod state;
mod table_memory;
mod transaction;

pub use aperture::{ApertureCounts, ApertureView, FenceMeaning, FenceView};
pub use config::{
    APERTURE_MAX_MIB, APERTURE_MIN_MIB, Config, ConfigError, GGTT_MIB, GGTT_STEP_MIB,
};
pub use core::{Incidents, Seams};
pub use device::{Device, Exits};
pub use edid::{EDID_BYTES, Mode, edid};
pub use engines::{BadEngines, EngineV1, EnginesV1};
pub use execlist::{BadExeclist, ExeclistV1, LoadV1};
pub use gmbus::GmbusV1;
pub use inspect::{EngineView, Inspection, PipeView};
pub use interrupts::{BadInterrupts, BankV1, InterruptsV1};
pub use pci::{BadPciState, PciV1};
pub use pipe::{RunningV1, TimingV1};
pub use registers::{BadRegister, RegistersV1};
pub use seams::{
    Bar, BarSink, Clock, Full, GGTT_ENTRIES, GgttTable, GpuPort, InterruptSink, Kept, Unkept,
};
pub use state::{DeviceV1, DisplayV1, RestoreError};
pub use transaction::Transaction;
