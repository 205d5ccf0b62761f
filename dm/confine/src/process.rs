//! What the whole process gives up.

use caps::{CapSet, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, chdir, chroot, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

use crate::{ConfineError, Seccomp, step};

/// Who the process is from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// User id, of no other process that matters: whoever shares it can signal
    /// this one.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// How a device model is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// Who it becomes.
    pub identity: Identity,
    /// What a forbidden system call leads to.
    pub seccomp: Seccomp,
}

/// What was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// Who the process is.
    pub identity: Identity,
    /// What the kernel does of Landlock: `full`, `partial` or `none`. The rest
    /// does not depend on it.
    pub landlock: String,
}

/// The newest rules known here. A kernel that knows fewer enforces those.
const LANDLOCK: ABI = ABI::V6;

/// Takes from this process the file systems, the network, other processes'
/// reach, and root's rights. Handles that are open stay good.
///
/// Call it while there is one thread: namespaces and Landlock are a thread's,
/// and those started later inherit them.
///
/// # Errors
/// [`ConfineError`]: the process may have kept some of it, and should end.
pub fn process(identity: Identity) -> Result<Confined, ConfineError> {
    namespaces()?;
    prctl::set_no_new_privs().map_err(step("give up new privileges"))?;
    // Neither a dump nor a debugger under the same uid sees the guest's memory.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("limit core dumps"))?;
    become_nobody(identity)?;
    prctl::set_dumpable(false).map_err(step("become undumpable"))?;
    let landlock = match shut_files()? {
        RulesetStatus::FullyEnforced => "full",
        RulesetStatus::PartiallyEnforced => "partial",
        RulesetStatus::NotEnforced => "none",
    };
    Ok(Confined {
        identity,
        landlock: landlock.into(),
    })
}

/// A network without interfaces, System V objects of its own, and an empty
/// file system as the root.
fn namespaces() -> Result<(), ConfineError> {
    let new = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(new).map_err(step("leave the host's namespaces"))?;
    let nothing: Option<&str> = None;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )
    .map_err(step("make mounts private"))?;
    // /dev is there: the handles came from it. The new root is moved over the
    // old one, not pivoted: that is refused on an initial RAM file system, which
    // a small dom0 may run from.
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("empty"),
        "/dev",
        Some("tmpfs"),
        flags,
        Some("size=4k,nr_inodes=2,mode=555"),
    )
    .map_err(step("mount an empty file system"))?;
    chdir("/dev").map_err(step("enter it"))?;
    mount(Some("."), "/", nothing, MsFlags::MS_MOVE, nothing).map_err(step("put it over /"))?;
    chroot(".").map_err(step("make it the root"))?;
    chdir("/").map_err(step("enter the new root"))
}

/// Another user, without any capability.
fn become_nobody(identity: Identity) -> Result<(), ConfineError> {
    // While it still may. What is not in the bounding set never comes back.
    for capability in caps::all() {
        if caps::has_cap(None, CapSet::Bounding, capability)? {
            caps::drop(None, CapSet::Bounding, capability)?;
        }
    }
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    setgroups(&[]).map_err(step("leave all groups"))?;
    setresgid(gid, gid, gid).map_err(step("change the group"))?;
    setresuid(uid, uid, uid).map_err(step("change the user"))?;
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        if caps::read(None, set)? != CapsHashSet::new() {
            return Err(ConfineError::Privileged(identity.uid));
        }
    }
    Ok(())
}

/// No path can be opened, no port bound or connected to, no process outside
/// signalled, whatever the rights of the user.
fn shut_files() -> Result<RulesetStatus, ConfineError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset)
}
