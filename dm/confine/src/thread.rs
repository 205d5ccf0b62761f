//! What one thread gives up.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use serde::{Deserialize, Serialize};

use crate::ConfineError;
use crate::calls::{CALLS, Only};

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Answers a vCPU's accesses.
    Vcpu,
    /// Hears vgpud's events and keeps the device's time.
    Events,
    /// Answers vgpud's messages.
    Control,
}

/// What a forbidden system call leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seccomp {
    /// The end of the process, with SIGSYS.
    #[default]
    Kill,
    /// A line in the kernel's log; the call is made. For finding what a new
    /// libc needs, not for use.
    Log,
    /// There is no filter.
    Off,
}

/// What a text should have been.
#[derive(Debug, thiserror::Error)]
#[error("seccomp is {0:?}, allowed: kill, log, off")]
pub struct BadSeccomp(String);

impl FromStr for Seccomp {
    type Err = BadSeccomp;

    fn from_str(s: &str) -> Result<Self, BadSeccomp> {
        match s {
            "kill" => Ok(Self::Kill),
            "log" => Ok(Self::Log),
            "off" => Ok(Self::Off),
            _ => Err(BadSeccomp(s.into())),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Log => "log",
            Self::Off => "off",
        })
    }
}

/// Leaves the calling thread the system calls of its `role`, and those it
/// starts; ioctls only with one of `requests`.
///
/// # Errors
/// [`ConfineError`]: the thread has its system calls still, and should end.
pub fn thread(role: Role, mode: Seccomp, requests: &[u32]) -> Result<(), ConfineError> {
    let mismatch = match mode {
        Seccomp::Kill => SeccompAction::KillProcess,
        Seccomp::Log => SeccompAction::Log,
        Seccomp::Off => return Ok(()),
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in CALLS.iter().filter(|c| c.by.contains(&role)) {
        let conditions = match call.only {
            Only::Any => Vec::new(),
            Only::NotExecutable => vec![not_executable()?],
            Only::Requests => second_is(requests.iter().copied())?,
            Only::Commands(of) => second_is(of.iter().map(|c| c.unsigned_abs()))?,
        };
        rules.insert(call.number, conditions);
    }
    let filter = SeccompFilter::new(rules, mismatch, SeccompAction::Allow, TargetArch::x86_64)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}

/// A rule for each value the second argument may have. No values, no rule: then
/// nothing would be checked, so one that never holds stands for none.
fn second_is(
    values: impl Iterator<Item = u32>,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    // The kernel looks at 32 bits of it.
    let length = SeccompCmpArgLen::Dword;
    let is = |value: u32| SeccompCondition::new(1, length.clone(), SeccompCmpOp::Eq, value.into());
    let mut rules: Vec<SeccompRule> = values
        .map(|value| SeccompRule::new(vec![is(value)?]))
        .collect::<Result<_, _>>()?;
    if rules.is_empty() {
        rules.push(SeccompRule::new(vec![is(0)?, is(1)?])?);
    }
    Ok(rules)
}

fn not_executable() -> Result<SeccompRule, seccompiler::BackendError> {
    let exec = u64::from(libc::PROT_EXEC.unsigned_abs());
    let length = SeccompCmpArgLen::Dword;
    let off = SeccompCondition::new(2, length, SeccompCmpOp::MaskedEq(exec), 0)?;
    SeccompRule::new(vec![off])
}
