//! Whatever happens, in every mode the GPU's registers are those of the
//! baseline, and each guest finds the same.

use std::sync::{Arc, OnceLock};

use gen8::Engine;
use gen8::switched::{Change, GEN8, GEN9, Group, Kept, Row, Table};
use gpu_bus::Gpu;
use proptest::prelude::*;

use super::model::{ModelGpu, context_offsets};
use crate::registers::Registers;
use crate::switch::grant::Grant;
use crate::switch::layout::{Layout, layout};
use crate::switch::{Effects, RegisterFile, SwitchMode, Switcher};

const VGPUS: usize = 3;

const fn row(name: &'static str, first: u32, change: Change) -> Row {
    Row {
        name,
        engine: Engine::Rcs,
        first,
        count: 2,
        masked: false,
        kept: Kept::Outside,
        change,
        order: 0,
        reset: 3,
        group: Group::Memory,
        source: "a test",
    }
}

const CARRIED: Change = Change::Hardware {
    bits: 0xf0,
    carried: true,
};

/// Registers of the kinds that neither generation has.
static ODD: Table = Table {
    name: "odd",
    rows: &[
        row("CARRIED", 0x2100, CARRIED),
        Row {
            masked: true,
            ..row("CARRIED_MASKED", 0x2110, CARRIED)
        },
        row("PLAIN", 0x2120, Change::Static),
        Row {
            order: 2,
            ..row("LAST", 0x2128, Change::Static)
        },
        Row {
            order: 1,
            ..row("SECOND", 0x2130, Change::Static)
        },
        row("MOMENT", 0x2138, Change::Volatile),
        Row {
            kept: Kept::InContext,
            ..row("CONTEXT", 0x2140, Change::Static)
        },
    ],
    touches_context: true,
};

fn odd() -> &'static Layout {
    static MADE: OnceLock<Layout> = OnceLock::new();
    MADE.get_or_init(|| Layout::new(&gen8::platform::BDW, &ODD, Engine::Rcs))
}

/// A command, with registers by number.
#[derive(Clone, Debug)]
enum Command {
    Load {
        register: usize,
        raw: u32,
    },
    /// One that may have been skipped.
    Perhaps {
        register: usize,
        raw: u32,
        taken: bool,
    },
    /// From another register, or memory.
    Copy {
        register: usize,
        raw: u32,
    },
    Batch {
        writes: Vec<(usize, u32)>,
    },
}

#[derive(Clone, Debug)]
struct Work {
    vgpu: usize,
    inhibit: bool,
    commands: Vec<Command>,
    /// What the hardware changes by itself meanwhile.
    noise: u32,
    /// What the guest writes meanwhile.
    meanwhile: Option<(usize, u32)>,
}

#[derive(Clone, Debug)]
enum Step {
    Mmio {
        vgpu: usize,
        register: usize,
        value: u32,
    },
    Run(Work),
    /// Two, the second in the second slot.
    Pair(Work, Work),
    /// It hangs and the engine is reset under it.
    Fail(Work),
    /// All of the GPU is reset, whoever owned the engine.
    FullReset,
    GuestReset {
        vgpu: usize,
    },
    Remove {
        vgpu: usize,
    },
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let writes = prop::collection::vec((any::<usize>(), any::<u32>()), 1..4);
    let raw = || prop_oneof![any::<u32>(), any::<u32>().prop_map(|v| v | 0xffff_0000)];
    let one = prop_oneof![
        3 => (any::<usize>(), raw()).prop_map(|(register, raw)| Command::Load { register, raw }),
        1 => (any::<usize>(), raw(), any::<bool>())
            .prop_map(|(register, raw, taken)| Command::Perhaps { register, raw, taken }),
        1 => (any::<usize>(), raw()).prop_map(|(register, raw)| Command::Copy { register, raw }),
        1 => writes.prop_map(|writes| Command::Batch { writes }),
    ];
    prop::collection::vec(one, 0..5)
}

