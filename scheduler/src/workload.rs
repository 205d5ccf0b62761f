//! One element of an execlist, made ready for the GPU.
//!
//! The guest's image, ring and tables are read once; what runs is built
//! from the copies: a shadow register page, a shadow ring, shadow tables.
//! The rest of the image is the guest's own pages.

mod buffers;
mod error;
mod image;
mod interrupted;
mod shadow;
mod site;

use std::sync::Arc;

use gen8::cmd::mi_op;
use gen8::csb::Descriptor;
use gen8::{Engine, Platform, lrc};
use guest_memory::{Gfn, PAGE_SIZE};

use crate::audit::{AuditLimits, Auditor};
use crate::dma::{GuestMap, HostPage, HostPages};
use crate::flights::{Flight, FlightLog, FlightSlot, Landing};
use crate::ggtt::{GuestGgtt, NotMapped, translate};
use crate::ppgtt::{RootPin, ShadowTables};
use crate::scan::{AddressSpace, Finding, Report, Scan, ScanMode};
use crate::switch::Effects;
use crate::windows::{Key, Pin, What, Windows, entry};
pub use error::PrepareError;
pub use image::ImageError;
use image::{Image, Ring};
pub use interrupted::{InBatch, Interrupted, idle_page};
pub use shadow::Shadow;
use shadow::{ShadowRing, read_ring, write_ring};
use site::Placed;
pub use site::WorkloadSite;

/// What a workload is made from.
pub struct Source<'a> {
    /// What its GPU is.
    pub gpu: &'static Platform,
    /// The vGPU's id.
    pub vgpu: u64,
    /// Its memory.
    pub map: &'a GuestMap,
    /// Its global table.
    pub table: &'a dyn GuestGgtt,
    /// Its shadow tables.
    pub tables: &'a Arc<ShadowTables>,
    /// The physical global table.
    pub windows: &'a Arc<Windows>,
    /// Own pages.
    pub pages: &'a Arc<HostPages>,
    /// What the audit may cost.
    pub limits: AuditLimits,
    /// Who looks at batches without privilege.
    pub scan: Option<Scan<'a>>,
}

/// What preparing cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Entries of the global table written.
    pub ptes: u64,
    /// Bytes copied from the guest, tables compared among them.
    pub bytes: u64,
    /// Privileged commands audited.
    pub commands: u64,
    /// Commands of batches without privilege looked at.
    pub user_commands: u64,
    /// Bytes of such batches that had been looked at before.
    pub unchanged: u64,
    /// A limit ended that.
    pub cut: bool,
}

/// An element ready to run. It keeps everything the GPU will touch; dropping
/// it says that the GPU no longer does.
pub struct Workload {
    /// The descriptor, with the image where the GPU finds it and no id.
    pub descriptor: Descriptor,
    /// The engine state is not to be loaded from the image.
    pub restore_inhibit: bool,
    /// What its commands do to registers that a switch carries over.
    pub effects: Effects,
    /// What it cost so far.
    pub cost: Cost,
    /// What has no place in its batches without privilege.
    pub findings: Vec<Finding>,
    /// For whoever made it: which shadow it runs from.
    pub shadow: usize,
    registers: Arc<HostPage>,
    /// What the register page held at first.
    loaded: Vec<u8>,
    /// Where the guest has its register page.
    guest_registers: u64,
    /// The guest's ring.
    guest_ring: Ring,
    /// It began before, and the register page says where it goes on.
    resumes: bool,
    /// It was interrupted before, in the ring or in that batch.
    pub resumed: Option<Option<InBatch>>,
    /// What kept its place until now.
    pub before: Option<FlightSlot>,
    lrca: u32,
    /// What keeps it from now on.
    slot: Option<FlightSlot>,
    held: Option<Held>,
}

/// What the GPU reaches while the workload runs.
struct Held {
    // Windows go before the pages they show.
    ring: ShadowRing,
    pins: Vec<Pin>,
    placed: Vec<Placed>,
    _registers: Arc<HostPage>,
    _root: RootPin,
}

/// An element, looked at.
pub enum Element {
    /// Its ring is empty: it is done.
    Empty,
    /// It has something to run.
    Work(Box<Workload>),
}

/// Bytes of the image a GPU keeps for itself in the register page.
const PRIVATE_BYTES: usize = lrc::PRIVATE * 4;

