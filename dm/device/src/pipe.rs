//! A pipe's timing: scan line, frame count and vertical blanks from the clock.

use gen8::platform::PixelClock;
use gen8::vreg::display as reg;
use serde::{Deserialize, Serialize};

use crate::kept::{join, split};
use crate::registers::RegisterFile;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// What a pipe without a readable clock runs at.
const DEFAULT_FRAME_NS: u64 = NS_PER_SECOND / 60;
/// Frames shorter or longer than this are taken for garbage.
const FRAME_NS: std::ops::RangeInclusive<u64> = NS_PER_SECOND / 250..=NS_PER_SECOND / 10;
/// i915 adds this to the scan line of an HDMI output
/// (Linux `i915_irq.c`, `display/intel_display.c:intel_crtc_update_active_timings`).
const LINE_OFFSET: u32 = 2;

/// The registers of a pipe by number.
pub(crate) fn of_pipe(first: u32, pipe: usize) -> u32 {
    let pipe = u32::try_from(pipe).unwrap_or(0).min(reg::PIPES - 1);
    first + pipe * reg::PIPE_STRIDE
}

/// A running pipe's timing, fixed when it is enabled. Also its saved form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimingV1 {
    /// Lines of a frame, blanking included; not 0.
    pub lines: u32,
    /// The line at which the vertical blank starts; below `lines`.
    pub blank: u32,
    /// Duration of a frame in nanoseconds; not 0.
    pub frame_ns: u64,
}

impl TimingV1 {
    /// The timing that the registers ask for.
    pub(crate) fn of(regs: &RegisterFile, clock: PixelClock, pipe: usize) -> Self {
        let field = |first| regs.get(of_pipe(first, pipe));
        let high = |value: u32| ((value >> 16) & 0x1fff) + 1;
        let low = |value: u32| (value & 0x1fff) + 1;
        let vtotal = field(reg::VTOTAL_A);
        let lines = high(vtotal).max(2);
        let blank = low(field(reg::VBLANK_A)).saturating_sub(LINE_OFFSET);
        let pixels = u64::from(high(field(reg::HTOTAL_A))) * u64::from(lines);
        let port = (field(reg::TRANS_DDI_FUNC_CTL_A) >> 28) & 7;
        let khz = match clock {
            PixelClock::Wrpll => wrpll_khz(regs, port),
            PixelClock::Dpll => dpll_khz(regs, port),
        };
        let frame_ns = khz
            .and_then(|khz| (pixels * 1_000_000).checked_div(khz))
            .filter(|ns| FRAME_NS.contains(ns))
            .unwrap_or(DEFAULT_FRAME_NS);
        Self {
            lines,
            blank: blank.min(lines - 1),
            frame_ns,
        }
    }

    fn is_possible(self) -> bool {
        self.lines >= 2 && self.blank < self.lines && FRAME_NS.contains(&self.frame_ns)
    }
}

/// The pixel clock of a port, when one of the WRPLLs drives it
/// (Linux `display/intel_dpll_mgr.c:hsw_ddi_wrpll_get_freq`).
fn wrpll_khz(regs: &RegisterFile, port: u32) -> Option<u64> {
    let select = regs.get(reg::PORT_CLK_SEL_A + port.min(4) * 4) >> 29;
    let pll = select.checked_sub(4).filter(|p| *p < 2)?;
    let wrpll = regs.get(reg::WRPLL_CTL1 + pll * 0x20);
    // Bits 29:28: 3 is the 2.7 GHz LCPLL, else the 135 MHz SSC reference.
    let reference = if (wrpll >> 28) & 3 == 3 {
        2_700_000
    } else {
        135_000
    };
    let r = u64::from(wrpll & 0xff);
    let p = u64::from((wrpll >> 8) & 0x3f);
    let n = u64::from((wrpll >> 16) & 0xff);
    Some((reference * n / 10).checked_div(p * r)? * 2)
}

