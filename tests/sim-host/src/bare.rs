//! A guest whose accesses go straight to its device, without a hypervisor:
//! for tests that are about what lies behind the device.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use guest_driver::Platform;
use guest_memory::{GuestMemory, VecMemory};
use vgpu_device::{Bar, BarSink, Clock, Device, Full, GgttTable, GpuPort, InterruptSink, Seams};
use vgpu_ring::{AreaWords, Doorbell, EventBell, Producer, Request};

use crate::SimHost;
use crate::link::Link;

struct Table(vgpu_ring::GgttTable);

impl GgttTable for Table {
    fn load(&self, index: u32) -> u64 {
        self.0.load(index)
    }

    fn store(&self, index: u32, entry: u64) {
        self.0.store(index, entry);
    }
}

struct Port(Mutex<Producer<Request, AreaWords, EventBell>>);

impl GpuPort for Port {
    fn send(&self, request: Request) -> Result<(), Full> {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.push(request).map_err(|_| Full)
    }
}

#[derive(Default)]
struct Interrupts {
    messages: Mutex<VecDeque<(u64, u32)>>,
    wake: Condvar,
}

impl InterruptSink for Interrupts {
    fn msi(&self, address: u64, data: u32) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push_back((address, data));
        self.wake.notify_all();
    }

    fn intx(&self, _level: bool) {}
}

struct HostClock(Instant);

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn alarm(&self, _at_ns: u64) {}
}

struct Bars;

impl BarSink for Bars {
    fn map(&self, _bar: Bar, _base: u64, _len: u64) {}
    fn unmap(&self, _bar: Bar, _base: u64, _len: u64) {}
}

/// A guest with a device, served by the calling thread and one for events.
pub struct BareGuest {
    memory: Arc<VecMemory>,
    device: Arc<Device>,
    interrupts: Arc<Interrupts>,
    link: Link,
    stop: Arc<AtomicBool>,
    bell: EventBell,
    thread: Option<JoinHandle<()>>,
}

impl BareGuest {
    /// Starts a guest with `pages` pages of memory on `host`; its BARs are
    /// placed as firmware would.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn start(host: &SimHost, id: u64, pages: usize) -> anyhow::Result<Self> {
        let memory = Arc::new(VecMemory::new(pages));
        let (link, mut end) = Link::start(host, id, memory.clone())?;
        let interrupts = Arc::new(Interrupts::default());
        let device = Device::new(
            &vgpu_device::Config::default(),
            Seams {
                memory: memory.clone(),
                ggtt: Arc::new(Table(end.ggtt)),
                port: Arc::new(Port(Mutex::new(end.requests))),
                interrupts: interrupts.clone(),
                clock: Arc::new(HostClock(Instant::now())),
                bars: Arc::new(Bars),
            },
        )?;
        let device = Arc::new(device);
        device.config_write(0x10, 4, 0xf000_0000);
        device.config_write(0x18, 4, 0xe000_0000);
        let stop = Arc::new(AtomicBool::new(false));
        let bell = end.events.doorbell().try_clone().context("no doorbell")?;
        let thread = std::thread::Builder::new().name(format!("dm{id}")).spawn({
            let (device, stop) = (device.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::SeqCst) {
                    while let Ok(Some(event)) = end.events.pop() {
                        device.handle_event(event);
                    }
                    device.flush();
                    if end.events.wait(Some(Duration::from_millis(100))).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Self {
            memory,
            device,
            interrupts,
            link,
            stop,
            bell,
            thread: Some(thread),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Why vgpud dropped the vGPU, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.link.failure()
    }

    /// vgpud's view of the vGPU.
    #[must_use]
    pub fn scheduled(&self) -> vgpu_sched::inspect::VgpuView {
        self.link.handle().inspect()
    }
}

impl Drop for BareGuest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("an event thread panicked");
        }
    }
}

impl Platform for &BareGuest {
    fn memory(&self) -> &dyn GuestMemory {
        &*self.memory
    }

    fn config_read(&mut self, register: u16, size: u8) -> u32 {
        let register = u8::try_from(register).unwrap_or(0xff);
        u32::try_from(self.device.config_read(register, size.into())).unwrap_or(u32::MAX)
    }

    fn config_write(&mut self, register: u16, size: u8, value: u32) {
        let register = u8::try_from(register).unwrap_or(0xff);
        self.device
            .config_write(register, size.into(), value.into());
    }

    fn mmio_read(&mut self, address: u64, size: u8) -> u64 {
        match self.device.locate(address) {
            Some((bar, offset)) => self.device.read(bar, offset, size.into()),
            None => u64::MAX,
        }
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        if let Some((bar, offset)) = self.device.locate(address) {
            self.device.write(bar, offset, size.into(), value);
        }
    }

    fn wait_interrupt(&mut self, timeout: Duration) -> bool {
        let messages = self
            .interrupts
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (mut messages, _) = self
            .interrupts
            .wake
            .wait_timeout_while(messages, timeout, |m| m.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        messages.pop_front().is_some()
    }
}
