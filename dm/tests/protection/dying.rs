//! A device model that is killed while it makes frames RAM, and one that is
//! killed while it takes such a one's place: at each operation, when a vCPU has
//! begun an instruction a moment before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use fake_xen::{Killed, MortalPrivcmd, Stopped};
use vgpu_device::Kept;
use vgpu_ring::KeptPart;
use xen_glue::{DeviceModel, Handles, Hypervisor, IoreqServerId, IoreqState};

use super::*;

/// A kernel's pointer: no entry of a table.
const POINTER: u64 = 0xffff_8880_1234_5678;

/// What is kept, by a process that can be killed.
struct MortalKept {
    part: KeptPart,
    process: Arc<MortalPrivcmd>,
}

impl Kept for MortalKept {
    fn load(&self, index: usize) -> u64 {
        self.part.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.process.check();
        self.part.store(index, value);
    }

    fn about_to(&self) {
        self.process.check();
    }
}

/// A guest whose device model dies, and has successors.
struct Dynasty {
    xen: FakeXen,
    domain: Domain,
    area: SharedArea,
    bells: Bells,
    vgpud: DaemonEnd,
    /// The ioreq server, and where the device is, once there is one.
    server: u16,
    registers: u64,
}

/// How an instruction ends, and what an access to the device gives then.
type Filled = (Result<(), Stopped>, Result<u64, Stopped>);

impl Dynasty {
    /// With the first of them.
    fn begin() -> (Self, Server, Arc<MortalPrivcmd>) {
        let xen = FakeXen::new();
        let domain = DomainConfig {
            vcpus: 2,
            ..DomainConfig::default()
        };
        let domain = xen.create_domain(domain).unwrap();
        let area = SharedArea::create(AreaConfig::default()).unwrap();
        let bells = Bells::new().unwrap();
        let mut this = Self {
            vgpud: area.daemon_end(bells.try_clone().unwrap()),
            xen,
            domain,
            area,
            bells,
            server: 0,
            registers: 0,
        };
        let (handles, process) = this.handles();
        let end = this.area.device_end(this.bells.try_clone().unwrap());
        let kept = this.kept(&process);
        let server = Server::attach_keeping(handles, &config(), end, kept).unwrap();
        this.server = server.id();
        this.registers = bases(&this.domain.vcpu(0).unwrap()).0;
        (this, server, process)
    }

    fn kept(&self, process: &Arc<MortalPrivcmd>) -> Arc<MortalKept> {
        let end = self.area.device_end(self.bells.try_clone().unwrap());
        Arc::new(MortalKept {
            part: end.kept,
            process: Arc::clone(process),
        })
    }

    fn handles(&self) -> (Handles, Arc<MortalPrivcmd>) {
        let mut handles = Handles::open(&self.xen, self.domain.id()).unwrap();
        let process = MortalPrivcmd::new(handles.privcmd);
        handles.privcmd = process.clone();
        (handles, process)
    }

    /// The next, which is killed at its `step`th operation if it comes so far;
    /// `None` when it does while it takes over.
    fn next(
        &self,
        step: u64,
        before_ram: impl FnOnce() + Send + 'static,
    ) -> (Option<Server>, Arc<MortalPrivcmd>) {
        let (handles, process) = self.handles();
        process.dies_after(step);
        process.before_ram(before_ram);
        let end = self
            .area
            .resumed_device_end(self.bells.try_clone().unwrap());
        let kept = self.kept(&process);
        let made = catch_unwind(AssertUnwindSafe(|| {
            Server::recover_keeping(handles, &config(), Some(self.server), end, kept)
        }));
        match made {
            Ok(server) => (Some(server.unwrap()), process),
            Err(e) if e.is::<Killed>() => (None, process),
            Err(e) => std::panic::resume_unwind(e),
        }
    }

    /// The last, which lives on.
    fn last(&self) -> Server {
        self.next(u64::MAX, || {}).0.unwrap()
    }

    fn hear(&mut self, wanted: impl Fn(&Request) -> bool) {
        loop {
            match self.vgpud.requests.pop().unwrap() {
                Some(request) if wanted(&request) => return,
                Some(_) => {}
                None => drop(self.vgpud.requests.wait(Some(HANG)).unwrap()),
            }
        }
    }

    fn protect(&mut self) {
        self.order(TABLE, Outcome::Done);
    }

    /// Orders a frame to be protected, which ends so.
    fn order(&mut self, gfn: u64, outcome: Outcome) {
        let order = Event::Protect { gfn, serial: 1 };
        self.vgpud.events.push(order).unwrap();
        self.hear(|r| *r == answer(gfn, 1, outcome));
    }

    /// Starts a vCPU that does this and reads a register when it is called, and
    /// comes back when the first request of that is there.
    fn doing(
        &self,
        number: u32,
        instruction: fn(&Vcpu) -> Result<(), Stopped>,
    ) -> (impl FnOnce() + Send + 'static, Receiver<JoinHandle<Filled>>) {
        let (tell, hear) = channel();
        let (vcpu, registers) = (self.domain.vcpu(number).unwrap(), self.registers);
        let privcmd = self.xen.open_privcmd().unwrap();
        let model = DeviceModel::new(privcmd, self.domain.id());
        let server = model.attach_ioreq_server(IoreqServerId(self.server));
        let page = server.map_page(2).unwrap();
        server.persist(true);
        let start = move || {
            let does = thread::spawn(move || {
                let done = instruction(&vcpu);
                (done, vcpu.mmio_read(registers, 4))
            });
            tell.send(does).unwrap();
            while page.state(number) == Ok(IoreqState::None) {
                thread::yield_now();
            }
        };
        (start, hear)
    }

