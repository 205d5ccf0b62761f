//! What i915 does to a Kaby Lake and not to a Broadwell, and waits for or
//! reads back.

use std::sync::atomic::Ordering::SeqCst;

use crate::rig::Rig;
use gen8::platform::KBL;
use gen8::vreg::display as reg;
use gen8::{Engine, irq, ring};
use vgpu_ring::Request;

fn rig() -> Rig {
    Rig::on(&KBL)
}

#[test]
fn it_is_a_kaby_lake_behind_pre_production() {
    let rig = rig();
    assert_eq!(rig.device.config_read(0, 4), 0x5916_8086);
    assert_eq!(rig.device.config_read(8, 1), 2);
    // One slice of three subslices with eight execution units each
    // (Linux gt/intel_sseu.c:gen9_sseu_info_init).
    let fuse = rig.read(0x9120);
    assert_eq!((fuse >> 25 & 7, fuse >> 20 & 0xf), (1, 0x8));
    assert_eq!(rig.read(0x9134), 0);
    // i915 resets the GuC and looks that it is held there.
    rig.write(ring::GDRST, 1 << 5);
    assert_eq!(rig.read(ring::GDRST), 0);
    assert_eq!(rig.read(0xc000) & 1, 1);
    // 24 MHz >> 1 (Linux gt/intel_gt_clock_utils.c:gen9_read_clock_frequency).
    let mode = rig.read(0xa26c);
    assert_eq!((mode & 1, 3 - (mode >> 1 & 3)), (0, 1));
    rig.world.now.store(1_000_000_000, SeqCst);
    let stamp = rig.read(Engine::Bcs.mmio_base() + ring::TIMESTAMP);
    assert_eq!(stamp, 12_000_000);
}

#[test]
fn each_domain_acknowledges_its_own_request() {
    let rig = rig();
    let domains = [(0xa278, 0xd84), (0xa188, 0x13_0044), (0xa270, 0xd88)];
    for (request, ack) in domains {
        rig.write(request, 0x0001_0001);
        for (_, other) in domains {
            assert_eq!(rig.read(other), u32::from(other == ack), "{other:#x}");
        }
        rig.write(request, 0x0001_0000);
        assert_eq!(rig.read(ack), 0);
    }
}

/// i915's workarounds: offset, bits to clear, bits to set; masked ones have
/// the value that it writes (Linux `gt/intel_workarounds.c`: lists of
/// `gen9_gt_workarounds_init`, `kbl_gt_workarounds_init`,
/// `rcs_engine_wa_init`, `xcs_engine_wa_init`).
const WORKAROUNDS: &[(u32, u32, u32)] = &[
    (0xfdc, 0x0f00_0000, 0),
    (0x4090, 0, 1 << 6),
    (0x4090, 0, 1 << 25),
    (0x4ddc, 0, 1 << 20 | 1 << 19),
    (0x940c, 0, 1 << 24),
    (0x4ab0, 0, 1 << 18),
    (0xb004, 0, 1 << 7),
    (0xb11c, 1 << 8, 1 << 2),
    (0xb118, 1 << 22, 1 << 21),
    (0xb008, 1 << 1, 0),
    (0x2_224c, u32::MAX, 1),
];
const MASKED: &[(u32, u32)] = &[(0x20d4, 1 << 13), (0x20e0, 1 << 14)];

#[test]
fn workarounds_read_back_as_they_were_set() {
    let rig = rig();
    for (offset, clear, set) in WORKAROUNDS {
        let old = rig.read(*offset);
        rig.write(*offset, old & !clear | set);
        let differs = (rig.read(*offset) ^ set) & (clear | set);
        assert_eq!(differs, 0, "{offset:#x} is lost");
    }
    for (offset, bits) in MASKED {
        rig.write(*offset, bits << 16 | bits);
        assert_eq!(rig.read(*offset), *bits, "{offset:#x} is lost");
    }
}

