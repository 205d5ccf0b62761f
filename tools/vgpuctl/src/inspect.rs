//! `vgpuctl inspect`: a vGPU, or the GPU, as it is now.

use serde_json::Value;
use vgpu_control::ClientRequest;

use crate::daemon::Daemon;
use crate::tree;

/// Shows a vGPU as it is now: registers, engines, rings; or the GPU.
#[derive(clap::Args)]
pub struct Args {
    /// The guest. Without it, the GPU and its scheduler are shown.
    domid: Option<u16>,

    /// As JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs it.
///
/// # Errors
/// When vgpud does not answer, or the domain has no vGPU.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (name, request) = match args.domid {
        Some(domid) => (format!("domain {domid}"), ClientRequest::Inspect { domid }),
        None => ("gpu".into(), ClientRequest::InspectHost),
    };
    let value: Value = args.daemon.ask(&request)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        print!("{}", tree::render(&name, &value));
    }
    Ok(())
}