    /// The same, of one that fills the page.
    fn filling(&self) -> (impl FnOnce() + Send + 'static, Receiver<JoinHandle<Filled>>) {
        self.doing(1, |vcpu| vcpu.rep_stos(AT, 8, 512, POINTER, false))
    }

    /// Judges what became of that.
    fn is_filled(&self, fill: JoinHandle<Filled>) {
        let (filled, read) = fill.join().unwrap();
        assert_eq!((filled, read.map(drop)), (Ok(()), Ok(())));
        let ram = self.domain.ram();
        for at in (AT..AT + 4096).step_by(8) {
            assert_eq!(ram.read_u64(at).unwrap(), POINTER);
        }
        let start = Instant::now();
        while self.domain.frame(Gfn(TABLE)) != FrameKind::Ram {
            assert!(start.elapsed() < HANG);
            thread::yield_now();
        }
    }
}

fn wait_for_the_end_of(process: &MortalPrivcmd) {
    let start = Instant::now();
    while !process.is_dead() {
        assert!(start.elapsed() < HANG);
        thread::yield_now();
    }
}

#[test]
fn one_that_lets_go_of_a_frame_may_die_at_any_step() {
    // It enables the server, makes the frame RAM, protects it again; and, when
    // the vCPU is through, enables and makes it RAM.
    for step in 0..5 {
        let (mut guest, server, process) = Dynasty::begin();
        guest.protect();
        let (start, hear) = guest.filling();
        process.before_ram(start);
        process.dies_after(step);
        let gfn = TABLE;
        guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
        wait_for_the_end_of(&process);
        server.abandon();
        let next = guest.last();
        // When it dies before it makes the frame RAM, nobody has written to it.
        if let Ok(fill) = hear.try_recv() {
            guest.is_filled(fill);
        } else {
            assert!(step < 2);
        }
        next.stop();
        assert_eq!(guest.domain.stopped(), None);
        assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::Ram);
    }
}

#[test]
fn one_that_ends_a_dead_ones_claim_may_die_at_any_step() {
    let mut killed = 0;
    for step in 0.. {
        let (mut guest, server, process) = Dynasty::begin();
        guest.protect();
        process.dies_after(0);
        let gfn = TABLE;
        guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
        wait_for_the_end_of(&process);
        server.abandon();
        let (start, hear) = guest.filling();
        let (second, process) = guest.next(step, start);
        if let Some(second) = second {
            let through = || guest.domain.frame(Gfn(TABLE)) == FrameKind::Ram;
            while !(process.is_dead() || through() && second.protection().offered) {
                thread::yield_now();
            }
            second.abandon();
        }
        let died = process.is_dead();
        let last = guest.last();
        if let Ok(fill) = hear.try_recv() {
            guest.is_filled(fill);
        }
        last.stop();
        assert_eq!(guest.domain.stopped(), None);
        assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::Ram);
        if !died {
            break;
        }
        killed += 1;
    }
    // It ends the claim twice.
    assert!(killed >= 8, "{killed}");
}

/// A store of which the first half is in the page.
fn cross(vcpu: &Vcpu) -> Result<(), Stopped> {
    vcpu.mmio_write(AT + 4092, 8, POINTER)
}

fn is_stored(guest: &Dynasty, crossing: &Receiver<JoinHandle<Filled>>) {
    let crossing = crossing.try_recv().unwrap();
    let (stored, read) = crossing.join().unwrap();
    assert_eq!((stored, read.map(drop)), (Ok(()), Ok(())));
    let second = guest.domain.ram().read_u64(AT + 4096).unwrap();
    assert_eq!(second, POINTER >> 32);
}

/// The page becomes RAM, and is protected again since another vCPU fills it. Then
/// it must be RAM for the store.
#[test]
fn a_store_that_found_ram_at_its_first_half_finds_it_again() {
    let (mut guest, server, process) = Dynasty::begin();
    guest.protect();
    guest.order(TABLE + 1, Outcome::Done);
    let (fill, filling) = guest.filling();
    let (store, crossing) = guest.doing(0, cross);
    process.before_ram(fill);
    process.before_protected(store);
    let gfn = TABLE;
    guest.vgpud.events.push(Event::Unprotect { gfn }).unwrap();
    guest.hear(|r| *r == answer(TABLE, 0, Outcome::Ended));
    let start = Instant::now();
    while guest.domain.frame(Gfn(TABLE)) != FrameKind::Ram || server.protection().late == 0 {
        assert!(start.elapsed() < HANG);
        thread::yield_now();
    }
    is_stored(&guest, &crossing);
    let (filled, read) = filling.try_recv().unwrap().join().unwrap();
    assert_eq!((filled, read.map(drop)), (Ok(()), Ok(())));
    server.stop();
    assert_eq!(guest.domain.stopped(), None);
}

#[test]
fn a_frame_is_not_protected_that_a_store_found_to_be_ram() {
    let (mut guest, server, process) = Dynasty::begin();
    guest.order(TABLE + 1, Outcome::Done);
    let (store, crossing) = guest.doing(0, cross);
    process.before_protected(store);
    guest.order(TABLE, Outcome::Refused);
    is_stored(&guest, &crossing);
    assert_eq!(guest.domain.frame(Gfn(TABLE)), FrameKind::Ram);
    guest.protect();
    server.stop();
    assert_eq!(guest.domain.stopped(), None);
}
