//! A device among surroundings in memory, for what needs no hypervisor.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use guest_memory::VecMemory;
use serde_json::Value;
use vgpu_device::{
    Bar, BarSink, Clock, Config, Device, DeviceV1, Full, GgttTable, GpuPort, InterruptSink, Seams,
};
use vgpu_ring::{Event, FaultReason, Request};

use crate::Bytes;

/// Entries of the table that keep what is written to them.
const ENTRIES: usize = 512;

/// Everything around a device.
#[derive(Debug)]
pub struct Surroundings {
    table: Vec<AtomicU64>,
    full: AtomicU64,
    now: AtomicU64,
    windows: Mutex<Vec<(Bar, u64, u64)>>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            table: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect(),
            full: AtomicU64::new(0),
            now: AtomicU64::new(1),
            windows: Mutex::default(),
        }
    }
}

impl Surroundings {
    /// The seams of a device in these surroundings, with 1 MiB of memory.
    #[must_use]
    pub fn seams(self: &Arc<Self>) -> Seams {
        Seams {
            memory: Arc::new(VecMemory::new(256)),
            ggtt: self.clone(),
            port: self.clone(),
            interrupts: self.clone(),
            clock: self.clone(),
            bars: self.clone(),
            kept: Arc::new(vgpu_device::Unkept),
        }
    }
}

impl GgttTable for Surroundings {
    fn load(&self, index: u32) -> u64 {
        let entry = usize::try_from(index).ok().and_then(|i| self.table.get(i));
        entry.map_or(0, |e| e.load(SeqCst))
    }

    fn store(&self, index: u32, entry: u64) {
        if let Some(e) = usize::try_from(index).ok().and_then(|i| self.table.get(i)) {
            e.store(entry, SeqCst);
        }
    }
}

impl GpuPort for Surroundings {
    fn send(&self, _request: Request) -> Result<(), Full> {
        if self.full.load(SeqCst) & 1 == 1 {
            return Err(Full);
        }
        Ok(())
    }
}

impl InterruptSink for Surroundings {
    fn msi(&self, _address: u64, _data: u32) {}
    fn intx(&self, _level: bool) {}
}

impl Clock for Surroundings {
    fn now_ns(&self) -> u64 {
        self.now.load(SeqCst)
    }
    fn alarm(&self, _at_ns: u64) {}
}

impl BarSink for Surroundings {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(windows.iter().all(|w| w.0 != bar), "{bar} mapped twice");
        assert!(base.checked_add(len - 1).is_some(), "{bar} wraps");
        windows.push((bar, base, len));
    }

    fn unmap(&self, bar: Bar, base: u64, len: u64) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let at = windows.iter().position(|w| *w == (bar, base, len));
        windows.remove(at.expect("what is unmapped was mapped"));
    }
}

/// Uses `device` as bytes say: accesses, events, time.
pub fn drive_device(b: &mut Bytes<'_>, device: &Device, world: &Surroundings) {
    for _ in 0..400 {
        if b.is_empty() {
            break;
        }
        let bar = b.pick(&[Bar::Registers, Bar::Registers, Bar::Aperture]);
        let offset = match b.u8() % 3 {
            0 => u64::from(b.u16()) * 4,
            1 => u64::from(b.u32()) % (32 << 20),
            _ => b.u64(),
        };
        // What the server lets through: inside the window.
        let size = usize::from(b.u8() % 8) + 1;
        let offset = offset % (device.window_bytes(bar) - 8);
        let (engine, element, seq) = (b.u8() % 4, b.u8() % 2, u64::from(b.u8()));
        match b.u8() % 12 {
            0..=3 => device.write(bar, offset, size, b.value()),
            4 => drop(device.read(bar, offset, size)),
            5 => device.config_write(b.u8(), size, b.value()),
            6 => drop(device.config_read(b.u8(), size)),
            7 => {
                world.now.fetch_add(b.u32().into(), SeqCst);
                device.tick();
            }
            8 => world.full.store(seq, SeqCst),
            9 => device.handle_event(Event::ContextDone {
                bits: 0,
                engine,
                element,
                seq,
            }),
            10 => device.handle_event(Event::Fault {
                engine,
                element,
                reason: b.pick(&FaultReason::ALL),
                ipehr: b.u32(),
                seq,
            }),
            _ => device.handle_event(match b.u8() % 3 {
                0 => Event::Interrupt {
                    engine,
                    bits: b.u16(),
                },
                1 => Event::ResetDone {
                    engines: b.u8() % 16,
                    epoch: seq,
                },
                _ => Event::Pong { token: seq },
            }),
        }
    }
}

/// The leaves of a tree, in order.
fn leaves<'a>(value: &'a mut Value, out: &mut Vec<&'a mut Value>) {
    if !value.is_array() && !value.is_object() {
        return out.push(value);
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| leaves(item, out)),
        Value::Object(fields) => fields.values_mut().for_each(|field| leaves(field, out)),
        _ => {}
    }
}

/// Uses a device, saves it, changes the saved state, and restores it. What
/// restores must save to a state that restores to the same.
///
/// # Panics
/// When it does not.
pub fn restore_device(b: &mut Bytes<'_>) {
    let world = Arc::new(Surroundings::default());
    let device = Device::new(&Config::default(), world.seams()).expect("the default");
    let used = usize::from(b.u8());
    let before: Vec<u8> = (0..used).map(|_| b.u8()).collect();
    drive_device(&mut Bytes::new(&before), &device, &world);

    let mut tree = serde_json::to_value(device.save()).expect("a tree");
    for _ in 0..b.u8() % 8 {
        let mut all = Vec::new();
        leaves(&mut tree, &mut all);
        let at = usize::from(b.u16()) % all.len();
        *all.swap_remove(at) = match b.u8() % 5 {
            0 => Value::Null,
            1 => b.flag().into(),
            2 => b.u8().into(),
            _ => b.value().into(),
        };
    }
    let Ok(state) = serde_json::from_value::<DeviceV1>(tree) else {
        return;
    };
    let world = Arc::new(Surroundings::default());
    world.now.store(b.u64(), SeqCst);
    let Ok(device) = Device::restore(&state, world.seams()) else {
        return;
    };
    device.replay();
    device.tick();
    drive_device(b, &device, &world);

    let saved = device.save();
    let again = Arc::new(Surroundings::default());
    again.now.store(world.now_ns(), SeqCst);
    let device = Device::restore(&saved, again.seams()).expect("what was saved restores");
    assert_eq!(device.save(), saved);
}