/// The pixel clock of a port, when DPLL 1, 2 or 3 drives it
/// (Linux `display/intel_dpll_mgr.c:skl_ddi_wrpll_get_freq`).
fn dpll_khz(regs: &RegisterFile, port: u32) -> Option<u64> {
    const REFERENCE_KHZ: u64 = 24_000;
    let select = regs.get(reg::DPLL_CTRL2) >> (3 * port.min(4) + 1) & 3;
    // DPLL 0 is the display's own clock.
    let config = reg::DPLL_CFGCR1 + select.checked_sub(1)? * 8;
    let (dco, dividers) = (regs.get(config), regs.get(config + 4));
    let whole = u64::from(dco & 0x1ff) * REFERENCE_KHZ;
    let fraction = u64::from(dco >> 9 & 0x7fff) * REFERENCE_KHZ / 0x8000;
    let p = match dividers >> 2 & 7 {
        0 => 1,
        1 => 2,
        2 => 3,
        4 | 5 => 7,
        _ => return None,
    };
    let q = if dividers & 1 << 7 != 0 {
        u64::from(dividers >> 8 & 0xff)
    } else {
        1
    };
    let k = [5, 2, 3, 1][usize::try_from(dividers >> 5 & 3).ok()?];
    (whole + fraction).checked_div(p * q * k * 5)
}

/// A pipe that is scanning out. Times are nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    timing: TimingV1,
    since_ns: u64,
    /// Vertical blanks already told to the guest, or passed unwanted.
    told: u64,
    /// A synchronous flip completes at the next blank.
    flip: bool,
}

/// A running pipe's saved state. Times are relative, since the clock of the
/// host that restores it starts elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningV1 {
    /// Its timing.
    pub timing: TimingV1,
    /// How long it has run, in nanoseconds.
    pub age_ns: u64,
    /// Vertical blanks told.
    pub told: u64,
    /// A flip waits for the next blank.
    pub flip: bool,
}

impl Running {
    pub(crate) fn start(timing: TimingV1, now_ns: u64) -> Self {
        Self {
            timing,
            since_ns: now_ns,
            told: 0,
            flip: false,
        }
    }

    /// How long the pipe has run. Modulo 2^64, since a restored pipe may be
    /// older than the clock.
    fn age(&self, now_ns: u64) -> u64 {
        now_ns.wrapping_sub(self.since_ns)
    }

    /// Lines scanned since the pipe was enabled.
    fn line_count(&self, now_ns: u64) -> u64 {
        let age = u128::from(self.age(now_ns));
        let lines = age * u128::from(self.timing.lines) / u128::from(self.timing.frame_ns);
        u64::try_from(lines).unwrap_or(u64::MAX)
    }

    /// The line being scanned out. Never 0: i915 would read a hundred times
    /// in a row to see it change.
    pub(crate) fn line(&self, now_ns: u64) -> u32 {
        let line = self.line_count(now_ns) % u64::from(self.timing.lines);
        u32::try_from(line).unwrap_or(1).max(1)
    }

    /// Vertical blanks that have started.
    pub(crate) fn blanks(&self, now_ns: u64) -> u64 {
        match self
            .line_count(now_ns)
            .checked_sub(self.timing.blank.into())
        {
            Some(beyond) => beyond / u64::from(self.timing.lines) + 1,
            None => 0,
        }
    }

    /// When the first blank starts that was not told yet: now, when it has.
    pub(crate) fn next_blank_ns(&self, now_ns: u64) -> u64 {
        let lines = u128::from(self.timing.lines);
        let line = u128::from(self.told) * lines + u128::from(self.timing.blank);
        let age = line
            .saturating_mul(self.timing.frame_ns.into())
            .div_ceil(lines);
        let age = u64::try_from(age).unwrap_or(u64::MAX);
        now_ns.saturating_add(age.saturating_sub(self.age(now_ns)))
    }

