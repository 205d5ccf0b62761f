//! Registers follow their guest, and cost what they must.

use gen8::{Engine, lrc};
use vgpu_ring::Request;

use crate::driver::{Context, Guest, Host, cmd};

const L3SQCREG4: u32 = 0xb118;
const NONPRIV0: u32 = 0x24d0;

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
        let mut batch = cmd::load_register(0x2158, 0x77).to_vec();
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

    fn round(&mut self) {
        let Self {
            guest,
            context,
            shown,
            at,
            value,
        } = self;
        guest.write_words(*shown, &[0; 3]);
        guest.emit(context, &cmd::store_register_global(L3SQCREG4, *at + 4));
        guest.emit(context, &cmd::store_register_global(0x2158, *at + 8));
        guest.emit(context, &cmd::batch(1 << 20));
        guest.run(context);
        let found = [0, 4, 8].map(|o| guest.read(*shown + o));
        // Its own value, saved and after the load; and nobody's BB_OFFSET.
        assert_eq!(found, [*value, *value, 0]);
    }
}

#[test]
fn i915s_workaround_needs_no_read() {
    let host = Host::new();
    let mut guests = [Watched::new(&host, 1), Watched::new(&host, 2)];
    for _ in 0..20 {
        for guest in &mut guests {
            guest.round();
        }
    }
    for vgpu in host.scheduler.inspect().vgpus {
        let rcs = &vgpu.engines[0];
        assert_eq!(
            rcs.registers["L3SQCREG4"],
            0x4040_0000 + u32::try_from(vgpu.id).unwrap()
        );
        assert!(rcs.counters.switches >= 20);
        assert_eq!(rcs.counters.switch_reads, 0);
    }
}
