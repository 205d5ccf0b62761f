use std::sync::Mutex;

use super::*;

#[derive(Debug, PartialEq, Eq)]
enum Call {
    Map(Bar, u64, u64),
    Unmap(Bar, u64, u64),
    Msi(u64, u32),
    Intx(bool),
}

#[derive(Default)]
struct Log(Mutex<Vec<Call>>, Mutex<Vec<Bar>>);

impl Log {
    fn push(&self, call: Call) {
        self.0.lock().unwrap().push(call);
    }

    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl BarSink for Log {
    fn map(&self, bar: Bar, base: u64, len: u64) {
        self.push(Call::Map(bar, base, len));
    }

    fn unmap(&self, bar: Bar, base: u64, len: u64) {
        self.push(Call::Unmap(bar, base, len));
    }

    fn moved(&self, bar: Bar) {
        self.1.lock().unwrap().push(bar);
    }
}

impl InterruptSink for Log {
    fn msi(&self, address: u64, data: u32) {
        self.push(Call::Msi(address, data));
    }

    fn intx(&self, level: bool) {
        self.push(Call::Intx(level));
    }
}

fn device() -> (Pci, Log) {
    (Pci::new(&Config::default()), Log::default())
}

fn write(pci: &mut Pci, log: &Log, offset: u8, size: usize, value: u64) {
    pci.write(offset, size, value, log, log);
}

#[test]
fn a_window_that_does_not_answer_tells_of_a_new_address() {
    let (mut pci, log) = device();
    let moved = || std::mem::take(&mut *log.1.lock().unwrap());
    write(&mut pci, &log, 0x10, 4, 0xf100_0000);
    assert_eq!(moved(), [Bar::Registers]);
    write(&mut pci, &log, 0x10, 4, 0xf100_0000);
    write(&mut pci, &log, 4, 2, 2);
    write(&mut pci, &log, 4, 2, 0);
    assert_eq!(moved(), []);
    write(&mut pci, &log, 4, 2, 2);
    // It answers before and after.
    write(&mut pci, &log, 0x10, 4, 0xf200_0000);
    assert_eq!(moved(), []);
    // It does not any more.
    write(&mut pci, &log, 0x10, 4, 0);
    assert_eq!(moved(), [Bar::Registers]);
    write(&mut pci, &log, 4, 2, 0);
    write(&mut pci, &log, 0x1c, 4, 1);
    assert_eq!(moved(), [Bar::Aperture]);
}

#[test]
fn it_is_a_broadwell_gt2() {
    let (pci, _) = device();
    assert_eq!(pci.read(0, 4), 0x1616_8086);
    assert_eq!(pci.read(8, 4), 0x0380_0009);
    assert_eq!(pci.read(0x50, 2), 0xc0);
    assert_eq!(pci.read(0x5c, 4), 0);
    assert_eq!(pci.read(0xfc, 4), 0);
    // The capability list ends.
    assert_eq!(pci.read(0x34, 1), 0x90);
    assert_eq!(pci.read(0x90, 2), 0xd005);
    assert_eq!(pci.read(0xd0, 2), 0x0001);
    // An unaligned qword crosses registers, and the space has an end.
    assert_eq!(pci.read(1, 8), 0x0900_1000_0016_1680);
    assert_eq!(pci.read(0xff, 2), 0xff00);
}

#[test]
fn bars_size_and_identity_does_not_change() {
    let (mut pci, log) = device();
    for offset in (0..=0xf8).step_by(8) {
        write(&mut pci, &log, offset, 8, u64::MAX);
    }
    assert_eq!(pci.read(0, 4), 0x1616_8086);
    assert_eq!(pci.read(0x10, 4), 0xff00_0004);
    assert_eq!(pci.read(0x14, 4), 0xffff_ffff);
    assert_eq!(pci.read(0x18, 4), 0xf000_000c);
    assert_eq!(pci.read(0x20, 8), 0, "no other BAR");
    assert_eq!(pci.read(0x30, 4), 0, "no ROM");
}

#[test]
fn each_effective_change_is_told_once() {
    let (mut pci, log) = device();
    write(&mut pci, &log, 0x10, 4, 0xf100_0000);
    write(&mut pci, &log, 0x18, 8, 0x8_0000_0000);
    assert_eq!(log.take(), []);
    write(&mut pci, &log, 4, 2, 2);
    let aperture = 256 << 20;
    assert_eq!(
        log.take(),
        [
            Call::Map(Bar::Registers, 0xf100_0000, BAR0_BYTES),
            Call::Map(Bar::Aperture, 0x8_0000_0000, aperture),
        ]
    );
    write(&mut pci, &log, 4, 2, 6);
    write(&mut pci, &log, 0x10, 4, 0xf100_0000);
    assert_eq!(log.take(), []);
    write(&mut pci, &log, 0x13, 1, 0xf2);
    assert_eq!(
        log.take(),
        [
            Call::Unmap(Bar::Registers, 0xf100_0000, BAR0_BYTES),
            Call::Map(Bar::Registers, 0xf200_0000, BAR0_BYTES),
        ]
    );
    // D3hot stops decoding, D0 resumes it; D1 does not exist.
    write(&mut pci, &log, 0xd4, 2, 3);
    assert_eq!(log.take().len(), 2);
    write(&mut pci, &log, 0xd4, 2, 1);
    assert_eq!(pci.read(0xd4, 2), 0xb);
    write(&mut pci, &log, 0xd4, 2, 0);
    assert_eq!(log.take().len(), 2);
    assert_eq!(pci.window(Bar::Registers), Some((0xf200_0000, BAR0_BYTES)));
}

#[test]
fn an_msi_is_sent_on_the_rise_with_the_programmed_words() {
    let (mut pci, log) = device();
    write(&mut pci, &log, 4, 2, 4);
    // pirq 0x123 as PVHVM Linux programs it.
    write(&mut pci, &log, 0x94, 8, 0x0000_0100_fee2_3000);
    write(&mut pci, &log, 0x9c, 2, 0x700);
    write(&mut pci, &log, 0x92, 2, 1);
    pci.set_pending(true, &log);
    pci.set_pending(true, &log);
    assert_eq!(log.take(), [Call::Msi(0x0000_0100_fee2_3000, 0x700)]);
    pci.set_pending(false, &log);
    pci.set_pending(true, &log);
    assert_eq!(log.take().len(), 1);
}

#[test]
fn intx_follows_while_msi_is_off() {
    let (mut pci, log) = device();
    pci.set_pending(true, &log);
    assert_eq!(log.take(), [Call::Intx(true)]);
    assert_eq!(pci.read(6, 2), 0x18);
    write(&mut pci, &log, 4, 2, 0x400);
    assert_eq!(log.take(), [Call::Intx(false)]);
    write(&mut pci, &log, 4, 2, 0);
    write(&mut pci, &log, 0x92, 2, 1);
    assert_eq!(log.take(), [Call::Intx(true), Call::Intx(false)]);
}

#[test]
fn without_msi_there_is_no_such_capability() {
    let config = Config {
        msi: false,
        ..Config::default()
    };
    let (mut pci, log) = (Pci::new(&config), Log::default());
    // Power management is the first capability and the last.
    assert_eq!(pci.read(0x34, 1), 0xd0);
    assert_eq!(pci.read(0xd0, 2), 0x01);
    // Nothing is where it would be.
    write(&mut pci, &log, 4, 2, 4);
    write(&mut pci, &log, 0x92, 2, 1);
    assert_eq!(pci.read(0x90, 8), 0);
    pci.set_pending(true, &log);
    assert_eq!(log.take(), [Call::Intx(true)]);
}

#[test]
fn a_restored_device_maps_its_windows() {
    let (mut pci, log) = device();
    write(&mut pci, &log, 0x10, 4, 0xf100_0000);
    write(&mut pci, &log, 4, 2, 2);
    log.take();
    let saved = pci.save();
    let again = Pci::restore(&Config::default(), &saved, &log).unwrap();
    assert_eq!(
        log.take(),
        [Call::Map(Bar::Registers, 0xf100_0000, BAR0_BYTES)]
    );
    assert_eq!(again.save(), saved);
    let bad = PciV1 { config: vec![0; 3] };
    assert!(Pci::restore(&Config::default(), &bad, &log).is_err());
}