    /// Whether a blank started since the last time this was asked, and
    /// whether a flip completed with it.
    pub(crate) fn take_blank(&mut self, now_ns: u64) -> (bool, bool) {
        let blanks = self.blanks(now_ns);
        if blanks == self.told {
            return (false, false);
        }
        self.told = blanks;
        (true, std::mem::take(&mut self.flip))
    }

    /// A synchronous flip was asked for.
    pub(crate) fn flip(&mut self) {
        self.flip = true;
    }

    /// Puts what a successor needs, or that there is no pipe, from word `at`
    /// on. Times are those of the device's clock, which goes on.
    pub(crate) fn keep(pipe: Option<&Self>, at: usize, put: &mut impl FnMut(usize, u64)) {
        put(at, u64::from(pipe.is_some()));
        let Some(Self {
            timing:
                TimingV1 {
                    lines,
                    blank,
                    frame_ns,
                },
            since_ns,
            told,
            flip,
        }) = pipe
        else {
            return;
        };
        put(at + 1, join(*lines, *blank));
        put(at + 2, *frame_ns);
        put(at + 3, *since_ns);
        put(at + 4, *told);
        put(at + 5, u64::from(*flip));
    }

    /// What that put, at `now_ns` of the device's clock.
    pub(crate) fn kept(at: usize, get: impl Fn(usize) -> u64, now_ns: u64) -> Option<RunningV1> {
        let (lines, blank) = split(get(at + 1));
        let pipe = RunningV1 {
            timing: TimingV1 {
                lines,
                blank,
                frame_ns: get(at + 2),
            },
            age_ns: now_ns.wrapping_sub(get(at + 3)),
            told: get(at + 4),
            flip: get(at + 5) != 0,
        };
        (get(at) != 0).then_some(pipe)
    }

    pub(crate) fn save(&self, now_ns: u64) -> RunningV1 {
        let Self {
            timing,
            since_ns,
            told,
            flip,
        } = self;
        RunningV1 {
            timing: *timing,
            age_ns: now_ns.wrapping_sub(*since_ns),
            told: *told,
            flip: *flip,
        }
    }

