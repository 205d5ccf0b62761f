//! Where the page of vCPUs' requests is.
//!
//! In dom0 it is Xen's own, which any process of the domain can map. A domain
//! made for a device model may end, and with it all that can map the page, while
//! a vCPU waits in it. So there the page is a frame of the guest's until the
//! server is enabled, which somebody who outlives the domain maps, too.

use std::fmt;
use std::io;

use xen_glue::{IoreqPage, IoreqServer};

use crate::server::AttachError;

/// Who maps the page of requests, too, and outlives this domain. The guest is
/// paused, or has not begun, when it is called.
pub trait PageKeeper: Send + Sync + fmt::Debug {
    /// The page is about to be cleared, if there is one of a predecessor's.
    ///
    /// # Errors
    /// When nobody keeps what is in it.
    fn lift(&self) -> io::Result<()>;

    /// The page is the guest's frame `gfn` until this returns.
    ///
    /// # Errors
    /// When nobody maps it.
    fn page_at(&self, gfn: u64) -> io::Result<()>;

    /// Requests are sent to the page now. When this returns, those are in it
    /// that a predecessor was to answer.
    ///
    /// # Errors
    /// When nobody knows.
    fn enabled(&self) -> io::Result<()>;
}

/// Maps the page for `vcpus` vCPUs, and has requests be sent to it.
pub(crate) fn enable(
    server: &IoreqServer,
    vcpus: u32,
    keeper: Option<&dyn PageKeeper>,
) -> Result<IoreqPage, AttachError> {
    let Some(keeper) = keeper else {
        let page = server.map_page(vcpus)?;
        // The ports in the page are valid only once it is enabled.
        server.set_enabled(true)?;
        return Ok(page);
    };
    let kept = |source| AttachError::System {
        what: "have the page of requests kept",
        source,
    };
    // A predecessor in this domain had it enabled, and out of the guest.
    keeper.lift().map_err(kept)?;
    server.set_enabled(false)?;
    let gfn = server.frame()?;
    let model = server.device_model();
    let page = IoreqPage::of_frame(&**model.privcmd(), model.domid(), gfn, vcpus)?;
    keeper.page_at(gfn).map_err(kept)?;
    server.set_enabled(true)?;
    keeper.enabled().map_err(kept)?;
    Ok(page)
}
