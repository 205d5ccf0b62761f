//! A stream at the end of somebody else's file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::MAX_LEN;
use super::error::{Part, StreamError};
use super::header::{Before, Header};
use super::trailer::Trailer;
use super::wire::len;

/// Finds the stream at the end of a file's bytes: what is before it, and it.
/// Only the end counts: what looks like a stream elsewhere is left from a
/// former save.
///
/// # Errors
/// [`StreamError::NoTrailer`] when there is none; others when there is one
/// that does not belong to what is before it, or is damaged at an end. The
/// rest of it is not looked at.
pub fn find(file: &[u8]) -> Result<(&[u8], &[u8]), StreamError> {
    let whole = len(file.len());
    let none = StreamError::NoTrailer { len: whole };
    let Some(last) = file.last_chunk() else {
        return Err(none);
    };
    let trailer = Trailer::parse(last)?.ok_or(none)?;
    if trailer.len > MAX_LEN {
        return Err(StreamError::TooLong { len: trailer.len });
    }
    let start = (whole.checked_sub(trailer.len)).and_then(|at| usize::try_from(at).ok());
    let (before, stream) =
        (start.and_then(|at| file.split_at_checked(at))).ok_or(StreamError::Disagree {
            part: Part::Trailer,
            said: trailer.len,
            actual: whole,
        })?;
    let at = len(before.len());
    let first = (stream.first_chunk::<{ Header::LEN }>()).ok_or(StreamError::NoHeader { at })?;
    let header = Header::parse(first).map_err(|error| match error {
        StreamError::NoHeader { .. } => StreamError::NoHeader { at },
        error => error,
    })?;
    let (said, now) = (header.before, Before::of(before));
    if said != now {
        return Err(StreamError::Stale {
            said: said.len,
            said_checksum: said.checksum,
            actual: now.len,
            actual_checksum: now.checksum,
        });
    }
    Ok((before, stream))
}

/// Bytes of QEMU's that are read to get at ours. Its save files have some
/// KiB, and libxl reads them whole, too.
const MAX_FILE: u64 = MAX_LEN * 2;

/// All of a file, for [`find`]. The file's offset, which others may share,
/// stays where it is.
///
/// # Errors
/// When it is too long, or cannot be read.
pub fn read_file(file: &File) -> Result<Vec<u8>, StreamError> {
    let whole = file.metadata()?.len();
    if whole > MAX_FILE {
        return Err(StreamError::TooLong { len: whole });
    }
    let too_long = |_| StreamError::TooLong { len: whole };
    let mut bytes = vec![0; usize::try_from(whole).map_err(too_long)?];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(bytes),
        // It has become shorter: whoever did that is still writing.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(StreamError::NoTrailer { len: whole })
        }
        Err(error) => Err(error.into()),
    }
}
