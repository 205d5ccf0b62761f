//! MI commands.

use gen8::cmd::flags::{self, batch_start, copy_mem, flush_dw, predicate, semaphore, store_data};
use gen8::cmd::mi_op as op;
use gen8::{irq, ring};

use crate::bits::{join, lo};
use crate::memory::Space;
use crate::position::Flow;
use crate::stream::{Stop, Streamer, address, operand};

/// Opcode of an MI command.
const fn opcode(dw0: u32) -> u32 {
    (dw0 >> 23) & 0x3f
}

impl Streamer {
    /// Executes one MI command; the position is past it already.
    pub(crate) fn mi(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let dw0 = operand(packet, 0)?;
        match opcode(dw0) {
            // These work under any predicate.
            op::SET_PREDICATE => {
                self.predication = dw0 & 0xf;
                self.notes.changed = true;
                return Ok(());
            }
            op::BATCH_BUFFER_END => {
                self.end_batch();
                return Ok(());
            }
            op::ARB_ON_OFF => {
                self.arbitrate = dw0 & 1 != 0;
                return Ok(());
            }
            _ if self.suppressed() => return Ok(()),
            _ => {}
        }
        let global = dw0 & flags::USE_GGTT != 0;
        match opcode(dw0) {
            op::USER_INTERRUPT => {
                self.memory.touched = true;
                self.core.signal(self.engine, irq::USER);
            }
            op::REPORT_HEAD => {
                let page = u64::from(self.status_page());
                let head = self.ring.head;
                self.memory.write_u32(Space::Ggtt, page + 4, head)?;
            }
            op::PREDICATE => self.predicate(dw0),
            op::MATH => self.math(packet.get(1..).unwrap_or(&[])),
            op::STORE_DATA_IMM => {
                let to = address(packet, 1)?;
                let space = self.operand_space(global);
                if dw0 & store_data::QWORD != 0 {
                    let v = join(operand(packet, 3)?, operand(packet, 4)?);
                    self.memory.write_u64(space, to, v)?;
                } else {
                    self.memory.write_u32(space, to, operand(packet, 3)?)?;
                }
            }
            op::STORE_DATA_INDEX => {
                let to = u64::from(self.status_page()) + u64::from(operand(packet, 1)? & 0xffc);
                let low = operand(packet, 2)?;
                match packet.get(3) {
                    Some(&high) => self.memory.write_u64(Space::Ggtt, to, join(low, high))?,
                    None => self.memory.write_u32(Space::Ggtt, to, low)?,
                }
            }
            op::LOAD_REGISTER_IMM => {
                for pair in packet.get(1..).unwrap_or(&[]).chunks_exact(2) {
                    self.write_register(pair[0], pair[1]);
                }
            }
            op::UPDATE_GTT => self.update_gtt(packet)?,
            op::STORE_REGISTER_MEM => {
                let v = self.read_register(operand(packet, 1)?);
                let space = self.operand_space(global);
                self.memory.write_u32(space, address(packet, 2)?, v)?;
            }
            op::LOAD_REGISTER_MEM => {
                let register = operand(packet, 1)?;
                let space = self.operand_space(global);
                let v = self.memory.read_u32(space, address(packet, 2)?)?;
                self.write_register(register, v);
            }
            op::LOAD_REGISTER_REG => {
                let v = self.read_register(operand(packet, 1)?);
                self.write_register(operand(packet, 2)?, v);
            }
            op::COPY_MEM_MEM => {
                let to = self.operand_space(dw0 & copy_mem::DESTINATION_GGTT != 0);
                let from = self.operand_space(global);
                let v = self.memory.read_u32(from, address(packet, 3)?)?;
                self.memory.write_u32(to, address(packet, 1)?, v)?;
            }
            op::ATOMIC => self.atomic(packet)?,
            op::FLUSH_DW => self.flush_dw(packet)?,
            op::REPORT_PERF_COUNT => {
                // A report of counters that never move: id, time, zeros.
                let at = address(packet, 1)?;
                let space = self.operand_space(operand(packet, 1)? & 1 != 0);
                let mut report = [0; 256];
                report[..4].copy_from_slice(&operand(packet, 3)?.to_le_bytes());
                report[4..8].copy_from_slice(&lo(self.core.timestamp()).to_le_bytes());
                self.memory.write(space, at & !0x3f, &report)?;
            }
            op::BATCH_BUFFER_START => {
                let skip = dw0 & batch_start::PREDICATE != 0
                    && self.core.ring(self.engine, ring::PREDICATE_RESULT) & 1 == 0;
                if !skip {
                    self.start_batch(
                        address(packet, 1)?,
                        dw0 & batch_start::PPGTT != 0,
                        dw0 & batch_start::SECOND_LEVEL != 0,
                    )?;
                }
            }
            op::CONDITIONAL_BATCH_BUFFER_END => {
                let limit = operand(packet, 1)?;
                let space = self.operand_space(global);
                let v = self.memory.read_u32(space, address(packet, 2)?)?;
                // Broadwell goes on while memory is greater (PRM volume 2a).
                if v <= limit && self.flow != Flow::Ring {
                    self.end_batch();
                }
            }
            op::SEMAPHORE_SIGNAL => {
                if let Some(target) = semaphore::target(dw0) {
                    self.memory.touched = true;
                    self.core.unit(target).signal(operand(packet, 1)?);
                }
            }
            // NOOP with an id, arbitration checks, events that have always
            // happened, display commands without a display, and state nothing
            // here uses.
            _ => {}
        }
        Ok(())
    }

