//! Registers follow their guest, and cost what they must.

use gen8::{Engine, lrc};
use vgpu_ring::Request;
use vgpu_sched::switch::SwitchMode;

use crate::driver::{Context, Guest, Host, cmd};

const L3SQCREG4: u32 = 0xb118;
const NONPRIV0: u32 = 0x24d0;
const BB_OFFSET: u32 = 0x2158;

/// A guest whose render context has i915's workaround around its restore, and
/// shows its registers in memory.
struct Watched {
    guest: Guest,
    context: Context,
    /// Where the workaround saves, and where the ring shows.
    shown: u64,
    at: u32,
    value: u32,
}

impl Watched {
    fn new(host: &Host, id: u64) -> Self {
        let mut guest = host.guest(id, 256);
        let mut context = guest.context(Engine::Rcs, 1);
        let (shown, at) = guest.global_page();
        let (batch, batch_at) = guest.global_page();
        let mut words = cmd::store_register_global(L3SQCREG4, at).to_vec();
        words.extend(cmd::load_register(L3SQCREG4, 0x4060_0000));
        words.extend([0x7a00_0004, 1 << 20 | 1 << 5, 0, 0, 0, 0]);
        words.extend([0x29 << 23 | 1 << 22 | 2, L3SQCREG4, at, 0]);
        words.resize(32, 0);
        guest.write_words(batch, &words);
        guest.set_image(&context, lrc::INDIRECT_CTX, batch_at | 2);
        let value = 0x4040_0000 + u32::try_from(id).unwrap();
        for (offset, value) in [
            (L3SQCREG4, value),
            (NONPRIV0, 0x7300 + u32::from(id == 2) * 4),
        ] {
            guest
                .handle
                .handle(Request::WriteRegister { offset, value })
                .unwrap();
        }
        // A batch nobody looks at writes what it can outside the context.
        let code = guest.pages(1);
        guest.map(&context, 1 << 20, code);
        let mut batch = cmd::load_register(BB_OFFSET, 0x77).to_vec();
        batch.push(cmd::BATCH_END);
        guest.write_words(code, &batch);
        guest.emit(&mut context, &[0, 0]);
        guest.run(&context);
        Self {
            guest,
            context,
            shown,
            at,
            value,
        }
    }

    /// Gives the GPU work that shows the registers.
    fn submit(&mut self) -> u64 {
        let Self {
            guest,
            context,
            shown,
            at,
            ..
        } = self;
        guest.write_words(*shown, &[0; 3]);
        guest.emit(context, &cmd::store_register_global(L3SQCREG4, *at + 4));
        guest.emit(context, &cmd::store_register_global(BB_OFFSET, *at + 8));
        guest.emit(context, &cmd::batch(1 << 20));
        guest.submit(context, None)
    }

    fn check(&mut self, seq: u64) {
        self.guest.wait(seq, 0);
        let found = [0, 4, 8].map(|o| self.guest.read(self.shown + o));
        // Its own value, saved and after the load; and nobody's BB_OFFSET.
        assert_eq!(found, [self.value, self.value, 0]);
    }
}

#[test]
fn in_every_mode_each_guest_finds_its_own() {
    for mode in SwitchMode::ALL {
        let host = Host::with(mode);
        let mut guests = [Watched::new(&host, 1), Watched::new(&host, 2)];
        for _ in 0..20 {
            for guest in &mut guests {
                let seq = guest.submit();
                guest.check(seq);
            }
        }
        for vgpu in host.scheduler.inspect().vgpus {
            let rcs = &vgpu.engines[0];
            let own = 0x4040_0000 + u32::try_from(vgpu.id).unwrap();
            assert_eq!(rcs.registers["L3SQCREG4"], own, "{mode}");
            assert!(rcs.counters.switches >= 20, "{mode}");
            let reads = rcs.counters.switch_reads;
            let delta = matches!(mode, SwitchMode::DeltaPrevious | SwitchMode::DeltaImage);
            // i915's workaround needs no read.
            assert_eq!(reads == 0, delta, "{mode}: {reads}");
        }
    }
}

/// One after the other, the second submitted while the first waits for
/// memory. `follows`: whether the second is expected in the second slot.
fn back_to_back(host: &Host, guests: &mut [Watched; 2], follows: bool) {
    for round in 1..=5 {
        let [a, b] = guests;
        let gate = a.shown + 16;
        a.guest.write_words(gate, &[0]);
        a.guest
            .emit(&mut a.context, &cmd::wait_global(a.at + 16, round));
        let first = a.submit();
        let second = b.submit();
        let slot = || host.scheduler.inspect().engines[0].second;
        while follows && slot() != Some(2) {
            std::thread::yield_now();
        }
        assert!(follows || slot().is_none());
        a.guest.write_words(gate, &[round]);
        a.check(first);
        b.check(second);
    }
}

/// Guests that want the same of the register that their workaround touches
/// follow one another in the second slot.
#[test]
fn the_workaround_does_not_keep_others_from_the_second_slot() {
    let host = Host::new();
    let mut guests = [Watched::new(&host, 1), Watched::new(&host, 2)];
    let handovers = || host.scheduler.inspect().engines[0].handovers;
    // Each would save the other's value at its restore.
    back_to_back(&host, &mut guests, false);
    assert_eq!(handovers(), 0);
    for guest in &mut guests {
        guest.value = 0x4040_0000;
        let (offset, value) = (L3SQCREG4, guest.value);
        let request = Request::WriteRegister { offset, value };
        guest.guest.handle.handle(request).unwrap();
        let seq = guest.submit();
        guest.check(seq);
    }
    back_to_back(&host, &mut guests, true);
    assert_eq!(handovers(), 5);
}
