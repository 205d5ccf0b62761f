//! A guest that does what bytes say.

use std::sync::OnceLock;

use fake_xen::RawIoreq;
use gen8::{Engine, irq, lrc, pte, ring};
use guest_memory::Gfn;

use crate::bytes::low;
use crate::layout::{self, CONTEXTS, Place, WINDOW_PAGES, set_register, write_context};
use crate::stage::TABLE;
use crate::{Bytes, Stage, commands};

/// Frames of the guest, as its configuration has them.
const FRAMES: u64 = 4096;
/// Bytes of the guest's aperture.
const APERTURE: u64 = 64 << 20;
/// Repetitions of a string instruction.
const REPEAT: u16 = 1100;

/// Every register the device knows.
fn registers() -> &'static [u32] {
    static ALL: OnceLock<Vec<u32>> = OnceLock::new();
    ALL.get_or_init(|| {
        let platforms = gen8::platform::PLATFORMS.iter();
        platforms
            .flat_map(|p| p.registers.rows())
            .flat_map(|row| row.offsets().collect::<Vec<_>>())
            .collect()
    })
}

/// A register, those that make things happen more often.
fn register(b: &mut Bytes<'_>) -> u32 {
    let base = b.pick(&Engine::ALL).mmio_base();
    match b.u8() % 4 {
        0 => b.pick(registers()),
        1 => b.pick(&[
            ring::GDRST,
            irq::MASTER,
            irq::GT_IIR0,
            irq::GT_IER0,
            irq::GT_IMR0,
            ring::GFX_FLSH_CNTL,
            // PVINFO: display ready, g2v, PDP0.
            0x7_8804,
            0x7_8818,
            0x7_8838,
            0x7_883c,
        ]),
        2 => {
            base + b.pick(&[
                ring::ELSP,
                ring::TAIL,
                ring::HWS_PGA,
                ring::MODE,
                ring::MI_MODE,
                ring::RESET_CTL,
                ring::CSB_PTR,
                ring::IMR,
                ring::EIR,
                ring::EMR,
                ring::FORCE_TO_NONPRIV,
            ])
        }
        _ => low(u64::from(b.u32()) % TABLE),
    }
}

/// A frame: of a context's things, any, just past the end, or far out.
fn frame(b: &mut Bytes<'_>) -> u64 {
    match b.u8() % 8 {
        0 => {
            let tables = Place::of(b.u8().into()).tables();
            b.pick(&tables) >> 12
        }
        1 => (Place::of(b.u8().into()).image() >> 12) + u64::from(b.u8() % 32),
        2 | 3 => u64::from(b.u16()) % u64::from(WINDOW_PAGES),
        4 => u64::from(b.u16()) % FRAMES,
        5 => FRAMES - 2 + u64::from(b.u8() % 4),
        6 => 1 << (b.u8() % 52),
        _ => b.u64() >> 12,
    }
}

/// An address of anything a guest reaches.
fn address(b: &mut Bytes<'_>, stage: &Stage<'_>) -> u64 {
    let near = u64::from(b.u8() % 16);
    // A BAR may be anywhere, the top of the address space included.
    let (base, offset) = match b.u8() % 12 {
        0..=2 => (stage.bar0, register(b).into()),
        3 => (stage.bar0, u64::from(register(b)) + near),
        4 => (stage.bar0, TABLE + u64::from(b.u16())),
        5 => (stage.bar0, 2 * TABLE - 8 + near),
        6 => (stage.bar2, u64::from(b.u32()) % APERTURE),
        7 => (stage.bar2, APERTURE - 8 + near),
        8 | 9 => (frame(b) << 12, u64::from(b.u16() % 4096)),
        10 => (0xe000_0000, u64::from(b.u32()) % 0x1000_0000),
        _ => (b.u64(), 0),
    };
    base.wrapping_add(offset)
}

