//! A vGPU without an honest device model.

use std::sync::Arc;
use std::time::Duration;

use gen8::Engine;
use guest_driver::{Batch, Context, Frames, Gpu, Platform};
use guest_memory::{GuestMemory, VecMemory};
use vgpu_ring::{AreaWords, Consumer, Event, EventBell, GgttTable, Producer, PushError, Request};

use crate::{Link, SimHost};

/// Frames of its guest.
const FRAMES: usize = 1024;
/// Where the global page table stands in BAR0.
const TABLE: u64 = 8 << 20;

/// A guest whose page table is the shared area's, and which has no registers.
struct Bare {
    memory: Arc<VecMemory>,
    table: GgttTable,
}

impl Platform for Bare {
    fn memory(&self) -> &dyn GuestMemory {
        &*self.memory
    }

    fn config_read(&mut self, _register: u16, _size: u8) -> u32 {
        u32::MAX
    }

    fn config_write(&mut self, _register: u16, _size: u8, _value: u32) {}

    fn mmio_read(&mut self, _address: u64, _size: u8) -> u64 {
        u64::MAX
    }

    fn mmio_write(&mut self, address: u64, _size: u8, value: u64) {
        let entry = address.checked_sub(TABLE).map(|at| u32::try_from(at / 8));
        if let Some(Ok(index)) = entry {
            self.table.store(index, value);
        }
    }

    fn wait_interrupt(&mut self, _timeout: Duration) -> bool {
        false
    }
}

/// Its rings in the hands of someone who means no good, with one context
/// whose batch never ends.
pub struct Rogue {
    requests: Producer<Request, AreaWords, EventBell>,
    events: Consumer<Event, AreaWords, EventBell>,
    engine: u8,
    context: Context,
    memory: Arc<VecMemory>,
    seq: u64,
    link: Link,
}

impl Rogue {
    /// A vGPU `id`, which must not be in use.
    ///
    /// # Errors
    /// What the system or the scheduler says.
    pub fn start(host: &SimHost, id: u64, engine: Engine) -> anyhow::Result<Self> {
        let memory = Arc::new(VecMemory::new(FRAMES));
        let (link, area, bells) = Link::start_bare(host, id, memory.clone(), None)?;
        let end = area.device_end(bells);
        let bare = Bare {
            memory: Arc::clone(&memory),
            table: end.ggtt,
        };
        let mut gpu = Gpu::unprobed(bare, host.platform());
        let mut frames = Frames::new(1, u64::try_from(FRAMES)?);
        let mut context = Context::new(&mut gpu, &mut frames, engine, 0x20)?;
        let slot = context.slots[0];
        let endless = Batch::new().start(slot.batch_va).finish();
        let bytes: Vec<u8> = endless.iter().flat_map(|d| d.to_le_bytes()).collect();
        memory.write(slot.batch, &bytes)?;
        context.add_request(&*memory, slot.batch_va)?;
        Ok(Self {
            requests: end.requests,
            events: end.events,
            engine: u8::try_from(engine.index())?,
            context,
            memory,
            seq: 0,
            link,
        })
    }

    /// Submits the batch that never ends.
    ///
    /// # Errors
    /// [`PushError`], or what its memory says.
    pub fn spin(&mut self) -> anyhow::Result<()> {
        let descriptor = self.context.publish(&*self.memory)?;
        self.seq += 1;
        Ok(self.requests.push(Request::Submit {
            engine: self.engine,
            seq: self.seq,
            desc: [descriptor.0, 0],
        })?)
    }

    /// Resets the engine, as a guest does that wants to go on.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn reset(&mut self) -> Result<(), PushError> {
        let engines = 1 << self.engine;
        self.requests.push(Request::Reset { engines, epoch: 0 })
    }

    /// Asks for `count` answers; how many times the ring was full.
    ///
    /// # Errors
    /// When the ring is broken.
    pub fn ping(&mut self, count: u32) -> Result<u32, PushError> {
        let mut full = 0;
        for token in 0..count {
            match self.requests.push(Request::Ping {
                token: token.into(),
            }) {
                Ok(()) => {}
                Err(PushError::Full) => full += 1,
                Err(e) => return Err(e),
            }
        }
        Ok(full)
    }

    /// The next event, if one comes in time.
    ///
    /// # Errors
    /// When the ring is broken.
    pub fn event(&mut self, timeout: Duration) -> anyhow::Result<Option<Event>> {
        if let Some(event) = self.events.pop()? {
            return Ok(Some(event));
        }
        self.events.wait(Some(timeout))?;
        Ok(self.events.pop()?)
    }

    /// Why vgpud dropped the vGPU, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.link.failure()
    }
}
