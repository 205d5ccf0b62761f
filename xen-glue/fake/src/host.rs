//! The hypervisor: domains and ports.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use xen_glue::{
    DomId, DomainMemory, EventChannels, GrantPages, Hypervisor, HypervisorError, MapGrants,
    MappingError, Privcmd,
};

use crate::domain::DomainState;
use crate::events::{FakeEventChannels, PortState};
use crate::grants::{FakeGrants, GrantTable};
use crate::privcmd::FakePrivcmd;
use crate::reservation::FakeDomainMemory;
use crate::{Domain, DomainConfig};

/// Why a simulated domain could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FakeXenError {
    /// The configuration is out of range.
    #[error("{what} is {value}, allowed is 1 to {most}")]
    Config {
        /// Which value.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        most: u64,
    },
    /// The host has no memory file for it.
    #[error("memory of a simulated domain: {errno}")]
    Memory {
        /// What the kernel said.
        errno: Errno,
    },
    /// The memory could not be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

pub(crate) struct Host {
    domains: Mutex<HashMap<DomId, Arc<DomainState>>>,
    ports: Mutex<PortTable>,
    grants: Mutex<GrantTable>,
    next_domid: AtomicU32,
}

#[derive(Default)]
pub(crate) struct PortTable {
    by_number: HashMap<(DomId, u32), Weak<PortState>>,
    last: u32,
}

impl PortTable {
    pub(crate) fn allocate(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub(crate) fn add(&mut self, port: &Arc<PortState>) {
        self.by_number.retain(|_, p| p.strong_count() > 0);
        self.by_number
            .insert((port.domid(), port.number()), Arc::downgrade(port));
    }

    pub(crate) fn find(&self, domid: DomId, number: u32) -> Option<Arc<PortState>> {
        self.by_number.get(&(domid, number))?.upgrade()
    }

    /// The domain was destroyed, and its ports with it.
    fn close_all(&mut self, domid: DomId) {
        let own = self.by_number.extract_if(|(owner, _), _| *owner == domid);
        for port in own.filter_map(|(_, port)| port.upgrade()) {
            port.part();
        }
    }

    fn open(&self, domid: DomId) -> usize {
        let ports = self.by_number.iter();
        ports
            .filter(|((owner, _), port)| *owner == domid && port.strong_count() > 0)
            .count()
    }
}

impl Host {
    pub(crate) fn domain(&self, domid: DomId) -> Option<Arc<DomainState>> {
        lock(&self.domains).get(&domid).cloned()
    }

    pub(crate) fn forget(&self, domid: DomId) {
        lock(&self.domains).remove(&domid);
        self.grants().end_all(domid);
        self.ports().close_all(domid);
    }

    pub(crate) fn grants(&self) -> MutexGuard<'_, GrantTable> {
        lock(&self.grants)
    }

    pub(crate) fn ports(&self) -> MutexGuard<'_, PortTable> {
        lock(&self.ports)
    }
}

/// Locks, whatever became of another holder: nothing here is left half
/// changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hypervisor, as one calling domain sees it. Cheap to clone.
#[derive(Clone)]
pub struct FakeXen {
    host: Arc<Host>,
    caller: DomId,
}

impl Default for FakeXen {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeXen {
    /// A hypervisor without domains, seen from dom0.
    #[must_use]
    pub fn new() -> Self {
        let host = Host {
            domains: Mutex::default(),
            ports: Mutex::default(),
            grants: Mutex::default(),
            next_domid: AtomicU32::new(1),
        };
        Self {
            host: Arc::new(host),
            caller: DomId(0),
        }
    }

    /// The same hypervisor seen from another domain, say a stub domain.
    #[must_use]
    pub fn seen_from(&self, caller: DomId) -> Self {
        Self {
            host: Arc::clone(&self.host),
            caller,
        }
    }

    /// Creates a domain. Its memory reads as zero.
    ///
    /// # Errors
    /// [`FakeXenError`].
    pub fn create_domain(&self, config: DomainConfig) -> Result<Domain, FakeXenError> {
        let number = self.host.next_domid.fetch_add(1, Ordering::Relaxed);
        // Xen's ids end at 0x7fef too; a test does not get there.
        let domid = DomId(u16::try_from(number).unwrap_or(u16::MAX));
        let state = Arc::new(DomainState::new(domid, config)?);
        lock(&self.host.domains).insert(domid, Arc::clone(&state));
        Ok(Domain::new(state, Arc::clone(&self.host)))
    }

    /// References to pages that `domid` granted and that are not free: its own,
    /// and those it let go of which somebody maps.
    #[must_use]
    pub fn grants_of(&self, domid: DomId) -> usize {
        self.host.grants().granted(domid)
    }

    /// Pages of other domains that `domid` maps.
    #[must_use]
    pub fn grants_mapped_by(&self, domid: DomId) -> usize {
        self.host.grants().mapped(domid)
    }

    /// Event channel ports that `domid` has.
    #[must_use]
    pub fn ports_of(&self, domid: DomId) -> usize {
        self.host.ports().open(domid)
    }

    /// A privcmd handle of its own type.
    #[must_use]
    pub fn privcmd(&self) -> FakePrivcmd {
        FakePrivcmd::new(Arc::clone(&self.host), self.caller)
    }

    /// An event channel handle of its own type.
    ///
    /// # Errors
    /// [`HypervisorError`] when the process is out of descriptors.
    pub fn event_channels(&self) -> Result<FakeEventChannels, HypervisorError> {
        Ok(FakeEventChannels::open(
            Arc::clone(&self.host),
            self.caller,
        )?)
    }
}

impl Hypervisor for FakeXen {
    fn open_privcmd(&self) -> Result<Arc<dyn Privcmd>, HypervisorError> {
        Ok(Arc::new(self.privcmd()))
    }

    fn open_event_channels(&self) -> Result<Arc<dyn EventChannels>, HypervisorError> {
        Ok(Arc::new(self.event_channels()?))
    }

    fn open_domain_memory(&self) -> Result<Arc<dyn DomainMemory>, HypervisorError> {
        Ok(Arc::new(FakeDomainMemory::new(Arc::clone(&self.host))))
    }

    fn open_grant_pages(&self) -> Result<Arc<dyn GrantPages>, HypervisorError> {
        Ok(Arc::new(FakeGrants::new(
            Arc::clone(&self.host),
            self.caller,
        )))
    }

    fn open_map_grants(&self) -> Result<Arc<dyn MapGrants>, HypervisorError> {
        Ok(Arc::new(FakeGrants::new(
            Arc::clone(&self.host),
            self.caller,
        )))
    }
}
