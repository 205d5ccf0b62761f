//! Device models in domains of their own.
//!
//! The domain is made when the guest's launcher registers, and the launcher, and
//! so the guest, waits for its device model to be attached. What the two
//! domains share the stub domain grants, and offers through xenstore
//! (`grant-area`).

mod dm;
mod domain;
mod service;
mod toolstack;

use std::sync::Arc;

use xen_glue::Hypervisor;

pub use dm::WaitingStub;
pub use domain::{StubConfig, StubDomain};
pub use toolstack::{DomainPlan, Toolstack, Watch, Xl};

/// How domains for device models are made on this host.
#[derive(Clone)]
pub struct Stubs {
    /// Makes them.
    pub toolstack: Arc<dyn Toolstack>,
    /// Reaches what they share.
    pub xen: Arc<dyn Hypervisor>,
    /// What they are like.
    pub config: StubConfig,
}
