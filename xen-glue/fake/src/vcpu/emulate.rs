//! Xen's emulator, as far as an instruction meets device models.
//!
//! Xen emulates an instruction that needs an answer once to send the request,
//! and from its start again when the answer is there (Xen
//! common/ioreq.c:vcpu_ioreq_handle_completion). What it read and wrote before
//! it remembers; what a frame is it looks up anew, each time
//! (arch/x86/hvm/emulate.c; named after it here). So an instruction may find
//! that a frame has changed its type meanwhile, and that not all do the same
//! then is what a device model must know.

use std::collections::HashMap;
use std::sync::Arc;

use guest_memory::{Gfn, PAGE_SIZE};

use super::string::{in_ram, on_device, step};
use super::{ALL_ONES, RawIoreq, Vcpu, chunk, length, low_bytes, place, size_u32};
use crate::domain::Stopped;
use crate::memory::{FrameKind, Touch};
use crate::server::Server;

/// Accesses to devices that one instruction can make, and bytes of each
/// (`struct hvm_mmio_cache`). Xen has one less, which is too few for a `movs`
/// that crosses a page's edge at both ends.
const ACCESSES: usize = 4;
pub(super) const ACCESS_BYTES: usize = 64;

/// What a vCPU has to do with requests, from one instruction to the next
/// (`struct vcpu_io`).
#[derive(Debug, Default)]
pub(crate) struct VcpuIo {
    /// A request that was answered (`STATE_IORESP_READY`), and the answer,
    /// which nothing has taken yet.
    answer: Option<(RawIoreq, u64)>,
}

/// How a pass over an instruction ended, other than well.
pub(super) enum Break {
    /// There is a request; when it is answered the next pass comes.
    Asked(Arc<Server>, RawIoreq),
    /// The guest executes the instruction once more.
    Again,
    /// It cannot be done in this way (`X86EMUL_UNHANDLEABLE`).
    Unhandleable,
    /// The vCPU runs no more.
    Stopped(Stopped),
}

pub(super) type Pass<T> = Result<T, Break>;

/// One access to a device, by its address (`struct hvm_mmio_cache`).
struct Access {
    addr: u64,
    read: bool,
    /// What has been done of it.
    bytes: Vec<u8>,
}

/// One instruction.
pub(super) struct Emulator<'a> {
    vcpu: &'a Vcpu,
    io: &'a mut VcpuIo,
    accesses: Vec<Access>,
    /// What it read from memory (`struct hvmemul_cache`).
    reads: HashMap<(u64, usize), Vec<u8>>,
    /// The frame known to be no RAM, and whether for writes, too
    /// (`mmio_access`, `mmio_gpfn`).
    latched: Option<(Gfn, bool)>,
    /// Requests that it does not wait for; the vCPU does, before the next.
    sent: Vec<Arc<Server>>,
}

/// What is at an address to be written (`hvmemul_map_linear_addr`).
enum Target {
    Memory,
    Discard,
    Device,
}

