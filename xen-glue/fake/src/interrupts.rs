//! Interrupts a device model raised, and vCPUs waiting for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::host::lock;

/// An interrupt as the guest gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// A message-signalled one, address and data as the device sent them.
    Msi {
        /// MSI address.
        addr: u64,
        /// MSI data.
        data: u32,
    },
    /// A line was asserted that was not.
    Intx {
        /// PCI device on bus 0.
        device: u8,
        /// 0 to 3 for A to D.
        line: u8,
    },
}

struct State {
    waiting: VecDeque<Interrupt>,
    levels: [u8; 32],
    raised: u64,
    stopped: bool,
}

pub(crate) struct Interrupts {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Interrupts {
    fn default() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            levels: [0; 32],
            raised: 0,
            stopped: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }
}

impl Interrupts {
    fn push(&self, state: &mut State, interrupt: Interrupt) {
        state.raised += 1;
        state.waiting.push_back(interrupt);
        self.changed.notify_one();
    }

    /// Xen arch/x86/hvm/irq.c:hvm_inject_msi.
    pub(crate) fn msi(&self, addr: u64, data: u32) -> Result<(), Errno> {
        // Vector 0: the guest mapped it to a pirq, named by the address.
        let pirq = (addr >> 32) & 0xffff_ff00 | (addr >> 12) & 0xff;
        if data & 0xff == 0 && pirq == 0 {
            return Err(Errno::ERANGE);
        }
        let mut state = lock(&self.state);
        self.push(&mut state, Interrupt::Msi { addr, data });
        Ok(())
    }

    /// Xen arch/x86/hvm/dm.c:set_pci_intx_level.
    pub(crate) fn intx(&self, device: u8, line: u8, level: u8) -> Result<(), Errno> {
        if line > 3 || level > 1 {
            return Err(Errno::EINVAL);
        }
        let mut state = lock(&self.state);
        let lines = state
            .levels
            .get_mut(usize::from(device))
            .ok_or(Errno::EINVAL)?;
        let bit = 1 << line;
        let was = *lines & bit != 0;
        if level == 1 {
            *lines |= bit;
            if !was {
                self.push(&mut state, Interrupt::Intx { device, line });
            }
        } else {
            *lines &= !bit;
        }
        Ok(())
    }

    pub(crate) fn level(&self, device: u8, line: u8) -> bool {
        let state = lock(&self.state);
        let lines = state.levels.get(usize::from(device)).copied().unwrap_or(0);
        line < 4 && lines & (1 << line) != 0
    }

    pub(crate) fn raised(&self) -> u64 {
        lock(&self.state).raised
    }

    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<Interrupt> {
        let state = lock(&self.state);
        let idle = |s: &mut State| s.waiting.is_empty() && !s.stopped;
        let mut state = match timeout {
            None => self
                .changed
                .wait_while(state, idle)
                .unwrap_or_else(PoisonError::into_inner),
            Some(t) => {
                self.changed
                    .wait_timeout_while(state, t, idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        state.waiting.pop_front()
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }
}
