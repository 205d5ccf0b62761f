//! libxl's command line: what is ours, and what QEMU gets.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use vgpu_config::{Slots, VgpuSpec};

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The guest to register; `None` just becomes QEMU.
    pub guest: Option<Guest>,
    /// QEMU's arguments.
    pub args: Vec<OsString>,
}

/// A guest that gets a vGPU.
#[derive(Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its domain.
    pub domid: u16,
    /// Its vGPU.
    pub spec: VgpuSpec,
    /// Where libxl expects QEMU's control socket and where it is going to be.
    pub qmp: Option<(PathBuf, PathBuf)>,
    /// The descriptor from which QEMU is going to load the guest's state, of
    /// a guest that was saved or comes from another host.
    pub incoming: Option<u32>,
}

impl Plan {
    /// Reads the arguments behind the program's name.
    ///
    /// # Errors
    /// What is wrong with them, naming the argument.
    pub fn new(args: Vec<OsString>) -> anyhow::Result<Self> {
        let (specs, mut args) = take_specs(args)?;
        // The QEMU that serves a PV domain, a stub domain say, is started
        // with the same override. It emulates no hardware.
        let pv = has(&args, "-xen-attach") || value(&args, "-machine").is_some_and(is_xenpv);
        let spec = match specs.as_slice() {
            _ if pv => None,
            [] => None,
            [spec] => Some(spec.parse::<VgpuSpec>()?),
            more => bail!("-vgpu stands {} times, allowed: once", more.len()),
        };
        let Some(spec) = spec else {
            return Ok(Self { guest: None, args });
        };
        let domid = value(&args, "-xen-domid").context("-vgpu needs -xen-domid")?;
        let domid = domid
            .parse()
            .with_context(|| format!("-xen-domid is {domid:?}, allowed: a domain id"))?;
        let mut slots = Slots::default();
        slots.add_args(args.iter().filter_map(|a| a.to_str()));
        slots.check(spec.slot)?;
        let qmp = move_qmp(&mut args, domid)?;
        let guest = Guest {
            domid,
            spec,
            qmp,
            incoming: incoming(&args)?,
        };
        Ok(Self {
            guest: Some(guest),
            args,
        })
    }
}

impl Plan {
    /// Has QEMU load its state from the descriptor `number`.
    pub fn load_from(&mut self, number: i32) {
        if let Some(at) = self.args.iter().position(|a| a == "-incoming")
            && let Some(from) = self.args.get_mut(at + 1)
        {
            *from = format!("fd:{number}").into();
        }
    }
}

/// Takes out every `-vgpu SPEC`.
fn take_specs(args: Vec<OsString>) -> anyhow::Result<(Vec<String>, Vec<OsString>)> {
    let mut specs = Vec::new();
    let mut rest = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg != "-vgpu" {
            rest.push(arg);
            continue;
        }
        let spec = args.next().context("-vgpu has no value")?;
        match spec.into_string() {
            Ok(spec) => specs.push(spec),
            Err(spec) => bail!("-vgpu is {}, allowed: UTF-8", spec.display()),
        }
    }
    Ok((specs, rest))
}

fn has(args: &[OsString], name: &str) -> bool {
    args.iter().any(|a| a == name)
}

/// What follows the first `name`.
fn value<'a>(args: &'a [OsString], name: &str) -> Option<&'a str> {
    let at = args.iter().position(|a| a == name)?;
    args.get(at + 1)?.to_str()
}

/// The descriptor of `-incoming fd:N`, as libxl gives it
/// (Xen libxl_dm.c:libxl__build_device_model_args_new).
fn incoming(args: &[OsString]) -> anyhow::Result<Option<u32>> {
    let Some(from) = value(args, "-incoming") else {
        return Ok(None);
    };
    let number = from.strip_prefix("fd:").and_then(|n| n.parse().ok());
    let number = number
        .with_context(|| format!("-incoming is {from:?}, allowed with -vgpu: fd: and a number"))?;
    Ok(Some(number))
}

fn is_xenpv(machine: &str) -> bool {
    machine.split(',').next() == Some("xenpv")
}

