//! What each command is checked for.

use gen8::access;
use gen8::cmd::flags::{batch_start, flush_dw};
use gen8::cmd::{Command, Guests, mi_op, pipe_control};

use super::{At, AuditError, Auditor, Flow, Rule, Site, refuse};

/// MI_STORE_DATA_INDEX: the offset is into the context's status page. Clear
/// it means the engine's, which is vgpud's
/// (Linux `gt/intel_gpu_commands.h:MI_STORE_DWORD_INDEX`).
const INDEX_PER_PROCESS: u32 = 1 << 21;

/// A dword of a command already known to be long enough.
fn word(words: &[u32], at: usize) -> u32 {
    words.get(at).copied().unwrap_or(0)
}

fn set(words: &mut [u32], at: usize, value: u32) {
    if let Some(w) = words.get_mut(at) {
        *w = value;
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
        if command.guests == Guests::Refused {
            return bad(Rule::Forbidden);
        }
        let have = u32::try_from(words.len()).unwrap_or(u32::MAX);
        // The hardware may read another length than a length field that is
        // wrong for the command says.
        let allowed = command.lengths;
        if !allowed.allow(have) {
            return bad(Rule::Length { have, allowed });
        }
        let need = |n: u32| {
            if have < n {
                return Err(refuse(command, header, at, Rule::Short { have, need: n }));
            }
            Ok(())
        };
        let write = |offset: u32, value: Option<u32>| {
            if access::may_write(self.engine, offset, value) {
                return Ok(());
            }
            let rule = Rule::RegisterWrite { offset, value };
            Err(refuse(command, header, at, rule))
        };
        let read = |offset: u32| {
            if access::may_read(self.engine, offset) {
                return Ok(());
            }
            Err(refuse(command, header, at, Rule::RegisterRead { offset }))
        };
        let status_offset = |offset: u32| {
            // Up to 8 bytes are stored there.
            if offset <= 0xff8 {
                return Ok(());
            }
            Err(refuse(command, header, at, Rule::StatusOffset { offset }))
        };

        for set in command.sets.iter().filter(|s| s.when.hold(words)) {
            let first = self.engine.mmio_base() + set.offset;
            for offset in (first..).step_by(4).zip(0..set.dwords) {
                self.effects.unknown(offset.0);
            }
        }
        let opcode = (header >> 29 == 0).then_some((header >> 23) & 0x3f);
        match opcode {
            // Predication could skip the end of a batch; the report goes to
            // the engine's status page, which is vgpud's; a range flushed
            // past a window is not the guest's.
            Some(mi_op::SET_PREDICATE | mi_op::REPORT_HEAD | mi_op::CLFLUSH) => {
                return bad(Rule::Forbidden);
            }
            // They wait for the physical display, or concern it.
            Some(
                mi_op::WAIT_FOR_EVENT
                | mi_op::LOAD_SCAN_LINES_INCL
                | mi_op::LOAD_SCAN_LINES_EXCL
                | mi_op::SUSPEND_FLUSH,
            ) => {
                words.fill(0);
                return Ok(Flow::Next);
            }
            Some(mi_op::BATCH_BUFFER_END) => return Ok(Flow::End),
            // What follows in this buffer may not run.
            Some(mi_op::CONDITIONAL_BATCH_BUFFER_END) => self.certain = false,
            Some(mi_op::BATCH_BUFFER_START) => {
                need(3)?;
                return self.batch_start(command, words, at, depth);
            }
            Some(mi_op::LOAD_REGISTER_IMM) => {
                // Pairs after the header; a dword left over has no meaning.
                need(3)?;
                if have % 2 == 0 {
                    return bad(Rule::Short {
                        have,
                        need: have + 1,
                    });
                }
                for pair in words[1..].chunks_exact(2) {
                    write(word(pair, 0), Some(word(pair, 1)))?;
                }
                for pair in words[1..].chunks_exact(2) {
                    self.loads(word(pair, 0), word(pair, 1));
                }
                return Ok(Flow::Next);
            }
            Some(mi_op::LOAD_REGISTER_REG) => {
                need(3)?;
                read(word(words, 1))?;
                write(word(words, 2), None)?;
                self.effects.read(word(words, 1));
                self.effects.unknown(word(words, 2));
                return Ok(Flow::Next);
            }
            Some(mi_op::LOAD_REGISTER_MEM) => {
                need(4)?;
                write(word(words, 1), None)?;
                self.effects.unknown(word(words, 1));
            }
            Some(mi_op::STORE_REGISTER_MEM) => {
                need(4)?;
                read(word(words, 1))?;
                self.effects.read(word(words, 1));
            }
            Some(mi_op::STORE_DATA_INDEX) => {
                need(3)?;
                status_offset(word(words, 1))?;
                set(words, 0, header | INDEX_PER_PROCESS);
                return Ok(Flow::Next);
            }
            Some(mi_op::FLUSH_DW) => {
                if header & flush_dw::POST_SYNC_MASK == 0 {
                    // No write: the address means nothing.
                    let last = words.len().min(3);
                    words[1..last].fill(0);
                    return Ok(Flow::Next);
                }
                need(4)?;
                if header & flush_dw::STORE_INDEX != 0 {
                    status_offset(word(words, 1) & !flush_dw::ADDRESS_GGTT)?;
                    set(words, 2, 0);
                    return Ok(Flow::Next);
                }
            }
            _ if command.name == "PIPE_CONTROL" => {
                need(2)?;
                let flags = word(words, 1);
                if flags & pipe_control::LRI_POST_SYNC != 0 {
                    need(5)?;
                    write(word(words, 2), Some(word(words, 4)))?;
                    self.loads(word(words, 2), word(words, 4));
                    return Ok(Flow::Next);
                }
                if flags & pipe_control::POST_SYNC_MASK == 0 {
                    let last = words.len().min(4);
                    words.iter_mut().take(last).skip(2).for_each(|w| *w = 0);
                    return Ok(Flow::Next);
                }
                need(6)?;
                if flags & pipe_control::STORE_INDEX != 0 {
                    status_offset(word(words, 2))?;
                    set(words, 3, 0);
                    return Ok(Flow::Next);
                }
            }
            _ => {}
        }

        for field in command.addresses {
            if !field.space.is_global(words) {
                continue;
            }
            let low = usize::from(field.dword);
            need(u32::from(field.dword) + 2)?;
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
        Ok(Flow::Next)
    }

    /// A command writes a register.
    fn loads(&mut self, offset: u32, raw: u32) {
        if self.certain {
            self.effects.load(offset, raw);
        } else {
            self.effects.unknown(offset);
        }
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