    /// Polls once; whether the wait is over.
    pub(crate) fn semaphore_wait(&mut self, packet: &[u32]) -> Result<bool, Stop> {
        let dw0 = operand(packet, 0)?;
        let value = operand(packet, 1)?;
        let at = address(packet, 2)?;
        if dw0 & semaphore::REGISTER_POLL != 0 {
            return Err(Stop::Instruction);
        }
        if dw0 & semaphore::POLL == 0 {
            // Memory is looked at now, and after each signal. The count is
            // taken first: a signal that comes meanwhile is not lost.
            let signals = Some(self.unit().signals());
            if self.awaited == signals {
                self.memory.touched = false;
                return Ok(false);
            }
            self.awaited = signals;
        }
        let space = self.operand_space(dw0 & flags::USE_GGTT != 0);
        let memory = self.memory.read_u32(space, at)?;
        let passed = match semaphore::comparison(dw0) {
            semaphore::GT => memory > value,
            semaphore::GTE => memory >= value,
            semaphore::LT => memory < value,
            semaphore::LTE => memory <= value,
            semaphore::EQ => memory == value,
            semaphore::NEQ => memory != value,
            _ => return Err(Stop::Instruction),
        };
        if !passed {
            if !self.waited() {
                self.core.signal(self.engine, irq::WAIT_SEMAPHORE);
            }
            self.memory.touched = false;
        }
        Ok(passed)
    }

    fn flush_dw(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let dw0 = operand(packet, 0)?;
        if dw0 & flush_dw::TLB_INVALIDATE != 0 {
            self.memory.flush_tlb();
        }
        let post = dw0 & flush_dw::POST_SYNC_MASK;
        if post != 0 {
            let low = operand(packet, 1)?;
            let (space, to) = if dw0 & flush_dw::STORE_INDEX != 0 {
                let page = u64::from(self.status_page());
                (Space::Ggtt, page + u64::from(low & 0xff8))
            } else {
                let to = join(low & !7, operand(packet, 2)?);
                (self.operand_space(low & flush_dw::ADDRESS_GGTT != 0), to)
            };
            match post {
                flush_dw::POST_SYNC_WRITE => {
                    let v = operand(packet, 3)?;
                    match packet.get(4) {
                        Some(&high) => self.memory.write_u64(space, to, join(v, high))?,
                        None => self.memory.write_u32(space, to, v)?,
                    }
                }
                flush_dw::POST_SYNC_TIMESTAMP => {
                    let t = self.core.timestamp();
                    self.memory.write_u64(space, to, t)?;
                }
                _ => {}
            }
        }
        if dw0 & flush_dw::NOTIFY != 0 {
            self.memory.touched = true;
            self.core.signal(self.engine, irq::FLUSH_NOTIFY);
        }
        Ok(())
    }

    /// Writes entries of the global table, 8 bytes each.
    fn update_gtt(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let mut page = operand(packet, 1)? >> 12;
        for pair in packet.get(2..).unwrap_or(&[]).chunks_exact(2) {
            self.core.ggtt.set_entry(page, join(pair[0], pair[1]));
            page = page.wrapping_add(1);
        }
        self.memory.touched = true;
        Ok(())
    }

    fn predicate(&mut self, dw0: u32) {
        self.notes.changed = true;
        let reg = |o| {
            join(
                self.core.ring(self.engine, o),
                self.core.ring(self.engine, o + 4),
            )
        };
        let (a, b) = (reg(ring::PREDICATE_SRC0), reg(ring::PREDICATE_SRC1));
        let compare = match dw0 & 3 {
            predicate::COMPARE_TRUE => true,
            predicate::COMPARE_FALSE => false,
            predicate::COMPARE_SRCS_EQUAL => a == b,
            _ => a.wrapping_sub(b) == reg(ring::PREDICATE_DATA),
        };
        let old = self.core.ring(self.engine, ring::PREDICATE_RESULT) & 1 != 0;
        let combine = |v: bool| match (dw0 >> 3) & 3 {
            predicate::COMBINE_SET => v,
            predicate::COMBINE_AND => old & v,
            predicate::COMBINE_OR => old | v,
            _ => old ^ v,
        };
        let new = match (dw0 >> 6) & 3 {
            predicate::LOAD => combine(compare),
            predicate::LOAD_INVERSE => combine(!compare),
            _ => old,
        };
        self.core
            .set_ring(self.engine, ring::PREDICATE_RESULT, u32::from(new));
    }
}