#[test]
fn vgpud_learns_of_mocs_whitelist_and_workarounds() {
    let rig = rig();
    // In i915's order: the whitelist, then the tables.
    let nonpriv = [0x2248, 0x2580, 0x7304, 0x7014, 0xb118];
    let mut written = Vec::new();
    let mut write = |offset, value| {
        rig.write(offset, value);
        assert_eq!(rig.read(offset), value);
        written.push(Request::WriteRegister { offset, value });
    };
    for (slot, register) in (0..).zip(nonpriv) {
        write(0x24d0 + slot * 4, register);
    }
    for first in [0xc800, 0xc900, 0xcb00, 0xcc00] {
        for n in 0..63 {
            write(first + n * 4, 0x30 + n);
        }
    }
    for n in 0..31 {
        write(0xb020 + n * 4, 0x0010_0030 + n);
    }
    write(0x940c, 1 << 24);
    assert_eq!(rig.sent(), written);
}

#[test]
fn the_power_controller_replies() {
    let rig = rig();
    let ask = |command: u32, request| {
        rig.write(0x13_8128, request);
        rig.write(0x13_8124, 1 << 31 | command);
        assert_eq!(rig.read(0x13_8124) & 1 << 31, 0);
        rig.read(0x13_8128)
    };
    // Memory latencies: the lowest level's is 2 us, none is 0 before another.
    assert_eq!(ask(6, 0), 0x1e1a_1100);
    assert_eq!(ask(6, 1), 0x6151_4b3d);
    // The display clock may change; the memory's frequency is fixed.
    assert_eq!(ask(7, 3) & 1, 1);
    assert_eq!(ask(0x21, 0) & 1, 1);
    assert_eq!(ask(0x55, 0xabc), 0xabc);
}

#[test]
fn power_comes_as_it_is_asked_for() {
    let rig = rig();
    // Power gates 0 to 2 (Linux i915_reg.h:SKL_FUSE_PG_DIST_STATUS).
    assert_eq!(rig.read(0x4_2000) >> 25 & 7, 7);
    // Power well 1 and MISC_IO, then power well 2.
    for index in [14, 0, 15] {
        let well = reg::POWER_WELL1 + 4;
        rig.write(well, rig.read(well) | 2 << (index * 2));
        assert_eq!(rig.read(well) >> (index * 2) & 3, 3);
    }
    rig.write(0x4_5008, 1 << 31);
    assert_eq!(rig.read(0x4_5008), 3 << 30);
    rig.write(0x4_5008, 0);
    assert_eq!(rig.read(0x4_5008), 0);
}

#[test]
fn clocks_are_as_firmware_left_them_and_lock_at_once() {
    let rig = rig();
    // Linux display/intel_cdclk.c:skl_sanitize_cdclk: DPLL 0 drives 337.5 MHz.
    assert_ne!(rig.read(0x4_f060) & 0x00ff_ffff, 0);
    assert_eq!(rig.read(reg::LCPLL1), 3 << 30);
    assert_eq!(rig.read(0x6_c058) & 0x3f, 2 << 1 | 1);
    assert_eq!(rig.read(0x4_6000), 2 << 26 | 673);
    assert_eq!(rig.read(0x6_c060), 1);
    for (n, control) in [(1, 0x4_6014), (2, 0x4_6040), (3, 0x4_6060)] {
        rig.write(control, 1 << 31);
        assert_eq!(rig.read(0x6_c060), 1 | 1 << (8 * n), "DPLL {n}");
        rig.write(control, 0);
    }
    for port in 0..5 {
        assert_ne!(rig.read(reg::DPLL_CTRL2) & 1_u32 << (15 + port), 0);
    }
    // A DisplayPort transfer on any channel times out at once.
    for channel in 0..5 {
        let control = 0x6_4010 + 0x100 * channel;
        rig.write(control, 1 << 31);
        assert_eq!(rig.read(control), 1 << 30 | 1 << 28);
    }
}

#[test]
fn flips_are_told_where_gen9_has_them() {
    let rig = rig();
    rig.write(reg::HTOTAL_A, 1343 << 16 | 1023);
    rig.write(reg::VTOTAL_A, 805 << 16 | 767);
    rig.write(reg::VBLANK_A, 805 << 16 | 767);
    rig.write(0x4_4404, 0);
    rig.write(0x4_440c, u32::MAX);
    rig.write(irq::MASTER, irq::MASTER_ENABLE);
    rig.write(reg::PIPECONF_A, 1 << 31);
    rig.write(reg::DSPSURF_A, 0x1000);
    rig.world.now.fetch_add(40_000_000, SeqCst);
    rig.device.tick();
    assert_eq!(rig.read(0x4_4408), 1 << 0 | 1 << 3);
}
