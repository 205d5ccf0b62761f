//! A guest and a vgpud that do anything to the device model between them: no
//! panic, every access answered, the domain up, nothing left at the end.
#![no_main]

use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen, RawIoreq, Vcpu};
use gen8::{Engine, ring};
use vgpu_device::Config;
use vgpu_dm::{Server, ServerConfig};
use vgpu_ring::{AreaConfig, Bells, DaemonEnd, Event, FaultReason, SharedArea};
use xen_glue::{Handles, Hypervisor, PARKING_GFN, Sbdf, TableFrames};

const SLOT: u8 = 16;
const REGISTERS: u64 = 0xf000_0000;
const APERTURE: u64 = 0x10_0000_0000;
/// Frames of the guest's memory.
const FRAMES: u64 = 64;

/// The bytes, from the front; zeros when there are no more.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// Values with a meaning more often than others.
    fn value(&mut self) -> u64 {
        match self.u8() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.u8() % 64),
            3 => {
                let bits = self.u8();
                u64::from(bits) | u64::from(bits) << 16
            }
            // A context descriptor, or a present page-table entry.
            4 => {
                let b = self.u8();
                u64::from(b & 7) << 37 | u64::from(b % 64) << 12 | 0x19
            }
            _ => self.u64(),
        }
    }

    fn size(&mut self) -> u32 {
        [1, 2, 4, 8][usize::from(self.u8() % 4)]
    }

    /// A BAR0 offset: a register of the table, an engine's port, a
    /// page-table entry, or any.
    fn offset(&mut self, known: &[u32]) -> u64 {
        match self.u8() % 8 {
            0..4 => known[usize::from(self.u16()) % known.len()].into(),
            4 => {
                let engine = Engine::ALL[usize::from(self.u8() % 4)];
                u64::from(engine.mmio_base() + ring::ELSP)
            }
            5 => (8 << 20) + u64::from(self.u16()),
            6 => u64::from(known[usize::from(self.u16()) % known.len()]) + u64::from(self.u8() % 4),
            _ => u64::from(self.u32() % (16 << 20)),
        }
    }

    /// An address of anything a guest reaches.
    fn address(&mut self, known: &[u32]) -> u64 {
        match self.u8() % 4 {
            0 => REGISTERS + self.offset(known),
            1 => APERTURE + u64::from(self.u32() % (256 << 20)),
            2 => u64::from(self.u32()) % (FRAMES * 4096),
            _ => self.u64(),
        }
    }
}

struct World {
    domain: Domain,
    vcpu: Vcpu,
    server: Server,
    vgpud: DaemonEnd,
}

impl World {
    fn new() -> Self {
        let xen = FakeXen::new();
        let domain = xen
            .create_domain(DomainConfig {
                vcpus: 1,
                frames: FRAMES as usize,
                hap: true,
            })
            .expect("a domain");
        let area = SharedArea::create(AreaConfig {
            submit_slots: 16,
            complete_slots: 64,
        })
        .expect("a shared area");
        let bells = Bells::new().expect("doorbells");
        let vgpud = area.daemon_end(bells.try_clone().expect("a descriptor"));
        let memory = xen.open_domain_memory().expect("hypercalls");
        let privcmd = xen.open_privcmd().expect("a handle");
        TableFrames::create(&*memory, &*privcmd, domain.id()).expect("a page table");
        let config = ServerConfig {
            slot: SLOT,
            table_gfn: Some(PARKING_GFN),
            device: Config::default(),
            spin: Duration::from_micros(200),
            seccomp: vgpu_dm::Seccomp::Off,
            keeper: None,
        };
        let server = Server::attach(Handles::open(&xen, domain.id()).expect("handles"), &config, area.device_end(bells)).expect("attach");
        let vcpu = domain.vcpu(0).expect("a vcpu");
        let world = Self {
            domain,
            vcpu,
            server,
            vgpud,
        };
        world.configure(0x10, 4, REGISTERS as u32);
        world.configure(0x18, 4, 0);
        world.configure(0x1c, 4, (APERTURE >> 32) as u32);
        world.configure(0x04, 2, 6);
        world
    }

