//! Saving: what vgpud asks for while a guest is saved or migrated.

use std::time::Duration;

use guest_memory::Gfn;
use vgpu_device::{Config, DeviceV1};
use xen_glue::{TableError, TableFrames};

use crate::Server;
use crate::pause::NotStill;
use crate::protection::StillProtected;
use crate::windows::TableStays;

/// A saved device is not what the configuration says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its {what} is {saved}, the configuration says {configured}")]
pub struct OtherDevice {
    /// What differs.
    pub what: &'static str,
    /// As saved.
    pub saved: String,
    /// As configured.
    pub configured: String,
}

/// The saved device, if a guest that was promised `configured` can have it.
/// What its driver read and remembers stays: the part of the page table it may
/// use is the saved one's, wherever the table is now.
pub(crate) fn as_configured(
    saved: &DeviceV1,
    configured: &Config,
) -> Result<DeviceV1, OtherDevice> {
    let Config {
        gpu,
        aperture_mib,
        mode,
        msi,
        ggtt_mib: _,
        count_registers,
    } = configured;
    let differs = |what, saved: String, configured: String| {
        Err(OtherDevice {
            what,
            saved,
            configured,
        })
    };
    let have = &saved.config;
    if have.gpu.name != gpu.name {
        return differs("GPU", have.gpu.name.into(), gpu.name.into());
    }
    if have.aperture_mib != *aperture_mib {
        let mib = |n: u32| format!("{n} MiB");
        return differs("aperture", mib(have.aperture_mib), mib(*aperture_mib));
    }
    if have.mode != *mode {
        return differs("mode", have.mode.to_string(), mode.to_string());
    }
    if have.msi != *msi {
        let on = |msi: bool| if msi { "on" } else { "off" }.to_owned();
        return differs("MSI", on(have.msi), on(*msi));
    }
    let mut saved = saved.clone();
    saved.config.count_registers = *count_registers;
    Ok(saved)
}

impl Server {
    /// Makes the guest's page table, if it is RAM, one in the shared area,
    /// and traps accesses to it. Entries are in both from then on, until
    /// [`Server::settle_table`]; the RAM lies at its parking place.
    ///
    /// # Errors
    /// [`TableStays`]; nothing is changed then.
    pub fn take_table_out(&self) -> Result<(), TableStays> {
        self.windows.take_table_out()?;
        self.table.leave_ram();
        Ok(())
    }

    /// Makes the guest's page table RAM again, the frames at `gfn`. Entries
    /// are in both from then on, until [`Server::settle_table`].
    ///
    /// # Errors
    /// When the frames cannot be mapped; nothing is changed then.
    pub fn take_table_in(&self, gfn: u64) -> Result<(), TableError> {
        let frames = TableFrames::open(&*self.privcmd, self.domid(), gfn)?;
        self.table.enter_ram(frames);
        Ok(())
    }

    /// vgpud reads entries from where they are going to be. Frames that are
    /// not wanted any more are let go of; frames that are go to BAR0.
    pub fn settle_table(&self, gfn: u64) {
        if self.table.settle() {
            self.windows.take_table_in(gfn);
        }
    }

    /// Starts to record which pages of the guest this process writes. Xen is
    /// about to log the others; so that it can, no frame of the guest is
    /// protected from here on.
    ///
    /// # Errors
    /// [`StillProtected`]; nothing is recorded then.
    pub fn record(&self) -> Result<(), StillProtected> {
        self.written.start();
        self.hold_protection()
            .inspect_err(|_| self.stop_recording())
    }

    /// Stops that.
    pub fn stop_recording(&self) {
        self.allow_protection();
        self.written.stop();
    }

    /// Takes runs of the pages written, `most` at most, as first frame and
    /// number of frames.
    #[must_use]
    pub fn take_written(&self, most: usize) -> Vec<(Gfn, u64)> {
        self.written.take(most)
    }

    /// Holds the device still, whose guest's vCPUs do not run: everything
    /// vgpud said so far is taken in and it has taken every request. Until
    /// [`Server::go_on`] nothing of the guest's memory is written.
    ///
    /// # Errors
    /// [`NotStill`] when that takes longer than `limit`; the device goes on.
    pub fn hold_still(&self, limit: Duration) -> Result<(), NotStill> {
        let token = self.pause.ask();
        self.device.ping(token);
        if self.pause.wait(limit) {
            Ok(())
        } else {
            Err(NotStill(limit))
        }
    }

    /// Goes on after [`Server::hold_still`].
    pub fn go_on(&self) {
        self.pause.go_on();
    }

    /// What to save, while held still. The guest's page table is not in it.
    #[must_use]
    pub fn save(&self) -> DeviceV1 {
        self.device.save()
    }
}
