//! The guest that must get what it should, and nothing else.

use gen8::{Engine, ring};
use guest_driver::Batch;
use guest_memory::GuestMemory;
use vgpu_ring::{Event, Request as Message};
use vgpu_sched::scheduler::Scheduler;
use vgpu_sched::vgpu::VgpuConfig;

use super::memory::Memory;
use super::seat::Seat;
use crate::layout::{DATA_VA, Place, Request, write_context};
use crate::stage::wait_until;

const PAGES: usize = 512;
/// Frames below belong to its contexts; those above hold its secret.
const SECRET: u64 = 400;
/// Upper half of every qword of a secret. Nothing else makes such a number.
const MARK: u64 = 0x5ec2_e7a1;
const L3SQCREG4: u32 = 0xb118;

fn secret(id: u64, at: u64) -> u64 {
    MARK << 32 | (id & 0xff) << 24 | at & 0xff_ffff
}

/// Whether a guest has what another one keeps to itself.
pub(crate) fn stolen(memory: &Memory, pages: usize) -> Option<u64> {
    let end = u64::try_from(pages).unwrap_or(0);
    memory.qwords(0, end).find(|q| q >> 32 == MARK)
}

/// An honest guest.
pub(crate) struct Honest {
    pub seat: Seat,
    id: u64,
    number: u32,
    /// Engines whose work is on its way.
    busy: [bool; Engine::COUNT],
    /// What L3SQCREG4 must hold.
    l3sqcreg4: Option<u32>,
    /// Commands run so far.
    pub commands: u64,
    pub rounds: u64,
}

impl Honest {
    /// One with a secret.
    ///
    /// # Panics
    /// When the scheduler has no place for it.
    pub fn new(scheduler: &Scheduler, id: u64) -> Self {
        let config = VgpuConfig {
            id,
            ..VgpuConfig::default()
        };
        let seat = Seat::new(scheduler, config, PAGES);
        let end = u64::try_from(PAGES).unwrap_or(0);
        for at in SECRET << 9..end << 9 {
            let memory = seat.memory.guest();
            memory.write_u64(at * 8, secret(id, at)).unwrap();
        }
        Self {
            seat,
            id,
            number: 0,
            busy: [false; Engine::COUNT],
            l3sqcreg4: None,
            commands: 0,
            rounds: 0,
        }
    }

    fn value(&self, engine: Engine, k: u32) -> u32 {
        let engine = u32::try_from(engine.index()).unwrap_or(0);
        (self.number << 8 | engine << 4 | k).wrapping_mul(0x9e37_79b1)
    }

    /// Whether nothing of it is on its way.
    pub fn idle(&self) -> bool {
        self.busy == [false; Engine::COUNT]
    }

    /// Submits work on every engine.
    ///
    /// # Panics
    /// When vgpud does not take it.
    pub fn start(&mut self) {
        assert!(self.idle(), "its work is on its way");
        self.number += 1;
        for engine in Engine::ALL {
            let n = engine.index();
            let gpr = engine.mmio_base() + ring::GPR0;
            let mut batch = Batch::new();
            for k in 0..4 {
                batch.store_u32(DATA_VA + u64::from(k) * 4, self.value(engine, k));
            }
            batch
                .load_registers(&[(gpr, self.value(engine, 4))])
                .store_register(gpr, DATA_VA + 16)
                .copy_u32(DATA_VA + 20, DATA_VA + 4);
            if engine == Engine::Rcs {
                batch.store_register(L3SQCREG4, DATA_VA + 24);
            }
            batch.end();
            let memory = self.seat.memory.guest();
            let descriptor = write_context(memory, n, engine).unwrap();
            Request {
                context: n,
                engine,
                batch: &batch.finish(),
                number: self.number,
            }
            .write(memory)
            .unwrap();
            self.busy[n] = true;
            // The batch, its start, the number, the interrupt.
            self.commands += 11;
            self.seat.submit(engine, [descriptor.0, 0]).unwrap();
        }
    }

    /// Takes what came back, and checks it.
    ///
    /// # Panics
    /// When something is not as it should be.
    pub fn poll(&mut self) {
        while let Some(event) = self.seat.event() {
            match event {
                Event::ContextDone { engine, .. } => self.done(Engine::ALL[usize::from(engine)]),
                Event::Interrupt { .. } => {}
                other => panic!("{other:?}: {:?}", self.seat.handle.inspect().refusals),
            }
        }
        self.seat.handle.usable().unwrap();
    }

    fn done(&mut self, engine: Engine) {
        let n = engine.index();
        let place = Place::of(n);
        let memory = self.seat.memory.guest();
        let read = |k: u32| memory.read_u32(place.data() + u64::from(k) * 4).unwrap();
        for k in 0..5 {
            assert_eq!(read(k), self.value(engine, k), "{engine:?}, dword {k}");
        }
        assert_eq!(read(5), self.value(engine, 1), "{engine:?}, a copy");
        assert_eq!(memory.read_u32(place.sequence()).unwrap(), self.number);
        if engine == Engine::Rcs {
            let now = read(6);
            let must = *self.l3sqcreg4.get_or_insert(now);
            assert_eq!(now, must, "L3SQCREG4, which others write");
        }
        self.busy[n] = false;
        self.rounds += u64::from(self.idle());
    }

    /// Waits until its work is done.
    ///
    /// # Panics
    /// When it is not for a minute.
    pub fn finish(&mut self) {
        wait_until("the neighbour's work", || {
            self.poll();
            self.idle()
        });
    }

    /// Chooses a value of a register that a switch carries over.
    ///
    /// # Panics
    /// When vgpud does not take it.
    pub fn set_register(&mut self, value: u32) {
        let offset = L3SQCREG4;
        let message = Message::WriteRegister { offset, value };
        self.seat.handle.handle(message).unwrap();
        self.l3sqcreg4 = Some(value);
    }

    /// Checks that its secret is as it was.
    ///
    /// # Panics
    /// When it is not.
    pub fn assert_whole(&self) {
        let end = u64::try_from(PAGES).unwrap_or(0);
        let words = self.seat.memory.qwords(SECRET, end);
        for (at, found) in (SECRET << 9..).zip(words) {
            assert_eq!(
                found,
                secret(self.id, at),
                "guest {}, qword {at:#x}",
                self.id
            );
        }
    }
}
