//! What a guest gets: as configured, and as changed since.

use vgpu_config::VgpuSpec;
use vgpu_control::Held;
use vgpu_sched::kept::{KeptShares, Uuid};

use super::platform::Identity;

/// What stands for changes that go back to what was configured.
const DEFAULT: &str = "default";

/// A guest's vGPU as it is to be.
pub struct Claim {
    identity: Identity,
    configured: VgpuSpec,
    now: VgpuSpec,
}

impl Claim {
    /// What was `configured`, with the changes that are kept for this guest.
    pub fn new(configured: VgpuSpec, identity: Identity, kept: &KeptShares) -> Self {
        let mut now = configured.clone();
        if let Some(uuid) = &identity.uuid
            && let Some(changes) = kept.get(uuid)
            && let Err(e) = now.change(&changes)
        {
            log::warn!("guest {uuid}: what is kept of its share does not hold: {e}");
        }
        Self {
            identity,
            configured,
            now,
        }
    }

    /// What holds now.
    pub fn spec(&self) -> &VgpuSpec {
        &self.now
    }

    /// What was asked for.
    pub fn configured(&self) -> &VgpuSpec {
        &self.configured
    }

    /// Who the guest is.
    pub fn uuid(&self) -> Option<&Uuid> {
        self.identity.uuid.as_ref()
    }

    /// The guest's name.
    pub fn name(&self) -> Option<&str> {
        self.identity.name.as_deref()
    }

    /// Changes the share and keeps the change; `default` forgets all changes.
    ///
    /// # Errors
    /// For what is wrong with `changes`; nothing is changed then.
    pub fn change(&mut self, changes: &str, kept: &KeptShares) -> anyhow::Result<Held> {
        let default = changes.trim() == DEFAULT;
        if default {
            self.now.share = self.configured.share;
        } else {
            self.now.change(changes)?;
        }
        let not_kept = match &self.identity.uuid {
            None => Some("Xen's toolstack tells no UUID of the guest".into()),
            Some(uuid) if default => kept.forget(uuid).err().map(|e| e.to_string()),
            Some(uuid) => kept.set(uuid, changes).err().map(|e| e.to_string()),
        };
        Ok(Held {
            share: self.now.share,
            not_kept,
        })
    }
}