fn work() -> impl Strategy<Value = Work> {
    let mmio = prop::option::weighted(0.2, (any::<usize>(), any::<u32>()));
    (
        0..VGPUS,
        prop::bool::weighted(0.15),
        commands(),
        any::<u32>(),
        mmio,
    )
        .prop_map(|(vgpu, inhibit, commands, noise, meanwhile)| Work {
            vgpu,
            inhibit,
            commands,
            noise,
            meanwhile,
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..VGPUS, any::<usize>(), prop_oneof![any::<u32>(), Just(0xb118), 0..4_u32])
            .prop_map(|(vgpu, register, value)| Step::Mmio { vgpu, register, value }),
        8 => work().prop_map(Step::Run),
        4 => (work(), work()).prop_map(|(a, b)| Step::Pair(a, b)),
        1 => work().prop_map(Step::Fail),
        1 => Just(Step::FullReset),
        1 => (0..VGPUS).prop_map(|vgpu| Step::GuestReset { vgpu }),
        1 => (0..VGPUS).prop_map(|vgpu| Step::Remove { vgpu }),
    ]
}

/// vgpud with one mode, on a GPU of its own.
struct World {
    layout: &'static Layout,
    gpu: Arc<ModelGpu>,
    bus: Registers,
    switcher: Switcher,
    files: Vec<RegisterFile>,
    contexts: Vec<Vec<u32>>,
    context: Vec<u32>,
    owner: Option<usize>,
    /// What guests found when they ran, one after another.
    found: Vec<Vec<u32>>,
    handovers: usize,
}

impl World {
    fn new(layout: &'static Layout, engine: Engine, mode: SwitchMode) -> Self {
        let gpu = Arc::new(ModelGpu::new(layout.table));
        gpu.reset();
        let context = context_offsets(layout.table, engine);
        Self {
            layout,
            bus: Registers::new(Arc::clone(&gpu) as Arc<dyn Gpu>),
            gpu,
            switcher: Switcher::of(layout, mode),
            files: (0..VGPUS).map(|_| RegisterFile::of(layout)).collect(),
            contexts: vec![vec![0; context.len()]; VGPUS],
            context,
            owner: None,
            found: Vec::new(),
            handovers: 0,
        }
    }

    /// Brings the engine to a vGPU and loads its context.
    fn start(&mut self, work: &Work) {
        let new = work.vgpu;
        let before = self.bus.accesses();
        let mut cost = if self.owner == Some(new) {
            self.switcher.resume(&self.bus, &mut self.files[new])
        } else {
            let mut files: Vec<&mut RegisterFile> = self.files.iter_mut().collect();
            let incoming = files.remove(new);
            let outgoing = self.owner.map(|o| files.remove(o - usize::from(o > new)));
            self.switcher.switch(&self.bus, outgoing, incoming)
        };
        if work.inhibit {
            cost += self.switcher.clear_context(&self.bus, &mut self.files[new]);
        }
        let after = self.bus.accesses();
        assert_eq!(cost.reads, after.reads - before.reads);
        assert_eq!(cost.writes, after.writes - before.writes);
        self.owner = Some(new);
        self.load(work);
        self.find();
    }

    fn load(&mut self, work: &Work) {
        if !work.inhibit {
            self.gpu
                .load_context(&self.context, &self.contexts[work.vgpu]);
        }
    }

    /// Notes what the running guest finds.
    fn find(&mut self) {
        let outside = self.layout.slots.iter().map(|s| s.offset);
        let others = self.context.iter().copied();
        let found = outside.chain(others).map(|o| self.gpu.found(o)).collect();
        self.found.push(found);
    }

    /// What a command may write, as the audit has it: registers that are the
    /// guest's, and of those no bits that are vgpud's.
    fn allowed(&self, register: usize, raw: u32) -> Option<(u32, u32)> {
        let slot = &self.layout.slots[register % self.layout.slots.len()];
        let bits = match slot.grant {
            Grant::Bits(bits) => bits | slot.momentary,
            Grant::Fixed(_) if slot.register.is_volatile() => slot.width,
            _ => return None,
        };
        let raw = if slot.masked {
            raw & (bits << 16 | 0xffff)
        } else {
            raw
        };
        Some((slot.offset, raw))
    }

