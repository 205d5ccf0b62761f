//! The "newc" cpio archive that Linux unpacks as initial RAM disk.
//!
//! Layout from Linux `Documentation/driver-api/early-userspace/buffer-format.rst`:
//! 110-byte ASCII header of 8-digit hex fields, name with NUL, data; header plus
//! name and data each padded to 4 bytes.

use anyhow::Context as _;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// An archive being written.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// An empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder; its parents have to be added before.
    ///
    /// # Errors
    /// For a name that is too long.
    pub fn folder(&mut self, name: &str) -> anyhow::Result<()> {
        self.entry(name, S_IFDIR | 0o755, &[])
    }

    /// Adds an executable file.
    ///
    /// # Errors
    /// For a name or a file that is too long.
    pub fn file(&mut self, name: &str, data: &[u8]) -> anyhow::Result<()> {
        self.entry(name, S_IFREG | 0o755, data)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// None that can occur.
    pub fn finish(mut self) -> anyhow::Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> anyhow::Result<()> {
        self.inode += 1;
        let size = u32::try_from(data.len()).with_context(|| format!("{name} is over 4 GiB"))?;
        let name_size = u32::try_from(name.len() + 1).context("a name over 4 GiB")?;
        let (uid, gid, links, mtime) = (0, 0, 1, 0);
        let (major, minor, rmajor, rminor, check) = (0, 0, 0, 0, 0);
        self.bytes.extend_from_slice(b"070701");
        for field in [
            self.inode, mode, uid, gid, links, mtime, size, major, minor, rmajor, rminor,
            name_size, check,
        ] {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_names_and_data_are_padded_to_four_bytes() {
        let mut archive = Archive::new();
        archive.folder("bin").unwrap();
        archive.file("init", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // 110 + "bin\0" = 114 → 116; then the next header.
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
        // 110 + "init\0" = 115 → 116.
        assert_eq!(&bytes[232..237], b"hello");
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
    }
}
