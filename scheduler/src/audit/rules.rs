//! What each command is checked for.

use gen8::cmd::flags::{batch_start, load_register, semaphore};
use gen8::cmd::{self, AddressField, Command, Guests, Space, mi_op};

use super::{At, AuditError, Auditor, Flow, MAX_STARTS, Rule, Site, refuse};
use crate::scan;

/// The last offset in a status page: up to 8 bytes are stored there.
const LAST_STATUS: u32 = 0xff8;

/// A dword of a command already known to be long enough.
fn word(words: &[u32], at: usize) -> u32 {
    words.get(at).copied().unwrap_or(0)
}

fn set(words: &mut [u32], at: usize, value: u32) {
    if let Some(w) = words.get_mut(at) {
        *w = value;
    }
}

/// The field is no address in this command. Where one could be global it is
/// cleared, except for what else it means: a register, or an offset, whose
/// upper half means nothing.
fn clear_unused(command: &Command, field: &AddressField, words: &mut [u32]) {
    if field.space == Space::Ppgtt {
        return;
    }
    let low = usize::from(field.dword);
    let mut registers = command.registers.iter().filter(|r| r.when.hold(words));
    if registers.any(|r| r.dword == field.dword) {
        return;
    }
    let offset = command.status.is_some_and(|s| s.holds(words));
    for at in low + usize::from(offset)..low + field.dwords() {
        set(words, at, 0);
    }
}

