//! A device model that writes what it likes into the shared area.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use gen8::Engine;
use guest_memory::{GuestMemory, VecMemory};
use sim_host::{Link, SimHost};
use vgpu_ring::layout::{Layout, RingPlace, index};
use vgpu_ring::{AreaConfig, Bells, Doorbell, GgttTable, Message, Outcome, Request};

use crate::layout::{BATCH_VA, Place, Request as Work, WINDOW_PAGES, write_context};
use crate::{Bytes, stage::wait_until};

/// The device model's side, with nothing between it and the shared memory.
pub struct HostileRing {
    link: Link,
    file: File,
    ggtt: GgttTable,
    bells: Bells,
    layout: Layout,
    memory: Arc<VecMemory>,
    pushed: u64,
    seq: u64,
}

impl HostileRing {
    /// A vGPU `id` on `host` whose guest has valid contexts in its memory.
    ///
    /// # Panics
    /// When the system has no more of something.
    #[must_use]
    pub fn start(host: &SimHost, id: u64) -> Self {
        let memory = Arc::new(VecMemory::new(512));
        for (n, engine) in Engine::ALL.into_iter().enumerate() {
            write_context(&*memory, n, engine).unwrap();
            // Batches for some, loops for others.
            let batch = if n % 2 == 0 {
                [0x0500_0000, 0, 0, 0]
            } else {
                let [a, b, c, d, ..] = BATCH_VA.to_le_bytes();
                [0x1880_0101, u32::from_le_bytes([a, b, c, d]), 0, 0]
            };
            let work = Work {
                context: n,
                engine,
                batch: &batch,
                number: 1,
            };
            work.write(&*memory).unwrap();
        }
        let shared: Arc<dyn GuestMemory> = memory.clone();
        let (link, area, bells) = Link::start_bare(host, id, shared, None).unwrap();
        let config = AreaConfig::default();
        let layout = Layout::new(config.submit_slots.into(), config.complete_slots.into()).unwrap();
        let ggtt = area.device_end(bells.try_clone().unwrap()).ggtt;
        for page in 0..WINDOW_PAGES {
            ggtt.store(page, u64::from(page) << 12 | 1);
        }
        Self {
            file: File::from(area.share().unwrap()),
            link,
            ggtt,
            bells,
            layout,
            memory,
            pushed: 0,
            seq: 0,
        }
    }

    /// Stores a word of the shared area.
    ///
    /// # Panics
    /// When it is not in the area.
    pub fn store(&self, word: usize, value: u64) {
        assert!(word < self.layout.words);
        let at = u64::try_from(word).unwrap() * 8;
        self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn load(&self, word: usize) -> u64 {
        let mut b = [0; 8];
        let at = u64::try_from(word).unwrap() * 8;
        self.file.read_exact_at(&mut b, at).unwrap();
        u64::from_le_bytes(b)
    }

    /// Requests that vgpud has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.load(self.layout.submit.indices + index::CONSUMER)
    }

    /// Where the submit ring lies.
    #[must_use]
    pub const fn submit_ring(&self) -> RingPlace {
        self.layout.submit
    }

    /// Where the complete ring lies.
    #[must_use]
    pub const fn complete_ring(&self) -> RingPlace {
        self.layout.complete
    }

    /// Wakes vgpud's side.
    pub fn ring(&self) {
        self.bells.submit.ring();
    }

    /// Puts a slot of any content into the submit ring.
    ///
    /// # Panics
    /// Never.
    pub fn push(&mut self, slot: [u64; 4]) {
        let place = self.layout.submit;
        let at = usize::try_from(self.pushed % place.capacity).unwrap();
        for (i, qword) in slot.into_iter().enumerate() {
            self.store(place.slots + at * 4 + i, qword);
        }
        self.pushed = self.pushed.wrapping_add(1);
        self.store(place.indices + index::PRODUCER, self.pushed);
        self.ring();
    }

