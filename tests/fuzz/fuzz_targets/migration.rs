//! A saved vGPU of any content, in a file and over a connection, there with
//! the guest's pages. Checksums
//! are taken to be right when fuzzing, so that what is behind them is read.
#![no_main]

use std::sync::Arc;

use guest_memory::VecMemory;
use vgpu_device::{Device, DeviceV1};
use vgpu_migrate::connection::receive;
use vgpu_migrate::stream::{Before, Header, Known, Name, Section, Stream, Writer};
use vgpu_migrate::stream::{find, read_section};
use vgpu_sched::saved::{PackedTable, Saved};
use vgpu_sched::vgpu::SchedulerV1;
use vgpu_tests::Surroundings;

const KNOWN: [Known; 3] = [
    Known {
        name: Name::HOST,
        oldest: 1,
        newest: 1,
    },
    Known {
        name: Name::DEVICE,
        oldest: 1,
        newest: 2,
    },
    Known {
        name: Name::SCHEDULER,
        oldest: 2,
        newest: 2,
    },
];

fn one_line(error: &impl std::fmt::Display) {
    let line = error.to_string();
    assert!(line.len() < 1000 && !line.contains('\n'), "{line}");
}

/// What was read is written and read again.
fn again(stream: &Stream<'_>) {
    let sections: Vec<&Section<'_>> = KNOWN.iter().filter_map(|k| stream.get(k.name)).collect();
    let writer = sections.iter().fold(Writer::new(), |w, s| w.section(s));
    let bytes = writer
        .finish(Before::default())
        .expect("no longer than it was");
    let read = Stream::parse(&bytes, &KNOWN).expect("what was written");
    for section in sections {
        assert_eq!(read.get(section.name), Some(section));
    }
}

fn connection(mut bytes: &[u8]) {
    let whole = bytes.len();
    let mut at = 0;
    loop {
        match read_section(&mut bytes, at, 1 << 40) {
            Ok(None) => return,
            Ok(Some(section)) => at += section.stream_len(),
            Err(error) => return one_line(&error),
        }
        assert_eq!(at, (whole - bytes.len()) as u64);
    }
}

/// As our own carrier sends a guest.
fn guest(mut bytes: &[u8]) {
    let memory = VecMemory::new(16);
    let whole = bytes.len() as u64;
    match receive(&mut bytes, &memory, &KNOWN) {
        Ok(came) => assert!(came.bytes <= whole && came.zero <= came.pages),
        Err(error) => {
            let line = error.to_string();
            assert!(line.len() < 1000 && !line.contains('\n'), "{line}");
        }
    }
}

/// A vGPU's whole state.
fn vgpu(data: &[u8]) {
    match Saved::parse(data) {
        Ok(saved) => {
            let writer = saved.writer().expect("it was JSON");
            let bytes = writer.finish(Before::default()).expect("no longer");
            assert_eq!(Saved::parse(&bytes).expect("what was written"), saved);
            bodies(&saved.device);
        }
        Err(error) => one_line(&error),
    }
}

/// What the sections of this vgpud hold, each by itself.
fn bodies(data: &[u8]) {
    if let Ok(scheduler) = serde_json::from_slice::<SchedulerV1>(data)
        && let Err(error) = scheduler.check(&gen8::platform::BDW)
    {
        one_line(&error);
    }
    match PackedTable::from_bytes(data) {
        Ok(table) => {
            let mut next = 0;
            table.unpack(|index, _| {
                assert_eq!(index, next);
                next += 1;
            });
            assert_eq!(next, 1 << 20);
        }
        Err(error) => one_line(&error),
    }
    if let Ok(state) = serde_json::from_slice::<DeviceV1>(data) {
        let world = Arc::new(Surroundings::default());
        match Device::restore(&state, world.seams()) {
            Ok(device) => device.resubmit(),
            Err(error) => one_line(&error),
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    guest(data);
    bodies(data);
    vgpu(data);
    connection(data);
    connection(data.get(Header::LEN..).unwrap_or_default());
    match find(data).and_then(|(_, bytes)| Stream::parse(bytes, &KNOWN)) {
        Ok(stream) => again(&stream),
        Err(error) => one_line(&error),
    }
    match Stream::parse(data, &KNOWN) {
        Ok(stream) => again(&stream),
        Err(error) => one_line(&error),
    }
});
