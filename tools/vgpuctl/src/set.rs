//! `vgpuctl set`: what a running vGPU gets of the GPU's time.

use vgpu_control::{ClientRequest, Held};

use crate::daemon::Daemon;

/// Changes what a running vGPU gets of the GPU's time, and prints what holds
/// now.
///
/// It holds at once, and again whenever the guest is started or vgpud is, until
/// `vgpuctl set DOMID default`. Either all changes are made or none.
#[derive(clap::Args)]
pub struct Args {
    /// The guest.
    domid: u16,

    /// weight=1..10000, cap=0..100 (percent, 0 for none), slice=0.1..16 (ms),
    /// priority=low|normal|high; or `default` for what the guest's
    /// configuration says.
    #[arg(required = true, value_name = "KEY=VALUE")]
    changes: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs it.
///
/// # Errors
/// When vgpud does not answer, the domain has no vGPU, or a change is not
/// allowed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let held: Held = args.daemon.ask(&ClientRequest::Set {
        domid: args.domid,
        changes: args.changes.join(","),
    })?;
    println!("domain {}: {}", args.domid, held.share);
    if let Some(reason) = held.not_kept {
        eprintln!("it holds until the guest or vgpud ends: {reason}");
    }
    Ok(())
}