impl<S: Site> Auditor<'_, S> {
    /// Checks one command, all of whose dwords are `words`, and moves its
    /// global addresses. `depth` is 0 in a ring.
    pub(super) fn command(
        &mut self,
        command: &'static Command,
        words: &mut [u32],
        at: At,
        depth: u32,
    ) -> Result<Flow, AuditError> {
        self.commands += 1;
        let header = word(words, 0);
        let bad = |rule| Err(refuse(command, header, at, rule));
        // Nobody knows the addresses of what only its group is known of.
        if command.guests == Guests::Refused || command.is_group() {
            return bad(Rule::Forbidden);
        }
        let have = u32::try_from(words.len()).unwrap_or(u32::MAX);
        // The hardware may read another length than a length field that is
        // wrong for the command says.
        let allowed = command.lengths;
        if !allowed.allow(have) {
            return bad(Rule::Length { have, allowed });
        }
        if command.guests == Guests::Nothing {
            words.fill(0);
            return Ok(Flow::Next);
        }
        self.registers(command, words, at)?;
        match command.flow {
            // The end of a batch in a ring is a no-op; what follows is audited
            // all the same.
            cmd::Flow::EndsBatch => return Ok(Flow::End),
            cmd::Flow::StartsBatch => return self.batch_start(command, words, at, depth),
            // What follows in this buffer may not run.
            cmd::Flow::MayEndBatch => self.certain = false,
            // No signal comes: signals go by the ids of contexts, and those
            // are vgpud's.
            cmd::Flow::Waits => set(words, 0, header | semaphore::POLL),
            cmd::Flow::Next => {}
        }
        if let Some(status) = command.status.filter(|s| s.holds(words)) {
            let offset = word(words, status.dword.into()) & !status.flags;
            if offset > LAST_STATUS {
                return bad(Rule::StatusOffset { offset });
            }
            // The engine's page is vgpud's.
            set(words, 0, header | status.own);
        }
        self.addresses(command, words, at)?;
        Ok(Flow::Next)
    }

    /// Checks the registers that a command names, and notes what becomes of
    /// them and of those it changes without naming them.
    fn registers(
        &mut self,
        command: &'static Command,
        words: &[u32],
        at: At,
    ) -> Result<(), AuditError> {
        let header = word(words, 0);
        let have = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let bad = |rule| Err(refuse(command, header, at, rule));
        for set in command.sets.iter().filter(|s| s.when.hold(words)) {
            let first = self.engine.mmio_base() + set.offset;
            for offset in (first..).step_by(4).zip(0..set.dwords) {
                self.effects.unknown(offset.0);
            }
        }
        if command.registers.is_empty() {
            return Ok(());
        }
        // Pairs with a dword left over have no meaning.
        let cut = command.registers.iter().any(|f| {
            let behind = have.wrapping_sub(f.dword.into());
            f.each.count == 0 && !behind.is_multiple_of(f.each.stride.into())
        });
        if cut {
            let need = have + 1;
            return bad(Rule::Short { have, need });
        }
        let partial =
            header >> 23 == mi_op::LOAD_REGISTER_IMM && header & load_register::BYTE_DISABLES != 0;
        for (offset, field, value) in command.registers_in(words) {
            if !field.write {
                if !self.gpu.rules.may_read(self.engine, offset) {
                    return bad(Rule::RegisterRead { offset });
                }
                self.effects.read(offset);
                continue;
            }
            if !self.gpu.rules.may_write(self.engine, offset, value) {
                return bad(Rule::RegisterWrite { offset, value });
            }
            match value {
                Some(value) if self.certain && !partial => self.effects.load(offset, value),
                _ => self.effects.unknown(offset),
            }
        }
        Ok(())
    }

    /// Moves a command's global addresses into windows.
    fn addresses(
        &mut self,
        command: &'static Command,
        words: &mut [u32],
        at: At,
    ) -> Result<(), AuditError> {
        let header = word(words, 0);
        let have = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let bad = |rule| Err(refuse(command, header, at, rule));
        for field in command.addresses {
            let low = usize::from(field.dword);
            if !field.when.hold(words) {
                clear_unused(command, field, words);
                continue;
            }
            if !field.space.is_global(words) {
                continue;
            }
            let need = u32::from(field.dword) + 2;
            if have < need {
                return bad(Rule::Short { have, need });
            }
            let upper = word(words, low + 1);
            if upper != 0 {
                return bad(Rule::HighAddress { upper });
            }
            let address = word(words, low);
            let first = address & field.mask;
            // What has no bound would leave any window.
            let Some(bytes) = field.bytes.bound(header) else {
                return bad(Rule::Forbidden);
            };
            let pages = (first & 0xfff).saturating_add(bytes).div_ceil(0x1000);
            let window = self.site.window(first >> 12, pages)?;
            set(words, low, window | (address & 0xfff));
        }
        Ok(())
    }

    /// MI_BATCH_BUFFER_START: a batch in the context's own tables has no
    /// privilege and stays; another one is copied and audited.
    fn batch_start(
        &mut self,
        command: &'static Command,
        words: &mut [u32],
        at: At,
        depth: u32,
    ) -> Result<Flow, AuditError> {
        let header = word(words, 0);
        // In a ring there is no first level that a second could return to.
        if depth == 0 && header & batch_start::SECOND_LEVEL != 0 {
            return Err(refuse(command, header, at, Rule::Forbidden));
        }
        let returns = depth == 0
            || header & batch_start::SECOND_LEVEL != 0
            || header & batch_start::PREDICATE != 0;
        let flow = if returns { Flow::Next } else { Flow::End };
        if header & batch_start::PPGTT != 0 {
            self.effects.user_batch();
            match scan::target(words) {
                Some(start) if self.user_batches.len() < MAX_STARTS => {
                    self.user_batches.push(start);
                }
                _ => self.more_user_batches = true,
            }
            // It may leave a predicate behind.
            self.certain = false;
            return Ok(flow);
        }
        // Whatever else the hardware does with the address would lead past
        // the copy.
        if header & 0x7f_ff00 & !batch_start::KNOWN != 0 {
            return Err(refuse(command, header, at, Rule::Forbidden));
        }
        let upper = word(words, 2);
        if upper != 0 {
            return Err(refuse(command, header, at, Rule::HighAddress { upper }));
        }
        let max = self.limits.depth;
        if depth >= max {
            return Err(refuse(command, header, at, Rule::Depth { max }));
        }
        let predicated = header & batch_start::PREDICATE != 0;
        let certain = self.certain;
        self.certain &= !predicated;
        let copy = self.batch_at(word(words, 1) & !3, depth + 1)?;
        set(words, 1, copy);
        // Back here the doubts of the batch do not count, except that it may
        // have left a predicate, or may not have come back.
        let stays = predicated && depth > 0 && header & batch_start::SECOND_LEVEL == 0;
        self.certain = certain && !stays && !self.effects.ran_user_batches();
        Ok(flow)
    }
}
