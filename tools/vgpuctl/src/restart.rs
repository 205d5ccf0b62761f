//! `vgpuctl restart-dm`: another device model for a guest.

use vgpu_control::{ClientRequest, Disturb};

use crate::daemon::Daemon;

/// Has another device model take the place of a guest's, which is killed.
///
/// The guest runs on: it sees at most a late interrupt. `vgpuctl list` shows when
/// the other one serves it.
#[derive(clap::Args)]
pub struct Args {
    /// The guest.
    domid: u16,

    /// Stop it instead of killing it, to see that one that hangs is noticed.
    #[arg(long)]
    hang: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs it.
///
/// # Errors
/// When vgpud does not answer, or the domain has no vGPU that runs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let how = if args.hang {
        Disturb::Stop
    } else {
        Disturb::Kill
    };
    let _: serde_json::Value = args.daemon.ask(&ClientRequest::RestartDm {
        domid: args.domid,
        how,
    })?;
    Ok(())
}