impl Vcpu {
    /// Emulates an instruction that met a frame which is no RAM (`fault`: for
    /// writes?), pass by pass.
    pub(super) fn emulate<T>(
        &self,
        io: &mut VcpuIo,
        fault: Option<(Gfn, bool)>,
        instruction: impl Fn(&mut Emulator<'_>) -> Pass<T>,
    ) -> Result<T, Stopped> {
        // From the look at the type on until a request is sent
        // (arch/x86/hvm/hvm.c:hvm_hap_nested_page_fault), but not in later
        // passes.
        let mut types = Some(self.domain.memory.hold_types());
        // That look is not the processor's, and may find something else.
        let still = || fault.filter(|(gfn, write)| self.faults(*gfn, *write));
        let mut emulator = Emulator {
            vcpu: self,
            io,
            accesses: Vec::new(),
            reads: HashMap::new(),
            latched: still(),
            sent: Vec::new(),
        };
        let mut asked = false;
        loop {
            match instruction(&mut emulator) {
                Ok(value) => {
                    drop(types);
                    let sent = std::mem::take(&mut emulator.sent);
                    for server in &sent {
                        self.wait_for_io(server)?;
                    }
                    if asked || !sent.is_empty() {
                        self.invalidate_if_due()?;
                    }
                    return Ok(value);
                }
                Err(Break::Asked(server, raw)) => {
                    types = None;
                    asked = true;
                    let data = self.wait_for_io(&server)?;
                    emulator.io.answer = Some((raw, data));
                }
                Err(Break::Again) => {
                    drop(types);
                    emulator.accesses.clear();
                    emulator.reads.clear();
                    if let Some(why) = self.domain.stopped() {
                        return Err(why);
                    }
                    self.domain.cpus.breathe(|| self.domain.stopped().is_some());
                    types = Some(self.domain.memory.hold_types());
                    emulator.latched = still();
                }
                Err(Break::Unhandleable) => {
                    let why = "an instruction that cannot be emulated".into();
                    return Err(self.domain.crash(why));
                }
                Err(Break::Stopped(why)) => return Err(why),
            }
        }
    }

    /// Whether a frame cannot be read, or written.
    fn faults(&self, gfn: Gfn, write: bool) -> bool {
        match self.domain.memory.kind(gfn.0) {
            FrameKind::Hole | FrameKind::MmioDm => true,
            FrameKind::WriteProtected | FrameKind::RamReadOnly => write,
            FrameKind::Ram | FrameKind::PagedOut(_) | FrameKind::PopulateOnDemand => false,
        }
    }

    /// The first frame, if there is one, that an access of `len` bytes cannot
    /// write.
    fn find_fault(&self, gpa: u64, len: usize) -> Option<Gfn> {
        let mut frames = parts(gpa, len).into_iter().map(|(gfn, _, _)| gfn);
        frames.find(|gfn| self.faults(*gfn, true))
    }

    /// Changes memory in one go and gives what was there; the frame that is
    /// none or protected else.
    pub(super) fn modify_directly(
        &self,
        gpa: u64,
        len: usize,
        change: &dyn Fn(u64) -> u64,
    ) -> Result<u64, Gfn> {
        let old = self.domain.memory.modify(gpa, len, false, change);
        old.ok_or_else(|| self.find_fault(gpa, len).unwrap_or(place(gpa).0))
    }

    /// Reads memory; the frame that is none else.
    pub(super) fn read_directly(&self, gpa: u64, buf: &mut [u8]) -> Result<(), Gfn> {
        let mut rest = buf;
        for (gfn, offset, len) in parts(gpa, rest.len()) {
            let (part, more) = rest.split_at_mut(len);
            match self.domain.memory.read(gfn, offset, part) {
                Touch::Done => rest = more,
                Touch::Trap | Touch::Mmio => return Err(gfn),
            }
        }
        Ok(())
    }

    /// Writes memory that is not protected; the frame that is none else.
    pub(super) fn write_directly(&self, gpa: u64, data: &[u8]) -> Result<(), Gfn> {
        let parts = parts(gpa, data.len());
        if let Some(gfn) = self.find_fault(gpa, data.len()) {
            return Err(gfn);
        }
        let mut rest = data;
        for (gfn, offset, len) in parts {
            let (part, more) = rest.split_at(len);
            match self.domain.memory.write(gfn, offset, part) {
                Touch::Done => rest = more,
                Touch::Trap | Touch::Mmio => return Err(gfn),
            }
        }
        Ok(())
    }
}

/// Frames, offsets and lengths of an access.
fn parts(gpa: u64, len: usize) -> Vec<(Gfn, usize, usize)> {
    let (mut at, mut left) = (gpa, len);
    let mut parts = Vec::new();
    while left > 0 {
        let (gfn, offset) = place(at);
        let n = (PAGE_SIZE - offset).min(left);
        parts.push((gfn, offset, n));
        at = at.wrapping_add(length(n));
        left -= n;
    }
    parts
}

impl Emulator<'_> {
    fn kind(&self, gfn: Gfn) -> FrameKind {
        self.vcpu.domain.memory.kind(gfn.0)
    }

    fn crash(&self, why: &str) -> Break {
        Break::Stopped(self.vcpu.domain.crash(why.into()))
    }

