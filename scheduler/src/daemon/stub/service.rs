//! What a guest's device models in domains of their own have in common, one after
//! the other.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use vgpu_control::ControlError;
use vgpu_sched::sync::lock;
use xen_glue::{DomId, IoreqPages};

use super::Stubs;
use crate::daemon::device_model::LIMIT;
use crate::daemon::records::Records;

/// Between looks for answers.
const LOOK: Duration = Duration::from_millis(1);

/// How a guest is served.
pub struct Service {
    /// What makes domains.
    pub stubs: Stubs,
    /// The guest.
    pub guest: u16,
    /// Where its vCPUs wait.
    pub pages: Mutex<IoreqPages>,
    /// Whether we have paused it, or one before us has.
    held: Mutex<bool>,
    records: Records,
}

impl Service {
    /// That of a guest whose first device model is to be.
    ///
    /// # Errors
    /// When this is no Xen host.
    pub fn new(stubs: &Stubs, records: &Records, guest: u16) -> anyhow::Result<Arc<Self>> {
        let privcmd = stubs.xen.open_privcmd()?;
        Ok(Arc::new(Self {
            stubs: stubs.clone(),
            guest,
            pages: Mutex::new(IoreqPages::new(privcmd, DomId(guest))),
            held: Mutex::new(records.held(guest)),
            records: records.clone(),
        }))
    }

    /// Pauses the guest, if we have not.
    ///
    /// # Errors
    /// When Xen does not.
    pub fn hold(&self) -> anyhow::Result<()> {
        let mut held = lock(&self.held);
        if !*held {
            // Before it is: a vgpud to come finds no guest paused that it does
            // not know to be.
            if let Err(e) = self.records.hold(self.guest) {
                log::warn!("domain {}: {e:#}", self.guest);
            }
            let paused = self.stubs.toolstack.pause_guest(self.guest);
            let paused = paused.inspect_err(|_| self.records.let_go(self.guest));
            paused.with_context(|| format!("domain {} cannot be paused", self.guest))?;
            *held = true;
        }
        Ok(())
    }

    /// Has the guest run again, if we have paused it.
    pub fn release(&self) {
        let mut held = lock(&self.held);
        if std::mem::take(&mut *held) {
            match self.stubs.toolstack.unpause_guest(self.guest) {
                Ok(()) => self.records.let_go(self.guest),
                Err(e) => log::error!("domain {} stays paused: {e:#}", self.guest),
            }
        }
    }

    /// Waits until what waited in pages of domains that are gone is answered
    /// there.
    ///
    /// # Errors
    /// When the device model does not answer it: it fell silent, or died.
    pub fn answered(&self) -> anyhow::Result<()> {
        let until = Instant::now() + LIMIT;
        while !lock(&self.pages).settle() {
            if Instant::now() >= until {
                return Err(ControlError::TimedOut)
                    .context("its device model does not answer what its vCPUs wait for");
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}
