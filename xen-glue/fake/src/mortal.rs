//! A process that is killed between two operations.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

use xen_glue::{Access, DomId, ForeignMap, Mapping, Privcmd, PrivcmdError, Resource};

use crate::dm_op::Change;
use crate::host::lock;

/// What ends a thread of a killed process.
#[derive(Debug)]
pub struct Killed;

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Life {
    /// Device-model operations left; `None` for no end.
    left: Option<u64>,
    over: bool,
    before_ram: Option<Hook>,
    before_protected: Option<Hook>,
}

/// A privcmd handle of a process that can be killed at any of its device-model
/// operations. The thread that asks for one then ends ([`Killed`] unwinds it),
/// and so does any other that asks for anything.
pub struct MortalPrivcmd {
    inner: Arc<dyn Privcmd>,
    life: Mutex<Life>,
}

impl MortalPrivcmd {
    /// A handle of a process that lives, with the operations of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Privcmd>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            life: Mutex::default(),
        })
    }

    /// Has the process killed after so many more device-model operations.
    pub fn dies_after(&self, operations: u64) {
        lock(&self.life).left = Some(operations);
    }

    /// Has `hook` called once, before the next operation that makes protected
    /// frames RAM.
    pub fn before_ram(&self, hook: impl FnOnce() + Send + 'static) {
        lock(&self.life).before_ram = Some(Box::new(hook));
    }

    /// Has `hook` called once, before the next operation that protects frames.
    pub fn before_protected(&self, hook: impl FnOnce() + Send + 'static) {
        lock(&self.life).before_protected = Some(Box::new(hook));
    }

    /// Whether the process was killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        lock(&self.life).over
    }

    /// Ends this thread if the process was killed. To be called before
    /// whatever else it does that others see.
    pub fn check(&self) {
        if self.is_dead() && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// One operation; the hook that is due before it.
    fn step(&self, change: Option<Change>) -> Option<Hook> {
        let mut life = lock(&self.life);
        match &mut life.left {
            Some(0) => life.over = true,
            Some(left) => *left -= 1,
            None => {}
        }
        let hook = match change {
            Some(Change::ToRam) => life.before_ram.take(),
            Some(Change::ToProtected) => life.before_protected.take(),
            None => None,
        };
        drop(life);
        self.check();
        hook
    }
}

impl Privcmd for MortalPrivcmd {
    fn dm_op(&self, domid: DomId, bufs: &mut [&mut [u8]]) -> Result<(), PrivcmdError> {
        let change = bufs.first_mut().and_then(|op| Change::of(op));
        if let Some(hook) = self.step(change) {
            hook();
        }
        self.inner.dm_op(domid, bufs)
    }

    fn map_foreign(
        &self,
        domid: DomId,
        gfns: &[u64],
        access: Access,
    ) -> Result<ForeignMap, PrivcmdError> {
        self.check();
        self.inner.map_foreign(domid, gfns, access)
    }

    fn map_resource(&self, domid: DomId, resource: Resource) -> Result<Mapping, PrivcmdError> {
        self.check();
        self.inner.map_resource(domid, resource)
    }

    fn restrict(&self, domid: DomId) -> Result<(), PrivcmdError> {
        self.check();
        self.inner.restrict(domid)
    }
}
