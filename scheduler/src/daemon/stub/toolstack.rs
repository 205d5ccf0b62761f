//! What is asked of Xen's toolstack for a device model's own domain.
//!
//! The domain is xl's: it knows how a PV domain is built, and every tool of the
//! host sees the domain as any other. What xl does not know, the target, is
//! done with the hypervisor and xenstore.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno as XenErrno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use xen_glue::{
    Access, DomId, DomainState, Extent, Hypercall, HypercallError, Hypervisor, XenHost, Xenstore,
    XenstoreWatch, give_frames,
};

/// A domain to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainPlan {
    /// Its name, of no other domain.
    pub name: String,
    /// The kernel.
    pub kernel: PathBuf,
    /// Its initial RAM disk.
    pub initramfs: PathBuf,
    /// Its command line.
    pub command_line: String,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// The processors it may run on, as xl has them; any without.
    pub cpus: Option<String>,
}

/// Makes domains and ends them.
pub trait Toolstack: Send + Sync {
    /// Makes the domain, which does not run yet. One of that name that was made
    /// so goes first.
    ///
    /// # Errors
    /// What the toolstack says, or that another's domain has that name.
    fn create(&self, plan: &DomainPlan) -> anyhow::Result<u16>;

    /// All domains that were made so, by whichever daemon. What one that was
    /// killed was about to make is among them.
    ///
    /// # Errors
    /// When xenstore does not tell.
    fn made(&self) -> anyhow::Result<Vec<u16>>;

    /// Lets `stub` be a device model of `guest`, and lets it say so: it finds
    /// the guest in xenstore, and may write the node `folder`.
    ///
    /// # Errors
    /// What is refused.
    fn set_target(&self, stub: u16, guest: u16, folder: &str) -> anyhow::Result<()>;

    /// Has it run.
    ///
    /// # Errors
    /// What the toolstack says.
    fn unpause(&self, stub: u16) -> anyhow::Result<()>;

    /// Ends it, whatever it does. When this returns nothing of it is left.
    ///
    /// # Errors
    /// What the toolstack says.
    fn destroy(&self, stub: u16) -> anyhow::Result<()>;

    /// Sees to it that the guest `guest`, which has no ioreq server of ours yet,
    /// has the frames in which pages of servers lie. A guest that was saved lacks
    /// those that were used then.
    ///
    /// # Errors
    /// When the hypervisor does not tell, or gives none.
    fn have_frames(&self, guest: u16) -> anyhow::Result<()>;

    /// Pauses the guest `guest`, whatever else does: no vCPU of it runs when this
    /// returns.
    ///
    /// # Errors
    /// When the hypervisor does not.
    fn pause_guest(&self, guest: u16) -> anyhow::Result<()>;

    /// Takes that back. A guest that nobody has paused is left as it is.
    ///
    /// # Errors
    /// When the hypervisor does not.
    fn unpause_guest(&self, guest: u16) -> anyhow::Result<()>;

    /// Whether it runs, or how it ended.
    ///
    /// # Errors
    /// When the hypervisor does not tell.
    fn state(&self, stub: u16) -> anyhow::Result<DomainState>;

    /// A node's value, if there is such a node.
    ///
    /// # Errors
    /// When xenstore does not tell.
    fn read(&self, path: &str) -> anyhow::Result<Option<String>>;

    /// Writes a node of `stub`'s, of which nothing stays if that is being destroyed.
    ///
    /// # Errors
    /// When xenstore refuses.
    fn write(&self, stub: u16, path: &str, value: &str) -> anyhow::Result<()>;

    /// A watch on a node and all below it, or on what xenstore calls
    /// `@releaseDomain`, the ends of domains.
    ///
    /// # Errors
    /// When xenstore refuses.
    fn watch(&self, path: &str) -> anyhow::Result<Box<dyn Watch>>;
}

/// Tells that something may have changed.
pub trait Watch: Send {
    /// Becomes readable when it has.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes what made it readable.
    ///
    /// # Errors
    /// When xenstore is gone.
    fn take(&mut self) -> anyhow::Result<()>;
}

impl dyn Watch + '_ {
    /// Waits until something may have changed, at most `limit`.
    ///
    /// # Errors
    /// When xenstore is gone.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<()> {
        let ready = {
            let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
            let limit = Timespec::try_from(limit)?;
            match poll(&mut fds, Some(&limit)) {
                Ok(ready) => ready > 0,
                Err(Errno::INTR) => false,
                Err(e) => return Err(e.into()),
            }
        };
        if ready { self.take() } else { Ok(()) }
    }
}

