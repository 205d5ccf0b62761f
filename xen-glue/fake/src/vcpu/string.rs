//! String instructions.

use guest_memory::PAGE_SIZE;

use super::emulate::VcpuIo;
use super::{RawIoreq, Vcpu, low_bytes, place};
use crate::domain::Stopped;

/// Repetitions that Xen emulates at a time (`hvmemul_virtual_to_linear`).
const MOST_AT_A_TIME: u32 = 4096;

/// Where the next item is.
pub(super) fn step(at: u64, size: u32, count: u32, df: bool) -> u64 {
    let bytes = u64::from(size).wrapping_mul(u64::from(count));
    if df {
        at.wrapping_sub(bytes)
    } else {
        at.wrapping_add(bytes)
    }
}

fn page_u32() -> u32 {
    u32::try_from(PAGE_SIZE).unwrap_or(4096)
}

fn offset_u32(gpa: u64) -> u32 {
    u32::try_from(place(gpa).1).unwrap_or(0)
}

/// Repetitions on a device before its page ends (`hvmemul_do_io`).
pub(super) fn on_device(gpa: u64, size: u32, count: u32, df: bool) -> u32 {
    let offset = offset_u32(gpa);
    let tail = page_u32() - offset;
    if tail < size {
        return 1;
    }
    count.min((if df { offset + size } else { tail }) / size)
}

/// Repetitions in RAM before its page ends (`hvmemul_do_io_addr`).
pub(super) fn in_ram(gpa: u64, size: u32, count: u32, df: bool) -> u32 {
    let offset = offset_u32(gpa);
    let fit = if df {
        ((offset + size - 1) % page_u32()) / size
    } else {
        (page_u32() - offset) / size
    };
    count.min(fit).max(1)
}

impl Vcpu {
    /// `rep stos`: one value, `count` times. `size` is 1, 2, 4 or 8.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn rep_stos(
        &self,
        gpa: u64,
        size: u32,
        count: u32,
        value: u64,
        df: bool,
    ) -> Result<(), Stopped> {
        let (bytes, n) = low_bytes(value, size);
        let (mut at, mut left) = (gpa, count);
        while left > 0 {
            let done = self.run(|io| match self.write_directly(at, &bytes[..n]) {
                Ok(()) => Ok(1),
                Err(fault) => self.emulate(io, Some((fault, true)), |e| {
                    e.stos(at, size, left.min(MOST_AT_A_TIME), value, df)
                }),
            })?;
            at = step(at, size, done, df);
            left -= done;
        }
        Ok(())
    }

    /// `rep movs`, each end RAM or a device. `size` is 1, 2, 4 or 8.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn rep_movs(
        &self,
        from: u64,
        to: u64,
        size: u32,
        count: u32,
        df: bool,
    ) -> Result<(), Stopped> {
        let (mut from, mut to, mut left) = (from, to, count);
        while left > 0 {
            let count = left.min(MOST_AT_A_TIME);
            let done = self.run(|io| self.move_some(io, (from, to), size, count, df))?;
            from = step(from, size, done, df);
            to = step(to, size, done, df);
            left -= done;
        }
        Ok(())
    }

    /// Some repetitions, at least one: the number.
    fn move_some(
        &self,
        io: &mut VcpuIo,
        (from, to): (u64, u64),
        size: u32,
        count: u32,
        df: bool,
    ) -> Result<u32, Stopped> {
        let (mut item, n) = low_bytes(0, size);
        let fault = match self.read_directly(from, &mut item[..n]) {
            Ok(()) => match self.write_directly(to, &item[..n]) {
                Ok(()) => return Ok(1),
                Err(gfn) => (gfn, true),
            },
            Err(gfn) => (gfn, false),
        };
        self.emulate(io, Some(fault), |e| e.movs(from, to, size, count, df))
    }

    /// `rep ins`: a port into RAM. `size` is 1, 2 or 4.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn rep_ins(
        &self,
        port: u16,
        gpa: u64,
        size: u32,
        count: u32,
        df: bool,
    ) -> Result<(), Stopped> {
        self.run(|io| self.port_run(io, port, (gpa, size, count, df), true))
    }

    /// `rep outs`: RAM to a port.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn rep_outs(
        &self,
        port: u16,
        gpa: u64,
        size: u32,
        count: u32,
        df: bool,
    ) -> Result<(), Stopped> {
        self.run(|io| self.port_run(io, port, (gpa, size, count, df), false))
    }

    fn port_run(
        &self,
        io: &mut VcpuIo,
        port: u16,
        (gpa, size, count, df): (u64, u32, u32, bool),
        read: bool,
    ) -> Result<(), Stopped> {
        let (mut at, mut left) = (gpa, count);
        while left > 0 {
            let mut raw = RawIoreq::pio(u64::from(port), size, read, at);
            raw.count = in_ram(at, size, left, df);
            raw.df = df;
            raw.data_is_ptr = true;
            let (done, _) = self.emulate(io, None, |e| e.request(raw))?;
            at = step(at, size, done, df);
            left -= done;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_cut_at_pages() {
        assert_eq!(on_device(0x1ff8, 4, 10, false), 2);
        assert_eq!(on_device(0x1ff8, 4, 10, true), 10);
        assert_eq!(on_device(0x1004, 4, 10, true), 2);
        // One that crosses goes alone.
        assert_eq!(on_device(0x1ffe, 4, 10, false), 1);
        assert_eq!(in_ram(0x1ff8, 4, 10, false), 2);
        assert_eq!(in_ram(0x1ffe, 4, 10, false), 1);
        assert_eq!(in_ram(0x1008, 4, 10, true), 2);
    }
}
