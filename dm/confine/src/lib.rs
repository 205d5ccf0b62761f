//! What a device model may do, taken away from it down to that.
//!
//! A vgpu-dm parses what its guest sends, so whoever owns the guest may come to
//! own the process. [`process`] takes from it, once its handles of `/dev/xen`
//! are open: the file systems, the network, other processes, root's rights.
//! [`thread`] then takes the system calls that the thread's work does without.
//! The two do not lean on each other: what one forbids alone is forbidden.

#![forbid(unsafe_code)]

mod calls;
mod process;
mod thread;

pub use process::{Confined, Confinement, Identity, process};
pub use thread::{Role, Seccomp, thread};

/// Why a process could not be confined. It should not go on.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A step was refused by the system.
    #[error("cannot {step}")]
    Step {
        /// Which step.
        step: &'static str,
        /// The system's reason.
        #[source]
        source: nix::Error,
    },
    /// Capabilities could not be read or dropped.
    #[error("cannot drop capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    /// Some are left: the user id given is root's.
    #[error("uid {0} keeps capabilities; allowed: one without")]
    Privileged(u32),
    /// Landlock refused.
    #[error("cannot shut the file system off")]
    Landlock(#[from] landlock::RulesetError),
    /// The filter of system calls was refused.
    #[error("cannot filter system calls")]
    Seccomp(#[from] seccompiler::Error),
    /// The filter could not be made.
    #[error("cannot make a filter of system calls")]
    Filter(#[from] seccompiler::BackendError),
}

fn step(step: &'static str) -> impl FnOnce(nix::Error) -> ConfineError {
    move |source| ConfineError::Step { step, source }
}
