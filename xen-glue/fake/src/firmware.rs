//! What hvmloader does to a PCI function: size its BARs with decoding off,
//! place them, write them, and switch decoding on.
//!
//! Facts: Xen tools/firmware/hvmloader/pci.c. Biggest first; 64-bit BARs go
//! above 4 GiB when the hole below has no room.

use std::ops::RangeInclusive;

use xen_glue::Sbdf;

use crate::{Stopped, Vcpu};

const COMMAND: u8 = 0x04;
const COMMAND_IO: u32 = 1;
const COMMAND_MEMORY: u32 = 2;
const COMMAND_MASTER: u32 = 4;
const BAR0: u8 = 0x10;
const BARS: u8 = 6;
const INTERRUPT_LINE: u8 = 0x3c;
const INTERRUPT_PIN: u8 = 0x3d;

/// What a BAR decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// I/O ports.
    Io,
    /// Memory below 4 GiB.
    Memory32,
    /// Memory anywhere.
    Memory64,
}

/// A BAR that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// 0 to 5.
    pub index: u8,
    /// What it decodes.
    pub kind: BarKind,
    /// True when reads have no side effects.
    pub prefetchable: bool,
    /// First address.
    pub base: u64,
    /// Bytes, a power of two.
    pub size: u64,
}

/// Where BARs may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmioHole {
    /// Memory below 4 GiB.
    pub low: RangeInclusive<u64>,
    /// Memory above, for 64-bit BARs that do not fit below.
    pub high: RangeInclusive<u64>,
    /// I/O ports.
    pub io: RangeInclusive<u64>,
}

impl Default for MmioHole {
    /// hvmloader's: 192 MiB from 0xf0000000, ports from 0xc000.
    fn default() -> Self {
        Self {
            low: 0xf000_0000..=0xfbff_ffff,
            high: 0x1_0000_0000..=0xf_ffff_ffff,
            io: 0xc000..=0xffff,
        }
    }
}

/// Why BARs could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirmwareError {
    /// The domain runs no more.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// No device there.
    #[error("{0}: no such function")]
    NoFunction(Sbdf),
    /// A BAR that finds no room.
    #[error("{sbdf}: BAR{index} of {size:#x} bytes does not fit")]
    NoRoom {
        /// The function.
        sbdf: Sbdf,
        /// The BAR.
        index: u8,
        /// Its bytes.
        size: u64,
    },
}

/// Sizes the BARs of a function, places and writes them, and switches I/O,
/// memory and bus mastering on. Gives them in the order of their registers.
///
/// # Errors
/// [`FirmwareError`].
pub fn place_bars(vcpu: &Vcpu, sbdf: Sbdf, hole: &MmioHole) -> Result<Vec<Bar>, FirmwareError> {
    if vcpu.pci_config_read(sbdf, 0, 2)? == 0xffff {
        return Err(FirmwareError::NoFunction(sbdf));
    }
    let command = vcpu.pci_config_read(sbdf, COMMAND, 2)?;
    let decode = COMMAND_IO | COMMAND_MEMORY;
    vcpu.pci_config_write(sbdf, COMMAND, 2, command & !decode)?;
    let mut bars = probe(vcpu, sbdf)?;
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.size));
    let mut room = Room::new(hole);
    for bar in &mut bars {
        let base = room.take(bar.kind, bar.size);
        bar.base = base.ok_or(FirmwareError::NoRoom {
            sbdf,
            index: bar.index,
            size: bar.size,
        })?;
    }
    bars.sort_by_key(|bar| bar.index);
    for bar in &bars {
        let register = BAR0 + 4 * bar.index;
        vcpu.pci_config_write(sbdf, register, 4, low_dword(bar.base))?;
        if bar.kind == BarKind::Memory64 {
            vcpu.pci_config_write(sbdf, register + 4, 4, low_dword(bar.base >> 32))?;
        }
    }
    let pin = vcpu.pci_config_read(sbdf, INTERRUPT_PIN, 1)?;
    if pin != 0 {
        // hvmloader spreads links 0 to 3 over IRQs 5, 10 and 11.
        let link = (pin - 1 + u32::from(sbdf.device)) & 3;
        let irq = [5, 10, 11, 5][usize::try_from(link).unwrap_or(0)];
        vcpu.pci_config_write(sbdf, INTERRUPT_LINE, 1, irq)?;
    }
    let on = command | decode | COMMAND_MASTER;
    vcpu.pci_config_write(sbdf, COMMAND, 2, on)?;
    Ok(bars)
}

