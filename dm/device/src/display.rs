//! Display registers that have code behind them, and the pipes' vertical
//! blanks.

use gen8::vreg::{Handler, display as reg, forcewake_request};

use crate::core::{Core, Seams};
use crate::interrupts::BankId;
use crate::pipe::{Running, TimingV1, of_pipe};

const PIPE_ENABLE: u32 = 1 << 31;
const PIPE_STATE: u32 = 1 << 30;
const DDI_ENABLE: u32 = 1 << 31;
const DDI_IDLE: u32 = 1 << 7;
/// Even bits of a power-well register are requests shifted left once.
const POWER_REQUESTS: u32 = 0xaaaa_aaaa;
const AUX_SEND: u32 = 1 << 31;
const AUX_DONE: u32 = 1 << 30;
const AUX_TIMEOUT: u32 = 1 << 28;
const AUX_RECEIVE_ERROR: u32 = 1 << 25;
const SIDEBAND_BUSY: u32 = 1 << 0;
const SIDEBAND_FAILED: u32 = 1 << 1;
const MAILBOX_READY: u32 = 1 << 31;
/// The command when asked, the error when answered.
const MAILBOX_COMMAND: u32 = 0xff;
const MAILBOX_ERROR: u32 = MAILBOX_COMMAND;
/// DSPCNTR: flips do not wait for the blank.
const ASYNC_FLIP: u32 = 1 << 9;
/// Event of a pipe's interrupt bank; [`gen8::Platform::flip_done`] is another.
const VBLANK: u32 = 1 << 0;

/// The pipe of a register that each pipe has.
fn pipe_of(first: u32, offset: u32) -> Option<usize> {
    let pipe = offset.checked_sub(first)? / reg::PIPE_STRIDE;
    usize::try_from(pipe).ok().filter(|p| *p < 3)
}

impl Core {
    /// Reads a display register that has code behind it.
    pub(crate) fn read_display(&mut self, seams: &Seams, handler: Handler, offset: u32) -> u32 {
        let stored = self.regs.get(offset);
        match handler {
            Handler::Lcpll => {
                let mut value = stored & !(reg::LCPLL_LOCK | reg::LCPLL_SOURCE_FCLK_DONE);
                if value & reg::LCPLL_DISABLE == 0 {
                    value |= reg::LCPLL_LOCK;
                }
                if value & reg::LCPLL_SOURCE_FCLK != 0 {
                    value |= reg::LCPLL_SOURCE_FCLK_DONE;
                }
                value
            }
            Handler::PowerWell => {
                // A well is on while anyone requests it.
                let request = |n: u32| self.regs.get(reg::POWER_WELL1 + n * 4);
                let any = (0..4).fold(0, |all, n| all | request(n)) & POWER_REQUESTS;
                stored & POWER_REQUESTS | any >> 1
            }
            // A PLL, a buffer or a power switch needs no time here.
            Handler::PipeConf | Handler::Follows if stored & PIPE_ENABLE != 0 => {
                stored | PIPE_STATE
            }
            Handler::PipeConf | Handler::Follows => stored & !PIPE_STATE,
            Handler::DpllStatus => self.locked_plls(),
            Handler::ScanLine => self
                .running_pipe(reg::PIPEDSL_A, offset)
                .map_or(0, |p| p.line(seams.clock.now_ns())),
            Handler::FrameCount => self.running_pipe(reg::FRMCOUNT_A, offset).map_or(0, |p| {
                let b = p.blanks(seams.clock.now_ns()).to_le_bytes();
                u32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }),
            Handler::SurfaceLive => self
                .regs
                .get(offset.wrapping_sub(reg::DSPSURFLIVE_A - reg::DSPSURF_A)),
            Handler::DdiBuffer if stored & DDI_ENABLE == 0 => stored | DDI_IDLE,
            Handler::DdiBuffer => stored & !DDI_IDLE,
            Handler::Gmbus => self.gmbus.read(offset),
            // Only the driver's half of the register can be acknowledged.
            Handler::ForcewakeAck => self.regs.get(forcewake_request(offset)) & 0xffff,
            _ => stored,
        }
    }

    /// DPLL_STATUS: bit 8 n for PLL n.
    fn locked_plls(&self) -> u32 {
        let controls = [
            reg::LCPLL1,
            reg::LCPLL2,
            reg::WRPLL_CTL1,
            reg::WRPLL_CTL1 + 0x20,
        ];
        let enabled = (0..).zip(controls).filter(|(_, control)| {
            // The enable bit is where the pipes have theirs.
            self.regs.get(*control) & PIPE_ENABLE != 0
        });
        enabled.fold(0, |status, (n, _)| status | 1 << (8 * n))
    }

