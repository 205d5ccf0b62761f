//! PIPE_CONTROL: flushes, which are no-ops here, and what follows them.

use gen8::cmd::pipe_control as pc;
use gen8::irq;

use crate::bits::{index, join};
use crate::memory::Space;
use crate::stream::{Stop, Streamer, operand};

/// PS_DEPTH_COUNT (Linux `gt/intel_gt_regs.h`).
const PS_DEPTH_COUNT: u32 = 0x2350;

impl Streamer {
    pub(crate) fn pipe_control(&mut self, packet: &[u32]) -> Result<(), Stop> {
        let flags = operand(packet, 1)?;
        if flags & pc::TLB_INVALIDATE != 0 {
            self.memory.flush_tlb();
        }
        let post = flags & pc::POST_SYNC_MASK;
        if flags & pc::LRI_POST_SYNC != 0 {
            self.write_register(operand(packet, 2)?, operand(packet, 4)?);
        } else if post != 0 {
            let low = operand(packet, 2)?;
            let (space, to) = if flags & pc::STORE_INDEX != 0 {
                let page = u64::from(self.status_page());
                (Space::Ggtt, page + u64::from(low & 0xff8))
            } else {
                let to = join(low & !7, operand(packet, 3)?);
                (self.operand_space(flags & pc::GGTT != 0), to)
            };
            let value = match post {
                pc::POST_SYNC_QW => {
                    let high = packet.get(index(5)).copied().unwrap_or(0);
                    join(operand(packet, 4)?, high)
                }
                pc::POST_SYNC_DEPTH => join(
                    self.core.registers.get(PS_DEPTH_COUNT),
                    self.core.registers.get(PS_DEPTH_COUNT + 4),
                ),
                _ => self.core.timestamp(),
            };
            self.memory.write_u64(space, to, value)?;
        }
        if flags & pc::NOTIFY != 0 {
            self.memory.touched = true;
            self.core.signal(self.engine, irq::FLUSH_NOTIFY);
        }
        Ok(())
    }
}