/// The size of each BAR, with decoding off.
fn probe(vcpu: &Vcpu, sbdf: Sbdf) -> Result<Vec<Bar>, FirmwareError> {
    let mut bars = Vec::new();
    let mut index = 0;
    while index < BARS {
        let register = BAR0 + 4 * index;
        let (was, mask) = probe_dword(vcpu, sbdf, register)?;
        let kind = match (was & 1, was >> 1 & 3) {
            (1, _) => BarKind::Io,
            (_, 2) => BarKind::Memory64,
            _ => BarKind::Memory32,
        };
        let size = match kind {
            BarKind::Io => size_of_mask(u64::from(mask & !3) | 0xffff_ffff_ffff_0000),
            BarKind::Memory32 => size_of_mask(u64::from(mask & !15) | 0xffff_ffff_0000_0000),
            BarKind::Memory64 if index + 1 < BARS => {
                let (_, high) = probe_dword(vcpu, sbdf, register + 4)?;
                size_of_mask(u64::from(high) << 32 | u64::from(mask & !15))
            }
            BarKind::Memory64 => 0,
        };
        // All-zero reads back where there is no BAR.
        if mask != 0 && size != 0 {
            bars.push(Bar {
                index,
                kind,
                prefetchable: kind != BarKind::Io && was & 8 != 0,
                base: 0,
                size,
            });
        }
        index += if kind == BarKind::Memory64 { 2 } else { 1 };
    }
    Ok(bars)
}

/// Writes all-ones, reads what stuck, and puts the old value back.
fn probe_dword(vcpu: &Vcpu, sbdf: Sbdf, register: u8) -> Result<(u32, u32), FirmwareError> {
    let was = vcpu.pci_config_read(sbdf, register, 4)?;
    vcpu.pci_config_write(sbdf, register, 4, u32::MAX)?;
    let mask = vcpu.pci_config_read(sbdf, register, 4)?;
    vcpu.pci_config_write(sbdf, register, 4, was)?;
    Ok((was, mask))
}

/// Bytes of a BAR whose writable address bits are `mask`; 0 for none.
fn size_of_mask(mask: u64) -> u64 {
    mask & mask.wrapping_neg()
}

/// The low half of an address.
fn low_dword(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

struct Room<'a> {
    hole: &'a MmioHole,
    low: u64,
    high: u64,
    io: u64,
}

impl<'a> Room<'a> {
    fn new(hole: &'a MmioHole) -> Self {
        Self {
            hole,
            low: *hole.low.start(),
            high: *hole.high.start(),
            io: *hole.io.start(),
        }
    }

    fn take(&mut self, kind: BarKind, size: u64) -> Option<u64> {
        match kind {
            BarKind::Io => fit(&mut self.io, *self.hole.io.end(), size),
            BarKind::Memory32 => fit(&mut self.low, *self.hole.low.end(), size),
            BarKind::Memory64 => fit(&mut self.low, *self.hole.low.end(), size)
                .or_else(|| fit(&mut self.high, *self.hole.high.end(), size)),
        }
    }
}

/// The next address from `next` on that is a multiple of `size`.
fn fit(next: &mut u64, end: u64, size: u64) -> Option<u64> {
    let base = next.checked_next_multiple_of(size)?;
    let last = base.checked_add(size - 1).filter(|last| *last <= end)?;
    *next = last.checked_add(1)?;
    Some(base)
}
