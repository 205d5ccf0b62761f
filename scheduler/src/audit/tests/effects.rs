//! What the audit says that commands do to registers.

use super::*;

const MI_MODE: u32 = 0x209c;
const L3SQCREG4: u32 = 0xb118;
const LRI: u32 = 0x1100_0001;
const CONDITIONAL_END: u32 = 0x1b40_0002;
const USER_BATCH: u32 = 0x1880_0001 | 1 << 8;
const GLOBAL_BATCH: u32 = 0x1880_0001;
const END: u32 = 0x0500_0000;

fn effects_on(engine: Engine, site: &mut Fake, words: &[u32], predicated: bool) -> Effects {
    let mut auditor = Auditor::new(engine, site, AuditLimits::default());
    if predicated {
        auditor.may_be_predicated();
    }
    auditor.ring(&mut words.to_vec(), 0, RING).unwrap();
    auditor.take_effects()
}

fn effects(words: &[u32]) -> Effects {
    effects_on(Engine::Rcs, &mut Fake::default(), words, false)
}

#[test]
fn constants_are_followed_with_their_masks() {
    let e = effects(&[
        LRI + 2,
        L3SQCREG4,
        5,
        MI_MODE,
        0x0030_0010,
        LRI,
        MI_MODE,
        0x0040_0040,
    ]);
    assert_eq!(e.leave(L3SQCREG4, 9), Some(5));
    assert_eq!(e.leave(MI_MODE, 0x0421), Some(0x0451));
    // Bytes that are left alone.
    let bytes = effects(&[LRI | 1 << 8, L3SQCREG4, 5]);
    assert_eq!(bytes.leave(L3SQCREG4, 9), None);
    // The context's own registers are nobody else's.
    assert!(effects(&[LRI, 0x7300, 0x0010_0010]).is_empty());
    let pipe_control = [0x7a00_0004, 1 << 23, L3SQCREG4, 0, 6, 0];
    assert_eq!(effects(&pipe_control).leave(L3SQCREG4, 9), Some(6));
}

#[test]
fn what_only_the_gpu_knows_is_unknown() {
    let cases: [&[u32]; 3] = [
        // From a general register, from memory.
        &[0x1500_0001, 0x2600, L3SQCREG4],
        &[0x14c0_0002, L3SQCREG4, 0x1000, 0],
        // After the end that may have come.
        &[CONDITIONAL_END, 0, 0x1000, 0, LRI, L3SQCREG4, 5],
    ];
    for words in cases {
        let e = effects(words);
        assert_eq!(e.leave(L3SQCREG4, 9), None, "{words:x?}");
        assert_eq!(e.leave(MI_MODE, 9), Some(9), "{words:x?}");
    }
    // A whole constant replaces it.
    let e = effects(&[0x1500_0001, 0x2600, L3SQCREG4, LRI, L3SQCREG4, 5]);
    assert_eq!(e.leave(L3SQCREG4, 9), Some(5));
    // MI_NOOP with a number.
    for engine in Engine::ALL {
        let e = effects_on(engine, &mut Fake::default(), &[1 << 22 | 7], false);
        assert_eq!(e.leave(engine.mmio_base() + 0x94, 0), None);
    }
}

#[test]
fn batches_that_nobody_looks_at_leave_doubts() {
    let e = effects(&[LRI, MI_MODE, 0x0010_0010, USER_BATCH, 0x1000, 0]);
    assert!(e.ran_user_batches() && e.allow_prologue());
    assert_eq!(e.leave(MI_MODE, 0), Some(0x10));
    for offset in [0x2094, 0x2158, 0x2364] {
        assert_eq!(e.leave(offset, 0), None);
    }
    // It may have set a predicate, which later commands are under.
    let e = effects(&[USER_BATCH, 0x1000, 0, LRI, L3SQCREG4, 5]);
    assert_eq!(e.leave(L3SQCREG4, 9), None);
    // So may one of an earlier submission.
    let words = [LRI, L3SQCREG4, 5];
    let e = effects_on(Engine::Rcs, &mut Fake::default(), &words, true);
    assert_eq!(e.leave(L3SQCREG4, 9), None);
}

#[test]
fn a_batchs_doubts_end_with_it() {
    let mut site = Fake::default();
    site.memory.resize(0x600, 0);
    // A batch that may end early, at 0x1000.
    site.memory[0x400..0x40a].copy_from_slice(&[
        LRI,
        MI_MODE,
        0x0001_0001,
        CONDITIONAL_END,
        0,
        0x2000,
        0,
        LRI,
        MI_MODE,
        0x0002_0002,
    ]);
    site.memory[0x40a] = END;
    let words = [GLOBAL_BATCH, 0x1000, 0, LRI, L3SQCREG4, 5];
    let e = effects_on(Engine::Rcs, &mut site, &words, false);
    assert_eq!(e.leave(MI_MODE, 0), None);
    assert_eq!(e.leave(L3SQCREG4, 9), Some(5));
    // One that may not be run at all.
    site.memory[0x400..0x404].copy_from_slice(&[LRI, L3SQCREG4, 7, END]);
    let words = [GLOBAL_BATCH | 1 << 15, 0x1000, 0, LRI, MI_MODE, 0x0001_0001];
    let e = effects_on(Engine::Rcs, &mut site, &words, false);
    assert_eq!(e.leave(L3SQCREG4, 9), None);
    assert_eq!(e.leave(MI_MODE, 0), Some(1));
}

