//! Scans of batches without privilege.
//!
//! Such a batch runs from the guest's own memory, where the guest and the GPU
//! may change it at any time, so no safety rests on a scan: that comes from
//! what the hardware does without privilege, and from the tables. A scan says
//! early and by name what has no place in a batch; see docs/scanning.md.
//!
//! It follows batches from where the ring starts them, through what they
//! chain to and call, each place once, as far as [`ScanLimits`] allow.

mod finding;
mod kept;
mod mode;

use std::collections::HashSet;
use std::hash::Hasher;
use std::sync::Mutex;

use fxhash::{FxBuildHasher, FxHasher};
use gen8::cmd::Table;
use gen8::regs::Rules;
use gen8::{Engine, Platform};

use crate::sync::lock;
pub use finding::{Fault, Finding, Lengths, NO_COMMAND, target};
use finding::{Next, judge};
use kept::{Kept, Segment};
pub use mode::{ScanMode, UnknownScanMode};

/// What one submission's scan may cost. One that is cut short is no error.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    /// Dwords copied from the guest, about.
    pub dwords: usize,
    /// Places looked at: batches, and pages of them.
    pub places: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        // 64 KiB: what Mesa gives a batch before it starts another
        // (src/gallium/drivers/iris/iris_batch.h:BATCH_SZ).
        Self {
            dwords: 1 << 14,
            places: 64,
        }
    }
}

/// Findings that a report lists. A guest's admin needs few.
const LISTED: usize = 8;

/// Dwords read first at a new place: most batches are short.
const FIRST: usize = 64;

const PAGE: u64 = 4096;
/// Bits 47:0 of an address count.
const CANONICAL: u64 = (1 << 48) - 1;

/// The address space of a context.
pub trait AddressSpace {
    /// Copies what the GPU would find from `address` on, which ends with the
    /// page at the latest. `false`: there is nothing to be found.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
}

/// What a scan saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Commands, those known from before among them.
    pub commands: u64,
    /// Dwords copied from the guest.
    pub dwords: usize,
    /// Of these, dwords of commands that had not changed.
    pub unchanged: usize,
    /// A limit ended it.
    pub cut: bool,
    /// The GPU may run what was not looked at: a limit ended the scan, memory
    /// was not there, or where a batch goes only the GPU knows.
    pub doubtful: bool,
    /// What has no place in a batch, the first few.
    pub findings: Vec<Finding>,
}

/// Scans one vGPU's batches.
pub struct Scanner {
    mode: ScanMode,
    limits: ScanLimits,
    gpu: &'static Platform,
    kept: Mutex<Kept>,
}

impl Scanner {
    /// One for batches on `gpu` that knows nothing yet.
    #[must_use]
    pub fn new(gpu: &'static Platform, mode: ScanMode, limits: ScanLimits) -> Self {
        Self {
            mode,
            limits,
            gpu,
            kept: Mutex::default(),
        }
    }

    /// What is done about what it finds.
    #[must_use]
    pub const fn mode(&self) -> ScanMode {
        self.mode
    }

    /// Bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        lock(&self.kept).bytes()
    }

    /// Scans the batches that begin at `starts`. `opened` are registers that
    /// the guest opened to its batches.
    pub fn scan(
        &self,
        engine: Engine,
        opened: &[u32],
        space: &dyn AddressSpace,
        starts: &[u64],
    ) -> Report {
        let mut seed = FxHasher::default();
        opened.iter().for_each(|o| seed.write_u32(*o));
        let mut pass = Pass {
            engine,
            opened,
            table: self.gpu.commands,
            rules: self.gpu.rules,
            seed: seed.finish(),
            space,
            kept: &mut lock(&self.kept),
            left: self.limits.dwords,
            bytes: Vec::new(),
            words: Vec::new(),
            report: Report::default(),
        };
        pass.run(starts, self.limits.places);
        pass.report
    }
}

/// One scan.
struct Pass<'a> {
    engine: Engine,
    opened: &'a [u32],
    table: &'static Table,
    rules: &'static Rules,
    seed: u64,
    space: &'a dyn AddressSpace,
    kept: &'a mut Kept,
    /// Dwords that may still be copied.
    left: usize,
    /// What was copied from the place looked at.
    bytes: Vec<u8>,
    words: Vec<u32>,
    report: Report,
}

