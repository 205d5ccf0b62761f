//! One vCPU's requests: the slot and its event channel together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{IoRequest, IoreqPage};
use crate::{DomId, EventChannel, EventChannelError, EventChannels, IoreqError};

/// Why a vCPU's requests could not be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VcpuIoreqsError {
    /// The page.
    #[error(transparent)]
    Page(#[from] IoreqError),
    /// The event channel.
    #[error(transparent)]
    Event(#[from] EventChannelError),
}

/// The requests of one vCPU.
#[derive(Debug)]
pub struct VcpuIoreqs {
    page: Arc<IoreqPage>,
    vcpu: u32,
    channel: Arc<EventChannel>,
}

impl VcpuIoreqs {
    /// Binds the vCPU's port on `events`, which should be bound to nothing
    /// else. The server must have been enabled.
    ///
    /// # Errors
    /// [`VcpuIoreqsError`].
    pub fn bind(
        page: Arc<IoreqPage>,
        vcpu: u32,
        events: Arc<dyn EventChannels>,
        domid: DomId,
    ) -> Result<Self, VcpuIoreqsError> {
        let port = page.port(vcpu)?;
        let channel = EventChannel::bind_interdomain(events, domid, port)?;
        Ok(Self {
            page,
            vcpu,
            channel: Arc::new(channel),
        })
    }

    /// The vCPU.
    #[must_use]
    pub fn vcpu(&self) -> u32 {
        self.vcpu
    }

    /// Its event channel.
    #[must_use]
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// The page the slot is in.
    #[must_use]
    pub fn page(&self) -> &Arc<IoreqPage> {
        &self.page
    }

    /// Takes the next request, sleeping on the event channel for at most
    /// `timeout` (for ever when none). `None` when the time was up. Who would
    /// rather look for a while first asks [`VcpuIoreqs::page`].
    ///
    /// # Errors
    /// [`VcpuIoreqsError`].
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<IoRequest>, VcpuIoreqsError> {
        let start = Instant::now();
        loop {
            if let Some(request) = self.page.take(self.vcpu)? {
                return Ok(Some(request));
            }
            let left = timeout.map(|t| t.saturating_sub(start.elapsed()));
            match self.channel.events().wait(left)? {
                // Unmask before looking, or an event in between is lost.
                Some(port) => self.channel.events().unmask(port)?,
                None => return Ok(self.page.take(self.vcpu)?),
            }
        }
    }

    /// Takes a request that a former process left, or one that waits.
    ///
    /// # Errors
    /// [`VcpuIoreqsError`].
    pub fn take_unfinished(&self) -> Result<Option<IoRequest>, VcpuIoreqsError> {
        Ok(self.page.take_unfinished(self.vcpu)?)
    }

    /// Answers, and wakes the vCPU.
    ///
    /// # Errors
    /// [`VcpuIoreqsError`].
    pub fn complete(&self, data: u64) -> Result<(), VcpuIoreqsError> {
        self.page.complete(self.vcpu, data)?;
        Ok(self.channel.notify()?)
    }
}
