//! vGPUs that take turns on the engines, a workload each time.

use std::sync::Arc;

use gen8::Engine;
use gen8::switched::Table;
use gpu_bus::Gpu;
use vgpu_sched::registers::Registers;
use vgpu_sched::switch::{Effects, RegisterFile, SwitchCost, SwitchMode, Switcher};

use super::flat::FlatGpu;
use super::recording::Recording;
use crate::bench::spread;

/// What a switch cost on average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub reads: f64,
    pub writes: f64,
    /// Nanoseconds of our own code.
    pub cpu_ns: f64,
}

/// Costs by engine.
pub type Costs = [Cost; Engine::COUNT];

/// One engine and who takes turns on it.
struct Lane {
    gpu: Registers,
    switcher: Switcher,
    files: Vec<RegisterFile>,
    effects: Effects,
    owner: usize,
}

impl Lane {
    fn new(
        table: &'static Table,
        engine: Engine,
        recordings: &[Recording; 2],
        vgpus: usize,
        mode: SwitchMode,
    ) -> Self {
        let flat: Arc<dyn Gpu> = Arc::new(FlatGpu::new(table));
        let gpu = Registers::new(flat);
        let kinds = recordings.iter().cycle().take(vgpus);
        let mut files: Vec<RegisterFile> = kinds.map(|r| r.file(table, engine)).collect();
        let mut switcher = Switcher::with_table(table, engine, mode);
        if let Some(first) = files.first_mut() {
            switcher.switch(&gpu, None, first);
        }
        Self {
            gpu,
            switcher,
            files,
            effects: workload(table, engine),
            owner: 0,
        }
    }

    /// A workload of the owner ends, and the next vGPU gets the engine.
    fn turn(&mut self) -> SwitchCost {
        let next = (self.owner + 1) % self.files.len();
        let pair = self.files.get_disjoint_mut([self.owner, next]);
        // There are at least two.
        let Ok([outgoing, incoming]) = pair else {
            return SwitchCost::default();
        };
        self.switcher.ran(outgoing, &self.effects);
        self.owner = next;
        self.switcher.switch(&self.gpu, Some(outgoing), incoming)
    }
}

/// What the audit finds that a workload of i915's does to registers: it runs a
/// batch of its user's. The workaround that saves L3SQCREG4, changes it and
/// loads it back at each restore of a render context (Linux `gt/intel_lrc.c:
/// gen8_emit_flush_coherentl3_wa`, used on both generations) leaves it as it
/// was: `vgpu_sched::audit` sees to that.
fn workload(table: &'static Table, engine: Engine) -> Effects {
    let mut effects = Effects::with_table(table, engine);
    effects.user_batch();
    effects
}

/// Every engine.
pub struct Rotation {
    mode: SwitchMode,
    lanes: [Lane; Engine::COUNT],
}

impl Rotation {
    /// vGPUs of two kinds in turn.
    pub fn new(
        table: &'static Table,
        recordings: &[Recording; 2],
        vgpus: u32,
        mode: SwitchMode,
    ) -> Self {
        let vgpus = usize::try_from(vgpus).unwrap_or(usize::MAX);
        Self {
            mode,
            lanes: Engine::ALL.map(|engine| Lane::new(table, engine, recordings, vgpus, mode)),
        }
    }

    /// How it switches.
    pub const fn mode(&self) -> SwitchMode {
        self.mode
    }

    /// So many switches of each engine.
    pub fn turn(&mut self, switches: u32) -> Costs {
        let mut costs = Costs::default();
        for (lane, cost) in self.lanes.iter_mut().zip(&mut costs) {
            let mut sum = SwitchCost::default();
            cost.cpu_ns = spread::time(switches, || {
                for _ in 0..switches {
                    sum += lane.turn();
                }
            });
            cost.reads = mean(sum.reads, switches);
            cost.writes = mean(sum.writes, switches);
        }
        costs
    }
}

fn mean(sum: u64, count: u32) -> f64 {
    let whole = u32::try_from(sum).unwrap_or(u32::MAX);
    f64::from(whole) / f64::from(count.max(1))
}
