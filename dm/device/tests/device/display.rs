//! What i915 waits for when it brings a screen up, and vertical blanks.

use std::sync::atomic::Ordering::SeqCst;

use crate::rig::Rig;
use gen8::irq;
use gen8::vreg::display as reg;

/// The mode-set of 1024x768 on port B as i915 does it.
fn screen_on(rig: &Rig) {
    rig.write(reg::POWER_WELL1 + 4, 1 << 31);
    rig.write(reg::WRPLL_CTL1, 1 << 31 | 3 << 28 | 26 << 16 | 6 << 8 | 36);
    rig.write(reg::PORT_CLK_SEL_A + 4, 4 << 29);
    rig.write(reg::HTOTAL_A, 1343 << 16 | 1023);
    rig.write(reg::VTOTAL_A, 805 << 16 | 767);
    rig.write(reg::VBLANK_A, 805 << 16 | 767);
    rig.write(reg::TRANS_DDI_FUNC_CTL_A, 1 << 31 | 1 << 28);
    rig.write(reg::PIPECONF_A, 1 << 31);
}

const PIPE_IMR: u32 = 0x4_4404;
const PIPE_IIR: u32 = 0x4_4408;
const PIPE_IER: u32 = 0x4_440c;

#[test]
fn state_bits_follow_their_requests() {
    let rig = Rig::new();
    let well = reg::POWER_WELL1;
    assert_eq!(rig.read(well + 4), 0);
    rig.write(well + 4, 1 << 31);
    assert_eq!(rig.read(well + 4), 3 << 30);
    assert_eq!(rig.read(well), 1 << 30, "on for whoever looks");
    rig.write(well + 4, 0);
    assert_eq!(rig.read(well + 4), 0);

    assert_eq!(rig.read(reg::LCPLL), 1 << 30 | 1 << 26);
    rig.write(reg::LCPLL, 1 << 26 | reg::LCPLL_SOURCE_FCLK);
    assert_ne!(rig.read(reg::LCPLL) & reg::LCPLL_SOURCE_FCLK_DONE, 0);
    rig.write(reg::LCPLL, 1 << 26);
    assert_eq!(rig.read(reg::LCPLL) & reg::LCPLL_SOURCE_FCLK_DONE, 0);
    rig.write(reg::LCPLL, reg::LCPLL_DISABLE);
    assert_eq!(rig.read(reg::LCPLL) & reg::LCPLL_LOCK, 0);

    assert_eq!(rig.read(0x6_4100), 1 << 7);
    rig.write(0x6_4100, 1 << 31);
    assert_eq!(rig.read(0x6_4100), 1 << 31);
    rig.write(0x6_4100, 0);
    assert_eq!(rig.read(0x6_4100), 1 << 7);

    rig.write(reg::PIPECONF_A + 0x1000, 1 << 31);
    assert_eq!(rig.read(reg::PIPECONF_A + 0x1000), 3 << 30);
    rig.write(reg::PIPECONF_A + 0x1000, 0);
    assert_eq!(rig.read(reg::PIPECONF_A + 0x1000), 0);
}

#[test]
fn mailboxes_are_done_at_once() {
    let rig = Rig::new();
    rig.write(0x13_8124, 1 << 31 | 0x18);
    assert_eq!(rig.read(0x13_8124), 0);
    rig.write(0xc_6008, 0x0600_0001);
    assert_eq!(rig.read(0xc_6008), 0x0600_0000);
    // A DisplayPort transfer: done, timed out, flags cleared by writing 1.
    rig.write(0xe_4110, 1 << 31 | 0x1f << 20 | 1 << 25);
    assert_eq!(rig.read(0xe_4110), 1 << 30 | 1 << 28 | 0x1f << 20);
    rig.write(0xe_4110, 1 << 30 | 1 << 28 | 1 << 25);
    assert_eq!(rig.read(0xe_4110), 0);
    rig.write(0xa188, 0x0001_0001);
    assert_eq!(rig.read(0x13_0044), 1);
}

