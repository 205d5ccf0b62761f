//! Figures of one mode.

use std::collections::BTreeMap;

use gen8::Engine;
use serde::Serialize;
use vgpu_sched::switch::SwitchMode;

use super::bytes::Bytes;
use super::rotation;
use crate::bench::spread::Spread;

/// What accesses are taken to cost, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Costs {
    pub read_ns: u32,
    pub write_ns: u32,
}

/// Figures of a switch: numbers, and the processor's time with its spread.
#[derive(Clone, Debug, Serialize)]
pub struct Accesses {
    reads: f64,
    writes: f64,
    /// What the accesses take by the model.
    modelled_ns: f64,
    /// What our own code takes.
    cpu_ns: Spread,
}

impl Accesses {
    fn of(reads: f64, writes: f64, cpu_ns: Vec<f64>, costs: Costs) -> Self {
        let time = reads * f64::from(costs.read_ns) + writes * f64::from(costs.write_ns);
        Self {
            reads: round(reads),
            writes: round(writes),
            modelled_ns: round(time),
            cpu_ns: Spread::of(cpu_ns),
        }
    }

    fn all(&self) -> f64 {
        self.reads + self.writes
    }
}

/// One mode's.
#[derive(Clone, Debug, Serialize)]
pub struct ModeFigures {
    /// A switch of every engine once.
    #[serde(flatten)]
    total: Accesses,
    /// What our own code takes for one engine, on average: engines change
    /// hands each for itself.
    cpu_ns_an_engine: Spread,
    /// Each engine alone.
    engines: BTreeMap<&'static str, Accesses>,
    /// The share of the baseline's accesses that it does without.
    fewer: f64,
    /// The same for the render engine.
    rcs_fewer: f64,
    /// Bytes of the global page table written.
    gtt_bytes: f64,
    /// Bytes of contexts copied.
    context_bytes: f64,
}

/// Accesses of every engine, and of the render engine.
#[derive(Clone, Copy)]
pub struct Baseline(f64, f64);

impl ModeFigures {
    /// Above [`ModeFigures::row`]s.
    pub const HEADING: [&str; 8] = [
        "mode",
        "reads",
        "writes",
        "fewer",
        "modelled ns",
        "cpu ns",
        "gtt bytes",
        "context bytes",
    ];

    /// All accesses.
    pub fn accesses(&self) -> Baseline {
        Baseline(self.total.all(), self.rcs(Accesses::all))
    }

    fn rcs(&self, part: impl Fn(&Accesses) -> f64) -> f64 {
        let name = Engine::Rcs.sysfs_name();
        self.engines.get(name).map_or(0.0, part)
    }

    /// Against the plainest mode.
    pub fn compare(&mut self, baseline: Baseline) {
        let fewer = |now: f64, then: f64| round(1.0 - now / then.max(1.0));
        self.fewer = fewer(self.total.all(), baseline.0);
        self.rcs_fewer = fewer(self.rcs(Accesses::all), baseline.1);
    }

    /// What is copied besides. A mode that knows nothing of what the GPU
    /// holds writes every window, and copies the render context both ways.
    pub fn bytes(&mut self, mode: SwitchMode, bytes: &Bytes, context_pages: u32) {
        let knows = matches!(mode, SwitchMode::DeltaPrevious | SwitchMode::DeltaImage);
        (self.gtt_bytes, self.context_bytes) = if knows {
            (bytes.gtt, bytes.context)
        } else {
            (bytes.windows, f64::from(2 * context_pages) * 4096.0)
        };
    }

    /// A row of the table.
    pub fn row(&self, mode: &str) -> [String; 8] {
        let both = |all: f64, rcs: f64| format!("{all} ({rcs})");
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        [
            mode.into(),
            both(self.total.reads, self.rcs(|a| a.reads)),
            both(self.total.writes, self.rcs(|a| a.writes)),
            format!("{} % ({} %)", percent(self.fewer), percent(self.rcs_fewer)),
            both(self.total.modelled_ns, self.rcs(|a| a.modelled_ns)),
            both(
                self.total.cpu_ns.median.round(),
                self.rcs(|a| a.cpu_ns.median.round()),
            ),
            self.gtt_bytes.to_string(),
            self.context_bytes.to_string(),
        ]
    }
}

/// Rounds of one mode.
#[derive(Default)]
pub struct Samples {
    rounds: Vec<rotation::Costs>,
}

impl Samples {
    /// One round more.
    pub fn add(&mut self, costs: &rotation::Costs) {
        self.rounds.push(*costs);
    }

    /// All rounds.
    pub fn figures(&self, costs: Costs) -> ModeFigures {
        let sum = |part: fn(&rotation::Cost) -> f64| -> Vec<f64> {
            let of = |r: &rotation::Costs| r.iter().map(part).sum();
            self.rounds.iter().map(of).collect()
        };
        let one = |engine: Engine, part: fn(&rotation::Cost) -> f64| -> Vec<f64> {
            let of = |r: &rotation::Costs| part(&r[engine.index()]);
            self.rounds.iter().map(of).collect()
        };
        // Accesses are the same in every round.
        let middle = |values: Vec<f64>| Spread::of(values).median;
        let engines = Engine::ALL.map(|engine| {
            let accesses = Accesses::of(
                middle(one(engine, |c| c.reads)),
                middle(one(engine, |c| c.writes)),
                one(engine, |c| c.cpu_ns),
                costs,
            );
            (engine.sysfs_name(), accesses)
        });
        let count = engines.iter().fold(0.0, |n, _| n + 1.0);
        let each = sum(|c| c.cpu_ns).into_iter().map(|ns| ns / count);
        ModeFigures {
            total: Accesses::of(
                middle(sum(|c| c.reads)),
                middle(sum(|c| c.writes)),
                sum(|c| c.cpu_ns),
                costs,
            ),
            cpu_ns_an_engine: Spread::of(each.collect()),
            engines: BTreeMap::from(engines),
            fewer: 0.0,
            rcs_fewer: 0.0,
            gtt_bytes: 0.0,
            context_bytes: 0.0,
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