/// Makes `descriptor` ready to run on `engine`. One that was interrupted in
/// its ring or in a batch goes on there: `resumed`.
///
/// # Errors
/// [`PrepareError`]; nothing is held then.
pub fn prepare(
    source: &Source<'_>,
    shadow: &mut Shadow,
    engine: Engine,
    descriptor: Descriptor,
    resumed: Option<Option<InBatch>>,
) -> Result<Element, PrepareError> {
    // Bit 8 clear would run everything in the global table
    // (Linux gt/intel_lrc.h:GEN8_CTX_PRIVILEGE).
    const PRIVILEGE: u64 = 1 << 8;
    const L3_LLC_COHERENT: u64 = 1 << 5;
    if !descriptor.valid()
        || descriptor.addressing_mode() != Descriptor::MODE_PPGTT48
        || descriptor.0 & PRIVILEGE == 0
    {
        return Err(PrepareError::Descriptor(descriptor.0));
    }

    // The image: where the guest has each page of it.
    let first = descriptor.lrca() >> 12;
    let frames = image_frames(source.table, first, source.gpu.image(engine).pages)?;
    let register_index = usize::try_from(lrc::REGISTER_PAGE).unwrap_or(usize::MAX);
    let address = descriptor.register_page();
    let gfn = frames.get(register_index).copied().unwrap_or_default();
    let none = NotMapped::NoMemory { address, gfn };
    let guest_registers = gfn.address().ok_or(none)?;
    let mut bytes = [0; PAGE_SIZE];
    source
        .map
        .read(guest_registers, &mut bytes)
        .map_err(|e| NotMapped::unread(address, gfn, &e))?;
    let mut image = Image::new(source.gpu, engine, &bytes);
    let ring = image.ring()?;
    let in_batch = resumed.flatten();
    if ring.head == ring.tail && in_batch.is_none() {
        return Ok(Element::Empty);
    }

    // The commands.
    let mut words = vec![0; usize::try_from(ring.pending() / 4).unwrap_or(0)];
    read_ring(source, &ring, &mut words)?;
    let mut site = WorkloadSite::with_buffers(source, &mut shadow.buffers);
    let mut auditor = Auditor::on(source.gpu, engine, &mut site, source.limits);
    if shadow.unaudited || resumed.is_some() {
        auditor.may_be_predicated();
    }
    if let Some(place) = in_batch {
        auditor.goes_on_in_user_batches(place.addresses());
    }
    auditor.ring(&mut words, ring.head, ring.size)?;
    let in_ring = auditor.take_effects();
    if source.gpu.image(engine).runs_at_restore() {
        image.audit_batches(&mut auditor)?;
    }
    let effects = auditor.take_effects().then(&in_ring);
    shadow.unaudited |= effects.ran_user_batches();
    let commands = auditor.commands;
    let starts = std::mem::take(&mut auditor.user_batches);
    let unfollowed = auditor.more_user_batches;
    let WorkloadSite {
        pins: named,
        placed,
        mut shown,
        bytes: fetched,
        ..
    } = site;
    let mut pins: Vec<Pin> = named.into_values().collect();

    // The shadow ring.
    let mut shadow_ring = write_ring(source, shadow, &ring, &words)?;
    if words.is_empty() {
        // Only the batch is left; a ring without commands is for nothing else.
        shadow_ring.move_tail();
    }
    image.set_ring(shadow_ring.pin.address(), &shadow_ring);

    // The tables.
    let root = source.tables.pin(image.root())?;
    image.set_root(root.bus());
    let report = scan(source, engine, &root, &starts)?;

    // The register page, and the window that shows the image.
    let registers = shadow.registers(source.pages)?;
    let restore_inhibit = image.control();
    image.no_batch_state();
    if let Some(place) = in_batch {
        place.name(&mut image);
    }
    let loaded = image.bytes();
    registers.write(0, &loaded);
    let mut entries = Vec::with_capacity(frames.len());
    for (i, (address, gfn)) in (first..).zip(&frames).enumerate() {
        if i == register_index {
            entries.push(entry(registers.bus()));
            continue;
        }
        let bus = source.map.bus(*gfn).ok_or(NotMapped::NoMemory {
            address: address.wrapping_shl(12),
            gfn: *gfn,
        })?;
        entries.push(entry(bus));
        shown.push(*gfn);
    }
    root.shows(shown);
    let key = Key {
        vgpu: source.vgpu,
        what: What::Image {
            engine,
            page: first,
        },
    };
    let image_pin = source.windows.pin(key, &entries)?;
    let host = PRIVILEGE
        | L3_LLC_COHERENT
        | (u64::from(Descriptor::MODE_PPGTT48) << 3)
        | u64::from(image_pin.address())
        | 1;
    pins.push(image_pin);
    let copied = PAGE_SIZE + words.len() * 4;
    let compared = root.compared * 4096;
    Ok(Element::Work(Box::new(Workload {
        descriptor: Descriptor(host),
        restore_inhibit,
        effects,
        cost: Cost {
            ptes: pins.iter().map(|p| p.wrote).sum::<u64>()
                + shadow_ring.pin.wrote
                + placed.iter().map(Placed::wrote).sum::<u64>(),
            bytes: wide(copied + report.dwords * 4) + fetched + compared,
            commands,
            user_commands: report.commands,
            unchanged: wide(report.unchanged * 4),
            cut: report.cut || unfollowed,
        },
        findings: report.findings,
        shadow: 0,
        registers: Arc::clone(&registers),
        loaded,
        guest_registers,
        guest_ring: ring,
        resumes: false,
        resumed,
        before: None,
        lrca: descriptor.lrca(),
        slot: None,
        held: Some(Held {
            ring: shadow_ring,
            pins,
            placed,
            _registers: registers,
            _root: root,
        }),
    })))
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A context's address space, as the GPU is going to find it.
pub struct OwnSpace<'a> {
    /// Its tables.
    pub root: &'a RootPin,
    /// The guest's memory.
    pub map: &'a GuestMap,
}