#[test]
fn straps_and_fuses_cannot_be_written() {
    let rig = Rig::new();
    for (offset, value) in [
        (0xc_2014, 1 << 2 | 1 << 6),
        (0x4_2014, 0),
        (0x9120, 1 << 25),
        (0x14_5998, 0),
        (0x12_0010, 0),
    ] {
        rig.write(offset, u32::MAX);
        assert_eq!(rig.read(offset), value, "{offset:#x}");
    }
    assert_eq!(rig.read(0x4_1000), 1 << 31);
    assert_eq!(rig.read(0xc_6204), 24);
    rig.write(0x4_2300, u32::MAX);
    assert_eq!(rig.read(0x4_2300), 0);
}

#[test]
fn blanks_are_raised_while_they_are_wanted() {
    let rig = Rig::new();
    rig.enumerate();
    assert_eq!(rig.read(reg::PIPEDSL_A), 0);
    screen_on(&rig);
    assert_eq!(rig.device.next_deadline(), None);
    rig.write(PIPE_IER, 1);
    rig.write(irq::MASTER, irq::MASTER_ENABLE);
    let frame = 1344 * 806 * 1000 / 65;
    rig.world.now.fetch_add(10 * frame, SeqCst);
    // Blanks that passed before the unmasking stay past.
    rig.write(PIPE_IMR, !1);
    assert_eq!(rig.read(PIPE_IIR), 0);
    let at = *rig.world.alarms.lock().unwrap().last().unwrap();
    assert_eq!(rig.device.next_deadline(), Some(at));
    let frames = rig.read(reg::FRMCOUNT_A);
    for n in 1..=3 {
        let at = rig.device.next_deadline().unwrap();
        rig.world.now.store(at, SeqCst);
        rig.device.tick();
        rig.device.tick();
        assert_eq!(rig.read(reg::FRMCOUNT_A), frames + n);
        assert_eq!(rig.msis(), 1);
        assert_eq!(rig.read(irq::MASTER), irq::MASTER_ENABLE | 1 << 16);
        assert_eq!(rig.read(PIPE_IIR), 1);
        rig.write(PIPE_IIR, 1);
    }
    rig.write(PIPE_IMR, u32::MAX);
    assert_eq!(rig.device.next_deadline(), None);
}

#[test]
fn a_flip_completes_with_the_next_blank_or_at_once() {
    let rig = Rig::new();
    screen_on(&rig);
    rig.write(PIPE_IER, u32::MAX);
    rig.write(PIPE_IMR, !(1 << 4));
    rig.write(reg::DSPSURF_A, 0x40_0000);
    assert_eq!(rig.read(reg::DSPSURFLIVE_A), 0x40_0000);
    assert_eq!(rig.read(PIPE_IIR), 0);
    rig.world
        .now
        .store(rig.device.next_deadline().unwrap(), SeqCst);
    rig.device.tick();
    assert_eq!(rig.read(PIPE_IIR), 1 << 4);
    rig.write(PIPE_IIR, u32::MAX);
    rig.write(reg::DSPCNTR_A, 1 << 31 | 1 << 9);
    rig.write(reg::DSPSURF_A, 0x50_0000);
    assert_eq!(rig.read(PIPE_IIR), 1 << 4);
    assert_eq!(rig.read(reg::FLIPCOUNT_A), 2);
}

#[test]
fn time_stamps_count_80_ns() {
    let rig = Rig::new();
    rig.world.now.store((7 << 32 | 5) * 80, SeqCst);
    assert_eq!(rig.read(0x2358), 5);
    assert_eq!(rig.read(0x235c), 7);
    let both = rig.device.read(vgpu_device::Bar::Registers, 0x1_a358, 8);
    assert_eq!(both, 7 << 32 | 5);
}

#[test]
fn a_running_screen_survives_a_save() {
    let rig = Rig::new();
    screen_on(&rig);
    rig.write(PIPE_IER, 1);
    rig.write(PIPE_IMR, !1);
    rig.world.now.fetch_add(1 << 30, SeqCst);
    let saved = rig.device.save();
    let frames = rig.read(reg::FRMCOUNT_A);
    let again = vgpu_device::Device::restore(&saved, rig.seams.clone()).unwrap();
    assert_eq!(again.save(), saved);
    let count = u64::from(reg::FRMCOUNT_A);
    let after = again.read(vgpu_device::Bar::Registers, count, 4);
    assert_eq!(after, u64::from(frames));
    assert!(again.next_deadline().is_some());
}
