//! String instructions.

use guest_memory::{Gfn, PAGE_SIZE};

use super::{ALL_ONES, RawIoreq, Vcpu, low_bytes, place};
use crate::domain::Stopped;
use crate::memory::FrameKind;

/// Where the next item is.
fn step(at: u64, size: u32, count: u32, df: bool) -> u64 {
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
fn on_device(gpa: u64, size: u32, count: u32, df: bool) -> u32 {
    let offset = offset_u32(gpa);
    let tail = page_u32() - offset;
    if tail < size {
        return 1;
    }
    count.min((if df { offset + size } else { tail }) / size)
}

/// Repetitions in RAM before its page ends (`hvmemul_do_io_addr`).
fn in_ram(gpa: u64, size: u32, count: u32, df: bool) -> u32 {
    let offset = offset_u32(gpa);
    let fit = if df {
        ((offset + size - 1) % page_u32()) / size
    } else {
        (page_u32() - offset) / size
    };
    count.min(fit).max(1)
}

impl Vcpu {
    fn is_ram(&self, gpa: u64) -> bool {
        !matches!(
            self.domain.memory.kind(Gfn::containing(gpa).0),
            FrameKind::Hole | FrameKind::MmioDm
        )
    }

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
        self.run(|| {
            let (bytes, n) = low_bytes(value, size);
            let (mut at, mut left) = (gpa, count);
            while left > 0 {
                let mut done = 1;
                if self.is_ram(at) {
                    self.store(at, &bytes[..n])?;
                } else {
                    done = on_device(at, size, left, df);
                    let mut raw = RawIoreq::mmio(at, size, false, value);
                    raw.count = done;
                    raw.df = df;
                    self.to_range(&raw)?;
                }
                at = step(at, size, done, df);
                left -= done;
            }
            Ok(())
        })
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
        self.run(|| {
            let (mut from, mut to, mut left) = (from, to, count);
            while left > 0 {
                let done = match (self.is_ram(from), self.is_ram(to)) {
                    (true, false) => self.move_run(to, from, size, left, df, false)?,
                    (false, true) => self.move_run(from, to, size, left, df, true)?,
                    _ => {
                        let (mut item, n) = low_bytes(0, size);
                        self.load(from, &mut item[..n])?;
                        self.store(to, &item[..n])?;
                        1
                    }
                };
                from = step(from, size, done, df);
                to = step(to, size, done, df);
                left -= done;
            }
            Ok(())
        })
    }

    /// One request between a device and RAM; gives its repetitions.
    fn move_run(
        &self,
        device: u64,
        ram: u64,
        size: u32,
        count: u32,
        df: bool,
        read: bool,
    ) -> Result<u32, Stopped> {
        let count = in_ram(ram, size, count, df);
        let count = on_device(device, size, count, df);
        let mut raw = RawIoreq::mmio(device, size, read, ram);
        raw.count = count;
        raw.df = df;
        raw.data_is_ptr = true;
        if self.to_range(&raw)?.is_none() && read {
            self.nothing_into_ram(ram, size, count, df)?;
        }
        Ok(count)
    }

    /// Xen's own answer where no server has the address.
    fn nothing_into_ram(&self, ram: u64, size: u32, count: u32, df: bool) -> Result<(), Stopped> {
        let (ones, n) = low_bytes(ALL_ONES, size);
        for i in 0..count {
            self.store(step(ram, size, i, df), &ones[..n])?;
        }
        Ok(())
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
        self.run(|| self.port_run(port, gpa, size, count, df, true))
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
        self.run(|| self.port_run(port, gpa, size, count, df, false))
    }

    fn port_run(
        &self,
        port: u16,
        gpa: u64,
        size: u32,
        count: u32,
        df: bool,
        read: bool,
    ) -> Result<(), Stopped> {
        let (mut at, mut left) = (gpa, count);
        while left > 0 {
            let done = in_ram(at, size, left, df);
            let mut raw = RawIoreq::pio(u64::from(port), size, read, at);
            raw.count = done;
            raw.df = df;
            raw.data_is_ptr = true;
            if self.to_range(&raw)?.is_none() && read {
                self.nothing_into_ram(at, size, done, df)?;
            }
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
