//! The file in which libxl has QEMU leave its state, and we ours behind it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};
use vgpu_migrate::stream::{Before, Writer, read_file};

/// Stands before QEMU's bytes, so that a QEMU which the launcher did not start
/// refuses the file: it would let the guest run without its vGPU.
pub const MARK: [u8; 8] = *b"XVGPUSAV";

/// An open save file.
pub struct SaveFile(File);

impl SaveFile {
    /// Takes the file that QEMU is going to write through a duplicate of
    /// `fd`, emptied: libxl opens it without truncating it, so it may hold
    /// what a former attempt left.
    ///
    /// # Errors
    /// When it is no regular file, as libxl requires, or cannot be emptied.
    pub fn take(fd: BorrowedFd<'_>) -> anyhow::Result<Self> {
        let file = File::from(fd.try_clone_to_owned()?);
        ensure!(file.metadata()?.is_file(), "it is no regular file");
        file.set_len(0)?;
        Ok(Self(file))
    }

    /// Puts [`MARK`] before what is in the file, the stream of `writer` behind
    /// it, and the file's end behind that. Returns the bytes of QEMU's and of
    /// ours.
    ///
    /// # Errors
    /// When the file cannot be read or written; it may have grown then.
    pub fn append(&self, writer: Writer) -> anyhow::Result<(u64, u64)> {
        let len = self.0.metadata()?.len();
        // The descriptor is libxl's, for writing alone.
        let path = format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd());
        let qemu = File::open(path).context("cannot read what QEMU wrote")?;
        let qemu = read_file(&qemu).context("cannot read what QEMU wrote")?;
        let read = u64::try_from(qemu.len()).unwrap_or(u64::MAX);
        ensure!(
            read == len,
            "QEMU's state changes while it is read: {len} bytes, then {read}"
        );
        let mut bytes = [&MARK[..], &qemu].concat();
        let stream = writer.finish(Before::of(&bytes))?;
        let ours = u64::try_from(stream.len()).unwrap_or(u64::MAX);
        bytes.extend(stream);
        self.0.write_all_at(&bytes, 0)?;
        self.0
            .set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        Ok((len, ours))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use vgpu_migrate::stream::{Known, Name, Section, Stream, find};

    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let name = format!("vgpud-save-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        /// As libxl opens it: not truncated.
        fn open(&self) -> File {
            let mut options = File::options();
            options.write(true).create(true).truncate(false);
            options.open(&self.0).unwrap()
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_state_stands_behind_qemus_and_nothing_behind_it() {
        let place = Temporary::new("append");
        std::fs::write(&place.0, vec![7; 9000]).unwrap();
        for round in [b"QEMU's state, the first".as_slice(), b"second"] {
            let mut qemu = place.open();
            let ours = SaveFile::take(qemu.as_fd()).unwrap();
            qemu.write_all(round).unwrap();
            let section = Section::required(Name::DEVICE, 1, b"{}");
            let (before, behind) = ours.append(Writer::new().section(&section)).unwrap();
            let file = std::fs::read(&place.0).unwrap();
            assert_eq!(u64::try_from(file.len()).unwrap(), 8 + before + behind);
            let (theirs, stream) = find(&file).unwrap();
            assert_eq!(theirs, [&MARK[..], round].concat());
            let known = [Known {
                name: Name::DEVICE,
                oldest: 1,
                newest: 1,
            }];
            let stream = Stream::parse(stream, &known).unwrap();
            assert_eq!(&*stream.require(Name::DEVICE).unwrap().body, b"{}");
        }
    }

    #[test]
    fn a_pipe_is_refused() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(SaveFile::take(writer.as_fd()).is_err());
    }
}
