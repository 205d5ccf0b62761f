//! `vgpuctl list`: the vGPUs there are.

use vgpu_control::{ClientRequest, Entry, State};

use crate::daemon::Daemon;
use crate::table;

/// Lists the vGPUs.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs it.
///
/// # Errors
/// When vgpud does not answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let entries: Vec<Entry> = args.daemon.ask(&ClientRequest::List)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&entries)?);
    } else {
        print!("{}", render(&entries));
    }
    Ok(())
}

fn render(entries: &[Entry]) -> String {
    let rows = entries.iter().map(|e| {
        let state = match e.state {
            State::Running if e.adopted => "adopted",
            State::Running => "running",
            State::Failed => "failed",
        };
        [
            e.domid.to_string(),
            state.to_owned(),
            e.qemu_pid.to_string(),
            e.dm.to_string(),
            e.restarts.to_string(),
            e.requests.to_string(),
            e.vgpu.clone(),
        ]
    });
    table::render(
        [
            "DOMID", "STATE", "QEMU", "VGPU-DM", "RESTARTS", "REQUESTS", "VGPU",
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use vgpu_control::Place;

    use super::*;

    #[test]
    fn a_line_for_each_vgpu() {
        let entry = |domid, dm| Entry {
            domid,
            vgpu: "slot=5".into(),
            state: State::Failed,
            qemu_pid: 100,
            dm,
            requests: 7,
            adopted: true,
            restarts: 3,
        };
        let adopted = Entry {
            state: State::Running,
            ..entry(13, Place::Domain(14))
        };
        assert_eq!(
            render(&[entry(12, Place::Process(101)), adopted]),
            "DOMID  STATE    QEMU  VGPU-DM    RESTARTS  REQUESTS  VGPU
\
             12     failed   100   pid 101    3         7         slot=5
\
             13     adopted  100   domain 14  3         7         slot=5
"
        );
    }
}