    fn user_writable(&self, offset: u32) -> bool {
        let volatile = |i| self.layout.volatile.has(i) || self.layout.in_context.has(i);
        let mut slots = self
            .layout
            .nonpriv
            .iter()
            .map(|i| self.layout.slots[i].offset);
        self.layout.index(offset).is_some_and(volatile)
            || slots.any(|slot| self.gpu.read32(slot) == offset)
    }

    /// Its effects, as the audit would tell before it runs.
    fn audit(&self, work: &Work) -> Effects {
        let mut effects = Effects::of(self.layout);
        for command in &work.commands {
            match command {
                Command::Load { register, raw } => {
                    if let Some((offset, raw)) = self.allowed(*register, *raw) {
                        effects.load(offset, raw);
                    }
                }
                Command::Perhaps { register, raw, .. } | Command::Copy { register, raw } => {
                    if let Some((offset, _)) = self.allowed(*register, *raw) {
                        effects.unknown(offset);
                    }
                }
                Command::Batch { .. } => effects.user_batch(),
            }
        }
        effects
    }

    fn execute(&self, work: &Work) {
        for command in &work.commands {
            match command {
                Command::Load { register, raw }
                | Command::Perhaps {
                    register,
                    raw,
                    taken: true,
                }
                | Command::Copy { register, raw } => {
                    if let Some((offset, raw)) = self.allowed(*register, *raw) {
                        self.gpu.write32(offset, raw);
                    }
                }
                Command::Perhaps { .. } => {}
                Command::Batch { writes } => {
                    for (register, raw) in writes {
                        let allowed = self.allowed(*register, *raw);
                        if let Some((offset, raw)) = allowed.filter(|a| self.user_writable(a.0)) {
                            self.gpu.write32(offset, raw);
                        }
                    }
                }
            }
        }
        for slot in &self.layout.slots {
            let noise = work.noise.rotate_left(slot.offset % 31);
            self.gpu.change_by_itself(&slot.register, noise);
        }
    }

    fn finish(&mut self, work: &Work) {
        self.execute(work);
        self.contexts[work.vgpu] = self.gpu.save_context(&self.context);
    }

    fn mmio(&mut self, vgpu: usize, register: usize, value: u32) {
        let slots = &self.layout.slots;
        let slot = &slots[register % slots.len()];
        if !slot.register.is_volatile() {
            self.files[vgpu].write(slot.offset, value);
        }
    }

    fn run(&mut self, work: &Work) {
        self.start(work);
        let effects = self.audit(work);
        self.finish(work);
        if let Some((register, value)) = work.meanwhile {
            self.mmio(work.vgpu, register, value);
        }
        self.switcher.ran(&mut self.files[work.vgpu], &effects);
    }

    fn pair(&mut self, first: &Work, second: &Work) {
        let (a, b) = (first.vgpu, second.vgpu);
        if a == b || second.inhibit {
            self.run(first);
            self.run(second);
            return;
        }
        self.start(first);
        let effects = self.audit(first);
        if let Some((register, value)) = first.meanwhile {
            self.mmio(a, register, value);
        }
        let prologue = self
            .switcher
            .prologue(&self.files[a], &effects, &self.files[b]);
        self.finish(first);
        let Some(pairs) = prologue else {
            self.switcher.ran(&mut self.files[a], &effects);
            self.run(second);
            return;
        };
        // The GPU goes on by itself.
        self.handovers += 1;
        self.load(second);
        for (offset, raw) in &pairs {
            self.gpu.write32(*offset, *raw);
        }
        let [first_file, second_file] = self.files.get_disjoint_mut([a, b]).unwrap();
        self.switcher
            .handed_over(first_file, &effects, second_file, &pairs);
        self.owner = Some(b);
        self.find();
        let effects = self.audit(second);
        self.finish(second);
        if let Some((register, value)) = second.meanwhile {
            self.mmio(b, register, value);
        }
        self.switcher.ran(&mut self.files[b], &effects);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Mmio {
                vgpu,
                register,
                value,
            } => self.mmio(*vgpu, *register, *value),
            Step::Run(work) => self.run(work),
            Step::Pair(first, second) => self.pair(first, second),
            Step::Fail(work) => {
                self.start(work);
                self.execute(work);
                self.gpu.reset();
                self.switcher.reset();
                self.files[work.vgpu].reset();
                self.owner = None;
            }
            Step::FullReset => {
                self.gpu.reset();
                self.switcher.reset();
                self.owner = None;
            }
            Step::GuestReset { vgpu } => self.files[*vgpu].reset(),
            Step::Remove { vgpu } => {
                self.files[*vgpu] = RegisterFile::of(self.layout);
                self.contexts[*vgpu].fill(0);
                if self.owner == Some(*vgpu) {
                    self.owner = None;
                }
            }
        }
    }
}