    fn running_pipe(&self, first: u32, offset: u32) -> Option<&Running> {
        self.pipes.get(pipe_of(first, offset)?)?.as_ref()
    }

    /// Writes a display register that has code behind it. `merged` is the
    /// bytes written and the old ones.
    pub(crate) fn write_display(
        &mut self,
        seams: &Seams,
        handler: Handler,
        offset: u32,
        merged: u32,
    ) {
        let value = match handler {
            Handler::Sideband => merged & !(SIDEBAND_BUSY | SIDEBAND_FAILED),
            Handler::Mailbox if merged & MAILBOX_READY != 0 => {
                self.mailbox(offset, merged & MAILBOX_COMMAND);
                merged & !(MAILBOX_READY | MAILBOX_ERROR)
            }
            Handler::Aux => aux(self.regs.get(offset), merged),
            Handler::Gmbus => return self.gmbus.write(offset, merged),
            // Follow from the clock or other registers.
            Handler::ScanLine
            | Handler::FrameCount
            | Handler::SurfaceLive
            | Handler::ForcewakeAck => return,
            _ => merged,
        };
        self.store(offset, value);
        match handler {
            Handler::PipeConf => self.switch_pipe(seams, offset, value),
            Handler::Surface => self.flip(offset),
            _ => {}
        }
    }

    /// Carries out a command of the power controller; its data is in the
    /// register behind the mailbox.
    fn mailbox(&mut self, offset: u32, command: u32) {
        let data = offset + 4;
        if let Some(reply) = self.config.gpu.reply(command, self.regs.get(data)) {
            self.store(data, reply);
        }
    }

    fn switch_pipe(&mut self, seams: &Seams, offset: u32, value: u32) {
        let Some(number) = pipe_of(reg::PIPECONF_A, offset) else {
            return;
        };
        let timing = TimingV1::of(&self.regs, self.config.gpu.pixel_clock, number);
        let Some(pipe) = self.pipes.get_mut(number) else {
            return;
        };
        if value & PIPE_ENABLE == 0 {
            *pipe = None;
        } else if pipe.is_none() {
            *pipe = Some(Running::start(timing, seams.clock.now_ns()));
        }
        self.deadline_moved = true;
    }

    /// A plane gets a new surface. What is scanned out is read from the
    /// registers, so it counts at once; the event comes as hardware's does.
    fn flip(&mut self, offset: u32) {
        let Some(number) = pipe_of(reg::DSPSURF_A, offset) else {
            return;
        };
        let Some(Some(pipe)) = self.pipes.get_mut(number) else {
            return;
        };
        let count = of_pipe(reg::FLIPCOUNT_A, number);
        self.regs.set(count, self.regs.get(count).wrapping_add(1));
        if self.regs.get(of_pipe(reg::DSPCNTR_A, number)) & ASYNC_FLIP != 0 {
            self.irqs
                .raise(BankId::of_pipe(number), self.config.gpu.flip_done);
        } else {
            pipe.flip();
        }
    }

    /// Vertical blanks that started since the last time: raises what the
    /// guest has unmasked. Blanks nobody wanted are passed over.
    pub(crate) fn pass_blanks(&mut self, now_ns: u64) {
        for (number, pipe) in self.pipes.iter_mut().enumerate() {
            let Some(pipe) = pipe else { continue };
            let (blank, flipped) = pipe.take_blank(now_ns);
            let bank = BankId::of_pipe(number);
            if blank {
                self.irqs.raise(bank, VBLANK);
            }
            if flipped {
                self.irqs.raise(bank, self.config.gpu.flip_done);
            }
        }
    }

    /// When the next vertical blank starts that the guest wants to hear of.
    pub(crate) fn next_blank(&self, seams: &Seams) -> Option<u64> {
        let wanted = self.pipes.iter().enumerate().filter_map(|(number, pipe)| {
            let bank = self.irqs.bank(BankId::of_pipe(number));
            let wants = bank.ier & !bank.imr & (VBLANK | self.config.gpu.flip_done) != 0;
            pipe.as_ref().filter(|_| wants)
        });
        let mut now = None;
        wanted
            .map(|pipe| {
                let now = *now.get_or_insert_with(|| seams.clock.now_ns());
                pipe.next_blank_ns(now)
            })
            .min()
    }
}

/// AUX control after a write: a transfer that is started has timed out, and
/// flags written as 1 are cleared otherwise.
fn aux(old: u32, value: u32) -> u32 {
    const FLAGS: u32 = AUX_DONE | AUX_TIMEOUT | AUX_RECEIVE_ERROR;
    let rest = value & !(FLAGS | AUX_SEND);
    if value & AUX_SEND != 0 {
        return rest | AUX_DONE | AUX_TIMEOUT;
    }
    rest | old & FLAGS & !value
}