    /// A request, or the answer to the one that was sent in the last pass
    /// (`hvmemul_do_io`). Gives how many repetitions were done, and the data.
    pub(super) fn request(&mut self, mut raw: RawIoreq) -> Pass<(u32, u64)> {
        let mmio = u32::from(raw.kind) == xen_sys::IOREQ_TYPE_COPY;
        if let Some((was, data)) = self.io.answer.take() {
            let same = was.kind == raw.kind
                && was.addr == raw.addr
                && was.size == raw.size
                && was.count <= raw.count
                && was.read == raw.read
                && was.df == raw.df
                && was.data_is_ptr == raw.data_is_ptr
                && (!raw.data_is_ptr || was.data == raw.data);
            if !same {
                return Err(self.crash("a request was not correctly issued again"));
            }
            return Ok((was.count, data));
        }
        if mmio && raw.count > 1 {
            raw.count = on_device(raw.addr, raw.size, raw.count, raw.df);
        }
        let memory = &self.vcpu.domain.memory;
        let (gfn, offset) = place(raw.addr);
        // What it is to the server can be another thing than what it is here.
        let mut outside = raw;
        let server = if mmio && self.kind(gfn) == FrameKind::WriteProtected {
            if raw.read {
                let mut bytes = [0; 8];
                let (_, n) = low_bytes(0, raw.size);
                memory.peek(gfn, offset, &mut bytes[..n]);
                return Ok((1, u64::from_le_bytes(bytes)));
            }
            // Without a server the type is just going away.
            Some(self.vcpu.protector().ok_or(Break::Again)?)
        } else {
            self.vcpu.select(&mut outside)
        };
        let sent = server.filter(|server| self.vcpu.send(server, &outside));
        let Some(server) = sent else {
            // Nobody has it: writes are dropped, reads find all ones.
            if raw.data_is_ptr && raw.read {
                self.nothing_into_ram(&raw);
            }
            return Ok((raw.count, ALL_ONES));
        };
        // `ioreq_needs_completion`.
        let port = u32::from(raw.kind) == xen_sys::IOREQ_TYPE_PIO;
        if raw.data_is_ptr || port && !raw.read {
            self.sent.push(server);
            return Ok((raw.count, ALL_ONES));
        }
        Err(Break::Asked(server, raw))
    }

    fn nothing_into_ram(&self, raw: &RawIoreq) {
        let (ones, n) = low_bytes(ALL_ONES, raw.size);
        for i in 0..raw.count {
            let (gfn, offset) = place(step(raw.data, raw.size, i, raw.df));
            let n = n.min(PAGE_SIZE - offset);
            self.vcpu.domain.memory.write(gfn, offset, &ones[..n]);
        }
    }

    /// `hvmemul_find_mmio_cache`.
    fn access(&self, addr: u64, read: bool) -> Option<usize> {
        let mut accesses = self.accesses.iter();
        accesses.position(|a| a.addr == addr && a.read == read)
    }

    fn latch(&mut self, gfn: Gfn, write: bool) {
        self.latched.get_or_insert((gfn, write));
    }

    /// Whether an access is to the frame that is known to be no RAM
    /// (`known_gla`).
    fn is_known(&self, gpa: u64, len: usize, write: bool) -> bool {
        let (gfn, offset) = place(gpa);
        self.latched
            .is_some_and(|(known, writes)| known == gfn && (writes || !write))
            && offset + len <= PAGE_SIZE
    }

    /// `hvmemul_linear_mmio_access`. Data is read from `bytes` or put there.
    fn device(&mut self, gpa: u64, bytes: &mut [u8], read: bool) -> Pass<()> {
        let n = match self.access(gpa, read) {
            Some(n) => n,
            None if self.accesses.len() == ACCESSES => return Err(Break::Unhandleable),
            None => {
                let done = Vec::new();
                self.accesses.push(Access {
                    addr: gpa,
                    read,
                    bytes: done,
                });
                self.accesses.len() - 1
            }
        };
        self.latch(place(gpa).0, !read);
        let mut offset = 0;
        for (gfn, at, len) in parts(gpa, bytes.len()) {
            let (mut at, end) = (at, at + len);
            while at < end {
                let size = chunk(end - at);
                let item = &mut bytes[offset..offset + size];
                if let Some(done) = self.accesses[n].bytes.get(offset..offset + size) {
                    if read {
                        item.copy_from_slice(done);
                    } else if item != done {
                        return Err(self.crash("an instruction writes something else now"));
                    }
                } else {
                    let addr = (gfn.0 << 12).wrapping_add(length(at));
                    let mut value = [0; 8];
                    value[..size].copy_from_slice(item);
                    let data = if read { 0 } else { u64::from_le_bytes(value) };
                    let raw = RawIoreq::mmio(addr, size_u32(size), read, data);
                    let (_, data) = self.request(raw)?;
                    if read {
                        item.copy_from_slice(&data.to_le_bytes()[..size]);
                    }
                    self.accesses[n].bytes.extend_from_slice(item);
                }
                at += size;
                offset += size;
            }
        }
        Ok(())
    }