fn every_mode_agrees(layout: &'static Layout, engine: Engine, steps: &[Step]) -> usize {
    let mut worlds = SwitchMode::ALL.map(|mode| World::new(layout, engine, mode));
    for (n, step) in steps.iter().enumerate() {
        for world in &mut worlds {
            world.step(step);
        }
        let [baseline, others @ ..] = &worlds;
        for world in others {
            let mode = world.switcher.mode();
            assert_eq!(world.found, baseline.found, "{mode}, step {n}");
        }
        for world in &mut worlds {
            world.found.clear();
        }
    }
    // And each guest once more, whatever came last.
    for vgpu in 0..VGPUS {
        let last = Work {
            vgpu,
            inhibit: false,
            commands: Vec::new(),
            noise: 0,
            meanwhile: None,
        };
        for world in &mut worlds {
            world.run(&last);
            assert!(world.found.iter().all(|f| !f.is_empty()));
        }
        let [baseline, others @ ..] = &worlds;
        for world in others {
            let mode = world.switcher.mode();
            assert_eq!(world.found, baseline.found, "{mode}, at the end");
            let values = |w: &World| w.files[vgpu].view();
            assert_eq!(values(world), values(baseline), "{mode}");
        }
    }
    let used = |w: &World| w.bus.accesses().reads + w.bus.accesses().writes;
    assert!(worlds.iter().skip(1).all(|w| used(w) <= used(&worlds[0])));
    worlds[4].handovers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn gen8_render(steps in prop::collection::vec(step(), 1..40)) {
        every_mode_agrees(layout(&GEN8, Engine::Rcs), Engine::Rcs, &steps);
    }

    #[test]
    fn gen8_blitter_and_video(steps in prop::collection::vec(step(), 1..40)) {
        every_mode_agrees(layout(&GEN8, Engine::Bcs), Engine::Bcs, &steps);
        every_mode_agrees(layout(&GEN8, Engine::Vcs), Engine::Vcs, &steps);
    }

    #[test]
    fn gen9(steps in prop::collection::vec(step(), 1..30)) {
        every_mode_agrees(layout(&GEN9, Engine::Rcs), Engine::Rcs, &steps);
        every_mode_agrees(layout(&GEN9, Engine::Vecs), Engine::Vecs, &steps);
    }

    #[test]
    fn registers_that_hardware_changes(steps in prop::collection::vec(step(), 1..40)) {
        every_mode_agrees(odd(), Engine::Rcs, &steps);
    }
}

#[test]
fn the_second_slot_is_used_where_it_can_be() {
    let work = |vgpu| Work {
        vgpu,
        inhibit: false,
        commands: vec![Command::Batch { writes: Vec::new() }],
        noise: 5,
        meanwhile: None,
    };
    let steps: Vec<Step> = (0..10)
        .map(|n| Step::Pair(work(n % 2), work((n + 1) % 2)))
        .collect();
    let handovers = every_mode_agrees(layout(&GEN8, Engine::Rcs), Engine::Rcs, &steps);
    assert_eq!(handovers, 10);
}