#[test]
fn what_runs_at_a_restore_comes_first() {
    let mut site = Fake {
        memory: [LRI, MI_MODE, 0x0001_0001].to_vec(),
        ..Fake::default()
    };
    let mut auditor = Auditor::new(Engine::Rcs, &mut site, AuditLimits::default());
    auditor
        .ring(&mut [LRI, MI_MODE, 0x0003_0002], 0, RING)
        .unwrap();
    let ring = auditor.take_effects();
    auditor.indirect(0, 1).unwrap();
    let both = auditor.take_effects().then(&ring);
    assert_eq!(both.leave(MI_MODE, 0x10), Some(0x12));
    assert!(!both.allow_prologue() && ring.allow_prologue());
}

/// i915's workaround: save, change, flush, load back; two lines.
fn workaround() -> Vec<u32> {
    let mut words = vec![0x0400_0000, 0x1240_0002, L3SQCREG4, 0x3100, 0];
    words.extend([LRI, L3SQCREG4, 0x4060_0000]);
    words.extend([0x7a00_0004, 1 << 20 | 1 << 5, 0, 0, 0, 0]);
    words.extend([0x14c0_0002, L3SQCREG4, 0x3100, 0]);
    words.resize(32, 0);
    words
}

fn indirect(memory: Vec<u32>) -> (Effects, u32, Vec<u32>, u32) {
    let mut site = Fake {
        memory,
        ..Fake::default()
    };
    let lines = u32::try_from(site.memory.len() / 16).unwrap();
    let mut auditor = Auditor::new(Engine::Rcs, &mut site, AuditLimits::default());
    let (address, lines) = auditor.indirect(0, lines).unwrap();
    let effects = auditor.take_effects().then(&Effects::new(Engine::Rcs));
    let placed = site.placed.pop().unwrap();
    assert_eq!(placed.0, address);
    (effects, address, placed.1, lines)
}

#[test]
fn a_register_saved_and_loaded_back_is_what_it_was() {
    let (effects, address, copy, lines) = indirect(workaround());
    assert!(effects.is_empty() && effects.allow_prologue());
    assert_eq!(effects.leave(L3SQCREG4, 9), Some(9));
    // But it must not be another guest's value that it saves.
    assert!(!effects.leave_alone(&[(L3SQCREG4, 5)]));
    assert!(effects.leave_alone(&[(0x24d0, 5)]));
    assert_eq!((lines, copy.len()), (2, 48));
    let own = address + 2 * 64;
    // The guest's save, in its window, and ours.
    assert_eq!(copy[1..5], [0x1240_0002, L3SQCREG4, HOST | 0x100, 0]);
    assert_eq!(copy[5..9], [0x1240_0002, L3SQCREG4, own, 0]);
    assert_eq!(copy[9..12], [LRI, L3SQCREG4, 0x4060_0000]);
    assert_eq!(copy[18..22], [0x14c0_0002, L3SQCREG4, own, 0]);
    assert!(copy[22..].iter().all(|w| *w == 0));
}

#[test]
fn what_only_looks_like_it_is_unknown() {
    let change = |at: usize, with: &[u32]| {
        let mut words = workaround();
        words[at..at + with.len()].copy_from_slice(with);
        words
    };
    let cases = [
        // Loaded from elsewhere; another loaded; another changed between.
        change(16, &[0x3104]),
        change(3, &[0x3104]),
        change(6, &[0x2418]),
        // Stored over between: by the flush's write, by a store.
        change(8, &[0x7a00_0004, 1 << 14 | 1 << 24, 0x3100, 0, 0, 0]),
        change(8, &[0x1040_0002, 0x3100, 0, 7, 0, 0]),
        // May end between.
        change(8, &[CONDITIONAL_END, 0, 0x3000, 0, 0, 0]),
    ];
    for words in cases {
        let (effects, _, copy, _) = indirect(words.clone());
        assert_eq!(effects.leave(L3SQCREG4, 9), None, "{words:x?}");
        assert!(!effects.allow_prologue());
        assert_eq!(copy.len(), 32);
    }
    // No room for the second save.
    let mut full = workaround();
    full.resize(63 * 16, 0);
    *full.last_mut().unwrap() = 0x0400_0001;
    let (effects, _, copy, lines) = indirect(full);
    assert_eq!(effects.leave(L3SQCREG4, 9), None);
    assert_eq!((copy.len(), lines), (63 * 16, 63));
}
