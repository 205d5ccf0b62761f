//! Buffers as drivers write them, by hand from their code. What matters is
//! where each command starts; operands are made up where the driver's depend
//! on the machine.

use gen8::Engine;
use gen8::cmd::walk;

use crate::names;

/// A command of `dwords` dwords whose operands are all alike.
fn packet(header: u32, dwords: usize, operand: u32) -> Vec<u32> {
    let mut words = vec![operand; dwords];
    words[0] = header;
    words
}

/// Linux `gt/gen8_engine_cs.c`: flush, initial breadcrumb, batch, final
/// breadcrumb of the render engine, with the tail's workaround.
#[test]
fn a_request_of_i915_on_the_render_engine() {
    #[rustfmt::skip]
    let words = [
        // gen8_emit_flush_rcs, EMIT_INVALIDATE
        0x7a00_0004, 0x0034_4c1c, 0xd0, 0, 0, 0,
        // gen8_emit_init_breadcrumb
        0x1040_0002, 0x0010_0080, 0, 41, 0x0280_0000, 0,
        // gen8_emit_bb_start_noarb
        0x0400_0000, 0x1880_0101, 0x0020_0000, 0,
        // gen8_emit_fini_breadcrumb_rcs
        0x7a00_0004, 0x0000_1021, 0, 0, 0, 0,
        0x7a00_0004, 0x0110_4080, 0x0010_0080, 0, 42, 0,
        0x0100_0000, 0x0400_0001,
        // emit_preempt_busywait
        0x0280_0000, 0x0e40_c002, 0, 0x0010_0f80, 0, 0,
        // gen8_emit_wa_tail
        0x0280_0000, 0,
    ];
    let found = names(Engine::Rcs, &words);
    #[rustfmt::skip]
    let want = [
        "PIPE_CONTROL", "MI_STORE_DATA_IMM", "MI_ARB_CHECK", "MI_NOOP", "MI_ARB_ON_OFF",
        "MI_BATCH_BUFFER_START", "PIPE_CONTROL", "PIPE_CONTROL", "MI_USER_INTERRUPT",
        "MI_ARB_ON_OFF", "MI_ARB_CHECK", "MI_SEMAPHORE_WAIT", "MI_NOOP", "MI_ARB_CHECK",
        "MI_NOOP",
    ];
    assert_eq!(found, want);
    // The breadcrumbs and the semaphore are global, the batch is not.
    let found: Vec<_> = walk(Engine::Rcs, &words)
        .flatten()
        .flat_map(|i| i.command.addresses_in(i.words).collect::<Vec<_>>())
        .map(|a| (a.address, a.global, a.bytes))
        .collect();
    #[rustfmt::skip]
    let want = [
        (0x0010_0080, true, Some(4)),
        (0x0020_0000, false, None),
        (0x0010_0080, true, Some(8)),
        (0x0010_0f80, true, Some(4)),
    ];
    assert_eq!(found, want);
}

/// The same file: flush and final breadcrumb of the other engines.
#[test]
fn a_request_of_i915_on_a_video_engine() {
    #[rustfmt::skip]
    let words = [
        // gen8_emit_flush_xcs, EMIT_INVALIDATE, video decode
        0x1324_4082, 0xd0, 0, 0,
        // gen8_emit_ggtt_write
        0x1300_4002, 0x0010_0084, 0, 42,
        0x0100_0000, 0x0400_0001, 0x0280_0000, 0,
    ];
    #[rustfmt::skip]
    let want = [
        "MI_FLUSH_DW", "MI_FLUSH_DW", "MI_USER_INTERRUPT", "MI_ARB_ON_OFF", "MI_ARB_CHECK",
        "MI_NOOP",
    ];
    assert_eq!(names(Engine::Vcs, &words), want);
    let found: Vec<_> = walk(Engine::Vcs, &words)
        .flatten()
        .flat_map(|i| i.command.addresses_in(i.words).collect::<Vec<_>>())
        .map(|a| (a.address, a.global))
        .collect();
    // By index is no address.
    assert_eq!(found, [(0x0010_0080, true)]);
}

