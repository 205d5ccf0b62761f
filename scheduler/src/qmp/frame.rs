//! Where one JSON message of a stream ends and the next begins.

use std::os::fd::OwnedFd;

/// The longest message that is passed. libxl itself takes 1 MiB.
pub const MAX_MESSAGE: usize = 8 << 20;

/// The most descriptors that wait for their message to be complete.
const MAX_FDS: usize = 16;

/// A message as it came: whitespace around it included.
#[derive(Debug)]
pub struct Frame {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// The peer sends what cannot be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Without end.
    #[error("a message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
    /// With too many descriptors.
    #[error("a message has more than {MAX_FDS} descriptors")]
    TooManyFds,
}

/// Cuts a stream into messages.
///
/// QEMU parses a stream of JSON, not lines, so this follows braces and
/// strings. What is not a JSON object ends at its newline and is left to the
/// receiver to complain about.
#[derive(Default)]
pub struct Framer {
    partial: Vec<u8>,
    fds: Vec<OwnedFd>,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Something other than whitespace was seen.
    begun: bool,
}

impl Framer {
    /// Takes what one receive call returned, and gives the messages now
    /// complete. Descriptors belong to the message that the last of the bytes
    /// is part of: a receive call ends behind the bytes they were sent with
    /// (Linux `net/unix/af_unix.c:unix_stream_read_generic`).
    pub fn push(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Vec<Frame>, FrameError> {
        let mut done: Vec<Frame> = Vec::new();
        for &byte in bytes {
            if byte.is_ascii_whitespace()
                && self.partial.is_empty()
                && let Some(last) = done.last_mut()
            {
                // The line end of the message before.
                last.bytes.push(byte);
                continue;
            }
            if self.partial.len() == MAX_MESSAGE {
                return Err(FrameError::TooLong);
            }
            self.partial.push(byte);
            if self.ends_with(byte) {
                done.push(Frame {
                    bytes: std::mem::take(&mut self.partial),
                    fds: std::mem::take(&mut self.fds),
                });
                self.begun = false;
            }
        }
        let owner = match done.last_mut() {
            Some(last) if self.partial.is_empty() => &mut last.fds,
            _ => &mut self.fds,
        };
        owner.extend(fds);
        if owner.len() > MAX_FDS {
            return Err(FrameError::TooManyFds);
        }
        Ok(done)
    }

    /// Follows the structure; true when `byte` ends a message.
    fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'{' | b'[' => {
                self.begun = true;
                self.depth = self.depth.saturating_add(1);
                false
            }
            b'}' | b']' => {
                self.begun = true;
                self.depth = self.depth.saturating_sub(1);
                self.depth == 0
            }
            b'"' if self.depth > 0 => {
                self.in_string = true;
                false
            }
            b'\n' => self.depth == 0 && self.begun,
            _ => {
                self.begun |= !byte.is_ascii_whitespace();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn texts(frames: &[Frame]) -> Vec<String> {
        frames
            .iter()
            .map(|f| String::from_utf8_lossy(&f.bytes).into_owned())
            .collect()
    }

    #[test]
    fn two_messages_in_one_read_are_two() {
        let frames = Framer::default()
            .push(b"{\"a\":1}\r\n{\"b\":[{}]}\r\n", Vec::new())
            .unwrap();
        assert_eq!(texts(&frames), ["{\"a\":1}\r\n", "{\"b\":[{}]}\r\n"]);
    }

    #[test]
    fn braces_in_strings_do_not_count() {
        let mut framer = Framer::default();
        let text = r#"{"a":"}\"}\\","b":"\n{"}"#;
        for byte in &text.as_bytes()[..text.len() - 1] {
            assert!(framer.push(&[*byte], Vec::new()).unwrap().is_empty());
        }
        assert_eq!(texts(&framer.push(b"}", Vec::new()).unwrap()), [text]);
    }

    #[test]
    fn what_is_no_object_ends_at_its_line() {
        let frames = Framer::default().push(b"hello\n{}", Vec::new()).unwrap();
        assert_eq!(texts(&frames), ["hello\n", "{}"]);
    }

    #[test]
    fn descriptors_stay_with_their_message() {
        let mut framer = Framer::default();
        // As libxl sends them: with the first byte.
        assert!(framer.push(b"{", vec![fd()]).unwrap().is_empty());
        let frames = framer.push(b"}\r\n{}", Vec::new()).unwrap();
        assert_eq!(frames[0].fds.len(), 1);
        assert_eq!(frames[1].fds.len(), 0);
        // With the whole message.
        assert_eq!(framer.push(b"{}\n", vec![fd()]).unwrap()[0].fds.len(), 1);
        // With a blank before it.
        assert!(framer.push(b" ", vec![fd()]).unwrap().is_empty());
        assert_eq!(framer.push(b"{}", Vec::new()).unwrap()[0].fds.len(), 1);
        // Behind another message's end.
        assert!(framer.push(b"{", Vec::new()).unwrap().is_empty());
        let frames = framer.push(b"}{", vec![fd()]).unwrap();
        assert_eq!(frames[0].fds.len(), 0);
        assert_eq!(framer.push(b"}", Vec::new()).unwrap()[0].fds.len(), 1);
    }

    #[test]
    fn endless_input_is_refused() {
        let mut framer = Framer::default();
        framer.push(b"{\"", Vec::new()).unwrap();
        let fill = vec![b'x'; MAX_MESSAGE - 2];
        assert!(framer.push(&fill, Vec::new()).unwrap().is_empty());
        assert_eq!(
            framer.push(b"x", Vec::new()).err(),
            Some(FrameError::TooLong)
        );
        let many = (0..=MAX_FDS).map(|_| fd()).collect();
        assert_eq!(
            Framer::default().push(b"{", many).err(),
            Some(FrameError::TooManyFds)
        );
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_moved(chunks in prop::collection::vec("[{}\"\\\\a\n \\[\\]]{0,12}", 0..12)) {
            let mut framer = Framer::default();
            let mut out = Vec::new();
            for chunk in &chunks {
                for frame in framer.push(chunk.as_bytes(), Vec::new()).unwrap() {
                    out.extend(frame.bytes);
                }
            }
            out.extend(&framer.partial);
            prop_assert_eq!(out, chunks.concat().into_bytes());
        }
    }
}
