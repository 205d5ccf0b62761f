//! GMBUS, and the monitor's identification behind pin pair 5 (port B)
//! (Linux `display/intel_gmbus.c`, `intel_gmbus_regs.h`).

use gen8::vreg::pch;
use serde::{Deserialize, Serialize};

use crate::edid::{self, EDID_BYTES, Mode};
use crate::kept::{join, low, place, split};

/// Pin pair of port B.
const PIN_DPB: u32 = 5;
/// Seven-bit address of the identification.
const DDC: u32 = 0x50;

const CLEAR: u32 = 1 << 31;
const GO: u32 = 1 << 30;
const CYCLE_STOP: u32 = 1 << 27;
const CYCLE_INDEX: u32 = 1 << 26;
const CYCLE_WAIT: u32 = 1 << 25;

const WAIT_PHASE: u32 = 1 << 14;
const READY: u32 = 1 << 11;
const NAK: u32 = 1 << 10;
const ACTIVE: u32 = 1 << 9;

/// The controller's saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GmbusV1 {
    /// GMBUS0.
    pub select: u32,
    /// GMBUS1 as last written.
    pub command: u32,
    /// GMBUS3 as last written.
    pub data: u32,
    /// GMBUS4.
    pub interrupts: u32,
    /// GMBUS5.
    pub index: u32,
    /// A transfer is open.
    pub active: bool,
    /// Nobody answered.
    pub nak: bool,
    /// The transfer reads.
    pub reading: bool,
    /// Bytes still to transfer.
    pub remaining: u32,
    /// The byte of the identification that comes next.
    pub position: u8,
}

/// The controller. Its state is small enough to be kept in its saved form.
#[derive(Debug)]
pub(crate) struct Gmbus {
    state: GmbusV1,
    edid: [u8; EDID_BYTES],
    /// Something may have changed since it was last kept.
    touched: bool,
}

impl Gmbus {
    pub(crate) fn new(mode: Mode) -> Self {
        Self::restore(mode, &GmbusV1::default())
    }

    pub(crate) fn restore(mode: Mode, state: &GmbusV1) -> Self {
        Self {
            state: state.clone(),
            edid: edid::edid(mode),
            touched: true,
        }
    }

    /// Puts what a successor needs, if it may have changed.
    pub(crate) fn keep(&mut self, put: &mut impl FnMut(usize, u64)) {
        if !std::mem::take(&mut self.touched) {
            return;
        }
        let GmbusV1 {
            select,
            command,
            data,
            interrupts,
            index,
            active,
            nak,
            reading,
            remaining,
            position,
        } = self.state;
        let at = place::GMBUS;
        let flags = [u8::from(active), u8::from(nak), u8::from(reading), position];
        put(at, join(select, command));
        put(at + 1, join(data, interrupts));
        put(at + 2, join(index, remaining));
        put(at + 3, u64::from(u32::from_le_bytes(flags)));
    }

    /// The controller as kept.
    pub(crate) fn kept(mode: Mode, get: impl Fn(usize) -> u64) -> Self {
        let at = place::GMBUS;
        let (select, command) = split(get(at));
        let (data, interrupts) = split(get(at + 1));
        let (index, remaining) = split(get(at + 2));
        let [active, nak, reading, position] = low(get(at + 3)).to_le_bytes();
        Self::restore(
            mode,
            &GmbusV1 {
                select,
                command,
                data,
                interrupts,
                index,
                active: active != 0,
                nak: nak != 0,
                reading: reading != 0,
                remaining,
                position,
            },
        )
    }

    pub(crate) fn save(&self) -> GmbusV1 {
        let Self {
            state,
            edid: _,
            touched: _,
        } = self;
        state.clone()
    }

    pub(crate) fn read(&mut self, offset: u32) -> u32 {
        match offset {
            pch::GMBUS0 => self.state.select,
            pch::GMBUS1 => self.state.command & !GO,
            pch::GMBUS2 => self.status(),
            pch::GMBUS3 => self.data(),
            pch::GMBUS4 => self.state.interrupts,
            pch::GMBUS5 => self.state.index,
            _ => 0,
        }
    }

    pub(crate) fn write(&mut self, offset: u32, value: u32) {
        self.touched = true;
        let s = &mut self.state;
        match offset {
            pch::GMBUS0 => {
                s.select = value;
                if value & 7 == 0 {
                    s.active = false;
                }
            }
            pch::GMBUS1 => self.command(value),
            pch::GMBUS3 => {
                s.data = value;
                if s.active && !s.reading {
                    s.remaining = s.remaining.saturating_sub(4);
                }
            }
            pch::GMBUS4 => s.interrupts = value,
            pch::GMBUS5 => s.index = value,
            // GMBUS2 is status.
            _ => {}
        }
    }

