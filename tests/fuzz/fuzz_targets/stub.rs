//! A hostile domain of a device model: the text by which it offers what it
//! shares, what is behind that, and what it does in the pipe to vgpud.
#![no_main]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fake_xen::{Domain, DomainConfig, FakeXen};
use grant_area::{MappedArea, MappedControl, Offer, RegionOffer};
use libfuzzer_sys::fuzz_target;
use vgpu_control::{FromDm, PipeConnection, StubOrder, ToDm};
use vgpu_ring::{
    Area, AreaConfig, AreaWords, Event, EventBell, PIPE_AREA_WORDS, Pipe, PipePlace, WordMemory,
    Words,
};
use vgpu_tests::Bytes;
use xen_glue::{DomId, GrantRef, Hypervisor, Port};

const DOM0: DomId = DomId(0);

const SMALL: AreaConfig = AreaConfig {
    submit_slots: 4,
    complete_slots: 4,
};

struct World {
    xen: FakeXen,
    domain: Domain,
    stub: FakeXen,
}

thread_local! {
    static WORLD: World = {
        let xen = FakeXen::new();
        let domain = xen.create_domain(DomainConfig::default()).expect("a domain");
        let stub = xen.seen_from(domain.id());
        World { xen, domain, stub }
    };
}

fn one_line(error: &dyn Error) {
    let mut next = Some(error);
    while let Some(error) = next {
        let line = error.to_string();
        assert!(line.len() < 1000 && !line.contains('\n'), "{line}");
        next = error.source();
    }
}

fn text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<Offer>() {
        Ok(offer) => assert_eq!(offer.to_string().parse(), Ok(offer)),
        Err(error) => one_line(&error),
    }
    if let Ok(order) = text.parse::<StubOrder>() {
        assert_eq!(order.to_string().parse(), Ok(order));
    }
}

/// A directory, a link page and a header of any content, over pages that may be
/// granted many times.
fn region(b: &mut Bytes<'_>, world: &World) {
    let grants = world.stub.open_grant_pages().expect("a node");
    let made = grants.grant(DOM0, 4).expect("four pages");
    let refs: Vec<u32> = made.refs().iter().map(|r| r.0).collect();
    let size = Area::size(SMALL).expect("possible");
    let whole = u32::try_from(size / 512 + 1).expect("few pages");
    let pages = match b.u8() % 4 {
        0 => b.u32(),
        1 => whole,
        2 => u32::try_from(PIPE_AREA_WORDS / 512 + 1).expect("few pages"),
        _ => b.u8().into(),
    };
    let mut directory = vec![b.pick(&refs); 1024];
    for dword in directory.iter_mut().take(usize::from(b.u8() % 8)) {
        *dword = match b.u8() % 4 {
            0 => 0,
            1 => b.u32(),
            _ => b.pick(&refs),
        };
    }
    let magic = u64::from_le_bytes(*b"VGPURING");
    let bytes = u64::try_from(size * 8).expect("few bytes");
    let mut link = [
        u64::from_le_bytes(*b"VGPULINK"),
        1,
        pages.into(),
        0,
        0,
        0,
        0,
    ];
    let mut header = [magic, vgpu_ring::layout::VERSION, bytes, 4, 4, 1 << 20, 0];
    for _ in 0..b.u8() % 4 {
        let to = if b.flag() { &mut link } else { &mut header };
        let at = usize::from(b.u8()) % to.len();
        to[at] = b.value();
    }
    let qwords =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let dwords: Vec<u8> = directory.iter().flat_map(|d| d.to_le_bytes()).collect();
    for (page, bytes) in [dwords, qwords(&link), qwords(&header)].iter().enumerate() {
        made.mapping().write(page * 4096, bytes).expect("our page");
    }
    // It says that it is there.
    made.mapping()
        .write(4096 + 16 * 8, &[1, 1])
        .expect("our page");
    let events = world.stub.open_event_channels().expect("a node");
    let port = events.bind_unbound(DOM0).expect("a port");
    let offer = RegionOffer {
        pages,
        directory: GrantRef(b.pick(&refs)),
        port: if b.rarely(4) { Port(b.u32()) } else { port },
    };
    let domid = world.domain.id();
    match MappedArea::open(&world.xen, domid, &offer, Port(b.u8().into())) {
        Ok(area) => used(b, &area),
        Err(error) => one_line(&error),
    }
    match MappedControl::open(&world.xen, domid, &offer) {
        Ok(control) => converse(b, control.end().expect("doorbells").into(), None),
        Err(error) => one_line(&error),
    }
    events.unbind(port).expect("our port");
    assert_eq!(world.xen.grants_mapped_by(DOM0), 0);
    assert_eq!(world.xen.ports_of(DOM0), 0);
}

