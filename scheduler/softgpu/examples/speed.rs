//! How fast the engines execute: prints a table.
//!
//! `cargo run --release -p softgpu --example speed`

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gen8::{Engine, csb, irq, lrc, ring};
use gpu_bus::{Dma, DmaFault, GGTT_BASE, Gpu, InterruptLine};
use softgpu::{Config, SoftGpu};

const WORDS: usize = 4 << 20;

/// 32 MiB as 8-byte words, so that no lock is in the way.
struct Ram(Vec<AtomicU64>);

impl Ram {
    fn each(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(&AtomicU64, usize, usize, usize),
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { address, write };
        let mut at = usize::try_from(address).map_err(|_| fault)?;
        let mut done = 0;
        while done < len {
            let word = self.0.get(at / 8).ok_or(fault)?;
            let n = (8 - at % 8).min(len - done);
            f(word, at % 8, done, n);
            at += n;
            done += n;
        }
        Ok(())
    }
}

impl Dma for Ram {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.each(address, buf.len(), false, |w, o, i, n| {
            buf[i..i + n].copy_from_slice(&w.load(Relaxed).to_le_bytes()[o..o + n]);
        })
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.each(address, data.len(), true, |w, o, i, n| {
            let mut b = w.load(Relaxed).to_le_bytes();
            b[o..o + n].copy_from_slice(&data[i..i + n]);
            w.store(u64::from_le_bytes(b), Relaxed);
        })
    }
}

#[derive(Default)]
struct Line(Mutex<u64>, Condvar);

impl InterruptLine for Line {
    fn raise(&self) {
        *self.0.lock().expect("no panic holds it") += 1;
        self.1.notify_all();
    }
}

struct Bench {
    gpu: Arc<SoftGpu>,
    ram: Arc<Ram>,
    line: Arc<Line>,
    engine: Engine,
    tail: u32,
}

// Global page n is bus page n. The context's tables map the same addresses
// by 2 MiB pages.
const HWSP: u32 = 0x1000;
const LRCA: u32 = 0x10_0000;
const RING: u32 = 0x20_0000;
const ROOT: u32 = 0x30_0000;
const CODE: u32 = 0x40_0000;
const DATA: u32 = 0x80_0000;

impl Bench {
    fn new(engine: Engine) -> Self {
        let ram = Arc::new(Ram((0..WORDS).map(|_| AtomicU64::new(0)).collect()));
        let line = Arc::new(Line::default());
        let gpu = SoftGpu::new(Config::default(), ram.clone(), line.clone());
        let b = Self {
            gpu,
            ram,
            line,
            engine,
            tail: 0,
        };
        for page in 0..0x2000u32 {
            b.gpu
                .write64(GGTT_BASE + page * 8, (u64::from(page) << 12) | 1);
        }
        for n in 0..4 {
            b.gpu.write32(irq::GT_IMR0 + n * 0x10, 0);
            b.gpu.write32(irq::GT_IER0 + n * 0x10, u32::MAX);
        }
        b.gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
        b.put(ring::IMR, 0);
        b.put(ring::MODE, ring::MODE_RUN_LIST << 16 | ring::MODE_RUN_LIST);
        b.put(ring::HWS_PGA, HWSP);
        let root = u64::from(ROOT);
        b.qword(root, (root + 0x1000) | 3);
        b.qword(root + 0x1000, (root + 0x2000) | 3);
        for n in 0..16 {
            b.qword(root + 0x2000 + n * 8, (n << 21) | 0x83);
        }
        b.image(lrc::CONTEXT_CONTROL, 0x0009_0009);
        b.image(lrc::RING_START, RING);
        b.image(lrc::RING_CTL, 0x3000 | 1);
        b.image(lrc::PDP0_LDW, ROOT);
        b
    }

    fn put(&self, o: u32, v: u32) {
        self.gpu.write32(self.engine.mmio_base() + o, v);
    }

    fn qword(&self, at: u64, v: u64) {
        self.ram.write(at, &v.to_le_bytes()).expect("in memory");
    }

