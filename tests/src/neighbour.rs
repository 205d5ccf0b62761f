//! The guest next door: works by the book, and must never notice anything.

use std::sync::Arc;

use gen8::Engine;
use guest_driver::{Driver, Frames};
use sim_host::{SharedGuest, SimGuest, SimGuestConfig, SimHost, Witness};

use crate::stage::wait_until;

/// An honest guest with its driver.
pub struct Neighbour {
    // Before the guest it drives.
    driver: Driver<SharedGuest>,
    guest: Arc<SimGuest>,
    witness: Arc<Witness>,
    /// What the witness had seen when the last work was done.
    quiet: (u64, u64),
    rounds: u64,
}

impl Neighbour {
    /// A guest on `host`, its driver up.
    ///
    /// # Errors
    /// What the host or the driver says.
    pub fn start(host: &SimHost, seed: u64) -> anyhow::Result<Self> {
        let witness = Arc::new(Witness::default());
        let guest = Arc::new(SimGuest::start(
            host,
            &SimGuestConfig {
                witness: Some(Arc::clone(&witness)),
                ..SimGuestConfig::default()
            },
        )?);
        let driver = Driver::start(
            SharedGuest(Arc::clone(&guest)),
            Frames::new(256, 4096),
            seed,
        )?;
        let quiet = witness.seen();
        Ok(Self {
            driver,
            guest,
            witness,
            quiet,
            rounds: 0,
        })
    }

    /// Runs a request on every engine and checks what it computed. When this
    /// returns, nothing of it is under way.
    ///
    /// # Panics
    /// When a result is wrong, a request hangs, vgpud dropped the guest, or
    /// somebody touched it before.
    pub fn work(&mut self) {
        self.assert_untouched();
        for engine in Engine::ALL {
            assert!(self.driver.submit(engine).unwrap());
        }
        while !self.driver.idle() {
            for done in self.driver.wait().unwrap() {
                done.result.unwrap();
            }
        }
        assert_eq!(self.guest.failure(), None);
        // The driver hears of the end a moment before vgpud lets go.
        wait_until("the neighbour's lanes to empty", || {
            let view = self.guest.scheduled();
            view.engines.iter().all(|e| e.active_load.is_none())
        });
        self.quiet = self.witness.seen();
        self.rounds += 1;
    }

    /// How often it worked.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Checks that since its last work neither vgpud nor the GPU read or
    /// wrote its memory.
    ///
    /// # Panics
    /// When one did.
    pub fn assert_untouched(&self) {
        assert_eq!(self.witness.seen(), self.quiet, "reads and writes");
    }

    /// The guest.
    #[must_use]
    pub fn guest(&self) -> &SimGuest {
        &self.guest
    }
}