impl Watch for XenstoreWatch {
    fn fd(&self) -> BorrowedFd<'_> {
        self.poll_fd()
    }

    fn take(&mut self) -> anyhow::Result<()> {
        self.next_path()?;
        Ok(())
    }
}

/// xl and Xen.
pub struct Xl {
    program: PathBuf,
    /// Of files that xl reads.
    folder: PathBuf,
    hypercall: Hypercall,
}

/// Where xl and its configuration are.
const ETC_XEN: &str = "/etc/xen";

impl Xl {
    /// With the program `xl`; files for it are made in `folder`.
    ///
    /// # Errors
    /// When this is no Xen host.
    pub fn open(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            hypercall: Hypercall::open()?,
        })
    }

    /// xl's configuration of the host, with a lock of our own.
    ///
    /// Where it balloons dom0, xl holds the host's lock while it waits for the
    /// guest's device model, which waits for us (Xen
    /// `tools/xl/xl_vmcontrol.c:create_domain`).
    fn own_etc(&self) -> anyhow::Result<PathBuf> {
        let own = self.folder.join("xl");
        fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
        // Whoever can write there decides what xl does.
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700))?;
        let mut text = fs::read_to_string(Path::new(ETC_XEN).join("xl.conf")).unwrap_or_default();
        // The last setting of a name holds.
        let lock = own.join("lock");
        write!(text, "\nlockfile=\"{}\"\n", lock.display())?;
        fs::write(own.join("xl.conf"), text)?;
        Ok(own)
    }

    fn xl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        run(Command::new(&self.program).args(arguments), self.lease()?)
    }

    fn running(&self) -> anyhow::Result<File> {
        let path = self.folder.join("xl-runs");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let file = options.truncate(false).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// An empty file for an xl's input, locked for as long as that xl runs,
    /// whatever becomes of us.
    fn lease(&self) -> anyhow::Result<Stdio> {
        let file = self.running()?;
        flock(&file, FlockOperation::LockShared)?;
        Ok(file.into())
    }

    /// Waits until no xl runs that a daemon before this one started: it would
    /// make a domain yet.
    fn await_others(&self) -> anyhow::Result<()> {
        let file = self.running()?;
        let until = Instant::now() + XL_ENDS;
        while let Err(e) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if e != Errno::WOULDBLOCK {
                return Err(e.into());
            }
            if Instant::now() >= until {
                log::warn!("an xl of a vgpud before this one does not end");
                break;
            }
            thread::sleep(XL_LOOK);
        }
        Ok(())
    }
}

/// How long an xl may take that another daemon left, and how often that is
/// looked at.
const XL_ENDS: Duration = Duration::from_secs(20);
const XL_LOOK: Duration = Duration::from_millis(20);

/// Runs a program to its end.
fn run(command: &mut Command, input: Stdio) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let verb = command.get_args().next().unwrap_or_default();
    let what = format!("{name} {}", verb.to_string_lossy());
    let output = command
        .stdin(input)
        .output()
        .with_context(|| format!("cannot run {what}"))?;
    if !output.status.success() {
        // The first complaint is the cause, the rest its clean-up.
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|l| !l.trim().is_empty());
        bail!(
            "{what} failed ({}): {}",
            output.status,
            first.unwrap_or("").trim()
        );
    }
    Ok(())
}

/// Runs a program that sees the folder `own` in place of /etc/xen.
fn run_with_etc(command: Command, input: Stdio, own: &Path) -> anyhow::Result<()> {
    let nothing: Option<&str> = None;
    let mut command = command;
    // A namespace is a thread's, and what the thread starts inherits it.
    thread::scope(|scope| {
        let work = move || -> anyhow::Result<()> {
            unshare(CloneFlags::CLONE_NEWNS).context("cannot leave the host's mounts")?;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(nothing, "/", nothing, private, nothing).context("cannot own mounts")?;
            mount(Some(own), ETC_XEN, nothing, MsFlags::MS_BIND, nothing)
                .with_context(|| format!("cannot mount {} at {ETC_XEN}", own.display()))?;
            run(&mut command, input)
        };
        let thread = thread::Builder::new()
            .name("xl".into())
            .spawn_scoped(scope, work)
            .context("cannot start a thread")?;
        thread
            .join()
            .unwrap_or_else(|_| bail!("its thread panicked"))
    })
}

/// How the UUID of a domain for a device model begins. It is of the version that
/// RFC 9562 leaves to whoever makes one, so no domain has it by chance: those that
/// xl makes up are of version 4. Xen has it from a domain's first moment.
const UUID_MARK: &str = "76677075-2d64-8";