/// Linux `gt/intel_lrc.c:gen8_init_indirectctx_bb` on Broadwell.
#[test]
fn the_batch_of_i915_before_a_context() {
    #[rustfmt::skip]
    let words = [
        0x0400_0000,
        // gen8_emit_flush_coherentl3_wa
        0x1240_0002, 0xb118, 0x0011_0100, 0,
        0x1100_0001, 0xb118, 0x4060_0000,
        0x7a00_0004, 0x0010_0020, 0, 0, 0, 0,
        0x14c0_0002, 0xb118, 0x0011_0100, 0,
        0x7a00_0004, 0x0830_4000, 0xd0, 0, 0, 0,
        0x0400_0001, 0, 0, 0,
    ];
    #[rustfmt::skip]
    let want = [
        "MI_ARB_ON_OFF", "MI_STORE_REGISTER_MEM", "MI_LOAD_REGISTER_IMM", "PIPE_CONTROL",
        "MI_LOAD_REGISTER_MEM", "PIPE_CONTROL", "MI_ARB_ON_OFF", "MI_NOOP", "MI_NOOP", "MI_NOOP",
    ];
    assert_eq!(names(Engine::Rcs, &words), want);
    let registers: Vec<_> = walk(Engine::Rcs, &words)
        .flatten()
        .flat_map(|i| {
            let found = i.command.registers_in(i.words);
            found.map(|(o, f, v)| (o, f.write, v)).collect::<Vec<_>>()
        })
        .collect();
    #[rustfmt::skip]
    let want = [
        (0xb118, false, None),
        (0xb118, true, Some(0x4060_0000)),
        (0xb118, true, None),
    ];
    assert_eq!(registers, want);
}

/// Linux `gt/intel_migrate.c:emit_copy`, `emit_clear`.
#[test]
fn copies_and_clears_of_i915() {
    #[rustfmt::skip]
    let words = [
        0x54f0_0008, 0x03cc_1000, 0, 0x0100_0400, 0x1000, 1, 0, 0x1000, 0x2000, 2,
        0x5430_0005 | 1 << 21, 0x03f0_1000, 0, 0x0100_0400, 0x3000, 3, 0xdead_beef, 0,
        0x0500_0000,
    ];
    #[rustfmt::skip]
    let want = [
        "XY_SRC_COPY_BLT", "XY_COLOR_BLT", "MI_NOOP", "MI_BATCH_BUFFER_END",
    ];
    assert_eq!(names(Engine::Bcs, &words), want);
    let found: Vec<_> = walk(Engine::Bcs, &words)
        .flatten()
        .flat_map(|i| i.command.addresses_in(i.words).collect::<Vec<_>>())
        .map(|a| a.address)
        .collect();
    assert_eq!(found, [0x1_0000_1000, 0x2_0000_2000, 0x3_0000_3000]);
}

/// igt `lib/igt_dummyload.c:emit_recursive_batch`, shortened.
#[test]
fn the_spinner_of_igt() {
    let mut words = vec![0x0280_0000];
    words.extend([0; 60]);
    words.extend([0x1b20_0002, 0x0500_0000, 0x0010_0000, 0]);
    words.extend([0x1880_0101, 0x0010_0000, 0]);
    let found = names(Engine::Bcs, &words);
    assert_eq!(found.len(), 63);
    assert_eq!(found[61], "MI_CONDITIONAL_BATCH_BUFFER_END");
    assert_eq!(found[62], "MI_BATCH_BUFFER_START");
}

/// Mesa's Vulkan driver (`src/intel/vulkan/genX_cmd_buffer.c`): an indirect
/// dispatch whose size is read from memory into registers.
#[test]
fn a_compute_dispatch_of_mesa() {
    let mut words = vec![0x6904_0002];
    words.extend(packet(0x6101_000e, 16, 0x0001_0001));
    words.extend(packet(0x7000_0007, 9, 0));
    words.extend(packet(0x7001_0002, 4, 0x40));
    words.extend(packet(0x7002_0002, 4, 0x40));
    for register in [0x2500, 0x2504, 0x2508] {
        words.extend([0x1480_0002, register, 0x0050_0000, 0]);
    }
    // Bit 10: the size comes from the registers.
    words.extend(packet(0x7105_040d, 15, 3));
    words.extend([0x7004_0000, 0]);
    words.push(0x0500_0000);
    #[rustfmt::skip]
    let want = [
        "PIPELINE_SELECT", "STATE_BASE_ADDRESS", "MEDIA_VFE_STATE", "MEDIA_CURBE_LOAD",
        "MEDIA_INTERFACE_DESCRIPTOR_LOAD", "MI_LOAD_REGISTER_MEM", "MI_LOAD_REGISTER_MEM",
        "MI_LOAD_REGISTER_MEM", "GPGPU_WALKER", "MEDIA_STATE_FLUSH", "MI_BATCH_BUFFER_END",
    ];
    assert_eq!(names(Engine::Rcs, &words), want);
}