    /// `linear_read`.
    pub(super) fn read(&mut self, gpa: u64, buf: &mut [u8]) -> Pass<()> {
        let mut rest = buf;
        let mut at = gpa;
        for (gfn, offset, len) in parts(gpa, rest.len()) {
            let (part, more) = rest.split_at_mut(len);
            if let Some(seen) = self.reads.get(&(at, len)) {
                part.copy_from_slice(seen);
            } else if self.access(at, true).is_none()
                && matches!(self.vcpu.domain.memory.read(gfn, offset, part), Touch::Done)
            {
                self.reads.insert((at, len), part.to_vec());
            } else {
                self.device(at, part, true)?;
            }
            at = at.wrapping_add(length(len));
            rest = more;
        }
        Ok(())
    }

    /// `linear_write`.
    fn write_by_parts(&mut self, gpa: u64, data: &[u8]) -> Pass<()> {
        let mut rest = data;
        let mut at = gpa;
        for (gfn, offset, len) in parts(gpa, data.len()) {
            let (part, more) = rest.split_at(len);
            // What was a device's in an earlier pass is so in this, too.
            let memory = &self.vcpu.domain.memory;
            if self.access(at, false).is_some()
                || !matches!(memory.write(gfn, offset, part), Touch::Done)
            {
                self.device(at, &mut part.to_vec(), false)?;
            }
            at = at.wrapping_add(length(len));
            rest = more;
        }
        Ok(())
    }

    /// `hvmemul_map_linear_addr`.
    fn target(&self, gpa: u64, len: usize) -> Target {
        if self.is_known(gpa, len, true) {
            return Target::Device;
        }
        for (gfn, _, _) in parts(gpa, len) {
            match self.kind(gfn) {
                FrameKind::Hole | FrameKind::MmioDm | FrameKind::WriteProtected => {
                    return Target::Device;
                }
                FrameKind::RamReadOnly => return Target::Discard,
                FrameKind::Ram | FrameKind::PagedOut(_) | FrameKind::PopulateOnDemand => {}
            }
        }
        Target::Memory
    }

    /// `hvmemul_write`.
    pub(super) fn write(&mut self, gpa: u64, data: &[u8]) -> Pass<()> {
        match self.target(gpa, data.len()) {
            Target::Discard => Ok(()),
            Target::Device => self.write_by_parts(gpa, data),
            Target::Memory => {
                self.vcpu.domain.memory.store(gpa, data);
                Ok(())
            }
        }
    }

    /// A read-modify-write (`hvmemul_rmw`). Gives what was there.
    pub(super) fn modify(&mut self, gpa: u64, size: u32, change: &dyn Fn(u64) -> u64) -> Pass<u64> {
        let (_, n) = low_bytes(0, size);
        match self.target(gpa, n) {
            Target::Discard => Ok(0),
            Target::Memory => {
                let memory = &self.vcpu.domain.memory;
                memory.modify(gpa, n, true, change).ok_or(Break::Again)
            }
            Target::Device => {
                let mut bytes = [0; 8];
                self.read(gpa, &mut bytes[..n])?;
                let old = u64::from_le_bytes(bytes);
                self.write_by_parts(gpa, &change(old).to_le_bytes()[..n])?;
                Ok(old)
            }
        }
    }

