//! What scans found, so that what did not change is not decoded again.
//!
//! A verdict follows from the engine, the address and the dwords alone. The
//! dwords are copied from the guest each time and compared by a digest of the
//! copy, so nothing here depends on when the guest writes what.

use std::collections::HashMap;
use std::hash::Hasher;

use fxhash::{FxBuildHasher, FxHasher};
use gen8::Engine;

use super::finding::Fault;

/// Segments kept for one vGPU.
const KEPT: usize = 256;
/// Targets and findings of a segment that is kept, each.
const FEW: usize = 4;

/// What a segment, the commands of a batch that begin in one page, does.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// The dwords from which that follows.
    pub dwords: usize,
    /// Commands in it.
    pub commands: u32,
    /// The next segment comes right behind it.
    pub goes_on: bool,
    /// The GPU may go where the scan does not.
    pub doubtful: bool,
    /// Batches it starts.
    pub targets: Vec<u64>,
    /// What is wrong: dwords from its start, name, header.
    pub found: Vec<(usize, &'static str, u32, Fault)>,
}

struct Entry {
    digest: u64,
    segment: Segment,
}

/// Segments of one vGPU.
#[derive(Default)]
pub struct Kept(HashMap<(Engine, u64), Entry, FxBuildHasher>);

/// Tells contents apart, well enough for a guest that wants to be understood.
fn digest(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(seed);
    hasher.write(bytes);
    hasher.finish()
}

impl Kept {
    /// The dwords that must be looked at to tell whether there is a verdict
    /// on the segment at `address`.
    pub fn dwords(&self, engine: Engine, address: u64) -> Option<usize> {
        self.0.get(&(engine, address)).map(|e| e.segment.dwords)
    }

    /// The verdict on `bytes` at `address`.
    pub fn find(&self, engine: Engine, address: u64, seed: u64, bytes: &[u8]) -> Option<&Segment> {
        let entry = self.0.get(&(engine, address))?;
        (entry.digest == digest(seed, bytes)).then_some(&entry.segment)
    }

    /// Keeps a verdict. When there are too many, all others go.
    pub fn put(&mut self, engine: Engine, address: u64, seed: u64, bytes: &[u8], of: &Segment) {
        if of.targets.len() > FEW || of.found.len() > FEW {
            self.0.remove(&(engine, address));
            return;
        }
        if self.0.len() >= KEPT {
            self.0.clear();
        }
        let entry = Entry {
            digest: digest(seed, bytes),
            segment: of.clone(),
        };
        self.0.insert((engine, address), entry);
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        const ENTRY: usize = size_of::<Entry>() + size_of::<(Engine, u64)>() + 1;
        self.0.capacity() * ENTRY + self.0.len() * FEW * 8
    }
}
