//! vgpud dies while a device model's domain comes up, or takes the place of one
//! that died: the next one leaves neither domains nor a guest that stands still.

use std::sync::mpsc::channel;

use super::adopting::Left;
use super::*;
use crate::daemon::records::Records;
use crate::daemon::tests::Qemu;

impl World {
    /// Another vgpud, for what this one left where it is.
    fn next(&mut self, name: &str) -> Fixture {
        self.f.daemon.take().unwrap().leave();
        let left = self.f.dir.join("run");
        let dir = self.f.dir.with_file_name(format!("{name}-next"));
        std::fs::create_dir_all(&dir).unwrap();
        drop(Records::open(&dir.join("run")).unwrap());
        for file in ["guest-9", "held-9"] {
            // One that is not there, was not.
            let _ = std::fs::copy(left.join(file), dir.join("run").join(file));
        }
        Fixture::start(dir, "serves", |notes| {
            let (xen, guest) = (&self.xen, &self.guest);
            let toolstack = FakeToolstack::new("serves", xen, guest, &self.store, notes);
            Some(toolstack.stubs(&self.image))
        })
    }
}

impl Store {
    /// Pauses the guest, as its administrator does.
    fn pause_for_good(&self, guest: &Domain) {
        guest.pause();
        self.change(|tree| tree.pauses += 1);
    }

    fn pauses(&self) -> u32 {
        self.0.lock().unwrap().pauses
    }

    /// Domains for device models that are there.
    fn there(&self) -> Vec<u16> {
        let tree = self.0.lock().unwrap();
        let gone = |id: &&u16| tree.ended.get(id) != Some(&DomainState::Gone);
        tree.made.iter().filter(gone).copied().collect()
    }
}

/// Runs a vgpud of `role` until it dies at a step; then the next one.
fn killed(role: &'static str, step: &'static str, nth: usize, paused: bool) -> (World, Fixture) {
    let name = format!("stub-dying-{role}-{step}{nth}{}", u8::from(paused));
    let mut w = World::new(&name, role);
    let (told, dead) = channel();
    w.store
        .change(|tree| tree.dies_at = Some((step, nth, told)));
    let dir = w.f.dir.clone();
    // Where vgpud dies first it hears nothing.
    let qemu = thread::spawn(move || Qemu::start(&dir, "slot=5,stub=1"));
    let replaces = nth > 1 || !["created", "runs"].contains(&step);
    if replaces {
        while !w.f.note().starts_with("Ping") {}
        if paused {
            w.store.pause_for_good(&w.guest);
        }
    }
    if role == "dies-anew" && replaces {
        for vcpu in 0..2 {
            let vcpu = w.guest.vcpu(vcpu).unwrap();
            thread::spawn(move || vcpu.mmio_read(BASE, 4));
        }
    }
    dead.recv().unwrap();
    let f = w.next(&name);
    assert_eq!(f.list(), [], "{name}");
    assert_eq!(w.store.there(), [0; 0], "{name}");
    assert!(!f.dir.join("run/held-9").exists(), "{name}");
    drop(qemu);
    (w, f)
}

#[test]
fn a_domain_that_was_coming_up_when_vgpud_died_is_destroyed() {
    for step in ["created", "runs"] {
        let (_w, f) = killed("serves", step, 1, false);
        assert_eq!(f.note(), "destroyed");
        assert!(f.notes.try_recv().is_err());
    }
}

#[test]
fn no_guest_stands_still_when_vgpud_dies_while_it_replaces_a_domain() {
    for (role, step, nth) in [
        ("dies-anew", "pause", 1),
        ("dies-anew", "paused", 1),
        ("dies-anew", "destroyed", 1),
        ("dies-anew", "create", 2),
        ("dies-anew", "created", 2),
        ("dies-anew", "runs", 2),
        ("dies", "create", 2),
    ] {
        let (w, f) = killed(role, step, nth, false);
        assert_eq!(w.store.pauses(), 0, "{step} {nth}");
        // As for any guest that has lost its vGPU.
        let paused = f.notes.try_iter().filter(|n| n == "paused 9").count();
        assert_eq!(paused, 1, "{step} {nth}");
    }
    // It was lost, and paused for that, before vgpud died.
    for step in ["unpause", "unpaused"] {
        let (w, f) = killed("dies", step, 1, false);
        assert_eq!(w.store.pauses(), 0, "{step}");
        assert!(f.notes.try_iter().all(|n| n != "paused 9"), "{step}");
    }
}

#[test]
fn a_guest_that_its_administrator_paused_stays_so() {
    for step in ["paused", "destroyed"] {
        let (w, _f) = killed("dies", step, 1, true);
        assert_eq!(w.store.pauses(), 1, "{step}");
    }
}

#[test]
fn a_guest_that_stood_still_runs_when_it_is_taken_over() {
    for paused in [0, 1] {
        let left = Left::new(&format!("stub-held-{paused}"));
        // The other vgpud's, or about to be.
        let records = Records::open(&left.dir.join("run")).unwrap();
        records.hold(9).unwrap();
        drop(records);
        if paused == 1 {
            left.store.pause_for_good(&left.guest);
        }
        let f = left.next();
        assert!(f.list()[0].adopted);
        assert_eq!(left.store.pauses(), 0);
        assert!(!f.dir.join("run/held-9").exists());
    }
}

#[test]
fn a_guest_that_begins_is_not_let_run_for_another_of_its_number() {
    let w = World::new("stub-begins", "serves");
    std::fs::write(w.f.dir.join("run/held-9"), "").unwrap();
    // Its toolstack is not through yet.
    w.store.pause_for_good(&w.guest);
    let (_qemu, reply) = w.f.qemu("slot=5,stub=1");
    assert_eq!(reply, Ok(json!({"incoming_at": 0})));
    assert_eq!(w.store.pauses(), 1);
}
