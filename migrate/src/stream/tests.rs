use std::io::{Read, Seek, SeekFrom, Write};

use proptest::prelude::*;

use super::*;

mod damage;
mod files;

pub(super) const KNOWN: [Known; 3] = [
    known(Name::HOST, 1, 1),
    known(Name::DEVICE, 1, 3),
    known(Name::SCHEDULER, 2, 2),
];

const fn known(name: Name, oldest: u16, newest: u16) -> Known {
    Known {
        name,
        oldest,
        newest,
    }
}

pub(super) fn stream(sections: &[Section<'_>], before: Before) -> Vec<u8> {
    let writer = sections.iter().fold(Writer::new(), Writer::section);
    writer.finish(before).unwrap()
}

/// What a save may look like.
pub(super) fn sample(before: Before) -> Vec<u8> {
    let sections = [
        Section::required(Name::HOST, 1, b"bdw"),
        Section::required(Name::DEVICE, 2, b"{\"registers\":[1,2,3]}"),
        Section::optional(Name::of("notes"), 7, b""),
        Section::required(Name::SCHEDULER, 2, &[0xa5; 100]),
    ];
    stream(&sections, before)
}

/// The text of the error that `section` is met with.
fn refusal(section: &Section<'_>) -> String {
    let bytes = stream(std::slice::from_ref(section), Before::default());
    Stream::parse(&bytes, &KNOWN).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read() {
    let bytes = sample(Before::default());
    let stream = Stream::parse(&bytes, &KNOWN).unwrap();
    assert_eq!(stream.header().format, FORMAT);
    assert_eq!(stream.header().len, bytes.len() as u64);
    assert_eq!(stream.header().sections, 4);
    assert_eq!(&*stream.require(Name::HOST).unwrap().body, b"bdw");
    assert_eq!(stream.require(Name::DEVICE).unwrap().version, 2);
    assert_eq!(stream.skipped(), [(Name::of("notes"), 7)]);
    let missing = stream.require(Name::PAGES).unwrap_err();
    assert_eq!(missing.to_string(), "section pages is missing");
}

#[test]
fn the_header_alone_tells_enough() {
    let bytes = sample(Before::of(b"QEVM"));
    let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!(header.len, bytes.len() as u64);
    assert_eq!(header.before, Before::of(b"QEVM"));
}

/// A stream as it was written when format 1 was new. That it is written the
/// same today is less important than that it is read.
#[test]
fn a_stream_of_format_1_is_still_read_and_written() {
    let golden = include_bytes!("../../tests/golden/format-1.stream");
    let (before, bytes) = find(golden).unwrap();
    assert_eq!(before, b"QEVM\0\0\0\x03");
    let stream = Stream::parse(bytes, &KNOWN).unwrap();
    assert_eq!(&*stream.require(Name::HOST).unwrap().body, b"bdw");
    assert_eq!(&*stream.require(Name::SCHEDULER).unwrap().body, [0xa5; 100]);
    assert_eq!(bytes, sample(Before::of(before)));
}

#[test]
fn newer_required_sections_are_refused_by_name() {
    assert_eq!(
        refusal(&Section::required(Name::DEVICE, 4, b"")),
        "section device has version 4; the newest known here is 3"
    );
    assert_eq!(
        refusal(&Section::required(Name::of("sr-iov"), 1, b"")),
        "section sr-iov, version 1, is required and not known here"
    );
    assert_eq!(
        refusal(&Section::required(Name::SCHEDULER, 1, b"")),
        "section scheduler has version 1; the oldest still known here is 2"
    );
}

#[test]
fn optional_sections_that_cannot_be_read_are_left_out() {
    let sections = [
        Section::optional(Name::DEVICE, 4, b"later"),
        Section::required(Name::HOST, 1, b"bdw"),
        Section::optional(Name::of("sr-iov"), 1, b"later"),
        Section::optional(Name::SCHEDULER, 1, b"former"),
    ];
    let bytes = stream(&sections, Before::default());
    let stream = Stream::parse(&bytes, &KNOWN).unwrap();
    assert_eq!(stream.get(Name::DEVICE), None);
    assert!(stream.get(Name::HOST).is_some());
    let skipped = [
        (Name::DEVICE, 4),
        (Name::of("sr-iov"), 1),
        (Name::SCHEDULER, 1),
    ];
    assert_eq!(stream.skipped(), skipped);
}

/// Each version of a section, from each writer to each reader.
#[test]
fn old_and_new_meet() {
    for written in 1..=4 {
        for newest in 1..=4 {
            for oldest in 1..=newest {
                let known = [known(Name::DEVICE, oldest, newest)];
                let section = Section::required(Name::DEVICE, written, b"body");
                let bytes = stream(&[section], Before::default());
                let read = Stream::parse(&bytes, &known);
                match read {
                    Ok(_) => assert!((oldest..=newest).contains(&written)),
                    Err(StreamError::Newer { .. }) => assert!(written > newest),
                    Err(StreamError::Older { .. }) => assert!(written < oldest),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn sections_are_there_once() {
    let section = Section::required(Name::HOST, 1, b"bdw");
    let bytes = stream(&[section.clone(), section], Before::default());
    let error = Stream::parse(&bytes, &KNOWN).unwrap_err();
    assert_eq!(error.to_string(), "section host is there twice");
}

#[test]
fn a_newer_format_is_refused() {
    let mut bytes = sample(Before::default());
    bytes[8] = 2;
    let sum = wire::checksum(&bytes[..44]);
    bytes[44..48].copy_from_slice(&sum.to_le_bytes());
    let error = Stream::parse(&bytes, &KNOWN).unwrap_err();
    assert_eq!(
        error.to_string(),
        "format 2 is newer than 1, the newest known here"
    );
}

#[test]
fn a_stream_too_long_to_be_read_is_not_written() {
    let body = vec![0; usize::try_from(MAX_LEN).unwrap()];
    let writer = Writer::new().section(&Section::required(Name::DEVICE, 1, &body));
    let error = writer.finish(Before::default()).unwrap_err();
    assert!(matches!(error, StreamError::TooLong { .. }), "{error}");
}

#[test]
fn names_are_checked() {
    assert_eq!(
        Name::from_bytes(*b"device\0\0\0\0\0\0\0\0\0\0"),
        Some(Name::DEVICE)
    );
    assert_eq!(Name::of("sixteen-letters-").to_string(), "sixteen-letters-");
    for bad in [
        [0; 16],
        *b"Device\0\0\0\0\0\0\0\0\0\0",
        *b"de\0vice\0\0\0\0\0\0\0\0\0",
    ] {
        assert_eq!(Name::from_bytes(bad), None, "{bad:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_sections_come_back(
        bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
        before in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let name = |i: usize| Name::of(["a", "b", "c", "d", "e", "f", "g", "h"][i]);
        let sections: Vec<_> = bodies.iter().enumerate()
            .map(|(i, body)| Section::required(name(i), 1, body))
            .collect();
        let mut file = before.clone();
        file.extend(stream(&sections, Before::of(&before)));
        let (found, bytes) = find(&file).unwrap();
        prop_assert_eq!(found, &before);
        let known: Vec<_> = (0..8).map(|i| known(name(i), 1, 1)).collect();
        let read = Stream::parse(bytes, &known).unwrap();
        for section in &sections {
            prop_assert_eq!(read.get(section.name), Some(section));
        }

        // The same sections over a connection.
        let mut connection = &bytes[Header::LEN..];
        for section in &sections {
            let got = read_section(&mut connection, 0, 300).unwrap();
            prop_assert_eq!(got.as_ref(), Some(section));
        }
    }
}

/// Gives a byte at a time, and is interrupted in between.
struct Slow<'a>(&'a [u8], bool);

impl Read for Slow<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let n = buf.len().min(1);
        self.0.read(&mut buf[..n])
    }
}

#[test]
fn a_connection_may_be_slow() {
    let mut bytes = Vec::new();
    let section = Section::required(Name::PAGES, 1, &[7; 5000]);
    section.write(&mut bytes);
    assert_eq!(bytes.len() as u64, section.stream_len());
    let mut connection = Slow(&bytes, false);
    let read = read_section(&mut connection, 0, 5000).unwrap();
    assert_eq!(read, Some(section));
    assert_eq!(read_section(&mut connection, 0, 5000).unwrap(), None);
}

#[test]
fn a_connection_that_promises_much_gets_little() {
    let mut bytes = Vec::new();
    Section::required(Name::PAGES, 1, &[7; 5000]).write(&mut bytes);
    let error = read_section(&mut &bytes[..], 0, 4999).unwrap_err();
    assert!(
        matches!(error, StreamError::TooLong { len: 5000 }),
        "{error}"
    );

    // It says 32 MiB and sends 100 bytes.
    let mut bytes = Vec::new();
    Section::required(Name::PAGES, 1, &vec![7; 32 << 20]).write(&mut bytes);
    let mut connection = Counting {
        bytes: &bytes[..140],
        most: 0,
    };
    let error = read_section(&mut connection, 0, MAX_LEN).unwrap_err();
    let said = "the body of section pages needs 33554432 bytes and 100 are left";
    assert_eq!(error.to_string(), said);
    assert!(connection.most <= 128 << 10, "{}", connection.most);
}

/// Notes the largest buffer that it was given.
struct Counting<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Read for Counting<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.most = self.most.max(buf.len());
        self.bytes.read(buf)
    }
}
