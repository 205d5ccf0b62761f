//! Whether a program is static.

use anyhow::{Context as _, ensure};

/// ELF-64 little-endian, x86-64 (System V ABI, "Program Header").
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
/// `PT_INTERP`: the path of the program's dynamic loader.
const PT_INTERP: u64 = 3;

fn field(bytes: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let part = bytes.get(at..at.checked_add(size)?)?;
    let mut value = [0; 8];
    value.get_mut(..size)?.copy_from_slice(part);
    Some(u64::from_le_bytes(value))
}

/// The dynamic loader that a program needs; none if it is static.
///
/// # Errors
/// When it is no x86-64 program, or is cut.
pub fn interpreter(program: &[u8]) -> anyhow::Result<Option<String>> {
    ensure!(program.starts_with(MAGIC), "is no x86-64 program");
    find(program).context("is cut")
}

fn find(program: &[u8]) -> Option<Option<String>> {
    let table = field(program, 0x20, 8)?;
    let size = field(program, 0x36, 2)?;
    for number in 0..field(program, 0x38, 2)? {
        let header = table.checked_add(number * size)?;
        if field(program, header, 4)? != PT_INTERP {
            continue;
        }
        let at = usize::try_from(field(program, header.checked_add(8)?, 8)?).ok()?;
        let bytes = usize::try_from(field(program, header.checked_add(0x20)?, 8)?).ok()?;
        let path = program.get(at..at.checked_add(bytes)?)?;
        let path = String::from_utf8_lossy(path);
        return Some(Some(path.trim_end_matches('\0').to_owned()));
    }
    Some(None)
}
