//! Packing and unpacking, by the programs that every Debian has.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Writes `bytes` to the file `to` as gzip packs them best, without a name or
/// a time.
///
/// # Errors
/// When gzip is not there or fails.
pub fn gzip(bytes: &[u8], to: &Path) -> anyhow::Result<()> {
    let plain = to.with_extension("plain");
    fs::write(&plain, bytes).with_context(|| format!("cannot write {}", plain.display()))?;
    let out = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    let status = Command::new("gzip")
        .args(["-9", "-n", "-c"])
        .stdin(File::open(&plain)?)
        .stdout(out)
        .status()
        .context("cannot run gzip")?;
    if !status.success() {
        bail!("gzip failed ({status})");
    }
    fs::remove_file(&plain)?;
    Ok(())
}

/// What the file `path` holds, unpacked if its name says that it is packed,
/// and that name without the ending.
///
/// # Errors
/// When it cannot be read, or the program that unpacks it is not there or
/// fails.
pub fn unpacked(path: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    let name = path.file_name().context("a path without a name")?;
    let name = name.to_str().context("a name that is not UTF-8")?;
    let programs = [(".xz", "xz"), (".zst", "zstd"), (".gz", "gzip")];
    for (ending, program) in programs {
        let Some(plain) = name.strip_suffix(ending) else {
            continue;
        };
        let output = Command::new(program)
            .arg("-dc")
            .arg(path)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {program} for {}", path.display()))?;
        if !output.status.success() {
            bail!("{program} failed on {} ({})", path.display(), output.status);
        }
        return Ok((plain.to_owned(), output.stdout));
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((name.to_owned(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again_and_packs_to_the_same() {
        let dir = std::env::temp_dir().join(format!("boot-image-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (a, b) = (dir.join("m.ko.gz"), dir.join("n.ko.gz"));
        gzip(b"module", &a).unwrap();
        gzip(b"module", &b).unwrap();
        assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
        assert_eq!(
            unpacked(&a).unwrap(),
            ("m.ko".to_owned(), b"module".to_vec())
        );
        fs::write(dir.join("plain.ko"), "x").unwrap();
        let plain = unpacked(&dir.join("plain.ko")).unwrap();
        assert_eq!(plain, ("plain.ko".to_owned(), b"x".to_vec()));
        fs::remove_dir_all(&dir).unwrap();
    }
}