impl AddressSpace for OwnSpace<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let gpa = self.root.frame(address).and_then(Gfn::address);
        gpa.is_some_and(|gpa| self.map.read(gpa + (address & 0xfff), bytes).is_ok())
    }
}

/// Looks at the batches without privilege, if somebody is there who does.
fn scan(
    source: &Source<'_>,
    engine: Engine,
    root: &RootPin,
    starts: &[u64],
) -> Result<Report, PrepareError> {
    let Some(Scan { scanner, opened }) = source.scan else {
        return Ok(Report::default());
    };
    if scanner.mode() == ScanMode::Off || starts.is_empty() {
        return Ok(Report::default());
    }
    let space = OwnSpace {
        root,
        map: source.map,
    };
    let report = scanner.scan(engine, opened, &space, starts);
    match report.findings.first() {
        Some(finding) if scanner.mode() == ScanMode::Refuse => Err((*finding).into()),
        _ => Ok(report),
    }
}

impl Workload {
    /// Puts commands in front of its own, or none, for a run that begins
    /// right behind another vGPU's. Returns whether there is room. It must
    /// not be at the engine.
    pub fn set_prologue(&mut self, commands: &[u32]) -> bool {
        if self.resumes || self.resumed.flatten().is_some() {
            // Its head is where it goes on, or a batch comes before that.
            return commands.is_empty();
        }
        let head = self.held.as_ref().and_then(|h| h.ring.prologue(commands));
        if let Some(head) = head {
            self.set_register(lrc::RING_HEAD, head);
        }
        head.is_some()
    }

    /// Offset of the end of the guest's ring.
    #[must_use]
    pub const fn guest_tail(&self) -> u32 {
        self.guest_ring.tail
    }

    /// How often it can be loaded again while it runs.
    #[must_use]
    pub fn reloads(&self) -> u32 {
        self.held.as_ref().map_or(0, |h| h.ring.moves())
    }

    /// Makes it ready to be loaded again while it runs: its tail moves on,
    /// over nothing. Returns whether there is room.
    pub fn reload(&mut self) -> bool {
        let tail = self.held.as_mut().and_then(|h| h.ring.move_tail());
        if let Some(tail) = tail {
            self.set_register(lrc::RING_TAIL, tail);
        }
        tail.is_some()
    }

    /// The windows it needs while it runs.
    pub fn windows(&self) -> impl Iterator<Item = &Pin> {
        self.held.iter().flat_map(|h| {
            let placed = h.placed.iter().map(Placed::pin);
            std::iter::once(&h.ring.pin).chain(&h.pins).chain(placed)
        })
    }

    /// It is about to be loaded, with `tag` in the upper half of its
    /// descriptor: its place is kept from now on.
    pub fn depart(&mut self, log: &Arc<FlightLog>, engine: Engine, vgpu: u64, tag: u32) {
        if self.slot.is_none()
            && let Some(held) = &self.held
        {
            let Ring { head, size, .. } = self.guest_ring;
            let flight = Flight {
                lrca: self.lrca,
                commands: (held.ring.head, self.guest_ring.pending()),
                ring: (head, size),
                resumed: self.resumed,
            };
            self.slot = log.take(engine, vgpu, &flight);
        }
        if let Some(slot) = &self.slot {
            slot.name(tag);
        }
        // Both said the same.
        self.before = None;
    }

    /// What keeps its place.
    pub fn take_slot(&mut self) -> Option<FlightSlot> {
        self.slot.take().or_else(|| self.before.take())
    }

    fn set_register(&self, index: usize, value: u32) {
        self.registers.write(index * 4, &value.to_le_bytes());
    }

    /// Gives up for good what the GPU may still reach: it is never freed.
    pub fn abandon(&mut self) {
        std::mem::forget(self.held.take());
    }