    /// `cmpxchg` (x86_emulate.c and `hvmemul_cmpxchg`). Gives what was there:
    /// `expected` if `new` is there now.
    pub(super) fn exchange_if(
        &mut self,
        gpa: u64,
        size: u32,
        expected: u64,
        new: u64,
    ) -> Pass<u64> {
        let (_, n) = low_bytes(0, size);
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes[..n])?;
        let old = u64::from_le_bytes(bytes);
        if old != expected {
            return Ok(old);
        }
        match self.target(gpa, n) {
            Target::Discard => Ok(old),
            Target::Memory => {
                let change = |now| if now == expected { new } else { now };
                let memory = &self.vcpu.domain.memory;
                memory.modify(gpa, n, true, &change).ok_or(Break::Again)
            }
            Target::Device => {
                let (mut bytes, _) = low_bytes(new, size);
                self.device(gpa, &mut bytes[..n], false)?;
                Ok(old)
            }
        }
    }

    /// `rep stos`: gives how many items were stored (`hvmemul_rep_stos`).
    pub(super) fn stos(
        &mut self,
        gpa: u64,
        size: u32,
        count: u32,
        value: u64,
        df: bool,
    ) -> Pass<u32> {
        let (item, n) = low_bytes(value, size);
        let (gfn, _) = place(gpa);
        if count > 1 {
            if let FrameKind::Hole | FrameKind::MmioDm = self.kind(gfn) {
                self.latch(gfn, true);
                let mut raw = RawIoreq::mmio(gpa, size, false, value);
                (raw.count, raw.df) = (count, df);
                return self.request(raw).map(|(done, _)| done);
            }
            let first = lowest(gpa, size, count, df);
            let items = usize::try_from(count).unwrap_or(0);
            if self.copy_to(first, &item[..n].repeat(items)) {
                return Ok(count);
            }
        }
        self.write(gpa, &item[..n])?;
        Ok(1)
    }

    /// `rep movs`: gives how many items were moved (`hvmemul_rep_movs`).
    pub(super) fn movs(
        &mut self,
        from: u64,
        to: u64,
        size: u32,
        count: u32,
        df: bool,
    ) -> Pass<u32> {
        let device = |gpa| matches!(self.kind(place(gpa).0), FrameKind::Hole | FrameKind::MmioDm);
        if count > 1 {
            match (device(from), device(to)) {
                (true, true) => {}
                (true, false) => return self.move_run(from, to, size, count, df, true),
                (false, true) => return self.move_run(to, from, size, count, df, false),
                (false, false) => {
                    let items = usize::try_from(count).unwrap_or(0);
                    let (_, n) = low_bytes(0, size);
                    let (source, target) =
                        (lowest(from, size, count, df), lowest(to, size, count, df));
                    let bytes = length(items * n);
                    let overlap =
                        to.wrapping_add(size.into()) > source && to < source.wrapping_add(bytes);
                    let mut buf = vec![0; items * n];
                    if !overlap && self.copy_from(source, &mut buf) && self.copy_to(target, &buf) {
                        return Ok(count);
                    }
                }
            }
        }
        let (mut item, n) = low_bytes(0, size);
        self.read(from, &mut item[..n])?;
        self.write(to, &item[..n])?;
        Ok(1)
    }

    /// One request between a device and RAM (`hvmemul_do_io_addr`); gives its
    /// repetitions.
    fn move_run(
        &mut self,
        device: u64,
        ram: u64,
        size: u32,
        count: u32,
        df: bool,
        read: bool,
    ) -> Pass<u32> {
        self.latch(place(device).0, !read);
        let mut raw = RawIoreq::mmio(device, size, read, ram);
        raw.count = in_ram(ram, size, count, df);
        raw.df = df;
        raw.data_is_ptr = true;
        self.request(raw).map(|(done, _)| done)
    }

    /// `hvm_copy_to_guest_phys`: what comes before a page that is no RAM or
    /// protected is written.
    fn copy_to(&self, gpa: u64, data: &[u8]) -> bool {
        let mut rest = data;
        parts(gpa, data.len())
            .into_iter()
            .all(|(gfn, offset, len)| {
                let (part, more) = rest.split_at(len);
                rest = more;
                matches!(
                    self.vcpu.domain.memory.write(gfn, offset, part),
                    Touch::Done
                )
            })
    }

    /// `hvm_copy_from_guest_phys`.
    fn copy_from(&self, gpa: u64, buf: &mut [u8]) -> bool {
        let mut rest = buf;
        parts(gpa, rest.len())
            .into_iter()
            .all(|(gfn, offset, len)| {
                let (part, more) = std::mem::take(&mut rest).split_at_mut(len);
                rest = more;
                matches!(self.vcpu.domain.memory.read(gfn, offset, part), Touch::Done)
            })
    }
}

/// The lowest address of a repetition.
fn lowest(gpa: u64, size: u32, count: u32, df: bool) -> u64 {
    if df {
        step(gpa, size, count - 1, true)
    } else {
        gpa
    }
}
