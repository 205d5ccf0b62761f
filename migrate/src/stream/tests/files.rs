//! Streams behind a device model's bytes.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

/// As QEMU's save begins, and long enough to be it.
fn qemu(seed: u8) -> Vec<u8> {
    let mut bytes = b"QEVM\0\0\0\x03".to_vec();
    bytes.extend((0..6000_u32).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ seed));
    bytes
}

fn save(before: &[u8]) -> Vec<u8> {
    [before, &sample(Before::of(before))].concat()
}

fn error(file: &[u8]) -> String {
    find(file).unwrap_err().to_string()
}

#[test]
fn it_is_found_from_the_end() {
    let file = save(&qemu(1));
    let (before, bytes) = find(&file).unwrap();
    assert_eq!(before, qemu(1));
    Stream::parse(bytes, &KNOWN).unwrap();
}

#[test]
fn a_file_without_one_has_none() {
    for len in [0, 1, 23, 24, 6008] {
        let file = &qemu(1)[..len];
        assert_eq!(
            error(file),
            format!("no vGPU state at the end of the {len} bytes")
        );
    }
}

/// A second save into a file that was not cut: the new bytes of the device
/// model over the old, and the old state behind them.
#[test]
fn state_of_a_former_save_is_refused() {
    let mut file = save(&qemu(1));
    file[..6008].copy_from_slice(&qemu(2));
    assert!(
        error(&file).ends_with("it is left from another save"),
        "{}",
        error(&file)
    );
    // Shorter than before, so some of the old is between.
    let mut file = save(&qemu(1));
    file[..100].copy_from_slice(&qemu(2)[..100]);
    assert!(error(&file).contains("saved behind 6008 bytes"));
    // Longer than before, into the old state.
    let mut file = save(&qemu(1));
    file[..6010].copy_from_slice(&[3; 6010]);
    assert!(error(&file).starts_with("no vGPU state begins at byte 6008"));
}

/// The new state goes behind whatever is there, former states included.
#[test]
fn the_last_of_several_counts() {
    let first = save(&qemu(1));
    let second = save(&first);
    let (before, bytes) = find(&second).unwrap();
    assert_eq!(before, first);
    Stream::parse(bytes, &KNOWN).unwrap();
}

#[test]
fn a_file_cut_off_anywhere_has_none() {
    let file = save(&qemu(1)[..50]);
    for len in 0..file.len() {
        assert!(find(&file[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_trailer_alone_is_not_enough() {
    let file = save(&qemu(1));
    let end = &file[file.len() - 24..];
    assert_eq!(
        error(end),
        format!("the trailer says {} and it is 24", file.len() - 6008)
    );
    let padded = [&vec![0; 6000], end].concat();
    assert!(error(&padded).starts_with("no vGPU state begins at byte"));
    // Lengths in which no header has room.
    for len in [0_u64, 24, 71] {
        let mut trailer = end.to_vec();
        trailer[8..16].copy_from_slice(&len.to_le_bytes());
        let sum = wire::checksum(&trailer[..20]).to_le_bytes();
        trailer[20..].copy_from_slice(&sum);
        let file = [&qemu(1)[..], &trailer].concat();
        assert!(find(&file).is_err());
    }
}

#[test]
fn a_file_is_read_without_moving_its_offset() {
    let mut file = File::from(memfd_create("save", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(&save(&qemu(1))).unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let bytes = read_file(&file).unwrap();
    assert_eq!(bytes, save(&qemu(1)));
    assert_eq!(file.stream_position().unwrap(), 4);
    assert_eq!(Before::read(&qemu(1)[..]).unwrap(), Before::of(&qemu(1)));
    file.set_len(1 << 40).unwrap();
    let error = read_file(&file).unwrap_err().to_string();
    assert!(error.starts_with("1099511627776 bytes are more"), "{error}");
}