    /// The pipe as saved, or `None` when its timing is none.
    pub(crate) fn restore(state: &RunningV1, now_ns: u64) -> Option<Self> {
        let RunningV1 {
            timing,
            age_ns,
            told,
            flip,
        } = *state;
        let mut pipe = Self {
            timing,
            since_ns: now_ns.wrapping_sub(age_ns),
            told,
            flip,
        };
        if !timing.is_possible() {
            return None;
        }
        // No more can have been told than there were.
        pipe.told = told.min(pipe.blanks(now_ns));
        Some(pipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// The registers i915 programs for 1024x768 on port B with WRPLL 1.
    fn registers() -> RegisterFile {
        let mut r = RegisterFile::new(&Config::default());
        r.set(reg::HTOTAL_A, (1344 - 1) << 16 | 1023);
        r.set(reg::VTOTAL_A, (806 - 1) << 16 | 767);
        r.set(reg::VBLANK_A, (806 - 1) << 16 | 767);
        r.set(reg::TRANS_DDI_FUNC_CTL_A, 1 << 31 | 1 << 28);
        r.set(reg::PORT_CLK_SEL_A + 4, 4 << 29);
        // 2.7 GHz * 26 / 10 / (6 * 36) * 2 = 65 MHz.
        r.set(reg::WRPLL_CTL1, 1 << 31 | 3 << 28 | 26 << 16 | 6 << 8 | 36);
        r
    }

    #[test]
    fn the_frame_lasts_as_long_as_the_clocks_say() {
        let t = TimingV1::of(&registers(), PixelClock::Wrpll, 0);
        assert_eq!((t.lines, t.blank), (806, 766));
        assert_eq!(t.frame_ns, 1344 * 806 * 1000 / 65);
        let mut r = registers();
        r.set(reg::WRPLL_CTL1, 0);
        assert_eq!(
            TimingV1::of(&r, PixelClock::Wrpll, 0).frame_ns,
            DEFAULT_FRAME_NS
        );
        // A pipe whose registers are all 0 still has a timing.
        assert!(TimingV1::of(&r, PixelClock::Wrpll, 2).is_possible());
    }

    #[test]
    fn kaby_lakes_clocks_say_it_too() {
        let mut r = registers();
        // What i915 programs for 65 MHz: 8.125 GHz / (1 * 5 * 5) / 5.
        r.set(reg::DPLL_CTRL2, 1 << 3 | 2 << 4);
        r.set(reg::DPLL_CFGCR1 + 8, 1 << 31 | 0x4555 << 9 | 338);
        r.set(reg::DPLL_CFGCR1 + 12, 5 << 8 | 1 << 7);
        let frame = TimingV1::of(&r, PixelClock::Dpll, 0).frame_ns;
        let exact = 1344 * 806 * 1000 / 65;
        assert!(frame.abs_diff(exact) < exact / 10_000, "{frame} {exact}");
        // A PLL without dividers, and the display's own clock.
        for select in [3, 0] {
            r.set(reg::DPLL_CTRL2, 1 << 3 | select << 4);
            let frame = TimingV1::of(&r, PixelClock::Dpll, 0).frame_ns;
            assert_eq!(frame, DEFAULT_FRAME_NS);
        }
    }

    #[test]
    fn blanks_come_once_a_frame_at_the_announced_time() {
        let timing = TimingV1::of(&registers(), PixelClock::Wrpll, 0);
        let mut pipe = Running::start(timing, 1000);
        let mut now = 1000;
        for n in 0..200 {
            assert_eq!(pipe.blanks(now), n);
            let next = pipe.next_blank_ns(now);
            assert!(next > now);
            assert_eq!(pipe.blanks(next - 1), n);
            now = next;
            assert_eq!(pipe.next_blank_ns(now + 5), now + 5, "late, not lost");
            assert_eq!(pipe.take_blank(now), (true, false));
            assert_eq!(pipe.take_blank(now), (false, false));
            assert_eq!(pipe.line(now), timing.blank);
        }
        let age = now - 1000;
        assert_eq!(age / timing.frame_ns, 199);
    }

    #[test]
    fn lines_move_and_are_never_0() {
        let timing = TimingV1::of(&registers(), PixelClock::Wrpll, 0);
        let pipe = Running::start(timing, 0);
        let line_ns = timing.frame_ns / u64::from(timing.lines) + 1;
        let lines: Vec<u32> = (0..806).map(|n| pipe.line(n * line_ns)).collect();
        assert!(lines.iter().all(|l| (1..806).contains(l)));
        assert!(lines.windows(2).filter(|w| w[0] != w[1]).count() > 800);
        assert!(pipe.line(u64::MAX) < 806);
    }

    #[test]
    fn a_saved_pipe_goes_on_from_its_phase() {
        let timing = TimingV1::of(&registers(), PixelClock::Wrpll, 0);
        let mut pipe = Running::start(timing, 50);
        let now = 50 + 10 * timing.frame_ns;
        pipe.take_blank(now);
        for elsewhere in [0, 7, 1 << 50] {
            let again = Running::restore(&pipe.save(now), elsewhere).unwrap();
            assert_eq!(again.blanks(elsewhere), pipe.blanks(now));
            assert_eq!(again.save(elsewhere), pipe.save(now));
            let wait = again.next_blank_ns(elsewhere) - elsewhere;
            assert_eq!(wait, pipe.next_blank_ns(now) - now);
        }
        let elsewhere = 0;
        let mut bad = pipe.save(now);
        bad.timing.lines = 0;
        assert_eq!(Running::restore(&bad, elsewhere), None);
    }
}