impl Pass<'_> {
    fn run(&mut self, starts: &[u64], places: usize) {
        let mut open: Vec<u64> = starts.iter().rev().copied().collect();
        let mut seen: HashSet<u64, FxBuildHasher> = HashSet::default();
        while let Some(address) = open.pop() {
            if seen.contains(&address) {
                continue;
            }
            if seen.len() >= places || self.left == 0 {
                self.cut();
                return;
            }
            seen.insert(address);
            let segment = self.segment(address);
            self.report.commands += u64::from(segment.commands);
            self.report.doubtful |= segment.doubtful;
            for (at, command, header, fault) in segment.found {
                if self.report.findings.len() < LISTED {
                    self.report.findings.push(Finding {
                        command,
                        header,
                        address: place(address, at),
                        fault,
                    });
                }
            }
            open.extend(segment.targets.into_iter().rev());
            if segment.goes_on {
                open.push(place(address, segment.dwords));
            }
        }
    }

    fn cut(&mut self) {
        self.report.cut = true;
        self.report.doubtful = true;
    }

    /// The commands from `address` on that begin in its page.
    fn segment(&mut self, address: u64) -> Segment {
        self.bytes.clear();
        self.words.clear();
        if let Some(dwords) = self.kept.dwords(self.engine, address)
            && self.fill(address, dwords)
            && let Some(bytes) = self.bytes.get(..dwords * 4)
            && let Some(known) = self.kept.find(self.engine, address, self.seed, bytes)
        {
            self.report.unchanged += dwords;
            return known.clone();
        }
        let mut segment = Segment::default();
        let whole = self.decode(address, &mut segment);
        if whole && let Some(bytes) = self.bytes.get(..segment.dwords * 4) {
            self.kept
                .put(self.engine, address, self.seed, bytes, &segment);
        }
        segment
    }

    /// Returns whether everything was there to be read.
    fn decode(&mut self, address: u64, segment: &mut Segment) -> bool {
        let in_page = to_page_end(address);
        while segment.dwords < in_page {
            let at = segment.dwords;
            if !self.have(address, at + 1) {
                segment.doubtful = true;
                return false;
            }
            let header = self.words.get(at).copied().unwrap_or(0);
            let Some(command) = self.table.decode(self.engine, header) else {
                segment.dwords += 1;
                segment.found.push((at, NO_COMMAND, header, Fault::Unknown));
                return true;
            };
            let have = command.dwords(header);
            let end = usize::try_from(have).map_or(usize::MAX, |n| at.saturating_add(n));
            if !command.lengths.allow(have) {
                // Where the next one begins the hardware may see otherwise.
                segment.dwords += 1;
                segment.doubtful = true;
                let allowed = Lengths::from(command.lengths);
                let fault = Fault::Length { have, allowed };
                segment.found.push((at, command.name, header, fault));
                return true;
            }
            if !self.have(address, end) {
                segment.doubtful = true;
                return false;
            }
            segment.commands += 1;
            segment.dwords = end;
            if header == 0 {
                continue;
            }
            let words = self.words.get(at..end).unwrap_or_default();
            let found = &mut segment.found;
            let next = judge(
                self.rules,
                self.engine,
                self.opened,
                command,
                words,
                |fault| {
                    found.push((at, command.name, header, fault));
                },
            );
            match next {
                Next::On => {}
                Next::Perhaps => segment.doubtful = true,
                Next::Both(to) => segment.targets.push(to),
                Next::There(to) => {
                    segment.targets.push(to);
                    return true;
                }
                Next::Anywhere => {
                    segment.doubtful = true;
                    return true;
                }
                Next::End => return true,
            }
        }
        segment.goes_on = true;
        true
    }

    /// As [`Self::fill`], in dwords.
    fn have(&mut self, address: u64, dwords: usize) -> bool {
        if self.words.len() >= dwords {
            return true;
        }
        let all = self.fill(address, dwords);
        let new = self.bytes.get(self.words.len() * 4..).unwrap_or_default();
        let new = new.as_chunks::<4>().0.iter();
        self.words.extend(new.map(|b| u32::from_le_bytes(*b)));
        all
    }

    /// Copies until there are so many dwords from `address` on.
    fn fill(&mut self, address: u64, dwords: usize) -> bool {
        while self.bytes.len() < dwords * 4 {
            let have = self.bytes.len() / 4;
            let from = place(address, have);
            // The rest of the page is needed as a rule; of the next one only
            // what belongs to the last command.
            let most = if have == 0 {
                FIRST.max(dwords)
            } else if have < to_page_end(address) {
                usize::MAX
            } else {
                dwords - have
            };
            let n = to_page_end(from).min(most);
            if n > self.left {
                self.left = 0;
                self.cut();
                return false;
            }
            self.left -= n;
            let start = self.bytes.len();
            self.bytes.resize(start + n * 4, 0);
            let bytes = self.bytes.get_mut(start..).unwrap_or_default();
            if !self.space.read(from, bytes) {
                self.bytes.truncate(start);
                return false;
            }
            self.report.dwords += n;
        }
        true
    }
}

/// The address `dwords` behind another.
fn place(address: u64, dwords: usize) -> u64 {
    let bytes = u64::try_from(dwords).map_or(0, |d| d.wrapping_mul(4));
    address.wrapping_add(bytes) & CANONICAL
}

/// Dwords up to the end of the page.
fn to_page_end(address: u64) -> usize {
    usize::try_from((PAGE - address % PAGE) / 4).unwrap_or(1)
}

/// What is asked of a scan besides the batches.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// Does it.
    pub scanner: &'a Scanner,
    /// Registers that the guest opened to its batches.
    pub opened: &'a [u32],
}

#[cfg(test)]
mod tests;
