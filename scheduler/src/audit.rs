//! The audit of privileged commands.
//!
//! What runs in a ring or in a batch in the global table has privilege: it
//! reaches the global table and registers. So it is copied, each command of
//! the copy is checked and its global addresses are moved into the guest's
//! windows, and the copy is what runs. Batches in the context's own tables
//! run without privilege and are left to the hardware.

mod error;
mod kept;
mod rules;

use gen8::cmd::{self, mi_op};
use gen8::irq;
use gen8::{Engine, Platform};

use crate::ggtt::NotMapped;
use crate::switch::Effects;
pub use error::{At, AuditError, Refusal, Rule};
use kept::Kept;

/// What the audit asks of the outside.
pub trait Site {
    /// Makes `pages` pages of the guest's global table from `page` reachable
    /// and returns the graphics address where the GPU finds the first.
    ///
    /// # Errors
    /// [`AuditError::NotMapped`], [`AuditError::Exhausted`].
    fn window(&mut self, page: u32, pages: u32) -> Result<u32, AuditError>;

    /// Copies dwords from the guest's global address `address`.
    ///
    /// # Errors
    /// [`AuditError::NotMapped`].
    fn fetch(&mut self, address: u32, dwords: &mut [u32]) -> Result<(), AuditError>;

    /// Keeps an audited batch and returns the graphics address where the GPU
    /// finds it.
    ///
    /// # Errors
    /// [`AuditError::Exhausted`].
    fn place(&mut self, batch: &[u32]) -> Result<u32, AuditError>;

    /// Changes dword `at` of the batch that was placed at `address`.
    fn amend(&mut self, address: u32, at: usize, value: u32);
}

/// What one submission may cost.
#[derive(Clone, Copy, Debug)]
pub struct AuditLimits {
    /// Dwords of privileged batches, each time they are named.
    pub dwords: u32,
    /// How deep batches nest or chain.
    pub depth: u32,
}

impl Default for AuditLimits {
    fn default() -> Self {
        // 1 MiB; i915's largest privileged batch is the 4 KiB golden state.
        Self {
            dwords: 1 << 18,
            depth: 4,
        }
    }
}

/// What follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// The next command.
    Next,
    /// Nothing: the buffer ends here.
    End,
}

/// The audit of one submission.
pub struct Auditor<'a, S> {
    gpu: &'static Platform,
    engine: Engine,
    site: &'a mut S,
    limits: AuditLimits,
    spent: u32,
    /// What the commands do to registers outside the context.
    effects: Effects,
    /// Whether a command that comes next runs for certain.
    certain: bool,
    /// The same where an audit begins.
    starts_certain: bool,
    /// Commands checked.
    pub commands: u64,
    /// Where batches without privilege begin, [`MAX_STARTS`] at most.
    pub user_batches: Vec<u64>,
    /// Where others begin is not known.
    pub more_user_batches: bool,
}

/// Batches without privilege that are told of. i915 starts one a request.
const MAX_STARTS: usize = 64;

impl<'a, S: Site> Auditor<'a, S> {
    /// An audit for `engine` of a Broadwell.
    pub fn new(engine: Engine, site: &'a mut S, limits: AuditLimits) -> Self {
        Self::on(&gen8::platform::BDW, engine, site, limits)
    }

    /// An audit for `engine` of `gpu`.
    pub fn on(
        gpu: &'static Platform,
        engine: Engine,
        site: &'a mut S,
        limits: AuditLimits,
    ) -> Self {
        Self {
            gpu,
            engine,
            site,
            limits,
            spent: 0,
            effects: Effects::with_table(gpu.switched, engine),
            certain: true,
            starts_certain: true,
            commands: 0,
            user_batches: Vec::new(),
            more_user_batches: false,
        }
    }

    /// The context may be one in which a predicate turns commands into
    /// no-ops.
    pub fn may_be_predicated(&mut self) {
        self.starts_certain = false;
    }

    /// What is audited comes behind the rest of batches without privilege,
    /// which go on at these addresses.
    pub fn goes_on_in_user_batches(&mut self, at: impl IntoIterator<Item = u64>) {
        self.effects.user_batch();
        self.user_batches.extend(at);
    }

    /// What was audited since the last call does to registers.
    pub fn take_effects(&mut self) -> Effects {
        let none = Effects::with_table(self.gpu.switched, self.engine);
        std::mem::replace(&mut self.effects, none)
    }

    /// Audits ring contents in place. `words` are the dwords from ring
    /// offset `head` up to the tail in the order they run; `size` is the
    /// ring's in bytes.
    ///
    /// # Errors
    /// [`AuditError`]; then `words` must not run.
    pub fn ring(&mut self, words: &mut [u32], head: u32, size: u32) -> Result<(), AuditError> {
        self.certain = self.starts_certain;
        let mut done: u32 = 0;
        let mut rest = words;
        while let Some(&header) = rest.first() {
            let offset = head.wrapping_add(done.wrapping_mul(4)) % size.max(1);
            let at = At::Ring(offset);
            let (command, len) = self.decode(header, at, rest.len())?;
            if len.saturating_mul(4) > size.saturating_sub(offset) {
                return Err(refuse(command, header, at, Rule::AcrossWrap));
            }
            let (this, next) = split(rest, len);
            // The end of a batch in a ring is a no-op here: nothing to
            // return to. The rest is audited all the same.
            self.command(command, this, at, 0)?;
            done = done.wrapping_add(len);
            rest = next;
        }
        Ok(())
    }