/// vgpud goes on in an area.
fn used(b: &mut Bytes<'_>, area: &MappedArea) {
    let words = area.words();
    for _ in 0..b.u8() % 8 {
        let at = 512 * usize::from(b.u8() % 8) + usize::from(b.u8() % 64);
        words.store(at % words.count(), b.value(), Ordering::SeqCst);
    }
    let mut ours = area.resumed_daemon_end(area.bells().expect("doorbells"));
    for _ in 0..8 {
        match ours.requests.pop() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => {
                one_line(&error);
                break;
            }
        }
    }
    for token in 0..8 {
        // A full ring, or a broken one, takes none.
        let _ = ours.events.push(Event::Pong { token });
    }
    assert!(ours.kept.in_hand(128).len() == 129);
    let _ = ours.changes.load();
    let _ = area.life().peer_gone();
}

struct Memory(Vec<AtomicU64>);

impl WordMemory for Memory {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn pipe(b: &mut Bytes<'_>) {
    let memory = (0..PIPE_AREA_WORDS).map(|_| AtomicU64::new(0));
    let words = AreaWords::of(Arc::new(Memory(memory.collect())));
    let bells = (
        EventBell::new().expect("a descriptor"),
        EventBell::new().expect("a descriptor"),
    );
    let gone = b.rarely(8);
    let places = (PipePlace::TO_DEVICE, PipePlace::TO_DAEMON);
    let ours = Pipe::new(words.clone(), places, bells, move || gone);
    converse(b, ours.into(), Some(&words));
}

/// vgpud talks, and what it says and hears changes under it.
fn converse(b: &mut Bytes<'_>, ours: PipeConnection, words: Option<&AreaWords>) {
    ours.set_limit(Some(Duration::ZERO));
    let (theirs, ring) = (PipePlace::TO_DAEMON, PipePlace::TO_DEVICE);
    let put = |at: usize, value| {
        if let Some(words) = words {
            words.store(at % words.count(), value, Ordering::SeqCst);
        }
    };
    let get = |at| words.map_or(0, |words| words.load(at, Ordering::SeqCst));
    for _ in 0..32 {
        if b.is_empty() {
            break;
        }
        match b.u8() % 8 {
            // A message, whole, with lengths that may not be its.
            0..3 => {
                let said = said(b);
                let head = match b.u8() % 4 {
                    0 => b.value(),
                    _ => u64::try_from(said.len()).expect("few") | u64::from(b.u8() % 2) << 35,
                };
                let chunks = said.chunks(8).map(|chunk| {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u64::from_le_bytes(word)
                });
                let mut at = get(theirs.produced);
                for word in std::iter::once(head).chain(chunks) {
                    let place = usize::try_from(at % theirs.capacity).expect("few");
                    put(theirs.first + place, word);
                    at = at.wrapping_add(1);
                }
                put(theirs.produced, at);
            }
            3 => put(usize::from(b.u16()), b.value()),
            4 => {
                let index = [
                    theirs.produced,
                    theirs.consumed,
                    ring.produced,
                    ring.consumed,
                ];
                put(b.pick(&index), b.value());
            }
            5 => {
                put(ring.consumed, get(ring.produced));
                if let Err(error) = ours.send_with(&ToDm::Save, &[7; 40]) {
                    one_line(&error);
                }
            }
            _ => {
                let most = usize::from(b.u16());
                match ours.recv_with::<FromDm>(most) {
                    Ok((_, attached)) => assert!(attached.len() <= most),
                    Err(error) => one_line(&error),
                }
            }
        }
    }
}

fn said(b: &mut Bytes<'_>) -> Vec<u8> {
    let message = match b.u8() % 8 {
        0 => FromDm::Done,
        1 => FromDm::PageAt { gfn: b.value() },
        2 => FromDm::Enabled,
        3 => FromDm::Written(vec![(b.value(), b.value()); usize::from(b.u8())]),
        4 => FromDm::Failed("\n".repeat(b.u16().into())),
        5 => return (0..b.u8()).map(|_| b.u8()).collect(),
        6 => return format!("{{\"{}\":1}}", "x\\n".repeat(b.u16().into())).into_bytes(),
        _ => FromDm::Saved,
    };
    serde_json::to_vec(&message).expect("JSON")
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    match first % 4 {
        0 => text(rest),
        1 => WORLD.with(|world| region(&mut Bytes::new(rest), world)),
        _ => pipe(&mut Bytes::new(rest)),
    }
});