/// Mesa's GL driver (`src/gallium/drivers/iris`): a draw whose parameters a
/// transform feedback left in memory.
#[test]
fn an_indirect_draw_of_mesa() {
    let mut words = vec![];
    words.extend(packet(0x7808_0003, 5, 0x1000));
    words.extend(packet(0x780a_0003, 5, 0x2000));
    words.extend(packet(0x784b_0000, 2, 4));
    words.extend(packet(0x7849_0001, 3, 0));
    words.extend([0x1100_0003, 0x2600, 0, 0x2604, 0]);
    words.extend([0x1480_0002, 0x2434, 0x3000, 0]);
    // MI_MATH: four instructions.
    words.extend(packet(0x0d00_0003, 5, 0x0800_0000));
    words.extend([0x1500_0001, 0x2600, 0x2430]);
    words.push(0x0600_0082);
    // Indirect (bit 10) and predicated (bit 8).
    words.extend(packet(0x7b00_0505, 7, 0));
    words.extend(packet(0x7918_0006, 8, 0));
    words.extend([0x0500_0000, 0]);
    #[rustfmt::skip]
    let want = [
        "3DSTATE_VERTEX_BUFFERS", "3DSTATE_INDEX_BUFFER", "3DSTATE_VF_TOPOLOGY",
        "3DSTATE_VF_INSTANCING", "MI_LOAD_REGISTER_IMM", "MI_LOAD_REGISTER_MEM", "MI_MATH",
        "MI_LOAD_REGISTER_REG", "MI_PREDICATE", "3DPRIMITIVE", "3DSTATE_SO_BUFFER",
        "MI_BATCH_BUFFER_END", "MI_NOOP",
    ];
    assert_eq!(names(Engine::Rcs, &words), want);
}

/// intel-vaapi-driver `src/gen8_mfd.c:gen8_mfd_avc_decode_picture`.
#[test]
fn an_avc_picture_of_the_va_driver() {
    let parts = [
        (0x7000_0003, 5, "MFX_PIPE_MODE_SELECT"),
        (0x7001_0004, 6, "MFX_SURFACE_STATE"),
        (0x7002_003b, 61, "MFX_PIPE_BUF_ADDR_STATE"),
        (0x7003_0018, 26, "MFX_IND_OBJ_BASE_ADDR_STATE"),
        (0x7004_0008, 10, "MFX_BSP_BUF_BASE_ADDR_STATE"),
        (0x7007_0010, 18, "MFX_QM_STATE"),
        (0x7125_0008, 10, "MFD_AVC_PICID_STATE"),
        (0x7100_000f, 17, "MFX_AVC_IMG_STATE"),
        (0x7102_0045, 71, "MFX_AVC_DIRECTMODE_STATE"),
        (0x7104_0008, 10, "MFX_AVC_REF_IDX_STATE"),
        (0x7105_0060, 98, "MFX_AVC_WEIGHTOFFSET_STATE"),
        (0x7103_0009, 11, "MFX_AVC_SLICE_STATE"),
        (0x7128_0004, 6, "MFD_AVC_BSD_OBJECT"),
    ];
    let mut words = vec![];
    for (header, dwords, _) in parts {
        words.extend(packet(header, dwords, 0x0123_4000));
    }
    words.push(0x0500_0000);
    let found = names(Engine::Vcs, &words);
    let want: Vec<_> = parts.iter().map(|(_, _, name)| *name).collect();
    assert_eq!(found[..parts.len()], want);
    assert_eq!(found.len(), parts.len() + 1);
    // 3 + 1 + 3 + 16 + 3 surfaces, 5 objects, 3 rows, 17 vectors.
    let addresses = walk(Engine::Vcs, &words).flatten().map(|i| {
        assert!(!i.command.is_group());
        i.command.addresses_in(i.words).count()
    });
    assert_eq!(addresses.sum::<usize>(), 25 + 5 + 3 + 17);
}

/// intel-vaapi-driver `src/gen75_vpp_vebox.c`, the forms for Broadwell.
#[test]
fn an_enhanced_frame_of_the_va_driver() {
    let mut words = packet(0x7400_0007, 9, 0);
    words.extend(packet(0x7402_000a, 12, 0x1000));
    words.extend(packet(0x7403_0012, 20, 0x2000));
    words.extend([0x1300_0003, 0, 0, 0, 0]);
    #[rustfmt::skip]
    let want = [
        "VEBOX_SURFACE_STATE", "VEBOX_STATE", "VEB_DI_IECP", "MI_FLUSH_DW",
    ];
    assert_eq!(names(Engine::Vecs, &words), want);
}
