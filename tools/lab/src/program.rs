//! Host programs: which are needed, and how they are run.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// A host program and the Debian package that has it.
pub struct Needed {
    name: &'static str,
    package: &'static str,
}

/// To build images.
pub const FOR_IMAGES: &[Needed] = &[
    Needed {
        name: "mmdebstrap",
        package: "mmdebstrap",
    },
    Needed {
        name: "mke2fs",
        package: "e2fsprogs",
    },
    Needed {
        name: "gzip",
        package: "gzip",
    },
    Needed {
        name: "cp",
        package: "coreutils",
    },
];

/// To build the image of a guests' kernel.
pub const FOR_KERNELS: &[Needed] = &[
    Needed {
        name: "mmdebstrap",
        package: "mmdebstrap",
    },
    Needed {
        name: "xz",
        package: "xz-utils",
    },
];

/// To run a scenario.
pub const FOR_RUNS: &[Needed] = &[
    Needed {
        name: "tar",
        package: "tar",
    },
    Needed {
        name: "gzip",
        package: "gzip",
    },
    Needed {
        name: "setpriv",
        package: "util-linux",
    },
];

/// Checks that every program is there, and names the packages that are not.
pub fn require(needed: &[Needed]) -> anyhow::Result<()> {
    let missing: Vec<&Needed> = needed.iter().filter(|n| find(n.name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|n| n.name).collect();
    let packages: Vec<&str> = missing.iter().map(|n| n.package).collect();
    bail!(
        "missing on this machine: {} (apt-get install {})",
        names.join(", "),
        packages.join(" ")
    )
}

fn find(name: &str) -> Option<PathBuf> {
    // mke2fs is in /usr/sbin, which a plain user's PATH may lack.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs `command` to its end, its output going to `log`; an error names the
/// command and the log.
pub fn logged(command: &mut Command, log: &Path) -> anyhow::Result<()> {
    let file = File::options().create(true).append(true).open(log)?;
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot run {name}"))?;
    if !status.success() {
        let tail = last_line(log).unwrap_or_default();
        bail!(
            "{name} failed ({status}): {tail} (all of it: {})",
            log.display()
        );
    }
    Ok(())
}

fn last_line(log: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&std::fs::read(log).ok()?).into_owned();
    text.lines()
        .rev()
        .find(|l| !l.trim().is_empty())
        .map(|l| l.trim().to_owned())
}

/// A command for a host program that may be outside PATH.
pub fn command(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| PathBuf::from(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let needed = [
            Needed {
                name: "sh",
                package: "dash",
            },
            Needed {
                name: "no-such-program-here",
                package: "no-such-package",
            },
        ];
        let error = require(&needed).unwrap_err().to_string();
        assert_eq!(
            error,
            "missing on this machine: no-such-program-here (apt-get install no-such-package)"
        );
        assert!(require(&needed[..1]).is_ok());
    }
}