/// A UUID for such a domain.
fn marked_uuid() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let random = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let rest = random.trim().get(UUID_MARK.len()..);
    let rest = rest.with_context(|| format!("{path} has {random:?}, allowed: a UUID"))?;
    Ok(format!("{UUID_MARK}{rest}"))
}

/// What xl reads. A string there ends at its quote, and knows no escape.
fn config(plan: &DomainPlan, uuid: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut string = |key: &str, value: &str| -> anyhow::Result<()> {
        if value.contains(['"', '\'', '\n']) {
            bail!("{key} is {value:?}, allowed: no quotes and no line ends");
        }
        Ok(writeln!(text, "{key} = \"{value}\"")?)
    };
    string("name", &plan.name)?;
    string("uuid", uuid)?;
    string("type", "pv")?;
    string("kernel", &plan.kernel.to_string_lossy())?;
    string("ramdisk", &plan.initramfs.to_string_lossy())?;
    string("cmdline", &plan.command_line)?;
    for event in ["on_poweroff", "on_reboot", "on_crash"] {
        // Nobody waits for that: the daemon ends the domain.
        string(event, "destroy")?;
    }
    if let Some(cpus) = &plan.cpus {
        string("cpus", cpus)?;
    }
    writeln!(
        text,
        "vcpus = 1\nmemory = {0}\nmaxmem = {0}",
        plan.memory_mib
    )?;
    // Grants for two areas, and no disk, no network, no console but Xen's.
    writeln!(text, "vif = []\ndisk = []\nmax_grant_frames = 32")?;
    Ok(text)
}

