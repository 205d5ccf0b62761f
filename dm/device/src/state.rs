//! The device's saved state: one struct a part, made by taking the runtime
//! state apart in full, so that a forgotten field does not compile.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backlog::Backlog;
use crate::config::{Config, ConfigError};
use crate::core::{Core, Incidents, Seams};
use crate::engines::{BadEngines, Engines, EnginesV1};
use crate::fences::Fences;
use crate::gmbus::{Gmbus, GmbusV1};
use crate::interrupts::{BadInterrupts, Interrupts, InterruptsV1};
use crate::kept::Keeper;
use crate::pci::{BadPciState, Pci, PciV1};
use crate::pipe::{Running, RunningV1};
use crate::registers::{BadRegister, RegisterFile, RegistersV1};

/// A device's saved state. The guest's global page table and memory are
/// saved by those who own them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceV1 {
    /// What the device was made with.
    pub config: Config,
    /// Configuration space.
    pub pci: PciV1,
    /// Registers that are plain values.
    pub registers: RegistersV1,
    /// Engines.
    pub engines: EnginesV1,
    /// Interrupts.
    pub interrupts: InterruptsV1,
    /// Display.
    pub display: DisplayV1,
}

/// The display's saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisplayV1 {
    /// GMBUS.
    pub gmbus: GmbusV1,
    /// The pipes that scan out.
    pub pipes: [Option<RunningV1>; 3],
}

/// A saved device that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Configuration space.
    #[error(transparent)]
    Pci(#[from] BadPciState),
    /// Registers.
    #[error(transparent)]
    Registers(#[from] BadRegister),
    /// Engines.
    #[error(transparent)]
    Engines(#[from] BadEngines),
    /// Interrupts.
    #[error(transparent)]
    Interrupts(#[from] BadInterrupts),
    /// A pipe's timing.
    #[error("timing of saved pipe {0} is impossible")]
    Pipe(usize),
}

impl Core {
    pub(crate) fn save(&self, now_ns: u64) -> DeviceV1 {
        let Self {
            config,
            pci,
            regs,
            irqs,
            engines,
            gmbus,
            pipes,
            // What the registers say.
            fences: _,
            fences_written: _,
            // What it holds is told anew by `replay`.
            backlog: _,
            retry_at: _,
            // About this process.
            incidents: _,
            counts: _,
            alarm: _,
            deadline_moved: _,
            keeper: _,
        } = self;
        DeviceV1 {
            config: config.clone(),
            pci: pci.save(),
            registers: regs.save(config),
            engines: engines.save(),
            interrupts: irqs.save(),
            display: DisplayV1 {
                gmbus: gmbus.save(),
                pipes: pipes.map(|p| p.map(|p| p.save(now_ns))),
            },
        }
    }

    pub(crate) fn restore(state: &DeviceV1, seams: &Seams) -> Result<Self, RestoreError> {
        let DeviceV1 {
            config,
            pci,
            registers,
            engines,
            interrupts,
            display: DisplayV1 { gmbus, pipes },
        } = state;
        config.check()?;
        let now = seams.clock.now_ns();
        let mut running = [None; 3];
        for (number, (to, from)) in running.iter_mut().zip(pipes).enumerate() {
            if let Some(pipe) = from {
                *to = Some(Running::restore(pipe, now).ok_or(RestoreError::Pipe(number))?);
            }
        }
        let regs = RegisterFile::restore(config, registers)?;
        Ok(Self {
            fences: Arc::new(Fences::of(&regs)),
            fences_written: 0,
            regs,
            irqs: Interrupts::restore(interrupts)?,
            engines: Engines::restore(engines)?,
            gmbus: Gmbus::restore(config.mode, gmbus),
            pipes: running,
            backlog: Backlog::default(),
            incidents: Incidents::default(),
            counts: config.count_registers.then(Default::default),
            retry_at: None,
            alarm: u64::MAX,
            deadline_moved: false,
            keeper: Keeper::new(&*seams.kept),
            config: config.clone(),
            // Last: it maps windows.
            pci: Pci::restore(config, pci, &*seams.bars)?,
        })
    }
}
