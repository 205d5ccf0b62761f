//! Streams that are cut off, changed or put together wrongly.

use super::*;

/// Where each part of [`sample`] begins, and what an error there must name.
fn parts() -> Vec<(usize, &'static str)> {
    let header = SectionHeaderLen::LEN;
    let mut at = Header::LEN;
    let mut parts = vec![(0, "the header")];
    let sections = [
        (3, "the body of section host"),
        (21, "the body of section device"),
        (0, "the body of section notes"),
        (100, "the body of section scheduler"),
    ];
    for (len, body) in sections {
        parts.push((at, "the section header at byte"));
        at += header;
        parts.push((at, body));
        at += len;
    }
    parts.push((at, "the trailer"));
    parts
}

/// The length of a section's header, as the document has it.
struct SectionHeaderLen;

impl SectionHeaderLen {
    const LEN: usize = 40;
}

/// What holds byte `at`.
fn part(at: usize) -> &'static str {
    let parts = parts();
    let part = parts.iter().rev().find(|(start, _)| *start <= at);
    part.unwrap().1
}

#[test]
fn cut_off_anywhere_is_an_error() {
    let whole = sample(Before::default());
    for len in 0..whole.len() {
        let error = Stream::parse(&whole[..len], &KNOWN)
            .unwrap_err()
            .to_string();
        if len < Header::LEN {
            let short = format!("the header needs 48 bytes and {len} are left");
            assert_eq!(error, short);
        } else {
            let says = format!("the header says {} and it is {len}", whole.len());
            assert_eq!(error, says);
        }
    }
    for len in 1..40 {
        let longer = [&whole[..], &vec![0; len]].concat();
        let error = Stream::parse(&longer, &KNOWN).unwrap_err().to_string();
        assert!(error.starts_with("the header says"), "{error}");
    }
}

/// As over a connection, where nothing says how long all of it is.
#[test]
fn cut_off_between_or_in_sections() {
    let whole = sample(Before::default());
    let body = &whole[Header::LEN..whole.len() - 24];
    for len in 0..body.len() {
        let mut connection = &body[..len];
        let mut at = Header::LEN;
        let error = loop {
            match read_section(&mut connection, at as u64, 1000) {
                Ok(None) => break None,
                Ok(Some(section)) => at += usize::try_from(section.stream_len()).unwrap(),
                Err(error) => break Some(error.to_string()),
            }
        };
        // A boundary is an end like any other here; who counts, knows.
        let starts: Vec<_> = parts().into_iter().map(|(start, _)| start).collect();
        let cut = Header::LEN + len;
        let boundary = cut == at && starts.contains(&cut);
        match error {
            None => assert!(boundary, "{len}"),
            Some(error) => {
                // An empty body is there as soon as its header is.
                let place = part(cut - 1);
                let said = [place, part(cut)]
                    .iter()
                    .any(|part| error.starts_with(part));
                assert!(said && error.contains("are left"), "{len}: {error}");
            }
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found_where_it_is() {
    let before = Before::of(b"before");
    let whole = sample(before);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            let error = Stream::parse(&flipped, &KNOWN).unwrap_err().to_string();
            let place = part(at);
            let magic = match place {
                "the header" if at < 8 => "no vGPU state begins at byte 0",
                "the trailer" if at < whole.len() - 16 => "no vGPU state at the end",
                place => place,
            };
            assert!(error.starts_with(magic), "byte {at}, bit {bit}: {error}");

            let file = [&b"before"[..], &flipped].concat();
            let found = find(&file).and_then(|(_, bytes)| Stream::parse(bytes, &KNOWN).map(drop));
            assert!(found.is_err(), "byte {at}, bit {bit}");
        }
    }
}

/// Sections whole in themselves, and wrong as a whole.
#[test]
fn sections_that_were_moved_dropped_or_added() {
    let whole = sample(Before::default());
    let starts: Vec<_> = (parts().iter())
        .filter(|(_, part)| *part == "the section header at byte" || *part == "the trailer")
        .map(|(start, _)| *start)
        .collect();
    let section = |i: usize| whole[starts[i]..starts[i + 1]].to_vec();
    let with = |sections: &[usize]| {
        let mut bytes = whole[..Header::LEN].to_vec();
        sections.iter().for_each(|&i| bytes.extend(section(i)));
        bytes.extend(&whole[starts[4]..]);
        // As someone would who knows about lengths and not about checksums.
        let len = (bytes.len() as u64).to_le_bytes();
        bytes[16..24].copy_from_slice(&len);
        let sum = wire::checksum(&bytes[..44]).to_le_bytes();
        bytes[44..48].copy_from_slice(&sum);
        let trailer = bytes.len() - 24;
        bytes[trailer + 8..trailer + 16].copy_from_slice(&len);
        bytes[trailer + 16..trailer + 20].copy_from_slice(&sum);
        let sum = wire::checksum(&bytes[trailer..trailer + 20]).to_le_bytes();
        bytes[trailer + 20..].copy_from_slice(&sum);
        Stream::parse(&bytes, &KNOWN)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(with(&[0, 1, 2, 3]), Ok(()));
    let damaged = with(&[1, 0, 2, 3]).unwrap_err();
    assert!(damaged.starts_with("the header is damaged"), "{damaged}");
    assert_eq!(
        with(&[0, 1, 2]),
        Err("the header says 4 and it is 3".into())
    );
    assert_eq!(
        with(&[0, 1, 2, 3, 0]),
        Err("the header says 4 and it is 5".into())
    );
}

#[test]
fn lengths_that_lie() {
    let mut bytes = Vec::new();
    Section::required(Name::DEVICE, 1, b"body").write(&mut bytes);
    for said in [5, 1 << 40, u64::MAX] {
        bytes[20..28].copy_from_slice(&said.to_le_bytes());
        let sum = wire::checksum(&bytes[..36]).to_le_bytes();
        bytes[36..40].copy_from_slice(&sum);
        let writer = Writer::new();
        let whole = writer
            .with_body(bytes.clone(), 1)
            .finish(Before::default())
            .unwrap();
        let error = Stream::parse(&whole, &KNOWN).unwrap_err().to_string();
        let short = format!("the body of section device needs {said} bytes and 4 are left");
        assert_eq!(error, short);
    }
}

#[test]
fn what_must_be_zero_is() {
    let mut bytes = Vec::new();
    Section::required(Name::DEVICE, 1, b"body").write(&mut bytes);
    for (at, value) in [(18, 2), (19, 0x80), (32, 1)] {
        let mut bytes = bytes.clone();
        bytes[at] |= value;
        let sum = wire::checksum(&bytes[..36]).to_le_bytes();
        bytes[36..40].copy_from_slice(&sum);
        let whole = Writer::new()
            .with_body(bytes, 1)
            .finish(Before::default())
            .unwrap();
        let error = Stream::parse(&whole, &KNOWN).unwrap_err().to_string();
        assert!(error.ends_with("where zero must be"), "{error}");
    }
}
