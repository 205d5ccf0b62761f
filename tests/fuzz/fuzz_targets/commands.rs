//! Any dwords through the command decoder: each command starts where the one
//! before ended, nothing lies past the end, and an error is right. And through
//! the scan of users' batches, as pages of a context: it ends, within its
//! limits, and what it keeps changes no verdict.
#![no_main]

use gen8::Engine;
use gen8::cmd::WalkError;
use gen8::platform::{PLATFORMS, Platform};
use libfuzzer_sys::fuzz_target;
use vgpu_sched::scan::{AddressSpace, ScanLimits, ScanMode, Scanner};

/// Where the dwords stand, over and over, with a hole after each time.
struct Pages<'a>(&'a [u8]);

impl AddressSpace for Pages<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let in_page = usize::try_from(address % 4096).unwrap();
        assert!(bytes.len() <= 4096 - in_page, "past the page");
        assert!(address < 1 << 48);
        let pages = self.0.len().div_ceil(4096) as u64;
        let page = (address / 4096) % (pages + 1);
        if page == pages {
            return false;
        }
        let from = usize::try_from(page).unwrap() * 4096 + in_page;
        let rest = self.0.get(from..).unwrap_or_default();
        let have = rest.len().min(bytes.len());
        bytes[..have].copy_from_slice(&rest[..have]);
        bytes[have..].fill(0);
        true
    }
}

fn scan(gpu: &'static Platform, engine: Engine, bytes: &[u8]) {
    let limits = ScanLimits {
        dwords: 8192,
        places: 32,
    };
    let scanner = Scanner::new(gpu, ScanMode::Note, limits);
    let space = Pages(bytes);
    let starts = [0, 4096 - 8, 1 << 40];
    let first = scanner.scan(engine, &[0xb118], &space, &starts);
    let again = scanner.scan(engine, &[0xb118], &space, &starts);
    for report in [&first, &again] {
        assert!(report.dwords <= limits.dwords && report.unchanged <= report.dwords);
        assert!(!report.cut || report.doubtful);
        for finding in &report.findings {
            assert!(finding.address < 1 << 48 && finding.address % 4 == 0);
            assert!(!finding.to_string().is_empty());
        }
    }
    if !first.cut && !again.cut {
        assert_eq!(first.findings, again.findings);
        assert_eq!(first.commands, again.commands);
        assert_eq!(first.doubtful, again.doubtful);
    }
    assert!(scanner.bytes() < 64 << 10);
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    let engine = Engine::ALL[usize::from(first) % Engine::ALL.len()];
    let gpu = PLATFORMS[usize::from(first >> 7)];
    scan(gpu, engine, rest);
    let table = gpu.commands;
    let words: Vec<u32> = rest
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    let mut at = 0;
    for step in table.walk(engine, &words) {
        let item = match step {
            Ok(item) => item,
            Err(e) => {
                assert_eq!(e.offset(), at, "{e}");
                if let WalkError::PastEnd { need, left, .. } = e {
                    assert_eq!(left, words.len() - at);
                    assert!(usize::try_from(need).unwrap() > left);
                }
                return;
            }
        };
        assert_eq!(item.offset, at);
        assert!(!item.words.is_empty());
        at += item.words.len();
        assert_eq!(item.words, &words[item.offset..at]);
        for a in item.command.addresses_in(item.words) {
            assert!(a.dword < item.words.len());
        }
        for (offset, _, _) in item.command.registers_in(item.words) {
            assert!(offset < 8 << 20);
        }
    }
    assert_eq!(at, words.len());
});
