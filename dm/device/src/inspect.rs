//! The live device as a tree, for `vgpuctl inspect`.

use std::collections::BTreeMap;

use gen8::vreg::{self, Access, Handler, Register, Saved};
use gen8::{Engine, Platform, ring};
use serde::Serialize;

use crate::aperture::ApertureView;
use crate::core::{Core, Incidents, Seams};
use crate::device::Exits;
use crate::execlist::ExeclistV1;
use crate::seams::Bar;

/// The live device. Numbers in registers are hexadecimal strings, as people
/// read them.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What the device was made with.
    pub config: crate::config::Config,
    /// Whether the guest's driver said that it is up.
    pub driver_up: bool,
    /// Where the windows answer: base, by name.
    pub windows: BTreeMap<String, Option<String>>,
    /// Engines by the name i915 gives them.
    pub engines: BTreeMap<&'static str, EngineView>,
    /// Interrupt banks: mask, identity, enable.
    pub interrupts: BTreeMap<&'static str, [String; 3]>,
    /// MASTER_IRQ.
    pub master: String,
    /// Pipes that scan out: line, frames, lines of a frame, hertz.
    pub pipes: BTreeMap<String, PipeView>,
    /// Registers by name that do not hold their reset value.
    pub registers: BTreeMap<String, String>,
    /// Accesses to either window, all kinds together.
    pub mmio_exits: u64,
    /// Accesses by window.
    pub exits_by_bar: BTreeMap<String, u64>,
    /// Accesses by kind.
    pub exits: Exits,
    /// What went through BAR2, and the fences there.
    pub aperture: ApertureView,
    /// Accesses by register, most first, when they are counted.
    pub hottest: Vec<(String, u64)>,
    /// Things that happened.
    pub incidents: Incidents,
    /// Requests that wait for room in the ring.
    pub backlog: usize,
    /// The first of them.
    pub backlog_head: Vec<String>,
    /// Page-table announcements dropped for want of room.
    pub dropped_announcements: u64,
    /// Bytes of register values held.
    pub register_bytes: usize,
}

/// One engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineView {
    /// The port, as it would be saved.
    pub execlist: ExeclistV1,
    /// The running context: descriptor, ring head, tail and start.
    pub running: Option<[String; 4]>,
    /// The GGTT address of the status page.
    pub status_page: String,
}

/// One pipe.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PipeView {
    /// The line being scanned out.
    pub line: u32,
    /// Vertical blanks since it was enabled.
    pub frames: u64,
    /// The plane's surface in global address space.
    pub surface: u32,
}

fn hex(value: impl Into<u64>) -> String {
    format!("{:#x}", value.into())
}

impl Core {
    pub(crate) fn inspect(
        &mut self,
        seams: &Seams,
        exits: Exits,
        aperture: ApertureView,
    ) -> Inspection {
        let now = seams.clock.now_ns();
        let window = |bar: Bar| self.pci.window(bar).map(|(base, _)| hex(base));
        let bars = [Bar::Registers, Bar::Aperture];
        let windows = bars.map(|b| (b.to_string(), window(b)));
        let exits_by_bar = bars.map(|b| (b.to_string(), exits.of(b)));
        let banks = self.irqs.named();
        let interrupts = banks.map(|(name, b)| (name, [b.imr, b.iir, b.ier].map(hex)));
        let interrupts = interrupts.collect();
        let pipes = self.pipes.iter().zip(["A", "B", "C"]).enumerate();
        let pipes = pipes.filter_map(|(number, (pipe, name))| {
            let pipe = pipe.as_ref()?;
            let surface = crate::pipe::of_pipe(vreg::display::DSPSURF_A, number);
            let view = PipeView {
                line: pipe.line(now),
                frames: pipe.blanks(now),
                surface: self.regs.get(surface),
            };
            Some((name.to_owned(), view))
        });
        let pipes = pipes.collect();
        let mut hottest: Vec<_> = self.counts.iter().flatten().collect();
        hottest.sort_by_key(|(offset, n)| (std::cmp::Reverse(**n), **offset));
        let hottest = hottest.into_iter().take(64);
        let hottest = hottest
            .map(|(offset, n)| (name(self.config.gpu, *offset), *n))
            .collect();
        Inspection {
            config: self.config.clone(),
            driver_up: self.regs.get(vreg::pvinfo::DISPLAY_READY) & 1 != 0,
            windows: windows.into_iter().collect(),
            interrupts,
            master: hex(self.irqs.master()),
            pipes,
            mmio_exits: exits.windows(),
            exits_by_bar: exits_by_bar.into_iter().collect(),
            exits,
            aperture,
            hottest,
            incidents: self.incidents,
            backlog: self.backlog.len(),
            backlog_head: (self.backlog.requests().take(8))
                .map(|r| format!("{r:?}"))
                .collect(),
            dropped_announcements: self.backlog.dropped(),
            register_bytes: self.regs.bytes(),
            engines: self.engine_views(seams),
            registers: self.named_registers(seams),
        }
    }

    fn engine_views(&mut self, seams: &Seams) -> BTreeMap<&'static str, EngineView> {
        let mut views = BTreeMap::new();
        for engine in Engine::ALL {
            let base = engine.mmio_base();
            let running = self.engines.get(engine).port.running();
            let mut read = |r: u32| hex(self.read_engine(seams, Handler::RingState, base + r));
            let running = running.map(|d| {
                [
                    hex(d.0),
                    read(ring::HEAD),
                    read(ring::TAIL),
                    read(ring::START),
                ]
            });
            let view = EngineView {
                execlist: self.engines.get(engine).port.save(),
                running,
                status_page: hex(self.regs.get(base + ring::HWS_PGA)),
            };
            views.insert(engine.sysfs_name(), view);
        }
        views
    }

    fn named_registers(&mut self, seams: &Seams) -> BTreeMap<String, String> {
        let mut named = BTreeMap::new();
        for row in self.config.gpu.registers.rows() {
            for (i, offset) in (0..).zip(row.offsets()) {
                let gmbus = row.access == Access::Handled(Handler::Gmbus);
                // Reading GMBUS data moves it on; its state is elsewhere.
                if gmbus || row.saved == Saved::Derived {
                    continue;
                }
                let value = self.peek(seams, offset);
                if value != row.reset_value(i) {
                    named.insert(name_in(row, i, offset), hex(value));
                }
            }
        }
        named
    }

    /// A register's value without counting the read.
    fn peek(&mut self, seams: &Seams, offset: u32) -> u32 {
        let counts = self.counts.take();
        let value = self.read_register(seams, offset);
        self.counts = counts;
        value
    }
}

/// The name of the register at an offset, or the offset.
fn name(gpu: &Platform, offset: u32) -> String {
    match gpu.registers.find(offset) {
        Some((row, index)) => name_in(row, index, offset),
        None => hex(offset),
    }
}

/// A register's name, with its engine or number where there are several.
fn name_in(row: &Register, index: u32, offset: u32) -> String {
    if row.len() == 1 {
        return row.name.to_owned();
    }
    match Engine::from_mmio(offset) {
        Some((engine, _)) if row.len() == 4 => format!("{}.{}", engine.sysfs_name(), row.name),
        Some((engine, _)) => {
            let n = index % (row.len() / 4).max(1);
            format!("{}.{}[{n}]", engine.sysfs_name(), row.name)
        }
        None => format!("{}[{index}]", row.name),
    }
}
