//! Sending a request and waiting for its answer (Xen common/ioreq.c).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use xen_sys::layout as at;

use super::Vcpu;
use crate::domain::Stopped;
use crate::host::lock;
use crate::server::Server;

const NONE: u8 = 0;
const READY: u8 = 1;
const INPROCESS: u8 = 2;
const RESP_READY: u8 = 3;

/// The fields of a request, whatever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawIoreq {
    /// `IOREQ_TYPE_*`.
    pub kind: u8,
    /// Address.
    pub addr: u64,
    /// Data, or its address.
    pub data: u64,
    /// Repetitions.
    pub count: u32,
    /// Bytes of each.
    pub size: u32,
    /// A read of the device.
    pub read: bool,
    /// Downwards.
    pub df: bool,
    /// `data` is an address.
    pub data_is_ptr: bool,
}

impl RawIoreq {
    fn plain(kind: u32, addr: u64, size: u32, read: bool, data: u64) -> Self {
        Self {
            // The kinds of the ABI are below 256.
            kind: u8::try_from(kind).unwrap_or(u8::MAX),
            addr,
            data,
            count: 1,
            size,
            read,
            df: false,
            data_is_ptr: false,
        }
    }

    pub(super) fn mmio(addr: u64, size: u32, read: bool, data: u64) -> Self {
        Self::plain(xen_sys::IOREQ_TYPE_COPY, addr, size, read, data)
    }

    pub(super) fn pio(port: u64, size: u32, read: bool, data: u64) -> Self {
        Self::plain(xen_sys::IOREQ_TYPE_PIO, port, size, read, data)
    }

    pub(super) fn pci(sbdf: u32, register: u8, size: u32, read: bool, data: u64) -> Self {
        let addr = u64::from(sbdf) << 32 | u64::from(register);
        Self::plain(xen_sys::IOREQ_TYPE_PCI_CONFIG, addr, size, read, data)
    }

    fn invalidate() -> Self {
        Self::plain(xen_sys::IOREQ_TYPE_INVALIDATE, 0, 4, false, u64::MAX)
    }

    /// First and last byte a repetition touches
    /// (`ioreq_mmio_first_byte`, `ioreq_mmio_last_byte`).
    fn bytes(&self) -> (u64, u64) {
        let size = u64::from(self.size);
        let span = size.wrapping_mul(u64::from(self.count).wrapping_sub(1));
        if self.df {
            let last = self.addr.wrapping_add(size).wrapping_sub(1);
            (self.addr.wrapping_sub(span), last)
        } else {
            let end = self.addr.wrapping_add(span).wrapping_add(size);
            (self.addr, end.wrapping_sub(1))
        }
    }
}