    /// Copies and audits a batch of `lines` cache lines at the guest's global
    /// `address`, which no command ends; returns where the GPU finds the copy,
    /// and its length in cache lines.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn indirect(&mut self, address: u32, lines: u32) -> Result<(u32, u32), AuditError> {
        let mut words = vec![0; usize::try_from(lines * 16).unwrap_or(0)];
        self.site.fetch(address, &mut words)?;
        self.certain = self.starts_certain;
        let mut kept = Kept::default();
        let mut done: usize = 0;
        let mut rest = words.as_mut_slice();
        while let Some(&header) = rest.first() {
            let offset = u32::try_from(done * 4).unwrap_or(u32::MAX);
            let at = At::Batch(address.wrapping_add(offset));
            let (command, len) = self.decode(header, at, rest.len())?;
            let (this, next) = split(rest, len);
            done += this.len();
            let before = kept.next(command, this, done - this.len(), &self.effects);
            if self.command(command, this, at, 1)? == Flow::End {
                return Err(refuse(command, header, at, Rule::Forbidden));
            }
            if let Some(before) = before {
                self.effects.put_back(before);
            }
            rest = next;
        }
        let Some(changed) = kept.change(&words, INDIRECT_LINES) else {
            kept.forget(&mut self.effects);
            return Ok((self.site.place(&words)?, lines));
        };
        let copy = self.site.place(&changed.words)?;
        let bytes = u32::try_from(changed.place * 4).unwrap_or(0);
        for at in changed.addresses {
            self.site.amend(copy, at, copy.wrapping_add(bytes));
            self.site.amend(copy, at + 1, 0);
        }
        Ok((copy, bytes / 64))
    }

    /// Copies and audits the batch at the guest's global `address`; returns
    /// where the GPU finds the copy.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn batch(&mut self, address: u32) -> Result<u32, AuditError> {
        self.certain = self.starts_certain;
        self.batch_at(address, 1)
    }

    fn batch_at(&mut self, address: u32, depth: u32) -> Result<u32, AuditError> {
        let mut words = Vec::new();
        let mut at = 0;
        loop {
            let here = address.wrapping_add(u32::try_from(at * 4).unwrap_or(0));
            self.fill(&mut words, address, at + 1)?;
            let header = words.get(at).copied().unwrap_or(0);
            let (command, len) = self.decode(header, At::Batch(here), usize::MAX)?;
            let end = at + usize::try_from(len).unwrap_or(usize::MAX);
            self.fill(&mut words, address, end)?;
            let Some(this) = words.get_mut(at..end) else {
                // `fill` made it that long.
                return Err(AuditError::Exhausted("batch copy".into()));
            };
            let flow = self.command(command, this, At::Batch(here), depth)?;
            at = end;
            if flow == Flow::End {
                break;
            }
        }
        words.truncate(at);
        // However the last command ends, nothing beyond the copy runs.
        words.push(mi_op::BATCH_BUFFER_END << 23);
        words.push(0);
        self.site.place(&words)
    }

    /// Makes `words` at least `len` long, page by page from the guest.
    fn fill(&mut self, words: &mut Vec<u32>, address: u32, len: usize) -> Result<(), AuditError> {
        while words.len() < len {
            let have = u32::try_from(words.len()).unwrap_or(u32::MAX);
            let from = have
                .checked_mul(4)
                .and_then(|b| address.checked_add(b))
                .ok_or(NotMapped::PastEnd { address, pages: 1 })?;
            let to_page_end = (0x1000 - (from & 0xfff)) / 4;
            // Unaligned batches cannot happen: bits 1:0 are not address.
            let n = to_page_end.max(1);
            self.spent = self.spent.saturating_add(n);
            if self.spent > self.limits.dwords {
                let max = self.limits.dwords;
                return Err(Refusal {
                    command: "batch",
                    header: 0,
                    at: At::Batch(from),
                    rule: Rule::Budget { max },
                }
                .into());
            }
            let start = words.len();
            words.resize(start + usize::try_from(n).unwrap_or(0), 0);
            self.site.fetch(from, &mut words[start..])?;
        }
        Ok(())
    }

    fn decode(
        &self,
        header: u32,
        at: At,
        left: usize,
    ) -> Result<(&'static cmd::Command, u32), AuditError> {
        let found = self.gpu.commands.decode(self.engine, header);
        let command = found.ok_or(AuditError::Unknown { header, at })?;
        let need = command.dwords(header);
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        if need > left {
            return Err(refuse(command, header, at, Rule::PastEnd { need, left }));
        }
        Ok((command, need))
    }
}

/// The most cache lines that INDIRECT_CTX can say, in bits 5:0.
const INDIRECT_LINES: usize = 0x3f;

fn split(words: &mut [u32], len: u32) -> (&mut [u32], &mut [u32]) {
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(words.len());
    words.split_at_mut(len)
}

fn refuse(command: &cmd::Command, header: u32, at: At, rule: Rule) -> AuditError {
    AuditError::Refused(Refusal {
        command: command.name,
        header,
        at,
        rule,
    })
}

/// Interrupts a guest may see of its own engine.
pub const GUEST_INTERRUPTS: u16 = irq::USER | irq::FLUSH_NOTIFY | irq::WAIT_SEMAPHORE;

#[cfg(test)]
mod tests;