    fn configure(&self, register: u8, size: u32, value: u32) {
        self.vcpu
            .pci_config_write(Sbdf::slot(SLOT), register, size, value)
            .expect("the domain runs");
    }

    fn step(&mut self, b: &mut Bytes<'_>, known: &[u32]) {
        let vcpu = &self.vcpu;
        let answered = match b.u8() % 16 {
            0..2 => vcpu
                .mmio_read(REGISTERS + b.offset(known), b.size())
                .map(drop),
            2..6 => vcpu.mmio_write(REGISTERS + b.offset(known), b.size(), b.value()),
            6 => vcpu.mmio_write(b.address(known), b.size(), b.value()),
            7 => {
                let (register, size, value) = (b.u8(), b.size().min(4), b.value());
                // Configuration cycles do not cross a dword.
                let register = register & !3 | register & (4 - size as u8) & 3;
                vcpu.pci_config_write(Sbdf::slot(SLOT), register, size, value as u32)
            }
            8 => vcpu.rep_stos(
                b.address(known),
                b.size(),
                (b.u16() % 2048).into(),
                b.value(),
                b.u8() & 1 != 0,
            ),
            9 => vcpu.rep_movs(
                b.address(known),
                b.address(known),
                b.size(),
                (b.u16() % 2048).into(),
                b.u8() & 1 != 0,
            ),
            10 => {
                let raw = RawIoreq {
                    kind: b.u8() % 12,
                    addr: b.address(known),
                    data: b.address(known),
                    count: b.u32(),
                    size: b.u32() % 16,
                    read: b.u8() & 1 != 0,
                    df: b.u8() & 1 != 0,
                    data_is_ptr: b.u8() & 1 != 0,
                };
                vcpu.raw_request_to(self.server.id(), &raw).map(drop)
            }
            11..13 => {
                let (engine, element, seq) = (b.u8() % 4, b.u8() % 2, u64::from(b.u8()));
                let event = match b.u8() % 7 {
                    4..6 => Event::Protect {
                        gfn: u64::from(b.u16()) % (FRAMES * 2),
                        serial: seq as u32,
                    },
                    6 => Event::Unprotect {
                        gfn: u64::from(b.u16()) % (FRAMES * 2),
                    },
                    0 => Event::Interrupt {
                        engine,
                        bits: b.u16(),
                    },
                    1 => Event::ResetDone {
                        engines: b.u8() % 16,
                        epoch: seq,
                    },
                    2 => Event::Fault {
                        engine,
                        element,
                        reason: FaultReason::Refused,
                        ipehr: b.u32(),
                        seq,
                    },
                    _ => Event::ContextDone {
                        bits: 0, engine,
                        element,
                        seq,
                    },
                };
                // A full ring is the device model's loss.
                let _full = self.vgpud.events.push(event);
                Ok(())
            }
            13 => {
                while let Some(_request) = self.vgpud.requests.pop().expect("a sound ring") {}
                Ok(())
            }
            14 => vcpu
                .decrease_reservation(&[guest_memory::Gfn(u64::from(b.u8()) % FRAMES)])
                .map(drop),
            _ => {
                self.server.inspect().expect("a tree");
                Ok(())
            }
        };
        answered.expect("the domain runs");
    }
}

fn run(data: &[u8]) {
    let known: Vec<u32> = gen8::platform::BDW
        .registers
        .rows()
        .flat_map(|row| row.offsets().collect::<Vec<_>>())
        .collect();
    let mut world = World::new();
    let mut bytes = Bytes(data);
    let mut steps = 0;
    while !bytes.0.is_empty() && steps < 200 {
        world.step(&mut bytes, &known);
        steps += 1;
    }
    assert_eq!(world.domain.stopped(), None);
    world.server.stop();
    assert_eq!(world.domain.ioreq_servers(), 0);
    // No frame stayed protected.
    assert_eq!(world.domain.enable_log_dirty(), Ok(()));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
