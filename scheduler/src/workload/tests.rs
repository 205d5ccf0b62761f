use super::*;

#[test]
fn a_guest_chooses_values_of_its_register_page_and_nothing_else() {
    for engine in Engine::ALL {
        // Every dword hostile.
        let hostile = [0xff; PAGE_SIZE];
        let image = Image::new(engine, &hostile).bytes();
        let word = |i: usize| {
            let b = image[i * 4..i * 4 + 4].try_into().unwrap();
            u32::from_le_bytes(b)
        };
        let mut values = Vec::new();
        for load in lrc::loads(engine) {
            let count = u32::try_from(load.registers.len()).unwrap();
            assert_eq!(word(load.header), 0x1100_0000 | (2 * count - 1));
            for (n, register) in load.registers.iter().enumerate() {
                values.push(load.value(n));
                let offset = word(load.value(n) - 1);
                assert_eq!(offset, engine.mmio_base() + register);
            }
        }
        let headers: Vec<usize> = lrc::loads(engine).iter().map(|l| l.header).collect();
        for i in 0..lrc::PRIVATE {
            if values.contains(&i) {
                assert_eq!(word(i), u32::MAX);
            } else if !values.contains(&(i + 1)) && !headers.contains(&i) {
                assert_eq!(word(i), 0, "{i:#x}");
            }
        }
    }
}

#[test]
fn what_would_lead_past_the_audit_is_cleared() {
    let mut image = Image::new(Engine::Rcs, &[0xff; PAGE_SIZE]);
    image.no_batch_state();
    assert!(image.control());
    image.set_root(0x12_3456_7000);
    let bytes = image.bytes();
    let word = |i: usize| u32::from_le_bytes(bytes[i * 4..i * 4 + 4].try_into().unwrap());
    assert_eq!((word(lrc::BB_HEAD), word(lrc::SBB_HEAD)), (0, 0));
    assert_eq!((word(lrc::BB_HEAD_UDW), word(lrc::SBB_HEAD_UDW)), (0, 0));
    assert_eq!(word(lrc::BB_STATE), gen8::ring::BB_STATE_PPGTT);
    assert_eq!(word(lrc::CONTEXT_CONTROL) & lrc::SAVE_INHIBIT, 0);
    assert_eq!(word(lrc::PDP3_UDW), 0);
    assert_eq!(
        (word(lrc::PDP0_UDW), word(lrc::PDP0_LDW)),
        (0x12, 0x3456_7000)
    );
}
