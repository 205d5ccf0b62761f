//! What the GPU is given to do, and what memory then has to hold.
//!
//! A load keeps the image that its buffer has to have after each request.
//! Part of it adds up over all requests, so that one that is lost, done twice
//! or done on stale data shows in every later one; the rest depends on the
//! request's number.

mod blit;
mod store;

#[cfg(test)]
mod tests;

use gen8::Engine;
use gen8::cmd::mi_op as op;
use gen8::cmd::{flags, pipe_control};

pub use blit::Blit;
pub use store::Store;

/// Places in the buffer's first page, in dwords.
pub mod log {
    /// Passes of all requests, counted by the GPU.
    pub const PASSES: usize = 0;
    /// The number of the last request, stored by a command.
    pub const NUMBER: usize = 1;
    /// The same, stored by the flush at its end.
    pub const FLUSHED: usize = 2;
    /// (Render) what a general register held before the request: the number
    /// of the one before it in its context, of whatever buffer.
    pub const REGISTER: usize = 4;
    /// (Blitter) a row that rows of every pass are combined into.
    pub const ROW: usize = 256;
    /// Dwords of the page.
    pub const DWORDS: usize = 1024;
}

/// Graphics addresses of a request's objects.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The buffer.
    pub data: u64,
    /// The commands of one pass, if the load has them apart.
    pub body: u64,
}

/// Who asks, and after whom.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Counts the requests on the engine, from 1.
    pub number: u32,
    /// The request that its context ran before on the engine, if any.
    pub before: Option<u32>,
}

/// The commands of a request.
#[derive(Debug, Default)]
pub struct Request {
    /// The batch.
    pub batch: Vec<u32>,
    /// What it calls once a pass; may be empty.
    pub body: Vec<u32>,
}

/// One buffer's work.
pub trait Load {
    /// The next request. From now on [`Load::image`] is what it has to leave.
    fn request(&mut self, places: Places, turn: Turn) -> Request;

    /// What the buffer has to hold when the request is done.
    fn image(&self) -> &[u32];

    /// Takes what was found for what has to be there, so that one fault is
    /// counted once.
    fn adopt(&mut self, found: &[u32]);

    /// The most dwords that the batch and its body can have.
    fn room(&self) -> (usize, usize);
}

/// Spreads numbers over all bits (the finaliser of MurmurHash3).
pub fn mix(parts: [u32; 4]) -> u32 {
    parts.iter().fold(0x9e37_79b9, |hash, part| {
        let mut h = hash ^ part;
        h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
        h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
        h ^ (h >> 16)
    })
}

/// Both halves of an address, low first.
fn halves(address: u64) -> [u32; 2] {
    let b = address.to_le_bytes();
    [
        u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    ]
}

fn dword_address(base: u64, dword: usize) -> u64 {
    base + 4 * u64::try_from(dword).unwrap_or(0)
}

/// PIPE_CONTROL, and its stall of the command streamer
/// (Linux `gt/intel_gpu_commands.h:PIPE_CONTROL_CS_STALL`).
const PIPE_CONTROL: u32 = 0x7a00_0000;
const CS_STALL: u32 = 1 << 20;

/// Commands being put together. Lengths in the first dword are the dwords
/// that follow it, less one (Linux `gt/intel_gpu_commands.h`).
struct Commands {
    engine: Engine,
    words: Vec<u32>,
}

impl Commands {
    fn new(engine: Engine) -> Self {
        Self {
            engine,
            words: Vec::new(),
        }
    }

    /// An MI command without its length.
    fn mi(&mut self, opcode: u32, bits: u32, operands: &[&[u32]]) {
        let count: usize = operands.iter().map(|o| o.len()).sum();
        let length = u32::try_from(count).unwrap_or(0).saturating_sub(1);
        self.words.push((opcode << 23) | bits | length);
        for operand in operands {
            self.words.extend_from_slice(operand);
        }
    }

    fn store(&mut self, to: u64, value: u32) {
        self.mi(op::STORE_DATA_IMM, 0, &[&halves(to), &[value]]);
    }

    /// Adds one in memory.
    fn increment(&mut self, at: u64) {
        self.mi(op::ATOMIC, flags::atomic::INC << 8, &[&halves(at)]);
    }

    /// Adds `value` in memory. Inline operands take eight dwords: those of
    /// the first and the second in turns, low first.
    fn add(&mut self, at: u64, value: u32) {
        self.mi(
            op::ATOMIC,
            flags::atomic::INLINE | (flags::atomic::ADD << 8),
            &[&halves(at), &[value, 0, 0, 0, 0, 0, 0, 0]],
        );
    }

    fn load_register(&mut self, register: u32, value: u32) {
        self.mi(op::LOAD_REGISTER_IMM, 0, &[&[register, value]]);
    }

    fn store_register(&mut self, register: u32, to: u64) {
        self.mi(op::STORE_REGISTER_MEM, 0, &[&[register], &halves(to)]);
    }

    /// Runs the commands at `at`, in the context's own tables, and comes back.
    fn call(&mut self, at: u64) {
        let bits = flags::batch_start::SECOND_LEVEL | flags::batch_start::PPGTT;
        self.mi(op::BATCH_BUFFER_START, bits, &[&halves(at)]);
    }

    /// (Not the render engine) until what was written before can be read.
    fn flush(&mut self) {
        self.mi(op::FLUSH_DW, 0, &[&[0, 0, 0]]);
    }

    /// A flush that stores `value` when it is through.
    fn flush_and_store(&mut self, to: u64, value: u32) {
        let [low, high] = halves(to);
        if self.engine == Engine::Rcs {
            let how = pipe_control::POST_SYNC_QW | CS_STALL;
            self.words.push(PIPE_CONTROL | 4);
            self.words.extend([how, low, high, value, 0]);
        } else {
            self.mi(
                op::FLUSH_DW,
                flags::flush_dw::POST_SYNC_WRITE,
                &[&[low, high, value, 0]],
            );
        }
    }

    fn end(mut self) -> Vec<u32> {
        self.words.push(op::BATCH_BUFFER_END << 23);
        // i915 wants whole quadwords.
        if !self.words.len().is_multiple_of(2) {
            self.words.push(op::NOOP);
        }
        self.words
    }
}