    /// Always ready, and always waiting for the next cycle of an open
    /// transfer: the bus takes no time.
    fn status(&self) -> u32 {
        let s = &self.state;
        let mut value = READY;
        if s.nak {
            value |= NAK;
        }
        if s.active {
            value |= ACTIVE | WAIT_PHASE;
        }
        value
    }

    fn command(&mut self, value: u32) {
        let s = &mut self.state;
        s.command = value;
        if value & CLEAR != 0 {
            s.nak = false;
            s.active = false;
            s.remaining = 0;
            return;
        }
        if value & GO == 0 {
            return;
        }
        if value & (CYCLE_WAIT | CYCLE_INDEX) == 0 {
            // A stop cycle alone.
            s.active = false;
            s.remaining = 0;
            return;
        }
        let answered = s.select & 7 == PIN_DPB && (value >> 1) & 0x7f == DDC;
        s.nak = !answered;
        s.active = answered && value & CYCLE_STOP == 0;
        if !answered {
            return;
        }
        s.reading = value & 1 != 0;
        s.remaining = (value >> 16) & 0x1ff;
        if value & CYCLE_INDEX != 0 {
            let [_, index, ..] = value.to_le_bytes();
            s.position = index;
        } else if !s.reading {
            // The first byte written, put into GMBUS3 before the command,
            // is where the next read starts.
            let [first, ..] = s.data.to_le_bytes();
            s.position = first;
            s.remaining = s.remaining.saturating_sub(4);
        }
    }

    /// The next four bytes, or those last written.
    fn data(&mut self) -> u32 {
        self.touched = true;
        if !self.state.reading {
            return self.state.data;
        }
        let mut bytes = [0; 4];
        for byte in &mut bytes {
            if self.state.remaining == 0 {
                break;
            }
            let at = usize::from(self.state.position);
            *byte = self.edid.get(at).copied().unwrap_or(0xff);
            self.state.position = self.state.position.wrapping_add(1);
            self.state.remaining -= 1;
        }
        u32::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(address: u32, read: bool, count: u32, cycle: u32) -> u32 {
        GO | cycle | count << 16 | address << 1 | u32::from(read)
    }

    /// Reads `count` bytes the way i915 does.
    fn transfer(g: &mut Gmbus, count: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < 128.min(count as usize) {
            assert_eq!(g.read(pch::GMBUS2) & (READY | NAK), READY);
            bytes.extend(g.read(pch::GMBUS3).to_le_bytes());
        }
        assert_ne!(g.read(pch::GMBUS2) & WAIT_PHASE, 0);
        g.write(pch::GMBUS1, GO | CYCLE_STOP);
        assert_eq!(g.read(pch::GMBUS2) & ACTIVE, 0);
        g.write(pch::GMBUS0, 0);
        bytes
    }

    #[test]
    fn an_indexed_read_gives_the_identification() {
        let mut g = Gmbus::new(Mode::M1024x768);
        for _ in 0..2 {
            g.write(pch::GMBUS0, PIN_DPB);
            g.write(
                pch::GMBUS1,
                command(DDC, true, 128, CYCLE_WAIT | CYCLE_INDEX),
            );
            assert_eq!(transfer(&mut g, 128), edid::edid(Mode::M1024x768));
        }
    }

    #[test]
    fn a_written_offset_is_where_the_read_starts() {
        let mut g = Gmbus::new(Mode::M1024x768);
        g.write(pch::GMBUS0, PIN_DPB);
        g.write(pch::GMBUS3, 8);
        g.write(pch::GMBUS1, command(DDC, false, 1, CYCLE_WAIT));
        g.write(pch::GMBUS1, command(DDC, true, 4, CYCLE_WAIT));
        assert_eq!(transfer(&mut g, 4), [0x58, 0xf8, 1, 0]);
    }

    #[test]
    fn other_pins_and_addresses_do_not_answer() {
        for (pin, address) in [(4, DDC), (PIN_DPB, 0x40), (0, DDC)] {
            let mut g = Gmbus::new(Mode::M1024x768);
            g.write(pch::GMBUS0, pin);
            g.write(pch::GMBUS1, command(address, true, 1, CYCLE_WAIT));
            let status = g.read(pch::GMBUS2);
            assert_ne!(status & NAK, 0);
            assert_eq!(status & ACTIVE, 0);
            g.write(pch::GMBUS1, CLEAR);
            g.write(pch::GMBUS1, 0);
            assert_eq!(g.read(pch::GMBUS2) & NAK, 0);
        }
    }
}
