//! The device model as the first process of its domain sees it.

use std::os::fd::AsFd;
use std::process::{self, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use grant_area::Lifeline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use vgpu_control::{Connection, Disturb, STUB_FOLDER, STUB_ORDER, StubOrder};
use vgpu_heartbeat::{EVERY, Heartbeat};
use vgpu_ring::KeptPart;
use xen_glue::Xenstore;

/// How long it may be at one thing. vgpud has it so for those in dom0 unless told
/// otherwise.
const HANG_LIMIT: Duration = Duration::from_secs(1);

/// What else there is to do for it meanwhile.
pub trait Duties {
    /// What vgpud ordered since the last look, if that is for the device model
    /// number `serial`.
    fn order(&mut self, serial: u32) -> Option<Disturb>;

    /// Does what it says next over `connection`; whether it may say more.
    fn answer(&mut self, connection: &Connection) -> bool;
}

/// A device model that runs.
pub struct Child<'a> {
    /// It.
    pub process: &'a mut process::Child,
    /// The way to it.
    pub connection: Connection,
    /// Which one it is.
    pub serial: u32,
    /// How often dom0 had come when it was started.
    pub comings: u32,
    /// What it has in hand.
    pub kept: KeptPart,
}

impl Child<'_> {
    /// Waits for its end, which comes by itself, by an order, or since it hangs.
    /// `None` when it was killed since another vgpud came.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn wait(
        &mut self,
        dom0: &Lifeline,
        duties: &mut impl Duties,
    ) -> anyhow::Result<Option<ExitStatus>> {
        const WHAT: &str = "cannot watch the device model";
        let pid = Pid::from_child(self.process);
        let end = pidfd_open(pid, PidfdFlags::empty()).context(WHAT)?;
        let raw = pid.as_raw_nonzero().get();
        let mut heartbeat = Heartbeat::new(HANG_LIMIT, raw, self.kept.clone());
        let every = Timespec::try_from(EVERY)?;
        let mut talks = true;
        loop {
            // The first is the one that it was started for.
            if dom0.comings() > self.comings.max(1) {
                self.process
                    .kill()
                    .context("cannot kill the device model")?;
                self.process.wait().context(WHAT)?;
                return Ok(None);
            }
            let in_ = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut fds = vec![in_(end.as_fd()), in_(dom0.fd())];
            if talks {
                fds.push(in_(self.connection.as_fd()));
            }
            let ready = match poll(&mut fds, Some(&every)) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e).context(WHAT),
            };
            let said = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            if let Some(status) = self.process.try_wait().context(WHAT)? {
                return Ok(Some(status));
            }
            if said {
                talks = duties.answer(&self.connection);
            }
            if ready > 0 {
                continue;
            }
            let order = duties.order(self.serial).map(|how| match how {
                Disturb::Kill => Signal::KILL,
                Disturb::Stop => Signal::STOP,
            });
            let signal = order.or_else(|| {
                let how = heartbeat.look()?;
                log::error!("the device model hangs: {how}");
                Some(Signal::KILL)
            });
            if let Some(signal) = signal {
                pidfd_send_signal(&end, signal).context("cannot signal the device model")?;
            }
        }
    }
}

/// What vgpud orders through xenstore, which is looked at: a watch of a stub
/// domain's is one more thing that can hang.
pub struct Orders {
    xenstore: Xenstore,
    node: String,
    last: Option<String>,
}

impl Orders {
    /// None yet.
    ///
    /// # Errors
    /// When there is no xenstore.
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self {
            xenstore: Xenstore::open()?,
            // Paths that do not begin at the root are below our own domain's.
            node: format!("{STUB_FOLDER}/{STUB_ORDER}"),
            last: None,
        })
    }

    /// What is ordered since the last look, if that is for the device model number
    /// `serial`.
    pub fn next(&mut self, serial: u32) -> Option<Disturb> {
        let text = self.xenstore.read_if_there(&self.node);
        let text = text.inspect_err(|e| log::error!("orders: {e}")).ok()??;
        if self.last.as_ref() == Some(&text) {
            return None;
        }
        let order = text.parse().inspect_err(|e| log::error!("{e}")).ok();
        self.last = Some(text);
        let order: StubOrder = order?;
        (order.serial == serial).then_some(order.how)
    }
}
