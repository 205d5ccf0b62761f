//! One request in flight, with the buffer it works on.

use std::time::Duration;

use anyhow::Context as _;
use gen8::Engine;

use crate::load::{Load, Places, Turn};
use crate::uapi::{Context, I915, Object};

/// Where the first slot's objects are in their context's address space, and
/// how far the next ones' are from there. All below 4 GiB, where any page
/// tables reach.
const FIRST: u64 = 0x1000_0000;
const STRIDE: u64 = 0x80_0000;
/// Slots that fit below 4 GiB.
pub const PLACES: u64 = ((1 << 32) - FIRST) / (OBJECTS * STRIDE);
/// Buffer, body, batch.
const OBJECTS: u64 = 3;

/// What was wrong in a buffer.
#[derive(Debug, serde::Serialize)]
pub struct Mismatch {
    /// The engine.
    engine: &'static str,
    /// The request.
    request: u32,
    /// Dwords that were wrong.
    dwords: usize,
    /// The first of them, its place in the buffer in bytes.
    offset: usize,
    /// What it has to be.
    expected: u32,
    /// What it was.
    found: u32,
}

/// A request's place: objects, and what is known of them.
pub struct Slot {
    engine: Engine,
    /// Which of the contexts it uses.
    pub context: usize,
    handle: Context,
    load: Box<dyn Load>,
    data: Object,
    body: Option<Object>,
    batch: Object,
    /// The request that was submitted and not verified yet.
    pending: Option<u32>,
    /// The buffer's content, reused.
    found: Vec<u8>,
}

impl Slot {
    /// Makes the objects of slot `place`; `context` with its number.
    pub fn new(
        gpu: &I915,
        (context, handle): (usize, Context),
        engine: Engine,
        place: u64,
        load: Box<dyn Load>,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(
            place < PLACES,
            "buffers are {}, allowed: {PLACES} on all engines together",
            place + 1
        );
        let object = |dwords: usize, which: u64| -> anyhow::Result<Object> {
            let size = u64::try_from(dwords * 4)?.next_multiple_of(4096);
            anyhow::ensure!(
                size <= STRIDE,
                "an object is {size:#x} bytes, allowed: up to {STRIDE:#x}; fewer passes or less memory are needed"
            );
            Ok(gpu.create(size, FIRST + (place * OBJECTS + which) * STRIDE)?)
        };
        let dwords = load.image().len();
        let (batch, body) = load.room();
        Ok(Self {
            engine,
            context,
            handle,
            data: object(dwords, 0)?,
            body: if body > 0 {
                Some(object(body, 1)?)
            } else {
                None
            },
            batch: object(batch, 2)?,
            load,
            pending: None,
            found: vec![0; dwords * 4],
        })
    }

    /// Submits the next request. The one before has to be verified.
    pub fn submit(&mut self, gpu: &I915, turn: Turn) -> anyhow::Result<()> {
        let places = Places {
            data: self.data.address,
            body: self.body.map_or(0, |b| b.address),
        };
        let request = self.load.request(places, turn);
        gpu.write(self.batch, &bytes(&request.batch))?;
        let mut objects = vec![self.data];
        if let Some(body) = self.body {
            gpu.write(body, &bytes(&request.body))?;
            objects.push(body);
        }
        objects.push(self.batch);
        gpu.execute(self.handle, self.engine, &objects)
            .with_context(|| format!("request {} on {}", turn.number, self.name()))?;
        self.pending = Some(turn.number);
        Ok(())
    }

    /// Waits until the request is done, if there is one; false when it is not
    /// by then.
    pub fn wait(&self, gpu: &I915, limit: Duration) -> anyhow::Result<bool> {
        match self.pending {
            Some(_) => Ok(gpu.wait(self.data, limit)?),
            None => Ok(true),
        }
    }

    /// Compares the buffer with what it has to hold; nothing without a
    /// request.
    pub fn verify(&mut self, gpu: &I915) -> anyhow::Result<Option<Result<(), Mismatch>>> {
        let Some(request) = self.pending.take() else {
            return Ok(None);
        };
        gpu.read(self.data, &mut self.found)?;
        Ok(Some(match self.compare(request) {
            None => Ok(()),
            Some(mismatch) => {
                let found: Vec<u32> = dwords(&self.found).collect();
                self.load.adopt(&found);
                Err(mismatch)
            }
        }))
    }

    fn compare(&self, request: u32) -> Option<Mismatch> {
        let both = || dwords(&self.found).zip(self.load.image()).enumerate();
        let (at, (found, expected)) = both().find(|(_, (f, e))| f != *e)?;
        Some(Mismatch {
            engine: self.name(),
            request,
            dwords: both().filter(|(_, (f, e))| f != *e).count(),
            offset: at * 4,
            expected: *expected,
            found,
        })
    }

    fn name(&self) -> &'static str {
        self.engine.sysfs_name()
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn dwords(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|four| u32::from_le_bytes(*four))
}
