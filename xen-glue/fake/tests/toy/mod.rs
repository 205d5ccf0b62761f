//! A small device model: a function at 00:10.0 with a memory BAR that is
//! plain bytes, served by a thread for each vCPU.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen};
use guest_memory::GuestMemory;
use xen_glue::{
    DeviceModel, ForeignMemory, ForeignMemoryConfig, Hypervisor, IoHandler, IoKind, IoreqPage,
    IoreqServer, IoreqServerId, Sbdf, VcpuIoreqs, execute,
};

pub const SLOT: Sbdf = Sbdf::slot(0x10);
pub const BAR0_SIZE: u64 = 0x1000_0000;
/// Where tests that do not enumerate put the device.
pub const BASE: u64 = 0xf000_0000;

/// The state of the device.
#[derive(Default)]
pub struct Toy {
    pub bytes: BTreeMap<u64, u8>,
    pub config: BTreeMap<u64, u8>,
    pub accesses: u64,
    mapped: Option<(u64, u64)>,
}

/// What the threads share.
pub struct Shared {
    pub toy: Mutex<Toy>,
    pub memory: Arc<ForeignMemory>,
    pub server: IoreqServer,
    pub page: Arc<IoreqPage>,
    stop: AtomicBool,
    pub requests: AtomicU64,
}

struct Handler<'a>(&'a Shared);

fn bar0(toy: &Toy) -> u64 {
    let byte = |at| u64::from(toy.config.get(&at).copied().unwrap_or(0));
    (0..8).map(|i| byte(0x10 + i) << (8 * i)).sum::<u64>() & !0xf
}

impl Handler<'_> {
    fn config_write(&self, toy: &mut Toy, register: u64, size: u32, value: u64) {
        for i in 0..u64::from(size) {
            let at = register + i;
            let byte = u8::try_from(value >> (8 * i) & 0xff).unwrap();
            let mask = match at {
                0x04 => 0x07,
                // 256 MiB, 64-bit, prefetchable.
                0x10..=0x12 => 0,
                0x13 => 0xf0,
                0x14..=0x17 | 0x3c => 0xff,
                _ => 0,
            };
            let old = toy.config.get(&at).copied().unwrap_or(0);
            toy.config.insert(at, old & !mask | byte & mask);
        }
        let on = toy.config[&4] & 2 != 0;
        let wanted = on.then(|| (bar0(toy), bar0(toy) + (BAR0_SIZE - 1)));
        if wanted != toy.mapped {
            if let Some((start, end)) = toy.mapped.take() {
                self.0.server.unmap_mmio(&(start..=end)).unwrap();
            }
            if let Some((start, end)) = wanted {
                self.0.server.map_mmio(&(start..=end)).unwrap();
            }
            toy.mapped = wanted;
        }
    }
}

impl IoHandler for Handler<'_> {
    fn read(&mut self, kind: IoKind, addr: u64, size: u32) -> u64 {
        let mut toy = self.0.toy.lock().unwrap();
        toy.accesses += 1;
        let (map, at) = match kind {
            IoKind::PciConfig => (&toy.config, addr & 0xff),
            _ => (&toy.bytes, addr),
        };
        (0..u64::from(size))
            .map(|i| {
                let byte = map.get(&at.wrapping_add(i)).copied().unwrap_or(0);
                u64::from(byte) << (8 * i)
            })
            .sum()
    }

    fn write(&mut self, kind: IoKind, addr: u64, size: u32, value: u64) {
        let mut toy = self.0.toy.lock().unwrap();
        toy.accesses += 1;
        if kind == IoKind::PciConfig {
            self.config_write(&mut toy, addr & 0xff, size, value);
            return;
        }
        let bytes = value.to_le_bytes();
        let n = usize::try_from(size).unwrap();
        if kind == IoKind::Copy && addr < BASE {
            // A protected frame: performed here.
            self.0.memory.write(addr, &bytes[..n]).unwrap();
        }
        for (i, byte) in (0..).zip(&bytes[..n]) {
            toy.bytes.insert(addr.wrapping_add(i), *byte);
        }
    }
}

/// A device model at work.
pub struct Running {
    pub shared: Arc<Shared>,
    pub device_model: DeviceModel,
    threads: Vec<JoinHandle<()>>,
}

pub fn domain(xen: &FakeXen, vcpus: u32) -> Domain {
    let config = DomainConfig {
        vcpus,
        frames: 2048,
        hap: true,
    };
    xen.create_domain(config).unwrap()
}

impl Running {
    /// A new server that has the function's configuration space.
    pub fn start(xen: &FakeXen, domain: &Domain) -> Self {
        let device_model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
        let server = device_model.create_ioreq_server().unwrap();
        let page = server.map_page(device_model.nr_vcpus().unwrap()).unwrap();
        server.set_enabled(true).unwrap();
        server.map_pci(SLOT).unwrap();
        Self::serve(xen, device_model, server, page)
    }

    /// The same for a server that is there already.
    pub fn attach(xen: &FakeXen, domain: &Domain, id: IoreqServerId) -> Self {
        let device_model = DeviceModel::new(xen.open_privcmd().unwrap(), domain.id());
        let server = device_model.attach_ioreq_server(id);
        let page = server.map_page(device_model.nr_vcpus().unwrap()).unwrap();
        Self::serve(xen, device_model, server, page)
    }

    fn serve(
        xen: &FakeXen,
        device_model: DeviceModel,
        server: IoreqServer,
        page: IoreqPage,
    ) -> Self {
        let memory = ForeignMemory::new(
            device_model.privcmd().clone(),
            device_model.domid(),
            ForeignMemoryConfig::default(),
        );
        let mut toy = Toy::default();
        for (at, byte) in [
            (0, 0x86),
            (1, 0x80),
            (2, 0x16),
            (3, 0x16),
            (0x10, 0x0c),
            (0x3d, 1),
        ] {
            toy.config.insert(at, byte);
        }
        let shared = Arc::new(Shared {
            toy: Mutex::new(toy),
            memory: Arc::new(memory),
            server,
            page: Arc::new(page),
            stop: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        });
        let threads = (0..shared.page.vcpus())
            .map(|vcpu| {
                let (shared, domid) = (shared.clone(), device_model.domid());
                let events = xen.open_event_channels().unwrap();
                let ioreqs = VcpuIoreqs::bind(shared.page.clone(), vcpu, events, domid).unwrap();
                std::thread::spawn(move || run(&shared, &ioreqs))
            })
            .collect();
        Self {
            shared,
            device_model,
            threads,
        }
    }

    /// Ends the threads and gives the server back alive.
    pub fn stop(mut self) -> IoreqServerId {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let shared = Arc::into_inner(self.shared).unwrap();
        shared.server.into_id()
    }
}

fn run(shared: &Shared, ioreqs: &VcpuIoreqs) {
    let tick = Some(Duration::from_millis(5));
    let mut left = ioreqs.take_unfinished().unwrap();
    while !shared.stop.load(Ordering::Acquire) {
        let next = match left.take() {
            Some(request) => Some(request),
            None => ioreqs.next(tick).unwrap(),
        };
        let Some(request) = next else { continue };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let data = execute(&request, &mut Handler(shared), &*shared.memory);
        ioreqs.complete(data).unwrap();
    }
}
