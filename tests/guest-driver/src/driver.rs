//! The driver: requests on all engines, as i915 keeps them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gen8::{Engine, csb, irq, ring};

use crate::context::SLOTS;
use crate::workload::{Given, Workload};
use crate::{
    Accounting, Context, DriverError, ExeclistError, Frames, Gpu, Kind, Mismatch, Platform, Random,
    Slot,
};

/// Contexts on each engine; two keep both elements of a list in use.
const CONTEXTS: usize = 2;
/// The first context's id; each further is as much more.
const FIRST_ID: u32 = 0x20;
/// How long a request may take before the driver calls it a hang.
const HANG: Duration = Duration::from_secs(20);

/// A request that is on its way.
struct Request {
    context: usize,
    slot: usize,
    seqno: u32,
    kind: Kind,
    after: Vec<u8>,
    submitted: Instant,
}

struct EngineState {
    contexts: Vec<Context>,
    books: Accounting,
    /// Contexts with requests not loaded yet, in order.
    queue: VecDeque<usize>,
    running: VecDeque<Request>,
    csb_read: u32,
}

/// What a finished request showed.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Where it ran.
    pub engine: Engine,
    /// From the write of the batch to the check of the result.
    pub latency: Duration,
    /// Whether the GPU's result was the CPU's.
    pub result: Result<(), Mismatch>,
}

/// A guest's driver.
pub struct Driver<P> {
    gpu: Gpu<P>,
    frames: Frames,
    /// The next context's.
    next_id: u32,
    engines: [EngineState; Engine::COUNT],
    random: Random,
}

