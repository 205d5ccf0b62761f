//! Going on with what a former device kept.

use std::sync::Arc;

use vgpu_ring::layout::KEPT_WORDS;
use vgpu_ring::{DecodeError, Message, Request};

use super::{FORMAT, Keeper, place, shared, split};
use crate::backlog::Backlog;
use crate::config::{Config, ConfigError};
use crate::core::{Core, Incidents, Seams};
use crate::engines::{BadEngines, Engines};
use crate::fences::Fences;
use crate::gmbus::Gmbus;
use crate::interrupts::Interrupts;
use crate::pci::{BadPciState, Pci};
use crate::pipe::Running;
use crate::registers::RegisterFile;
use crate::seams::Kept;

/// Why a device cannot go on from what is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// There is no device.
    #[error("no device is kept: the first word is {0:#x}")]
    Nothing(u64),
    /// It is not all there.
    #[error("what is kept is not whole: more was to be kept than there is room for")]
    Partial,
    /// The log.
    #[error("entry {entry} of {entries} of the kept log is for word {place:#x}")]
    Log {
        /// Number of the entry.
        entry: u64,
        /// Entries that count.
        entries: u64,
        /// Where it goes.
        place: u64,
    },
    /// Requests that wait.
    #[error("{0} requests are kept, allowed: 0 to 1024")]
    Waiting(u32),
    /// One of them.
    #[error("a kept request: {0}")]
    Request(#[from] DecodeError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Configuration space.
    #[error(transparent)]
    Pci(#[from] BadPciState),
    /// Engines.
    #[error(transparent)]
    Engines(#[from] BadEngines),
    /// A pipe's timing.
    #[error("timing of kept pipe {0} is impossible")]
    Pipe(usize),
}

/// What a former device was at, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    /// What it did has been seen in part: do it again before anything else.
    pub first: First,
    /// Events taken.
    pub events_taken: u64,
    /// How many messages the submit ring ever had, the low half, when the
    /// device last handed one over.
    pub in_ring: u32,
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nothing.
    Nothing,
    /// The request of a vCPU.
    Vcpu(u32),
    /// The next event.
    Event,
}

/// Finishes the commit that a former device may have been at, and tells what
/// it did then.
///
/// # Errors
/// [`RecoverError`] when no device is kept, or not whole.
pub fn doing(kept: &dyn Kept) -> Result<Doing, RecoverError> {
    let format = kept.load(place::FORMAT);
    if format != FORMAT {
        return Err(RecoverError::Nothing(format));
    }
    if kept.load(place::PARTIAL) != 0 {
        return Err(RecoverError::Partial);
    }
    finish_commit(kept)?;
    let first = match kept.load(place::DOING) {
        0 => First::Nothing,
        1 => First::Event,
        n => u32::try_from(n - 2).map_or(First::Nothing, First::Vcpu),
    };
    Ok(Doing {
        first,
        events_taken: kept.load(place::EVENTS_TAKEN),
        in_ring: split(kept.load(place::HANDED)).0,
    })
}

fn finish_commit(kept: &dyn Kept) -> Result<(), RecoverError> {
    let entries = kept.load(place::LOG_LEN);
    let most = u64::try_from(place::MOST_LOGGED).unwrap_or(0);
    let mut at = place::LOG;
    for entry in 0..entries {
        let place = kept.load(at);
        let error = RecoverError::Log {
            entry,
            entries,
            place,
        };
        let target = usize::try_from(place).map_err(|_| error.clone())?;
        let possible = target == place::DOING
            || (shared::ANSWERS..place::PARTS_END).contains(&target)
            || (place::REGISTERS..KEPT_WORDS).contains(&target);
        if entries > most || !possible {
            return Err(error);
        }
        kept.store(target, kept.load(at + 1));
        at += 2;
    }
    kept.store(place::LOG_LEN, 0);
    Ok(())
}

fn waiting(kept: &dyn Kept) -> Result<Backlog, RecoverError> {
    let end = kept.load(place::WAITING_END);
    let (_, handed) = split(kept.load(place::HANDED));
    // Both count the same, so the low halves tell how far they are apart.
    let count = super::low(end).wrapping_sub(handed);
    let most = u32::try_from(place::MOST_WAITING).unwrap_or(0);
    if count > most {
        return Err(RecoverError::Waiting(count));
    }
    let handed = end.wrapping_sub(count.into());
    let mut requests = Vec::new();
    for n in 0..u64::from(count) {
        let slot = handed.wrapping_add(n) % u64::from(most);
        let slot = usize::try_from(slot).unwrap_or(0);
        let at = place::WAITING + slot * vgpu_ring::SLOT_QWORDS;
        let words = std::array::from_fn(|i| kept.load(at + i));
        requests.push(Request::decode(words)?);
    }
    Ok(Backlog::left(handed, requests))
}

impl Core {
    /// The device as kept, of which [`doing`] was asked before.
    pub(crate) fn recover(config: &Config, seams: &Seams) -> Result<Self, RecoverError> {
        let kept = &*seams.kept;
        let get = |at| kept.load(at);
        let config = Config {
            // What its driver read when it started.
            ggtt_mib: super::low(get(place::GGTT_MIB)),
            ..config.clone()
        };
        config.check()?;
        let now = seams.clock.now_ns();
        let mut pipes = [None; 3];
        let places = (place::PIPES..).step_by(place::PIPE);
        for (number, (to, at)) in pipes.iter_mut().zip(places).enumerate() {
            if let Some(pipe) = Running::kept(at, get, now) {
                let pipe = Running::restore(&pipe, now);
                *to = Some(pipe.ok_or(RecoverError::Pipe(number))?);
            }
        }
        let regs = RegisterFile::kept(&config, get);
        let engines = Engines::kept(get)?;
        let backlog = waiting(kept)?;
        // Last: it maps windows.
        let mut pci = Pci::restore(&config, &Pci::kept(get), &*seams.bars)?;
        let irqs = Interrupts::kept(get);
        pci.set_pending(irqs.pending(), &*seams.interrupts);
        pci.assert_line(&*seams.interrupts);
        Ok(Self {
            fences: Arc::new(Fences::of(&regs)),
            fences_written: 0,
            regs,
            irqs,
            engines,
            gmbus: Gmbus::kept(config.mode, get),
            pipes,
            backlog,
            incidents: Incidents::default(),
            counts: config.count_registers.then(Default::default),
            retry_at: None,
            alarm: u64::MAX,
            deadline_moved: true,
            keeper: Keeper::of(kept),
            pci,
            config,
        })
    }
}
