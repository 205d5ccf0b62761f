//! A whole vGPU: guest and driver, device model, vgpud's scheduler, softgpu.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gen8::Engine;
use guest_driver::{Batch, Driver, Frames, Given, Kind, Platform, Rect, Surface, Tiling};
use guest_memory::{GuestMemory, PAGE_SIZE};
use sim_host::{SimGuest, SimGuestConfig, SimHost, SimHostConfig};
use softgpu::WriteLog;
use xen_glue::{ForeignMemory, ForeignMemoryConfig, Hypervisor};

use super::machine::{Machine, first_colour};
use super::pattern::{Fill, Pattern};

/// Where graphics memory is in each context.
const VA: u64 = 0x40_0000_0000;
/// Frames below the graphics memory: the guest's own, and its driver's.
const DRIVER: u64 = 16384;
/// Rows of one fill.
const ROWS: u64 = 16384;

/// A guest whose driver draws.
pub struct Vgpu {
    driver: Driver<Owner>,
    memory: Arc<dyn GuestMemory>,
    log: Arc<WriteLog>,
    /// Contexts of each pattern, by their numbers on the blitter.
    contexts: BTreeMap<&'static str, Vec<usize>>,
    current: Vec<usize>,
    pages: u64,
    guest: Arc<SimGuest>,
    host: SimHost,
}

/// A driver's machine that the driver keeps.
struct Owner(Arc<SimGuest>);

impl Platform for Owner {
    fn memory(&self) -> &dyn GuestMemory {
        self.0.vcpu()
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        (&*self.0).config_read(register, size)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        (&*self.0).config_write(register, size, value);
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        (&*self.0).mmio_read(address, size)
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        (&*self.0).mmio_write(address, size, value);
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        (&*self.0).wait_interrupt(timeout)
    }
}

impl Vgpu {
    /// With `pages` pages of graphics memory.
    ///
    /// # Errors
    /// When the host cannot be simulated.
    pub fn new(pages: u32) -> anyhow::Result<Self> {
        let log = Arc::new(WriteLog::new());
        let host = SimHost::start(SimHostConfig {
            write_log: Some(Arc::clone(&log)),
            ..SimHostConfig::default()
        })?;
        let pages = u64::from(pages);
        let config = SimGuestConfig {
            frames: usize::try_from(DRIVER + pages)?,
            ..SimGuestConfig::default()
        };
        let guest = Arc::new(SimGuest::start(&host, &config)?);
        for page in 0..u32::try_from(pages)? {
            let bytes = first_colour(page).to_le_bytes().repeat(PAGE_SIZE / 4);
            guest
                .vcpu()
                .write((DRIVER + u64::from(page)) << 12, &bytes)?;
        }
        let driver = Driver::start(Owner(Arc::clone(&guest)), Frames::new(256, DRIVER), 1)?;
        // As vgpud has it on Xen.
        let memory = Arc::new(ForeignMemory::new(
            host.hypervisor().open_privcmd()?,
            guest.domain().id(),
            ForeignMemoryConfig::default(),
        ));
        Ok(Self {
            driver,
            memory,
            log,
            contexts: BTreeMap::new(),
            current: Vec::new(),
            pages,
            guest,
            host,
        })
    }

    /// Waits until all that was submitted is done.
    fn finish(&mut self) -> anyhow::Result<()> {
        while !self.driver.idle() {
            for done in self.driver.wait()? {
                done.result?;
            }
        }
        Ok(())
    }
}

impl Machine for Vgpu {
    fn memory(&self) -> Arc<dyn GuestMemory> {
        Arc::clone(&self.memory)
    }

    fn first(&self) -> u64 {
        DRIVER
    }

    fn prepare(&mut self, pattern: Pattern) -> anyhow::Result<()> {
        if !self.contexts.contains_key(pattern.name()) {
            let mut contexts = Vec::new();
            for ranges in pattern.writable(self.pages) {
                let map =
                    |&(first, len): &(u64, u64)| ((DRIVER + first) << 12, VA + (first << 12), len);
                let maps: Vec<_> = ranges.iter().map(map).collect();
                contexts.push(self.driver.add_context(Engine::Bcs, &maps)?);
            }
            self.contexts.insert(pattern.name(), contexts);
        }
        let contexts = self.contexts.get(pattern.name());
        self.current = contexts.context("no contexts")?.clone();
        Ok(())
    }

    fn draw(&mut self, fills: &[Fill]) -> anyhow::Result<()> {
        for fills in fills.chunk_by(|a, b| a.context == b.context) {
            let Some(first) = fills.first() else { continue };
            let context = *self.current.get(first.context).context("no such context")?;
            let mut batch = Batch::new();
            for fill in fills {
                let (first, count) = fill.pages;
                for row in (0..count).step_by(usize::try_from(ROWS)?) {
                    let to = Surface {
                        address: VA + ((first + row) << 12),
                        pitch: 4096,
                        tiling: Tiling::Linear,
                    };
                    let rect = Rect {
                        x: 0,
                        y: 0,
                        w: 1024,
                        h: u32::try_from((count - row).min(ROWS))?,
                    };
                    batch.fill(&to, rect, fill.colour);
                }
            }
            batch.end();
            let given = Given {
                kind: Kind::Blits,
                batch: batch.finish(),
                after: Vec::new(),
            };
            let submitted = self.driver.submit_to(Engine::Bcs, context, |_| given)?;
            ensure!(submitted, "context {context} is still busy");
            self.finish()?;
        }
        if let Some(failure) = self.guest.failure() {
            anyhow::bail!("vgpud dropped the vGPU: {failure}");
        }
        Ok(())
    }

    fn written(&mut self) -> Vec<u64> {
        let frames = self.log.take().into_iter();
        let frames = frames.filter_map(|bus| self.host.guest_frame(bus));
        // What is below is the driver's: rings, contexts, batches.
        frames.filter_map(|gfn| gfn.0.checked_sub(DRIVER)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The emulated machine is one of the same kind: it has the same bytes
    /// after the same drawing, and names the same pages.
    #[test]
    fn both_machines_draw_the_same() {
        const PAGES: u32 = 2048;
        let mut vgpu = Vgpu::new(PAGES).unwrap();
        let mut emulated = super::super::machine::Emulated::new(PAGES);
        for pattern in Pattern::ALL {
            for machine in [&mut vgpu as &mut dyn Machine, &mut emulated] {
                machine.prepare(pattern).unwrap();
                machine.written();
                for n in 0..16 {
                    machine.draw(&pattern.tick(n, PAGES.into())).unwrap();
                }
            }
            assert_eq!(vgpu.written(), emulated.written(), "{pattern:?}");
        }
        let page = |machine: &dyn Machine, number: u64| {
            let mut page = [0; PAGE_SIZE];
            let at = (machine.first() + number) << 12;
            machine.memory().read(at, &mut page).unwrap();
            page
        };
        for number in 0..u64::from(PAGES) {
            let same = page(&vgpu, number) == page(&emulated, number);
            assert!(same, "page {number}");
        }
    }
}