/// Does one thing. Whether the neighbour is to work meanwhile.
pub fn act(b: &mut Bytes<'_>, stage: &mut Stage<'_>) -> bool {
    match b.u8() % 24 {
        0 => stage.set(register(b), b.value_u32()),
        1 => drop(stage.get(register(b))),
        2 => {
            let at = address(b, stage);
            stage.write(at, u32::from(b.u8() % 8) + 1, b.value());
        }
        3 => {
            let at = address(b, stage);
            let _value = stage.read(at, u32::from(b.u8() % 8) + 1);
        }
        4 => strings(b, stage),
        5 => raw_request(b, stage),
        6 => {
            let register = b.u8();
            let size = b.pick(&[4, 2, 1]);
            let _value = stage.config_read(register, size);
            if b.flag() {
                stage.config_write(register, size, b.value_u32());
                stage.find_bars();
            }
        }
        7 => move_bars(b, stage),
        8 => ports(b, stage),
        9 => {
            let at = (frame(b) << 12).wrapping_add(u64::from(b.u16() % 4096));
            let data: Vec<u8> = (0..b.u8() % 64).map(|_| b.u8()).collect();
            // It may not be there.
            let _ = stage.memory().write(at, &data);
        }
        10 => image(b, stage),
        11 => page_tables(b, stage),
        12 | 13 => batch(b, stage),
        14 => {
            let entry = b.value() & !pte::ADDRESS | (frame(b) << 12) & pte::ADDRESS;
            let page = u32::from(b.u16()) % (WINDOW_PAGES + 8);
            stage.set_entry(
                page,
                if b.flag() {
                    entry | pte::PRESENT
                } else {
                    entry
                },
            );
        }
        15 => port(b, stage),
        16..=18 => submit(b, stage),
        19 => {
            stage.set(ring::GDRST, b.pick(&[1, 2, 4, 8, 16, 0x1f, u32::MAX]));
            let _busy = stage.get(ring::GDRST);
        }
        20 => balloon(b, stage),
        21 => {
            let root = frame(b) << 12;
            stage.write(stage.bar0.wrapping_add(0x7_8838), 8, root);
            stage.set(0x7_8818, b.pick(&[4, 5, 2, 3, 1, 99]));
        }
        22 => {
            for _ in 0..=b.u8() % 64 {
                let base = b.pick(&Engine::ALL).mmio_base();
                if stage.get(base + ring::EXECLIST_STATUS_LO) == 0 {
                    break;
                }
                std::thread::yield_now();
            }
        }
        _ => return true,
    }
    false
}

fn strings(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let vcpu = stage.guest().vcpu();
    let (size, count, df) = (b.size(), u32::from(b.u16() % REPEAT), b.flag());
    let at = address(b, stage);
    // A stopped domain is found at the end.
    let _ = if b.flag() {
        vcpu.rep_stos(at, size, count, b.value(), df)
    } else {
        vcpu.rep_movs(at, address(b, stage), size, count, df)
    };
}

/// Requests no processor makes: the device model checks them all the same.
fn raw_request(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let (flags, kind) = (b.u8(), b.u8());
    let raw = RawIoreq {
        kind: if flags & 8 == 0 { 1 } else { kind },
        addr: address(b, stage),
        data: address(b, stage),
        count: if flags & 16 == 0 {
            u32::from(b.u8())
        } else {
            b.u32()
        },
        size: if flags & 32 == 0 {
            u32::from(b.u8() % 10)
        } else {
            b.u32()
        },
        read: flags & 1 != 0,
        df: flags & 2 != 0,
        data_is_ptr: flags & 4 != 0,
    };
    let server = stage.guest().server().id();
    let _ = stage.guest().vcpu().raw_request_to(server, &raw);
}

fn move_bars(b: &mut Bytes<'_>, stage: &mut Stage<'_>) {
    if b.flag() {
        stage.config_write(4, 2, b.pick(&[0, 2, 4, 6, 7, 0x406, 0xffff]));
    }
    if b.flag() {
        return;
    }
    let place = |b: &mut Bytes<'_>| match b.u8() % 5 {
        0 => 0xc000_0000 + (u64::from(b.u8()) << 24),
        1 => u64::from(b.u16()) << 24,
        // Over its own memory, and at the very top.
        2 => 0,
        3 => u64::MAX << 24,
        _ => b.u64(),
    };
    let bar0 = place(b);
    let bar2 = if b.rarely(8) { bar0 } else { place(b) };
    stage.move_bars(bar0, bar2);
}

fn ports(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let vcpu = stage.guest().vcpu();
    let slot = if b.rarely(4) { b.u8() } else { 0x10 };
    let address = 1 << 31 | u32::from(slot) << 11 | u32::from(b.u8());
    let _ = vcpu.pio_write(0xcf8, 4, address);
    let port = 0xcfc + u16::from(b.u8() % 4);
    let size = b.pick(&[4, 2, 1]);
    let _ = match b.u8() % 4 {
        0 => vcpu.pio_write(port, size, b.value_u32()),
        1 => vcpu.pio_read(port, size).map(drop),
        2 => vcpu.rep_ins(port, frame(b) << 12, size, b.u8().into(), b.flag()),
        _ => vcpu.rep_outs(port, frame(b) << 12, size, b.u8().into(), b.flag()),
    };
}

