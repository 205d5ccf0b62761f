//! States as they were saved when each section was of version 1. Every later
//! vgpud reads them; that it writes the same today is what tells that a change
//! of a body needs a new version.

use proptest::prelude::*;
use vgpu_migrate::stream::Header;

use super::*;
use crate::vgpu::InterruptedV1;
use crate::workload::InBatch;

/// That of a guest with i915 at work, saved by xl on Xen 4.17.
const I915: &[u8] = include_bytes!("../../../tests/golden/i915-bdw-1.stream");
/// With work that was taken off, and every kind of run in the table.
const IN_FLIGHT: &[u8] = include_bytes!("../../../tests/golden/in-flight-1.stream");

/// The bodies of a stream.
fn bodies(stream: &[u8]) -> Vec<(Name, Vec<u8>)> {
    let stream = Stream::parse(stream, &KNOWN).unwrap();
    let body = |known: Known| {
        (
            known.name,
            stream.require(known.name).unwrap().body.to_vec(),
        )
    };
    KNOWN.into_iter().map(body).collect()
}

/// A section's header, as the document has it.
const SECTION_HEADER: usize = 40;

/// Where the parts of a stream begin and end: header, each section's header
/// and body, trailer.
fn boundaries(stream: &[u8]) -> Vec<usize> {
    let mut at = Header::LEN;
    let mut all = vec![0, at];
    while at < stream.len() - 24 {
        let len = stream[at + 20..at + 28].try_into().unwrap();
        all.push(at + SECTION_HEADER);
        at += SECTION_HEADER + usize::try_from(u64::from_le_bytes(len)).unwrap();
        all.push(at);
    }
    assert_eq!(at, stream.len() - 24);
    all
}

#[test]
fn states_of_version_1_are_read_and_written_the_same() {
    for golden in [I915, IN_FLIGHT] {
        let saved = Saved::parse(golden).unwrap();
        assert_eq!(bodies(&stream(&saved)), bodies(golden));
    }
}

#[test]
fn a_golden_state_is_what_it_was() {
    let saved = Saved::parse(I915).unwrap();
    assert_eq!(saved.host.gpu, "bdw");
    assert_eq!(saved.scheduler.engines, vec![EngineV1::default(); 4]);
    let mut entries = Vec::new();
    saved.table.unpack(|_, entry| entries.push(entry));
    assert_eq!(entries.len(), 1 << 20);
    // The driver's scratch page.
    assert_eq!(entries[0], 0x1e1_a001);
    assert!(saved.device.starts_with(br#"{"config":{"gpu":"bdw""#));

    let saved = Saved::parse(IN_FLIGHT).unwrap();
    assert_eq!(saved.host.gpu, "kbl");
    let [render, blitter, ..] = saved.scheduler.engines.as_slice() else {
        panic!("engines are missing");
    };
    let registers = vec![(0x229c, 0x800), (0x24d0, 0x7000), (0xb118, 0x4040_0010)];
    assert_eq!(render.registers, registers);
    let batch = InBatch {
        first: 0x1_0080,
        second: 0x2_0040,
    };
    let interrupted = |context, batch| Some(InterruptedV1 { context, batch });
    assert_eq!(render.interrupted, interrupted(0x4000, Some(batch)));
    assert_eq!(blitter.interrupted, interrupted(0x9000, None));
    let mut entries = Vec::new();
    saved.table.unpack(|_, entry| entries.push(entry));
    assert_eq!(entries[0x1_0001], 0x1_f000_2001);
    assert_eq!(entries[0x1_8000..0x1_8003], [0x7001, 0x3f_ffff_f003, 0]);
}

#[test]
fn a_state_cut_off_at_a_boundary_is_refused() {
    for golden in [I915, IN_FLIGHT] {
        for at in boundaries(golden) {
            for len in [at.saturating_sub(1), at, at + 1] {
                let error = Saved::parse(&golden[..len]).unwrap_err().to_string();
                assert!(error.starts_with("the header "), "{len}: {error}");
            }
        }
    }
}

#[test]
fn a_newer_required_section_is_refused_by_name() {
    let saved = Saved::parse(I915).unwrap();
    let with = |section: &Section<'_>| {
        let writer = saved.writer().unwrap().section(section);
        writer.finish(Before::default()).unwrap()
    };
    let required = with(&Section::required(Name::of("sr-iov"), 2, b"later"));
    assert_eq!(
        Saved::parse(&required).unwrap_err().to_string(),
        "section sr-iov, version 2, is required and not known here"
    );
    let optional = with(&Section::optional(Name::of("sr-iov"), 2, b"later"));
    assert_eq!(Saved::parse(&optional).unwrap(), saved);
    // Each of ours in a version to come.
    let bodies = bodies(I915);
    for (newer, _) in &bodies {
        let writer = bodies.iter().fold(Writer::new(), |w, (name, body)| {
            let version = if name == newer { 2 } else { 1 };
            w.section(&Section::required(*name, version, body))
        });
        let bytes = writer.finish(Before::default()).unwrap();
        assert_eq!(
            Saved::parse(&bytes).unwrap_err().to_string(),
            format!("section {newer} has version 2; the newest known here is 1")
        );
    }
}

proptest! {
    #[test]
    fn a_flipped_bit_is_found_wherever_it_is(at in 0..I915.len(), bit in 0..8_u8) {
        let mut bytes = I915.to_vec();
        bytes[at] ^= 1_u8 << bit;
        let error = Saved::parse(&bytes).unwrap_err().to_string();
        prop_assert!(!error.contains('\n') && error.len() < 200, "{}", error);
    }

    /// As by somebody who puts the checksums right.
    #[test]
    fn bodies_that_were_changed_are_refused_or_read(
        which in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bodies = bodies(IN_FLIGHT);
        let body = &mut bodies[which].1;
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let writer = bodies.iter().fold(Writer::new(), |w, (name, body)| {
            w.section(&Section::required(*name, 1, body))
        });
        let bytes = writer.finish(Before::default()).unwrap();
        match Saved::parse(&bytes) {
            Ok(saved) => {
                let again = Saved::parse(&stream(&saved)).unwrap();
                prop_assert_eq!(again, saved);
            }
            Err(e) => {
                let error = e.to_string();
                prop_assert!(!error.contains('\n') && error.len() < 400, "{}", error);
            }
        }
    }
}
