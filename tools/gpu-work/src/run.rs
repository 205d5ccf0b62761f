//! Keeping requests in flight, and telling how it goes.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gen8::Engine;
use nix::sys::signalfd::SignalFd;
use serde::Serialize;

use crate::load::{Load, Turn};
use crate::slot::Slot;
use crate::uapi::{Context, I915, Resets};

/// How long to wait for a request before looking at the clock again. A hung
/// one is the driver's to find.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often progress is printed.
const TICK: Duration = Duration::from_secs(1);

/// A line of progress.
#[derive(Debug, Default, Serialize)]
struct Progress {
    /// Seconds since the start.
    seconds: f64,
    /// Requests given to the driver.
    requests: u64,
    /// Buffers compared and right.
    verified: u64,
    /// Buffers compared and wrong.
    mismatches: u64,
    /// Resets of the GPU since the start.
    resets: u32,
    /// Our requests that a reset hit, running or waiting.
    hit: u32,
    /// In the last line: what ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
}

/// One engine's requests.
struct Lane {
    engine: Engine,
    /// In the order of their requests: the next to be used first.
    slots: Vec<Slot>,
    /// Of the last request.
    number: u32,
    /// Each context's last request.
    last: Vec<Option<u32>>,
}

/// All of it.
pub struct Run {
    gpu: I915,
    contexts: Vec<Context>,
    before: Resets,
    lanes: Vec<Lane>,
    places: u64,
    started: Instant,
    printed: Instant,
    progress: Progress,
}

impl Run {
    /// Makes `contexts` contexts, one or more, on `gpu`.
    pub fn new(gpu: I915, contexts: u32) -> anyhow::Result<Self> {
        let contexts: Vec<Context> = (0..contexts.max(1))
            .map(|_| gpu.context())
            .collect::<Result<_, _>>()?;
        let before = resets(&gpu, &contexts)?;
        Ok(Self {
            gpu,
            contexts,
            before,
            lanes: Vec::new(),
            places: 0,
            started: Instant::now(),
            printed: Instant::now(),
            progress: Progress::default(),
        })
    }

    /// Adds an engine, with a request in flight for each of `loads`, in one
    /// context after the other.
    pub fn add(&mut self, engine: Engine, loads: Vec<Box<dyn Load>>) -> anyhow::Result<()> {
        let mut slots = Vec::new();
        let contexts = self.contexts.iter().copied().enumerate().cycle();
        for (load, context) in loads.into_iter().zip(contexts) {
            slots.push(Slot::new(&self.gpu, context, engine, self.places, load)?);
            self.places += 1;
        }
        self.lanes.push(Lane {
            engine,
            slots,
            number: 0,
            last: vec![None; self.contexts.len()],
        });
        Ok(())
    }

    /// Works until a signal comes or the time is over, then finishes what is
    /// in flight. How many buffers were wrong.
    ///
    /// The clock decides about the end and about printing alone, so it may
    /// jump.
    pub fn until(mut self, signals: &SignalFd, limit: Option<Duration>) -> anyhow::Result<u64> {
        self.started = Instant::now();
        let end = loop {
            for lane in 0..self.lanes.len() {
                self.step(lane)?;
            }
            let signal = signals.read_signal().context("cannot read signals")?;
            if signal.is_some() {
                break "signal";
            }
            if limit.is_some_and(|l| self.started.elapsed() >= l) {
                break "time";
            }
        };
        for lane in 0..self.lanes.len() {
            for _ in 0..self.lanes[lane].slots.len() {
                self.finish(lane)?;
            }
        }
        self.progress.end = Some(end);
        self.print()?;
        Ok(self.progress.mismatches)
    }

    /// Finishes the lane's oldest request and submits a new one.
    fn step(&mut self, lane: usize) -> anyhow::Result<()> {
        self.finish(lane)?;
        let lane = &mut self.lanes[lane];
        lane.number = lane.number.wrapping_add(1);
        // The slot just finished.
        if let Some(slot) = lane.slots.last_mut() {
            let turn = Turn {
                number: lane.number,
                before: lane.last[slot.context].replace(lane.number),
            };
            slot.submit(&self.gpu, turn)
                .with_context(|| format!("{} was given work", lane.engine.sysfs_name()))?;
            self.progress.requests += 1;
        }
        Ok(())
    }

    /// Waits for the lane's oldest request and checks what it left.
    fn finish(&mut self, lane: usize) -> anyhow::Result<()> {
        self.lanes[lane].slots.rotate_left(1);
        loop {
            let Some(slot) = self.lanes[lane].slots.last_mut() else {
                return Ok(());
            };
            if slot.wait(&self.gpu, PATIENCE)? {
                match slot.verify(&self.gpu)? {
                    None => {}
                    Some(Ok(())) => self.progress.verified += 1,
                    Some(Err(mismatch)) => {
                        self.progress.mismatches += 1;
                        line(&serde_json::json!({ "mismatch": mismatch }))?;
                    }
                }
                return self.tick();
            }
            self.tick()?;
        }
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        if self.printed.elapsed() >= TICK {
            self.printed = Instant::now();
            self.print()?;
        }
        Ok(())
    }

    fn print(&mut self) -> anyhow::Result<()> {
        let now = resets(&self.gpu, &self.contexts)?;
        let hit = |r: Resets| r.active.wrapping_add(r.pending);
        self.progress.resets = now.gpu.wrapping_sub(self.before.gpu);
        self.progress.hit = hit(now).wrapping_sub(hit(self.before));
        self.progress.seconds = self.started.elapsed().as_secs_f64();
        line(&self.progress)
    }
}

/// Resets of the GPU, and requests of all `contexts` that they hit.
fn resets(gpu: &I915, contexts: &[Context]) -> anyhow::Result<Resets> {
    let mut all = Resets::default();
    for context in contexts {
        let one = gpu.resets(*context)?;
        all.gpu = all.gpu.max(one.gpu);
        all.active = all.active.wrapping_add(one.active);
        all.pending = all.pending.wrapping_add(one.pending);
    }
    Ok(all)
}

/// One line of JSON, at once.
fn line(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    out.flush().context("cannot print")
}