/// A context image: made anew, or one field changed.
fn image(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let n = usize::from(b.u8()) % CONTEXTS;
    if b.flag() {
        let engine = Engine::ALL[n % Engine::COUNT];
        let _ = write_context(stage.memory(), n, engine);
        return;
    }
    let dword = match b.u8() % 4 {
        0 => b.pick(&[
            lrc::RING_START,
            lrc::RING_CTL,
            lrc::RING_HEAD,
            lrc::RING_TAIL,
            lrc::CONTEXT_CONTROL,
            lrc::BB_HEAD,
            lrc::BB_STATE,
        ]),
        1 => b.pick(&[lrc::INDIRECT_CTX, lrc::INDIRECT_CTX_OFFSET, lrc::PER_CTX_BB]),
        2 => b.pick(&[lrc::PDP0_LDW, lrc::PDP0_UDW, lrc::PDP3_UDW]),
        _ => usize::from(b.u16()) % lrc::PAGE_DWORDS,
    };
    let value = match b.u8() % 3 {
        0 => low(frame(b) << 12) | u32::from(b.u8()),
        _ => b.value_u32(),
    };
    let _ = set_register(stage.memory(), Place::of(n), dword, value);
}

/// An entry of one of a context's tables, which may name any table.
fn page_tables(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let place = Place::of(b.u8().into());
    let table = b.pick(&place.tables());
    let index = if b.flag() {
        u64::from(b.u8() % 4)
    } else {
        u64::from(b.u16() % 512)
    };
    let flags = b.pick(&[3, 1, 0, 3 | 1 << 7, 3 | 1 << 11, 0xfff]);
    let entry = frame(b) << 12 | flags;
    let _ = stage.memory().write_u64(table + index * 8, entry);
    // Every entry the same: as many ways as there can be.
    if b.rarely(8) {
        let all: Vec<u8> = (0..512).flat_map(|_| entry.to_le_bytes()).collect();
        let _ = stage.memory().write(table, &all);
    }
}

/// Commands into a batch or a ring.
fn batch(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let n = usize::from(b.u8()) % CONTEXTS;
    let engine = Engine::ALL[n % Engine::COUNT];
    let place = Place::of(n);
    let in_ring = b.flag();
    let dwords = commands::stream(b, engine, n);
    let at = if in_ring { place.ring() } else { place.batch() };
    let _ = layout::write_dwords(stage.memory(), at, &dwords);
    if in_ring {
        let tail = u32::try_from(dwords.len() * 4).unwrap_or(0);
        let _ = set_register(stage.memory(), place, lrc::RING_TAIL, tail);
    }
}

/// A descriptor: a context's, perhaps with something changed, or any.
fn descriptor(b: &mut Bytes<'_>) -> u64 {
    let n = usize::from(b.u8()) % CONTEXTS;
    let id = u32::try_from(n).unwrap_or(0) + 1;
    match b.u8() % 8 {
        0 => b.value(),
        1 => Place::of(n).descriptor(id) ^ 1 << (b.u8() % 64),
        2 => (frame(b) << 12) & 0xffff_f000 | u64::from(id) << 37 | 0x19,
        _ => Place::of(n).descriptor(id),
    }
}

/// A load of the execlist port, whole or in part.
fn port(b: &mut Bytes<'_>, stage: &Stage<'_>) {
    let engine = b.pick(&Engine::ALL);
    if b.rarely(8) {
        let port = engine.mmio_base() + ring::ELSP;
        for _ in 0..b.u8() % 4 {
            stage.set(port, b.value_u32());
        }
        return;
    }
    let first = descriptor(b);
    let second = if b.flag() { descriptor(b) } else { 0 };
    stage.load(engine, first, second);
}

/// A new context with commands, all right but for the commands.
fn submit(b: &mut Bytes<'_>, stage: &mut Stage<'_>) {
    let n = usize::from(b.u8()) % CONTEXTS;
    let engine = Engine::ALL[n % Engine::COUNT];
    let dwords = commands::stream(b, engine, n);
    if stage.ballooned.is_empty() && b.flag() {
        stage.submit(n, engine, &dwords);
    } else {
        let place = Place::of(n);
        let _ = layout::write_dwords(stage.memory(), place.batch(), &dwords);
        stage.load(
            engine,
            place.descriptor(u32::try_from(n).unwrap_or(0) + 1),
            0,
        );
    }
}

/// Frames go back to Xen, or come from it.
fn balloon(b: &mut Bytes<'_>, stage: &mut Stage<'_>) {
    let vcpu = stage.guest().vcpu();
    if b.flag() {
        let gone: Vec<Gfn> = std::mem::take(&mut stage.ballooned)
            .into_iter()
            .map(Gfn)
            .collect();
        let _ = vcpu.populate(&gone);
        return;
    }
    let first = frame(b);
    let gone: Vec<Gfn> = (first..first.saturating_add(u64::from(b.u8() % 8) + 1))
        .filter(|gfn| *gfn < FRAMES && stage.ballooned.insert(*gfn))
        .map(Gfn)
        .collect();
    let _ = vcpu.decrease_reservation(&gone);
}