/// Moves the control socket that libxl asks for to a private path.
fn move_qmp(args: &mut [OsString], domid: u16) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let is_control = |arg: &OsString| {
        arg.to_str()
            .is_some_and(|a| a.starts_with("socket,") && a.split(',').any(|o| o == "id=libxl-cmd"))
    };
    let Some(at) = (1..args.len()).find(|&i| args[i - 1] == "-chardev" && is_control(&args[i]))
    else {
        return Ok(None);
    };
    let chardev = args[at].to_str().unwrap_or_default().to_owned();
    let Some(public) = chardev.split(',').find_map(|o| o.strip_prefix("path=")) else {
        // With dm_restrict=1 libxl passes a listening descriptor.
        bail!("-chardev is {chardev:?}, allowed with -vgpu: one with path=, so dm_restrict=0");
    };
    let private = Path::new(public).with_file_name(format!("qmp-vgpu-{domid}"));
    let private_text = private.to_str().context("a path that was UTF-8")?;
    args[at] = chardev
        .split(',')
        .map(|o| {
            if o.starts_with("path=") {
                format!("path={private_text}")
            } else {
                o.to_owned()
            }
        })
        .collect::<Vec<_>>()
        .join(",")
        .into();
    Ok(Some((PathBuf::from(public), private)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What libxl 4.17 gives for an HVM guest, shortened.
    const LIBXL: &str = "-xen-domid 5 -no-shutdown \
        -chardev socket,id=libxl-cmd,path=/var/run/xen/qmp-libxl-5,server=on,wait=off \
        -mon chardev=libxl-cmd,mode=control \
        -chardev socket,id=libxenstat-cmd,path=/var/run/xen/qmp-libxenstat-5,server=on,wait=off \
        -mon chardev=libxenstat-cmd,mode=control -nodefaults -name guest -device VGA,vgamem_mb=16 \
        -boot order=cda -device rtl8139,id=nic0,netdev=net0,mac=00:16:3e:00:00:01 \
        -machine xenfv,suppress-vmdesc=on";

    fn plan(text: &str) -> anyhow::Result<Plan> {
        Plan::new(text.split_whitespace().map(Into::into).collect())
    }

    fn error(text: &str) -> String {
        format!("{:#}", plan(text).unwrap_err())
    }

    #[test]
    fn without_our_argument_nothing_changes() {
        let plan = plan(LIBXL).unwrap();
        assert_eq!(plan.guest, None);
        assert_eq!(plan.args, LIBXL.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn our_argument_goes_and_the_socket_moves() {
        let plan = plan(&format!("{LIBXL} -vgpu gpu=bdw,slot=9 -m 512")).unwrap();
        let guest = plan.guest.unwrap();
        assert_eq!((guest.domid, guest.spec.slot), (5, 9));
        assert_eq!(guest.incoming, None);
        let public = PathBuf::from("/var/run/xen/qmp-libxl-5");
        let private = PathBuf::from("/var/run/xen/qmp-vgpu-5");
        assert_eq!(guest.qmp, Some((public, private)));
        let expected = format!("{LIBXL} -m 512").replace("qmp-libxl-5", "qmp-vgpu-5");
        assert_eq!(plan.args, expected.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_restored_guest_brings_its_file() {
        let mut plan = plan(&format!("{LIBXL} -incoming fd:17 -vgpu slot=9")).unwrap();
        assert_eq!(plan.guest.as_ref().unwrap().incoming, Some(17));
        // QEMU gets it as well, or another in its place.
        assert_eq!(value(&plan.args, "-incoming"), Some("fd:17"));
        plan.load_from(20);
        assert_eq!(value(&plan.args, "-incoming"), Some("fd:20"));
    }

    #[test]
    fn a_pv_backend_is_left_alone() {
        for pv in [
            "-xen-domid 5 -xen-attach -vgpu slot=bad",
            "-machine xenpv,x=y -vgpu gpu=bdw",
        ] {
            let plan = plan(pv).unwrap();
            assert_eq!(plan.guest, None);
            assert!(!has(&plan.args, "-vgpu"));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        assert_eq!(error("-xen-domid 5 -vgpu"), "-vgpu has no value");
        assert_eq!(
            error("-xen-domid 5 -vgpu slot=9 -vgpu slot=10"),
            "-vgpu stands 2 times, allowed: once"
        );
        assert_eq!(error("-vgpu slot=9"), "-vgpu needs -xen-domid");
        assert!(
            error("-xen-domid x -vgpu slot=9")
                .starts_with(r#"-xen-domid is "x", allowed: a domain"#)
        );
        assert!(error(&format!("{LIBXL} -vgpu slot=40")).starts_with(r#"vgpu: slot is "40""#));
        assert!(
            error(&format!("{LIBXL} -vgpu slot=3"))
                .starts_with(r#"vgpu: slot is "3, taken by VGA""#)
        );
        assert_eq!(
            error(&format!("{LIBXL} -vgpu slot=9 -incoming tcp:0:4444")),
            "-incoming is \"tcp:0:4444\", allowed with -vgpu: fd: and a number"
        );
        let restricted = "-xen-domid 5 -vgpu slot=9 -chardev socket,id=libxl-cmd,fd=10,server=on";
        assert!(error(restricted).contains("dm_restrict=0"));
    }
}
