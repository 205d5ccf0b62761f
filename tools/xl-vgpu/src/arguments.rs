//! xl's command line, as far as `xl create` goes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What `xl create` is given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// The configuration file.
    pub config: Option<OsString>,
    /// Settings given as arguments.
    pub extra: Vec<OsString>,
    /// Nothing is to be created.
    pub dry_run: bool,
}

/// Long options of `xl create` and whether they take a value
/// (Xen `tools/xl/xl_vmcontrol.c:main_create`).
const LONG: [(&str, bool); 7] = [
    ("defconfig", true),
    ("dryrun", false),
    ("help", false),
    ("ignore-global-affinity-masks", false),
    ("quiet", false),
    ("vncviewer", false),
    ("vncviewer-autopass", false),
];

impl Create {
    /// Reads the arguments behind the program's name. `None` when they are
    /// not `xl create`, or not as xl takes them.
    pub fn parse(args: &[OsString]) -> Option<Self> {
        let mut args = args.iter();
        let mut create = Self::default();
        // Global options come first and take no value
        // (Xen tools/xl/xl.c:main, "+vftTN").
        let command = loop {
            let arg = args.next()?;
            match arg.as_bytes() {
                [b'-', letters @ ..] if !letters.is_empty() => {
                    create.dry_run |= letters.contains(&b'N');
                }
                command => break command,
            }
        };
        // A command may be shortened while it is unique
        // (Xen tools/xl/xl_cmdtable.c:cmdtable_lookup).
        if command.len() < 2 || !b"create".starts_with(command) {
            return None;
        }
        let mut only_operands = false;
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            match bytes {
                _ if only_operands => create.operand(arg)?,
                b"--" => only_operands = true,
                [b'-', b'-', option @ ..] => create.long(option, &mut args)?,
                [b'-', letters @ ..] if !letters.is_empty() => create.short(letters, &mut args)?,
                _ => create.operand(arg)?,
            }
        }
        Some(create)
    }

    fn operand(&mut self, arg: &OsStr) -> Option<()> {
        if arg.as_bytes().contains(&b'=') {
            self.extra.push(arg.to_owned());
        } else if self.config.is_none() {
            self.config = Some(arg.to_owned());
        } else {
            return None;
        }
        Some(())
    }

    fn long<'a>(
        &mut self,
        option: &[u8],
        args: &mut impl Iterator<Item = &'a OsString>,
    ) -> Option<()> {
        let mut parts = option.splitn(2, |&b| b == b'=');
        let name = parts.next()?;
        let value = parts.next();
        // getopt_long takes a unique beginning, or the whole.
        let whole = LONG.iter().find(|(n, _)| n.as_bytes() == name);
        let mut begins = LONG.iter().filter(|(n, _)| n.as_bytes().starts_with(name));
        let (name, valued) = match (whole, begins.next(), begins.next()) {
            (Some(option), ..) | (None, Some(option), None) => *option,
            _ => return None,
        };
        self.dry_run |= name == "dryrun";
        if valued {
            self.config = Some(match value {
                Some(value) => OsString::from_vec(value.to_vec()),
                None => args.next()?.clone(),
            });
        }
        Some(())
    }

    fn short<'a>(
        &mut self,
        letters: &[u8],
        args: &mut impl Iterator<Item = &'a OsString>,
    ) -> Option<()> {
        for (i, letter) in letters.iter().enumerate() {
            match letter {
                b'f' => {
                    let rest = letters.get(i + 1..).unwrap_or_default();
                    self.config = Some(if rest.is_empty() {
                        args.next()?.clone()
                    } else {
                        OsString::from_vec(rest.to_vec())
                    });
                    return Some(());
                }
                b'n' => self.dry_run = true,
                b'A' | b'F' | b'V' | b'c' | b'd' | b'e' | b'i' | b'p' | b'q' | b'h' => {}
                _ => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Create> {
        let args: Vec<OsString> = text.split_whitespace().map(Into::into).collect();
        Create::parse(&args)
    }

    fn create(config: &str, extra: &[&str]) -> Option<Create> {
        Some(Create {
            config: Some(config.into()),
            extra: extra.iter().map(Into::into).collect(),
            dry_run: false,
        })
    }

    #[test]
    fn the_configuration_is_found_where_xl_finds_it() {
        for text in [
            "create g.cfg",
            "cr g.cfg",
            "-vvv -f create g.cfg",
            "create -p -q g.cfg",
            "create g.cfg -c",
            "create -f g.cfg",
            "create -qfg.cfg",
            "create --defconfig=g.cfg -e",
            "create --def g.cfg",
            "create -- g.cfg",
            // An option wins over an operand before it.
            "create other.cfg -f g.cfg",
        ] {
            assert_eq!(parse(text), create("g.cfg", &[]), "{text}");
        }
        assert_eq!(
            parse("create g.cfg memory=512 -p vgpu='x'"),
            create("g.cfg", &["memory=512", "vgpu='x'"])
        );
        assert!(parse("create -n g.cfg").unwrap().dry_run);
        assert!(parse("-N create g.cfg").unwrap().dry_run);
        assert_eq!(parse("create a=b").unwrap().config, None);
    }

    #[test]
    fn what_is_not_create_is_not_ours() {
        for text in [
            "",
            "-v",
            "list",
            "c g.cfg",
            "created g.cfg",
            "destroy create",
            "create a b",
            "create -Z g.cfg",
            "create -f",
            "create --d g.cfg",
            "create --nonsense g.cfg",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
