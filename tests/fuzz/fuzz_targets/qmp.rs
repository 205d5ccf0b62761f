//! A QMP stream of any content, in pieces of any size: no byte is lost, and
//! where messages end does not depend on the pieces.
#![no_main]

use vgpu_sched::qmp::Framer;

/// The messages without the white space around them.
fn messages<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut framer = Framer::default();
    let mut out = Vec::new();
    for piece in pieces {
        let done = framer.push(piece, Vec::new()).expect("short enough");
        out.extend(done.iter().map(|f| f.bytes.trim_ascii().to_vec()));
    }
    out
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&size, text)) = data.split_first() else {
        return;
    };
    let size = usize::from(size) + 1;
    let whole = messages(std::iter::once(text));
    assert_eq!(messages(text.chunks(size)), whole);

    let mut framer = Framer::default();
    let done = framer.push(text, Vec::new()).expect("short enough");
    let passed: Vec<u8> = done.into_iter().flat_map(|f| f.bytes).collect();
    assert!(text.starts_with(&passed));
});