impl<P: Platform> Driver<P> {
    /// Probes the device and makes contexts on every engine.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn start(platform: P, frames: Frames, seed: u64) -> Result<Self, DriverError> {
        Self::make(platform, frames, seed, false)
    }

    /// As [`Driver::start`], but each request of random work finds its buffers
    /// in other frames: its page tables change all the time.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn start_restless(platform: P, frames: Frames, seed: u64) -> Result<Self, DriverError> {
        Self::make(platform, frames, seed, true)
    }

    fn make(
        platform: P,
        mut frames: Frames,
        seed: u64,
        restless: bool,
    ) -> Result<Self, DriverError> {
        let mut gpu = Gpu::probe(platform, &mut frames)?;
        let mut next_id = FIRST_ID;
        let mut engines = Engine::ALL.map(|engine| EngineState {
            contexts: Vec::new(),
            books: Accounting::new(engine.sysfs_name()),
            queue: VecDeque::new(),
            running: VecDeque::new(),
            csb_read: csb::ENTRIES - 1,
        });
        for engine in Engine::ALL {
            for _ in 0..CONTEXTS {
                let mut context = Context::new(&mut gpu, &mut frames, engine, next_id)?;
                if restless {
                    context.allow_moves(gpu.platform().memory(), &mut frames)?;
                }
                engines[engine.index()].contexts.push(context);
                next_id += FIRST_ID;
            }
        }
        Ok(Self {
            gpu,
            frames,
            next_id,
            engines,
            random: Random::new(seed),
        })
    }

    /// Writes a register of the device, as workarounds and tables are set
    /// after the probe.
    pub fn write_register(&mut self, offset: u32, value: u32) {
        self.gpu.write(offset.into(), value);
    }

    /// Submits random work on `engine` if one of its contexts has a free
    /// buffer; whether it did.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn submit(&mut self, engine: Engine) -> Result<bool, DriverError> {
        let state = &mut self.engines[engine.index()];
        let free = (0..CONTEXTS)
            .flat_map(|c| (0..SLOTS).map(move |s| (c, s)))
            .find(|&(c, s)| !state.running.iter().any(|r| r.context == c && r.slot == s));
        let Some((context, slot)) = free else {
            return Ok(false);
        };
        let kind = Kind::pick(engine, &mut self.random);
        let memory = self.gpu.platform().memory();
        let idle = !state.running.iter().any(|r| r.context == context);
        state.contexts[context].bind_anew(memory, slot, idle)?;
        let buffers = state.contexts[context].slots[slot];
        let work = Workload::generate(engine, kind, &buffers, &mut self.random);
        memory.write(buffers.data, &work.before)?;
        let given = Given {
            kind,
            batch: work.batch,
            after: work.after,
        };
        self.start_request(engine, (context, slot), given)?;
        Ok(true)
    }

    /// Submits what `make` writes for a buffer, if a context on `engine` has
    /// nothing under way; whether it did.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn submit_given(
        &mut self,
        engine: Engine,
        make: impl FnOnce(&Slot) -> Given,
    ) -> Result<bool, DriverError> {
        let state = &mut self.engines[engine.index()];
        let free = (0..CONTEXTS).find(|&c| !state.running.iter().any(|r| r.context == c));
        let Some(context) = free else {
            return Ok(false);
        };
        let given = make(&state.contexts[context].slots[0]);
        self.start_request(engine, (context, 0), given)?;
        Ok(true)
    }

    /// Makes one more context on `engine`, for [`Driver::submit_to`] alone, in
    /// which the given pages are mapped: from a guest-physical address at a
    /// per-process one, so many. Its number on the engine.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn add_context(
        &mut self,
        engine: Engine,
        maps: &[(u64, u64, u64)],
    ) -> Result<usize, DriverError> {
        let context = Context::new(&mut self.gpu, &mut self.frames, engine, self.next_id)?;
        self.next_id += FIRST_ID;
        let memory = self.gpu.platform().memory();
        for &(gpa, va, pages) in maps {
            context.map(memory, &mut self.frames, va, gpa, pages)?;
        }
        let contexts = &mut self.engines[engine.index()].contexts;
        contexts.push(context);
        Ok(contexts.len() - 1)
    }

    /// Submits what `make` writes to context `context` on `engine`, which must
    /// have nothing under way; whether it did.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn submit_to(
        &mut self,
        engine: Engine,
        context: usize,
        make: impl FnOnce(&Slot) -> Given,
    ) -> Result<bool, DriverError> {
        let state = &self.engines[engine.index()];
        let Some(slots) = state.contexts.get(context).map(|c| c.slots) else {
            return Ok(false);
        };
        if state.running.iter().any(|r| r.context == context) {
            return Ok(false);
        }
        self.start_request(engine, (context, 0), make(&slots[0]))?;
        Ok(true)
    }

    /// Writes a request to its context's ring and queues the context.
    fn start_request(
        &mut self,
        engine: Engine,
        (context, slot): (usize, usize),
        work: Given,
    ) -> Result<(), DriverError> {
        let state = &mut self.engines[engine.index()];
        let buffers = state.contexts[context].slots[slot];
        let memory = self.gpu.platform().memory();
        let commands: Vec<u8> = work.batch.iter().flat_map(|d| d.to_le_bytes()).collect();
        memory.write(buffers.batch, &commands)?;
        let submitted = Instant::now();
        let seqno = state.contexts[context].add_request(memory, buffers.batch_va)?;
        state.running.push_back(Request {
            context,
            slot,
            seqno,
            kind: work.kind,
            after: work.after,
            submitted,
        });
        state.queue.push_back(context);
        self.load(engine)
    }

    /// Loads what is queued, if the engine takes a list now.
    fn load(&mut self, engine: Engine) -> Result<(), DriverError> {
        let state = &mut self.engines[engine.index()];
        let next: Vec<u32> = state.queue.iter().map(|&c| state.contexts[c].id).collect();
        let Some(list) = state.books.list_for(&next) else {
            return Ok(());
        };
        let memory = self.gpu.platform().memory();
        let mut descriptors = [0; 2];
        for (descriptor, id) in descriptors.iter_mut().zip(list) {
            if let Some(context) = state.contexts.iter().find(|c| Some(c.id) == id) {
                *descriptor = context.publish(memory)?.0;
            }
        }
        // A later request of a context in the list goes with it: the tail is
        // the context's newest.
        state
            .queue
            .retain(|&c| !list.contains(&Some(state.contexts[c].id)));
        state.books.loaded(list);
        let port = u64::from(engine.mmio_base() + ring::ELSP);
        let [first, second] = descriptors;
        for descriptor in [second, first] {
            let b = descriptor.to_le_bytes();
            self.gpu
                .write(port, u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
            self.gpu
                .write(port, u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
        Ok(())
    }

    /// Waits for an interrupt and handles it; the requests it finished.
    ///
    /// # Errors
    /// [`DriverError::Hang`] when nothing comes, or what else went wrong.
    pub fn wait(&mut self) -> Result<Vec<Finished>, DriverError> {
        let mut finished = Vec::new();
        if !self.gpu.platform().wait_interrupt(HANG) {
            for engine in Engine::ALL {
                if let Some(r) = self.engines[engine.index()].running.front() {
                    return Err(DriverError::Hang {
                        engine: engine.sysfs_name(),
                        seqno: r.seqno,
                        seconds: HANG.as_secs(),
                    });
                }
            }
            return Ok(finished);
        }
        let bits = self.gpu.take_interrupts();
        for engine in Engine::ALL {
            if bits[engine.index()] & irq::CONTEXT_SWITCH != 0 {
                self.process_csb(engine)?;
                self.load(engine)?;
            }
            self.retire(engine, &mut finished)?;
        }
        Ok(finished)
    }

    fn process_csb(&mut self, engine: Engine) -> Result<(), DriverError> {
        let page = self.gpu.status_page(engine);
        let memory = self.gpu.platform().memory();
        let state = &mut self.engines[engine.index()];
        let write = memory.read_u32(page + u64::from(csb::HWSP_WRITE_POINTER))?;
        if write >= csb::ENTRIES {
            let engine = engine.sysfs_name();
            return Err(ExeclistError::WritePointer {
                engine,
                found: write,
            }
            .into());
        }
        while state.csb_read != write {
            state.csb_read = (state.csb_read + 1) % csb::ENTRIES;
            let at = page + u64::from(csb::HWSP_BUFFER + state.csb_read * 8);
            let low = memory.read_u32(at)?;
            let high = memory.read_u32(at + 4)?;
            memory.write_u64(at, u64::MAX)?;
            state.books.event(low, high)?;
        }
        // The posting read of Linux `gt/intel_execlists_submission.c:process_csb`.
        self.gpu.read((engine.mmio_base() + ring::CSB_PTR).into());
        Ok(())
    }

    fn retire(&mut self, engine: Engine, finished: &mut Vec<Finished>) -> Result<(), DriverError> {
        let memory = self.gpu.platform().memory();
        let state = &mut self.engines[engine.index()];
        let mut still = VecDeque::new();
        while let Some(request) = state.running.pop_front() {
            let context = &state.contexts[request.context];
            if context.completed(memory)? < request.seqno {
                still.push_back(request);
                continue;
            }
            let slot = context.slots[request.slot];
            let latency = request.submitted.elapsed();
            let mut data = vec![0; request.after.len()];
            memory.read(slot.data, &mut data)?;
            let wrong = data.iter().zip(&request.after).position(|(a, b)| a != b);
            let result = wrong.map_or(Ok(()), |offset| {
                Err(Mismatch {
                    engine: engine.sysfs_name(),
                    kind: request.kind,
                    offset,
                    found: data[offset],
                    expected: request.after[offset],
                })
            });
            finished.push(Finished {
                engine,
                latency,
                result,
            });
        }
        state.running = still;
        Ok(())
    }

    /// Where the tables are now that name the buffers of its contexts.
    ///
    /// # Errors
    /// When guest memory fails.
    pub fn tables(&mut self) -> Result<Vec<u64>, DriverError> {
        let memory = self.gpu.platform().memory();
        let contexts = self.engines.iter().flat_map(|e| &e.contexts);
        contexts.map(|c| c.table(memory)).collect()
    }

    /// The same driver on another platform: its guest was moved.
    #[must_use]
    pub fn moved<Q: Platform>(self, platform: Q) -> Driver<Q> {
        Driver {
            gpu: self.gpu.moved(platform),
            frames: self.frames,
            engines: self.engines,
            next_id: self.next_id,
            random: self.random,
        }
    }

    /// Has so many requests of random work done on every engine, and hands over
    /// what became of each.
    ///
    /// # Errors
    /// [`DriverError`]
    pub fn complete(&mut self, requests: usize) -> Result<Vec<Finished>, DriverError> {
        let mut wanted = [requests; Engine::COUNT];
        let mut finished = Vec::new();
        while finished.len() < requests * Engine::COUNT {
            for engine in Engine::ALL {
                while wanted[engine.index()] > 0 && self.submit(engine)? {
                    wanted[engine.index()] -= 1;
                }
            }
            finished.append(&mut self.wait()?);
        }
        Ok(finished)
    }

    /// Whether nothing is under way on any engine.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.engines
            .iter()
            .all(|e| e.running.is_empty() && e.books.idle())
    }

    /// Accesses to the device's registers and tables so far.
    #[must_use]
    pub const fn exits(&self) -> u64 {
        self.gpu.exits()
    }
}
