//! Saving a guest's vGPU, in the steps vgpud takes.

use std::time::Duration;

use vgpu_sched::ggtt::GuestGgtt;
use vgpu_sched::saved::{HostV1, PackedTable, Saved};
use vgpu_sched::vgpu::Drained;
use xen_glue::{Hypervisor, PARKING_GFN, TableFrames};

use crate::SimGuest;

/// How long a device model may take to hold still.
const STILL: Duration = Duration::from_secs(20);

impl SimGuest {
    /// A save begins while the guest runs: its page table leaves its RAM, and
    /// pages written behind its back are recorded.
    ///
    /// # Errors
    /// What Xen says; the guest goes on as before.
    pub fn begin_save(&self) -> anyhow::Result<()> {
        if self.link().table().in_ram() {
            self.server().take_table_out()?;
            self.link().table().set(None);
            self.server().settle_table(PARKING_GFN);
            let memory = self.xen.open_domain_memory()?;
            TableFrames::remove(&*memory, self.domain().id())?;
        }
        self.link().handle().written().start();
        self.server().record()?;
        Ok(())
    }

    /// No save after all, or the guest goes on behind it.
    ///
    /// # Errors
    /// What Xen says; the table stays trapped then.
    pub fn end_save(&self) -> anyhow::Result<()> {
        self.server().go_on();
        self.link().handle().resume();
        self.server().stop_recording();
        self.link().handle().written().stop();
        if !self.link().table().in_ram() {
            let (memory, privcmd) = (self.xen.open_domain_memory()?, self.xen.open_privcmd()?);
            let frames = TableFrames::create(&*memory, &*privcmd, self.domain().id())?;
            self.server().take_table_in(PARKING_GFN)?;
            self.link().table().set(Some(frames));
            self.server().settle_table(PARKING_GFN);
        }
        Ok(())
    }

    /// The guest's vCPUs hold still, and so does its vGPU.
    ///
    /// # Errors
    /// What does not end; the guest goes on.
    pub fn suspend(&self, limit: Duration) -> anyhow::Result<Drained> {
        self.domain().suspend();
        let mut drained = self.link().handle().suspend(limit).map_err(Into::into);
        if drained.is_ok()
            && let Err(e) = self.server().hold_still(STILL)
        {
            self.link().handle().resume();
            drained = Err(e.into());
        }
        if drained.is_err() {
            self.domain().resume();
        }
        drained
    }

    /// The guest goes on after [`SimGuest::suspend`].
    ///
    /// # Errors
    /// As [`SimGuest::end_save`]'s.
    pub fn go_on(&self) -> anyhow::Result<()> {
        self.end_save()?;
        self.domain().resume();
        Ok(())
    }

    /// What is saved of the vGPU.
    ///
    /// # Errors
    /// When the device cannot be made into JSON.
    pub fn save(&self) -> anyhow::Result<Saved> {
        let link = self.link();
        let table = link.table();
        let device = self.server().save();
        Ok(Saved {
            host: HostV1::new(device.config.gpu.name),
            device: serde_json::to_vec(&device)?,
            scheduler: self.link().handle().save(),
            table: PackedTable::pack(|index| table.load(index)),
        })
    }
}
