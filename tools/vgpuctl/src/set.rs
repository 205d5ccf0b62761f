//! `vgpuctl set`: what a running vGPU gets of the GPU's time.

use vgpu_config::KEYS;
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

    // What each key allows is in one table.
    #[arg(required = true, value_name = "KEY=VALUE", help = keys())]
    changes: Vec<String>,

    #[command(flatten)]
    daemon: Daemon,
}

fn keys() -> String {
    let live = KEYS.iter().filter(|k| k.live);
    let keys: Vec<String> = live
        .map(|k| format!("{} ({})", k.name, k.allowed()))
        .collect();
    let keys = keys.join("; ");
    format!("{keys}. Or `default`, for what the guest's configuration says")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_tells_what_can_be_set() {
        let keys = keys();
        assert!(keys.starts_with("weight (1 to 10000); cap (0 to 100); slice (0.1 to 16); "));
        assert!(!keys.contains("slot"));
    }
}