/// The domain called `name`.
fn find(xenstore: &Xenstore, name: &str) -> anyhow::Result<Option<u16>> {
    for id in xenstore.directory("/local/domain")? {
        let node = xenstore.read_if_there(&format!("/local/domain/{id}/name"))?;
        if node.as_deref() == Some(name) {
            let id = id
                .parse()
                .with_context(|| format!("a domain called {id:?}"))?;
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Whether the domain `id` is one for a device model. Only dom0 writes that node.
fn is_made(xenstore: &Xenstore, id: &str) -> anyhow::Result<bool> {
    let vm = xenstore.read_if_there(&format!("/local/domain/{id}/vm"))?;
    Ok(vm.as_deref().is_some_and(is_marked))
}

/// Whether a domain's node `vm` names a UUID of [`marked_uuid`].
fn is_marked(vm: &str) -> bool {
    let uuid = vm.strip_prefix("/vm/");
    uuid.is_some_and(|uuid| uuid.starts_with(UUID_MARK))
}

impl Toolstack for Xl {
    fn create(&self, plan: &DomainPlan) -> anyhow::Result<u16> {
        let xenstore = Xenstore::open()?;
        if let Some(left) = find(&xenstore, &plan.name)? {
            if !is_made(&xenstore, &left.to_string())? {
                bail!("domain {left}, not of vgpud's, has the name {}", plan.name);
            }
            log::warn!(
                "domain {left}, {}, is left from before: destroyed",
                plan.name
            );
            self.destroy(left)?;
        }
        let own = self.own_etc()?;
        let file = self.folder.join(format!("{}.cfg", plan.name));
        fs::write(&file, config(plan, &marked_uuid()?)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut xl = Command::new(&self.program);
        // Paused, and without a process that waits for its end.
        xl.args(["create", "-p", "-e", "-q"]).arg(&file);
        let created = run_with_etc(xl, self.lease()?, &own);
        fs::remove_file(&file)?;
        created?;
        find(&xenstore, &plan.name)?.with_context(|| format!("xl made no domain {}", plan.name))
    }

    fn made(&self) -> anyhow::Result<Vec<u16>> {
        self.await_others()?;
        let xenstore = Xenstore::open()?;
        let mut made = Vec::new();
        for id in xenstore.directory("/local/domain")? {
            if is_made(&xenstore, &id)? {
                made.extend(id.parse::<u16>());
            }
        }
        Ok(made)
    }

    fn set_target(&self, stub: u16, guest: u16, folder: &str) -> anyhow::Result<()> {
        self.hypercall.set_target(DomId(stub), DomId(guest))?;
        let xenstore = Xenstore::open()?;
        xenstore.write(&format!("/local/domain/{stub}/target"), &guest.to_string())?;
        xenstore.write(folder, "")?;
        Ok(xenstore.give(folder, DomId(stub))?)
    }

    fn unpause(&self, stub: u16) -> anyhow::Result<()> {
        self.xl(&["unpause", &stub.to_string()])
    }

    fn destroy(&self, stub: u16) -> anyhow::Result<()> {
        self.xl(&["destroy", &stub.to_string()])
    }

    fn have_frames(&self, guest: u16) -> anyhow::Result<()> {
        let domid = DomId(guest);
        let extent = self.hypercall.ioreq_frames(domid)?;
        let end = extent.first_gfn.saturating_add(extent.frames.into());
        let gfns: Vec<u64> = (extent.first_gfn..end).collect();
        let there = XenHost
            .open_privcmd()?
            .map_foreign(domid, &gfns, Access::ReadOnly)?;
        for (gfn, error) in gfns.into_iter().zip(&there.errors) {
            if error.is_none() {
                continue;
            }
            let frame = Extent {
                first_gfn: gfn,
                frames: 1,
            };
            give_frames(&self.hypercall, domid, frame).with_context(|| format!("at {gfn:#x}"))?;
        }
        Ok(())
    }

    fn pause_guest(&self, guest: u16) -> anyhow::Result<()> {
        Ok(self.hypercall.pause(DomId(guest))?)
    }

    fn unpause_guest(&self, guest: u16) -> anyhow::Result<()> {
        match self.hypercall.unpause(DomId(guest)) {
            // What Xen says of one that is not paused (`common/domain.c:
            // domain_unpause_by_systemcontroller`).
            Err(HypercallError::Call {
                errno: XenErrno::EINVAL,
                ..
            }) => Ok(()),
            other => Ok(other?),
        }
    }

    fn state(&self, stub: u16) -> anyhow::Result<DomainState> {
        Ok(self.hypercall.domain_state(DomId(stub))?)
    }

    fn read(&self, path: &str) -> anyhow::Result<Option<String>> {
        Ok(Xenstore::open()?.read_if_there(path)?)
    }

    fn write(&self, stub: u16, path: &str, value: &str) -> anyhow::Result<()> {
        let xenstore = Xenstore::open()?;
        xenstore.write(path, value)?;
        // libxl removes a domain's nodes before the domain (`libxl_domain.c:
        // devices_destroy_cb`): afterwards this made them anew.
        let home = format!("/local/domain/{stub}");
        if xenstore.read_if_there(&format!("{home}/vm"))?.is_none() {
            xenstore.rm(&home)?;
        }
        Ok(())
    }

    fn watch(&self, path: &str) -> anyhow::Result<Box<dyn Watch>> {
        Ok(Box::new(Xenstore::watch(path)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> DomainPlan {
        DomainPlan {
            name: "vgpu-dm-7".into(),
            kernel: "/k".into(),
            initramfs: "/i".into(),
            command_line: "console=hvc0 -- --init".into(),
            memory_mib: 64,
            cpus: Some("1".into()),
        }
    }

    #[test]
    fn a_plan_is_a_paravirtual_domain_without_devices() {
        let text = config(&plan(), "u").unwrap();
        for line in [
            "uuid = \"u\"",
            "name = \"vgpu-dm-7\"",
            "type = \"pv\"",
            "kernel = \"/k\"",
            "ramdisk = \"/i\"",
            "cmdline = \"console=hvc0 -- --init\"",
            "cpus = \"1\"",
            "memory = 64",
            "vif = []",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_domain_of_ours_is_told_by_its_uuid() {
        let uuid = marked_uuid().unwrap();
        assert_eq!(uuid.len(), 36);
        assert_ne!(uuid, marked_uuid().unwrap());
        assert!(is_marked(&format!("/vm/{uuid}")));
        // As xl makes one up, and as somebody may name a domain.
        for other in [
            "/vm/76677075-2d64-4d6d-8a0b-0c0d0e0f1011",
            "/vm/vgpu-dm-7",
            "",
        ] {
            assert!(!is_marked(other), "{other}");
        }
    }

    #[test]
    fn what_would_end_a_string_is_refused() {
        let mut plan = plan();
        plan.kernel = "/k\" #".into();
        let error = config(&plan, "u").unwrap_err().to_string();
        assert_eq!(
            error,
            r#"kernel is "/k\" #", allowed: no quotes and no line ends"#
        );
    }

    #[test]
    fn the_first_complaint_is_the_reason() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo >&2; echo one >&2; echo two >&2; exit 3"]);
        let error = run(&mut command, Stdio::null()).unwrap_err().to_string();
        assert_eq!(error, "sh -c failed (exit status: 3): one");
    }
}