impl Vcpu {
    /// Sends a request of any content to the server that has its address,
    /// and gives the answer, all-ones when no server does. Requests no guest
    /// can cause are for tests of a device model's checks.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn raw_request(&self, raw: &RawIoreq) -> Result<u64, Stopped> {
        self.run(|_| Ok(self.to_range(raw)?.unwrap_or(u64::MAX)))
    }

    /// Sends a request of any content to a server by its number.
    ///
    /// # Errors
    /// [`Stopped`] when the domain runs no more.
    pub fn raw_request_to(&self, server: u16, raw: &RawIoreq) -> Result<u64, Stopped> {
        let enabled = lock(&self.domain.servers).enabled();
        let Some(server) = enabled.into_iter().find(|s| s.id == server) else {
            return Ok(u64::MAX);
        };
        self.run(|_| Ok(self.ask(&server, raw)?.unwrap_or(u64::MAX)))
    }

    /// The server whose range has it, if there is one. A cycle of
    /// configuration space by ports becomes one.
    pub(super) fn select(&self, raw: &mut RawIoreq) -> Option<Arc<Server>> {
        let servers = lock(&self.domain.servers);
        match u32::from(raw.kind) {
            xen_sys::IOREQ_TYPE_PIO => {
                let cf8 = self.domain.cf8.load(Ordering::Relaxed);
                if raw.addr & !3 == 0xcfc && cf8 >> 31 == 1 {
                    let sbdf = cf8 >> 8 & 0xffff;
                    let register = u64::from(cf8 & 0xfc) | raw.addr & 3;
                    raw.kind = 2;
                    raw.addr = u64::from(sbdf) << 32 | register;
                    servers.select(xen_sys::XEN_DMOP_IO_RANGE_PCI, sbdf.into(), sbdf.into())
                } else {
                    let end = raw.addr.wrapping_add(u64::from(raw.size)).wrapping_sub(1);
                    servers.select(xen_sys::XEN_DMOP_IO_RANGE_PORT, raw.addr, end)
                }
            }
            xen_sys::IOREQ_TYPE_PCI_CONFIG => {
                let sbdf = raw.addr >> 32;
                servers.select(xen_sys::XEN_DMOP_IO_RANGE_PCI, sbdf, sbdf)
            }
            _ => {
                let (first, last) = raw.bytes();
                servers.select(xen_sys::XEN_DMOP_IO_RANGE_MEMORY, first, last)
            }
        }
    }

    /// The server that gets writes to protected frames.
    pub(super) fn protector(&self) -> Option<Arc<Server>> {
        lock(&self.domain.servers).protection()
    }

    /// Sends to the server whose range has it; `None` when there is none.
    fn to_range(&self, raw: &RawIoreq) -> Result<Option<u64>, Stopped> {
        let mut raw = *raw;
        match self.select(&mut raw) {
            Some(server) => {
                let answer = self.ask(&server, &raw)?;
                // Xen common/ioreq.c:vcpu_ioreq_handle_completion.
                self.invalidate_if_due()?;
                Ok(answer)
            }
            None => Ok(None),
        }
    }

    /// Sends and waits; `None` when it could not be sent.
    fn ask(&self, server: &Arc<Server>, raw: &RawIoreq) -> Result<Option<u64>, Stopped> {
        if self.send(server, raw) {
            self.wait_for_io(server).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Tells every enabled server to drop its mappings, and waits for all.
    pub(super) fn broadcast_invalidate(&self) -> Result<(), Stopped> {
        let servers = lock(&self.domain.servers).enabled();
        let raw = RawIoreq::invalidate();
        let sent: Vec<_> = servers
            .iter()
            .filter(|server| self.send(server, &raw))
            .collect();
        for server in sent {
            self.wait_for_io(server)?;
        }
        Ok(())
    }

    fn base(&self) -> usize {
        // At most 127.
        usize::try_from(self.number).unwrap_or(0) * at::IOREQ_SIZE
    }

    pub(super) fn send(&self, server: &Server, raw: &RawIoreq) -> bool {
        let slot = usize::try_from(self.number).ok();
        let Some(vcpu) = slot.and_then(|n| server.vcpus.get(n)) else {
            return false;
        };
        let Some(page) = server.page().map(|p| &p.mapping) else {
            return false;
        };
        let base = self.base();
        let Some(flags) = page.atomic_u8(base + at::IOREQ_FLAGS) else {
            return false;
        };
        let state = flags.load(Ordering::Acquire) & at::IOREQ_FLAGS_STATE;
        let mut port = [0; 4];
        let read = page.read(base + at::IOREQ_VP_EPORT, &mut port);
        let port = u32::from_le_bytes(port);
        if read.is_err() || state != NONE || port != vcpu.port.number() {
            log::warn!(
                "{}: device model set bad IO state {state} or port {port} for vcpu {}",
                self.domain.id,
                self.number
            );
            return false;
        }
        let mut bits = 0;
        for (set, bit) in [
            (raw.read, at::IOREQ_FLAGS_DIR),
            (raw.df, at::IOREQ_FLAGS_DF),
            (raw.data_is_ptr, at::IOREQ_FLAGS_DATA_IS_PTR),
        ] {
            if set {
                bits |= bit;
            }
        }
        let fields: [(usize, &[u8]); 5] = [
            (at::IOREQ_ADDR, &raw.addr.to_le_bytes()),
            (at::IOREQ_DATA, &raw.data.to_le_bytes()),
            (at::IOREQ_COUNT, &raw.count.to_le_bytes()),
            (at::IOREQ_ACCESS_SIZE, &raw.size.to_le_bytes()),
            (at::IOREQ_TYPE, &[raw.kind]),
        ];
        for (offset, bytes) in fields {
            if page.write(base + offset, bytes).is_err() {
                return false;
            }
        }
        flags.store(bits | READY, Ordering::Release);
        vcpu.port.notify();
        true
    }

    pub(super) fn wait_for_io(&self, server: &Server) -> Result<u64, Stopped> {
        let slot = usize::try_from(self.number).ok();
        let vcpu = slot.and_then(|n| server.vcpus.get(n));
        let page = server.page().map(|p| &p.mapping);
        // Both were there when the request was sent.
        let (Some(vcpu), Some(page)) = (vcpu, page) else {
            return Ok(u64::MAX);
        };
        let base = self.base();
        let Some(flags) = page.atomic_u8(base + at::IOREQ_FLAGS) else {
            return Ok(u64::MAX);
        };
        let mut before = NONE;
        loop {
            // Before the state is looked at, so that no event is missed.
            let seen = vcpu.wake.seen();
            let all = flags.load(Ordering::Acquire);
            let state = all & at::IOREQ_FLAGS_STATE;
            if state == NONE || server.is_gone() {
                // A dying emulator races with the request, or all is over.
                return self.domain.stopped().map_or(Ok(u64::MAX), Err);
            }
            if state < before {
                let why = format!("weird ioreq state transition {before} -> {state}");
                return Err(self.domain.crash(why));
            }
            before = state;
            match state {
                RESP_READY => {
                    let mut data = [0; 8];
                    let read = page.read(base + at::IOREQ_DATA, &mut data);
                    flags.store(all & !at::IOREQ_FLAGS_STATE, Ordering::Release);
                    return Ok(if read.is_ok() {
                        u64::from_le_bytes(data)
                    } else {
                        u64::MAX
                    });
                }
                READY | INPROCESS => {
                    if let Some(why) = self.domain.stopped() {
                        return Err(why);
                    }
                    // It leaves its CPU meanwhile.
                    let stopped = || self.domain.stopped().is_some();
                    self.domain
                        .cpus
                        .aside(stopped, || vcpu.wake.wait_past(seen));
                }
                _ => {
                    let why = format!("weird ioreq state {state}");
                    return Err(self.domain.crash(why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_covers_what_xen_says() {
        let mut raw = RawIoreq::mmio(0x1000, 4, true, 0);
        raw.count = 3;
        assert_eq!(raw.bytes(), (0x1000, 0x100b));
        raw.df = true;
        assert_eq!(raw.bytes(), (0xff8, 0x1003));
    }
}