    /// Writes back to the guest's register page what it may see of the run:
    /// head, control, run time, and what changed of the GPU's own part. `head` is
    /// where it is in the guest's ring.
    /// Addresses in it stay the guest's. Returns the bytes written.
    ///
    /// A guest that took the page away meanwhile gets nothing.
    pub fn write_back(&self, map: &GuestMap, head: u32) -> usize {
        let mut bytes = [0; PAGE_SIZE];
        self.registers.read(0, &mut bytes);
        let at = lrc::RING_HEAD * 4;
        bytes[at..at + 4].copy_from_slice(&head.to_le_bytes());
        let mut written = 0;
        let mut put = |at: usize, len: usize| {
            let data = &bytes[at..at + len];
            let gpa = u64::try_from(at).ok().map(|a| self.guest_registers + a);
            if gpa.is_some_and(|gpa| map.write(gpa, data).is_ok()) {
                written += len;
            }
        };
        if let Some((from, to)) = changed(&self.loaded, &bytes, PRIVATE_BYTES) {
            put(from, to - from);
        }
        for index in [lrc::CONTEXT_CONTROL, lrc::CTX_TIMESTAMP, lrc::RING_HEAD] {
            put(index * 4, 4);
        }
        written
    }
}

/// The first and the end of the dwords from `start` on in which two pages
/// differ.
fn changed(before: &[u8], after: &[u8], start: usize) -> Option<(usize, usize)> {
    let pairs = before.chunks(4).zip(after.chunks(4)).skip(start / 4);
    let mut differ = (start / 4..).zip(pairs).filter(|(_, (b, a))| b != a);
    let first = differ.next()?.0;
    let last = differ.last().map_or(first, |(at, _)| at);
    Some((first * 4, last * 4 + 4))
}

/// Writes to a context's image what a GPU that died would have saved there.
/// Says whether the guest still has the image.
#[must_use]
pub fn land(source: &Source<'_>, descriptor: Descriptor, landing: &Landing) -> bool {
    let page = descriptor.register_page() >> 12;
    let gpa = translate(source.table, page).ok().and_then(Gfn::address);
    let Some(gpa) = gpa else {
        return false;
    };
    if !landing.began {
        return true;
    }
    let at = |index: usize| gpa + wide(index * 4);
    let mut control = [0; 4];
    let read = source.map.read(at(lrc::CONTEXT_CONTROL), &mut control);
    // What was loaded once is restored from then on.
    let control = u32::from_le_bytes(control) & !lrc::RESTORE_INHIBIT;
    let own: Vec<u8> = landing.own.iter().flat_map(|w| w.to_le_bytes()).collect();
    read.is_ok()
        && [
            (lrc::CONTEXT_CONTROL, control.to_le_bytes().as_slice()),
            (lrc::RING_HEAD, &landing.head.to_le_bytes()),
            (lrc::PRIVATE, &own),
        ]
        .into_iter()
        .all(|(index, bytes)| source.map.write(at(index), bytes).is_ok())
}

/// Bytes behind a tail that are looked at, at most: two commands are what i915
/// moves it by.
const NOTHING_BYTES: u32 = 64;

/// Where the ring of the context that `descriptor` names ends now, if there is
/// nothing between `tail` and that but commands that do nothing: i915's are
/// MI_ARB_CHECK and MI_NOOP (Linux `gt/gen8_engine_cs.c:gen8_emit_wa_tail`).
#[must_use]
pub fn no_more_than(
    source: &Source<'_>,
    engine: Engine,
    descriptor: Descriptor,
    tail: u32,
) -> Option<u32> {
    let page = descriptor.register_page() >> 12;
    let gpa = translate(source.table, page).ok()?.address()?;
    let mut bytes = [0; PAGE_SIZE];
    source.map.read(gpa, &mut bytes).ok()?;
    let ring = Image::new(source.gpu, engine, &bytes).ring().ok()?;
    let rest = Ring { head: tail, ..ring };
    if tail >= ring.size || rest.pending() > NOTHING_BYTES {
        return None;
    }
    let mut words = vec![0; usize::try_from(rest.pending() / 4).ok()?];
    read_ring(source, &rest, &mut words).ok()?;
    let idle = [mi_op::NOOP << 23, mi_op::ARB_CHECK << 23];
    let nothing = words.iter().all(|w| idle.contains(w));
    nothing.then_some(ring.tail)
}

fn image_frames(table: &dyn GuestGgtt, first: u32, pages: u32) -> Result<Vec<Gfn>, NotMapped> {
    if first + pages > gpu_bus::GGTT_ENTRIES {
        return Err(NotMapped::PastEnd {
            address: first << 12,
            pages,
        });
    }
    (first..first + pages)
        .map(|page| translate(table, page))
        .collect()
}

#[cfg(test)]
mod tests;
