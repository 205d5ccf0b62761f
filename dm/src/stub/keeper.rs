//! Who keeps the page of requests.
//!
//! vgpud maps it, for when the domain ends, and the domain's first process, for when
//! the device model does: the next can map it only while its server is disabled,
//! which clears it, and vgpud may be another one by then.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vgpu_control::{Connection, ControlError};
use vgpu_dm::PageKeeper;
use xen_glue::{DomId, Hypervisor, IoreqPages, XenHost, Xenstore};

use crate::control::Control;

/// To the first process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Tell {
    /// The page is about to be cleared.
    Lift,
    /// It is this frame of the guest.
    PageAt { gfn: u64 },
    /// Requests are sent to it.
    Enabled,
}

/// Its answer: why it was not done, if it was not.
#[derive(Debug, Serialize, Deserialize)]
struct Done(Option<String>);

/// The device model's side.
pub struct Keeper {
    control: Arc<Control>,
    holder: Connection,
}

impl Keeper {
    /// Tells vgpud and the first process, behind `holder`.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn new(control: &Arc<Control>, holder: &Connection) -> io::Result<Self> {
        let holder = holder.as_fd().try_clone_to_owned()?;
        Ok(Self {
            control: Arc::clone(control),
            holder: Connection::from(holder),
        })
    }

    fn tell(&self, what: Tell) -> io::Result<()> {
        let tell = || -> Result<Done, ControlError> {
            self.holder.send(&what, &[])?;
            Ok(self.holder.recv()?.0)
        };
        let Done(failure) = tell().map_err(io::Error::other)?;
        failure.map_or(Ok(()), |e| Err(io::Error::other(e)))
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("vgpud and the first process")
    }
}

impl PageKeeper for Keeper {
    fn lift(&self) -> io::Result<()> {
        self.tell(Tell::Lift)
    }

    fn page_at(&self, gfn: u64) -> io::Result<()> {
        self.tell(Tell::PageAt { gfn })?;
        self.control.page_at(gfn)
    }

    fn enabled(&self) -> io::Result<()> {
        self.tell(Tell::Enabled)?;
        self.control.enabled()
    }
}

/// The first process's side.
pub struct Kept(IoreqPages);

impl Kept {
    /// No page yet.
    ///
    /// # Errors
    /// When Xen's nodes are not there, or no guest is named.
    pub fn new() -> anyhow::Result<Self> {
        let guest = Xenstore::open()?.read("target")?;
        let pages = IoreqPages::new(XenHost.open_privcmd()?, DomId(guest.trim().parse()?));
        Ok(Self(pages))
    }

    /// Does what the device model behind `connection` says next; whether it may
    /// say more.
    pub fn answer(&mut self, connection: &Connection) -> bool {
        let tell = match connection.recv::<Tell>() {
            Ok((tell, _)) => tell,
            Err(ControlError::Closed) => return false,
            Err(e) => {
                log::error!("the device model: {e}");
                return false;
            }
        };
        let done = match tell {
            Tell::Lift => {
                self.0.lift();
                Ok(())
            }
            Tell::PageAt { gfn } => self.0.page_at(gfn),
            Tell::Enabled => self.0.enabled(),
        };
        let done = Done(done.err().map(|e| e.to_string()));
        connection.send(&done, &[]).is_ok()
    }
}
