//! A host with an honest guest on it, to which hostile guests come and go.

use std::time::Duration;

use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};

use crate::{Bytes, Neighbour, Stage, act, panics};

/// How long endless work may hold an engine while the neighbour waits. An
/// honest request takes a thousandth of it.
const RUN_LIMIT: Duration = Duration::from_secs(1);
/// What one guest may do.
const ACTIONS: usize = 120;

/// A host, and the guest that must not notice.
pub struct Arena {
    // Before the host it runs on.
    neighbour: Neighbour,
    host: SimHost,
}

/// What the host has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InUse {
    own_pages: usize,
    pinned: usize,
    vgpus: usize,
}

impl Arena {
    /// A host with the neighbour at work on it.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn new() -> Self {
        let host = SimHost::start(SimHostConfig {
            run_limit: Some(RUN_LIMIT),
            ..SimHostConfig::default()
        })
        .unwrap();
        let mut neighbour = Neighbour::start(&host, 1).unwrap();
        neighbour.work();
        Self { neighbour, host }
    }

    /// The host.
    #[must_use]
    pub const fn host(&self) -> &SimHost {
        &self.host
    }

    /// The honest guest.
    pub const fn neighbour(&mut self) -> &mut Neighbour {
        &mut self.neighbour
    }

    fn in_use(&self) -> InUse {
        let view = self.host.scheduler().inspect();
        InUse {
            own_pages: view.own_pages,
            pinned: view.windows.pinned,
            vgpus: view.vgpus.len(),
        }
    }

    /// Lets a hostile guest come, do what `scene` makes of it, recover, and
    /// go.
    ///
    /// # Panics
    /// When anything that must hold does not: the device model and vgpud
    /// stand, the guest can recover, nothing of it is left, and the
    /// neighbour's memory was not touched and its work comes out right.
    pub fn host_guest(&mut self, scene: impl FnOnce(&mut Self, &mut Stage<'_>)) {
        let (mut before, rounds) = (self.in_use(), self.neighbour.rounds());
        let guest = SimGuest::start(&self.host, &SimGuestConfig::default()).unwrap();
        let domain = guest.domain().clone();
        let mut stage = Stage::new(&guest);
        scene(self, &mut stage);
        assert_eq!(domain.stopped(), None);
        stage.recover();
        stage.good_requests();
        assert_eq!(guest.failure(), None);
        assert_eq!(guest.scheduled().failed, None);
        drop(guest);
        assert_eq!(domain.ioreq_servers(), 0);
        self.neighbour.assert_untouched();
        let after = self.in_use();
        if self.neighbour.rounds() != rounds {
            // Its own shadows come and go with where its rings stand.
            before.own_pages = after.own_pages;
        }
        assert_eq!(after, before);
        let view = self.host.scheduler().inspect();
        for engine in &view.engines {
            assert_eq!(engine.dead, None, "{}", engine.name);
        }
        assert_eq!(panics::seen(), 0, "a thread panicked");
    }

    /// A hostile guest that does what `data` says; then the neighbour works.
    ///
    /// # Panics
    /// As [`Arena::host_guest`].
    pub fn run(&mut self, data: &[u8]) {
        self.host_guest(|arena, stage| {
            let mut bytes = Bytes::new(data);
            let mut met = false;
            for _ in 0..ACTIONS {
                if bytes.is_empty() {
                    break;
                }
                if act(&mut bytes, stage) && !met {
                    met = true;
                    arena.neighbour.work();
                }
            }
        });
        self.neighbour.work();
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}