    /// Waits until vgpud has dropped the vGPU; why it did.
    ///
    /// # Panics
    /// When it does not.
    pub fn dropped(&self) -> String {
        wait_until("the vGPU to be dropped", || self.link.failure().is_some());
        self.link.failure().unwrap_or_default()
    }

    /// Does what `data` says, breaks the ring for good at the end, and checks
    /// that the vGPU is dropped with a reason.
    ///
    /// # Panics
    /// When it is not.
    pub fn run(mut self, data: &[u8]) {
        let mut bytes = Bytes::new(data);
        for _ in 0..200 {
            if bytes.is_empty() {
                break;
            }
            self.act(&mut bytes);
        }
        let place = self.layout.submit;
        let head = self.taken();
        // Whatever vgpud took by now, this is too far.
        let far = head.wrapping_add(1 << 40);
        self.store(place.indices + index::PRODUCER, far);
        self.ring();
        assert!(!self.dropped().is_empty());
    }

    fn act(&mut self, b: &mut Bytes<'_>) {
        match b.u8() % 10 {
            0..=3 => {
                let request = self.request(b);
                let mut slot = request.encode();
                if b.rarely(8) {
                    slot[usize::from(b.u8() % 4)] ^= 1 << (b.u8() % 64);
                }
                self.push(slot);
            }
            4 => {
                let slot = [b.value(), b.value(), b.value(), b.value()];
                self.push(slot);
            }
            5 => {
                let ring = b.pick(&[self.layout.submit, self.layout.complete]);
                let at = b.pick(&[index::PRODUCER, index::CONSUMER, index::SLEEPS]);
                let near = self.load(ring.indices + at).wrapping_add(b.u8().into());
                let value = if b.flag() { near } else { b.value() };
                self.store(ring.indices + at, value);
                self.ring();
            }
            6 => {
                let word = usize::try_from(b.u32()).unwrap_or(0) % self.layout.words;
                self.store(word, b.value());
            }
            7 => {
                let entry = b.value();
                self.ggtt.store(u32::from(b.u16()) % WINDOW_PAGES, entry);
            }
            8 => {
                let at = u64::from(b.u32()) % (512 << 12);
                // The last bytes may cross the end.
                let _ = self.memory.write_u64(at, b.value());
            }
            _ => {
                // Its events are taken, or said to be.
                let ring = self.layout.complete;
                let produced = self.load(ring.indices + index::PRODUCER);
                self.store(ring.indices + index::CONSUMER, produced);
                self.bells.complete.clear();
                self.ring();
            }
        }
    }

    fn request(&mut self, b: &mut Bytes<'_>) -> Request {
        match b.u8() % 12 {
            0..=3 => {
                self.seq += u64::from(!b.rarely(16));
                let n = usize::from(b.u8() % 4);
                let id = u32::try_from(n).unwrap_or(0) + 1;
                Request::Submit {
                    engine: b.u8() % 5,
                    seq: self.seq,
                    desc: [
                        Place::of(n).descriptor(id),
                        if b.flag() { b.value() } else { 0 },
                    ],
                }
            }
            4 => Request::Reset {
                engines: b.u8() % 32,
                epoch: b.u64(),
            },
            5 => Request::WriteRegister {
                offset: b.value_u32() & 0xff_fffc,
                value: b.value_u32(),
            },
            6 => Request::DestroyPageTable { root: b.value() },
            7 => Request::TableWrite {
                gpa: b.value(),
                size: b.u16() % 4100,
                since_ns: b.value_u32(),
            },
            8 => Request::Protected {
                gfn: u64::from(b.u16()) % 512,
                serial: b.u32() % 64,
                outcome: b.pick(&Outcome::ALL),
            },
            9 => Request::Protection { offered: b.flag() },
            10 if b.flag() => Request::TableReleased { gfn: b.value() },
            10 => Request::WritesMissed { count: b.u64() },
            _ => Request::Ping { token: b.u64() },
        }
    }

    /// vgpud's side.
    #[must_use]
    pub const fn link(&self) -> &Link {
        &self.link
    }
}