    fn image(&self, dword: usize, v: u32) {
        let at = u64::from(LRCA) + 4096 + 4 * u64::try_from(dword).expect("small");
        self.ram.write(at, &v.to_le_bytes()).expect("in memory");
    }

    fn code(&self, at: u32, dwords: &[u32]) {
        let bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
        self.ram.write(u64::from(at), &bytes).expect("in memory");
    }

    /// Runs the batch once; the time from ELSP to the last interrupt.
    fn run(&mut self) -> Duration {
        self.code(RING + self.tail, &[0x1880_0101, CODE, 0, 0]);
        self.tail = (self.tail + 16) % 0x4000;
        self.image(lrc::RING_TAIL, self.tail);
        let start = Instant::now();
        for v in [0, 0, 0x20, LRCA | 0x19] {
            self.put(ring::ELSP, v);
        }
        loop {
            let mut seen = self.line.0.lock().expect("no panic holds it");
            while *seen == 0 {
                seen = self.line.1.wait(seen).expect("no panic holds it");
            }
            *seen = 0;
            drop(seen);
            self.gpu.write32(irq::MASTER, 0);
            let (bank, _) = self.engine.irq_bank();
            let iir = irq::GT_IIR0 + bank * 0x10;
            let v = self.gpu.read32(iir);
            self.gpu.write32(iir, v);
            self.gpu.write32(irq::MASTER, irq::MASTER_ENABLE);
            let n = self.gpu.read32(self.engine.mmio_base() + ring::CSB_PTR) & 7;
            let status = self.engine.mmio_base() + ring::CSB_MIRROR + n * 8;
            if self.gpu.read32(status) & csb::ACTIVE_TO_IDLE != 0 {
                return start.elapsed();
            }
        }
    }

    /// The median of some runs.
    fn median(&mut self) -> Duration {
        let mut times: Vec<Duration> = (0..41).map(|_| self.run()).collect();
        times.sort_unstable();
        times[times.len() / 2]
    }
}

const END: u32 = 0x0a << 23;
const COMMANDS: u32 = 20_000;

fn main() {
    println!("{:<36} {:>12}", "what", "median");
    let mut b = Bench::new(Engine::Rcs);
    b.code(CODE, &[END]);
    let empty = b.median();
    println!(
        "{:<36} {:>9.1} us",
        "empty request, ELSP to interrupt",
        us(empty)
    );

    let per = |t: Duration| us(t.saturating_sub(empty)) * 1000.0 / f64::from(COMMANDS);
    let mut list = Vec::new();
    for n in 0..COMMANDS {
        list.extend([0x1000_0002, DATA + (n * 4) % 0x1_0000, 0, n]);
    }
    list.push(END);
    b.code(CODE, &list);
    println!("{:<36} {:>9.1} ns", "MI_STORE_DATA_IMM", per(b.median()));

    list = vec![0; usize::try_from(COMMANDS).expect("small")];
    list.push(END);
    b.code(CODE, &list);
    println!("{:<36} {:>9.1} ns", "MI_NOOP", per(b.median()));

    list.clear();
    for _ in 0..COMMANDS {
        list.extend([0x1100_0001, 0x2600, 7]);
    }
    list.push(END);
    b.code(CODE, &list);
    println!("{:<36} {:>9.1} ns", "MI_LOAD_REGISTER_IMM", per(b.median()));

    let mut b = Bench::new(Engine::Bcs);
    let pages = 8 << 20;
    let rate = |t: Duration| f64::from(pages) / us(t);
    for (name, flags, pitch) in [
        ("XY_SRC_COPY_BLT, linear", 0, 4096),
        ("XY_SRC_COPY_BLT, X to X", 1 << 15 | 1 << 11, 1024),
    ] {
        b.code(
            CODE,
            &[
                0x54f0_0008 | flags,
                3 << 24 | 0xcc << 16 | pitch,
                0,
                2048 << 16 | 1024,
                0x80_0000,
                0,
                0,
                pitch,
                0x100_0000,
                0,
                END,
            ],
        );
        println!("{name:<36} {:>7.0} MB/s", rate(b.median()));
    }
}

fn us(t: Duration) -> f64 {
    t.as_secs_f64() * 1e6
}
