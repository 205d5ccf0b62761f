//! What a device model's domain leaves in the pages of its ioreq server.

use std::sync::Arc;

use fake_xen::{Domain, DomainConfig, FakeXen, RawIoreq, Vcpu};
use xen_glue::{
    DeviceModel, DomId, EventChannel, Hypervisor, IoreqPage, IoreqPages, IoreqServer, IoreqState,
    Port, VcpuIoreqs,
};

const BASE: u64 = 0xf000_0000;

struct World {
    xen: FakeXen,
    guest: Domain,
    slots: IoreqPages,
}

/// A device model in a domain that may end.
struct Model {
    server: IoreqServer,
    page: Arc<IoreqPage>,
}

impl World {
    fn new() -> Self {
        let xen = FakeXen::new();
        let config = DomainConfig {
            vcpus: 2,
            frames: 600,
            hap: true,
        };
        let guest = xen.create_domain(config).unwrap();
        let slots = IoreqPages::new(xen.open_privcmd().unwrap(), guest.id());
        Self { xen, guest, slots }
    }

    /// In domain `stub`, which exists.
    fn model(&mut self, stub: u16, again: Option<&IoreqServer>) -> Model {
        let privcmd = self.xen.seen_from(DomId(stub)).open_privcmd().unwrap();
        let model = DeviceModel::new(Arc::clone(&privcmd), self.guest.id());
        let server = match again {
            Some(server) => model.attach_ioreq_server(server.id()),
            None => model.create_ioreq_server().unwrap(),
        };
        server.persist(true);
        server.set_enabled(false).unwrap();
        let gfn = server.frame().unwrap();
        let page = IoreqPage::of_frame(&*privcmd, self.guest.id(), gfn, 2).unwrap();
        self.slots.page_at(gfn).unwrap();
        server.set_enabled(true).unwrap();
        self.slots.enabled().unwrap();
        if again.is_none() {
            server.map_mmio(&(BASE..=BASE + 0xffff)).unwrap();
        }
        Model {
            server,
            page: Arc::new(page),
        }
    }

    /// A vCPU's read, which waits in the slot when this returns.
    fn read(&self, model: &Model, vcpu: u32) -> std::thread::JoinHandle<u64> {
        let cpu = self.guest.vcpu(vcpu).unwrap();
        let at = BASE + u64::from(vcpu);
        let thread = std::thread::spawn(move || cpu.mmio_read(at, 4).unwrap());
        while model.page.state(vcpu) == Ok(IoreqState::None) {
            std::thread::yield_now();
        }
        thread
    }

    fn wake(&self, stub: u16, model: &Model) {
        for vcpu in 0..2 {
            let channels = self.xen.seen_from(DomId(stub)).open_event_channels();
            let (page, id) = (Arc::clone(&model.page), self.guest.id());
            let channel = VcpuIoreqs::bind(page, vcpu, channels.unwrap(), id).unwrap();
            channel.channel().notify().unwrap();
        }
    }
}

fn answer(model: &Model, vcpu: u32, data: u64) {
    let request = model.page.take_unfinished(vcpu).unwrap().unwrap();
    assert_eq!(request.addr, BASE + u64::from(vcpu));
    model.page.complete(vcpu, data).unwrap();
}

#[test]
fn vcpus_get_their_answers_from_the_next_domain() {
    let mut w = World::new();
    let first = w.model(5, None);
    // One is in process, one is not.
    let reads = [w.read(&first, 0), w.read(&first, 1)];
    first.page.take(0).unwrap().unwrap();
    w.guest.pause();
    assert_eq!(w.slots.lift(), 2);
    // The second dies in the middle of it, having answered one.
    let second = w.model(6, None);
    assert_eq!(second.page.state(0), Ok(IoreqState::InProcess));
    assert_eq!(second.page.state(1), Ok(IoreqState::Ready));
    answer(&second, 0, 70);
    second.page.take(1).unwrap().unwrap();
    assert_eq!(w.slots.lift(), 2);
    let third = w.model(7, None);
    assert_eq!(third.page.state(0), Ok(IoreqState::RespReady));
    assert!(!w.slots.settle());
    answer(&third, 1, 71);
    assert!(w.slots.settle());
    w.wake(7, &third);
    w.guest.unpause();
    assert_eq!(reads.map(|r| r.join().unwrap()), [70, 71]);
    // What comes now goes to the last.
    let read = w.read(&third, 0);
    answer(&third, 0, 72);
    w.wake(7, &third);
    assert_eq!(read.join().unwrap(), 72);
}

#[test]
fn another_in_the_same_domain_finds_them_in_the_same_page() {
    let mut w = World::new();
    let first = w.model(5, None);
    let read = w.read(&first, 1);
    w.guest.pause();
    assert_eq!(w.slots.lift(), 1);
    let second = w.model(5, Some(&first.server));
    assert_eq!(second.server.id(), first.server.id());
    answer(&second, 1, 80);
    assert!(w.slots.settle());
    w.wake(5, &second);
    w.guest.unpause();
    assert_eq!(read.join().unwrap(), 80);
}

#[test]
fn an_answer_that_was_given_stays_where_it_is() {
    let mut w = World::new();
    let first = w.model(5, None);
    let read = w.read(&first, 0);
    // The domain ends before it signals.
    answer(&first, 0, 90);
    w.guest.pause();
    assert_eq!(w.slots.lift(), 1);
    let second = w.model(6, None);
    assert_eq!(second.page.state(0), Ok(IoreqState::None));
    assert!(w.slots.settle());
    w.wake(6, &second);
    w.guest.unpause();
    assert_eq!(read.join().unwrap(), 90);
}

#[test]
fn what_is_sent_to_a_domain_that_is_gone_is_answered() {
    let mut w = World::new();
    let first = w.model(5, None);
    w.guest.pause();
    assert_eq!(w.slots.lift(), 0);
    let second = w.model(6, None);
    w.guest.unpause();
    assert!(!w.slots.tend());
    let cpu: Vcpu = w.guest.vcpu(0).unwrap();
    let thread = std::thread::spawn(move || {
        let invalidate = RawIoreq {
            kind: 8,
            addr: 0,
            data: u64::MAX,
            count: 1,
            size: 4,
            read: false,
            df: false,
            data_is_ptr: false,
        };
        cpu.raw_request_to(0, &invalidate).unwrap();
    });
    while !w.slots.tend() {
        std::thread::yield_now();
    }
    w.wake(6, &second);
    thread.join().unwrap();
    drop(first);
    assert_eq!(w.xen.ports_of(DomId(5)), 0);
    let channels = w.xen.open_event_channels().unwrap();
    assert!(EventChannel::bind_interdomain(channels, w.guest.id(), Port(1)).is_err());
}
