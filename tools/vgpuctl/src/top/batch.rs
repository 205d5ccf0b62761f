//! Looks printed one after the other, for scripts.

use std::io::{ErrorKind, Write};

use super::Args;
use super::columns;
use super::rates::{EngineRates, Rates};
use super::snapshot::Snapshot;
use crate::table;

/// How a look is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables, an empty line behind each look.
    Text,
    /// A line of JSON.
    Json,
}

/// Prints as many looks as asked for. A vgpud that goes away between looks is
/// told on standard error and tried again; such a look counts too.
///
/// # Errors
/// When vgpud does not answer at first.
pub fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let mut last = Some(Snapshot::take(&args.daemon)?);
    let mut left = args.count;
    while left != Some(0) {
        std::thread::sleep(args.delay);
        match Snapshot::take(&args.daemon) {
            Ok(now) => {
                let rates = last.as_ref().and_then(|last| Rates::between(last, &now));
                last = Some(now);
                if let Some(mut rates) = rates {
                    args.sort.sort(&mut rates.vgpus);
                    if !print(&text(&rates, form)?)? {
                        return Ok(());
                    }
                }
            }
            Err(e) => {
                eprintln!("{e:#}; trying again");
                last = None;
            }
        }
        left = left.map(|n| n - 1);
    }
    Ok(())
}

/// Prints; whether anybody reads.
fn print(text: &str) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// A look as it is printed.
pub fn text(rates: &Rates, form: Form) -> serde_json::Result<String> {
    match form {
        Form::Json => serde_json::to_string(rates).map(|line| line + "\n"),
        Form::Text => Ok(tables(rates)),
    }
}

fn tables(rates: &Rates) -> String {
    let heading = [
        "ENGINE", "BUSY%", "RUNS", "OWNER", "WAITING", "SW/s", "HO/s", "SWITCH%", "RESETS", "STATE",
    ];
    let mut text = table::render(heading, rates.engines.iter().map(engine));
    text.push('\n');
    let columns = columns::fitting(rates, usize::MAX);
    let mut row = |cell: &dyn Fn(&columns::Column) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        text.push_str(cells.join(" ").trim_end());
        text.push('\n');
    };
    row(&columns::Column::head);
    for vgpu in &rates.vgpus {
        row(&|c| c.cell(vgpu));
    }
    text.push('\n');
    text
}

fn engine(e: &EngineRates) -> [String; 10] {
    let domain = |id: Option<u64>| id.map_or("-".into(), |id| id.to_string());
    [
        e.name.clone(),
        format!("{:.1}", e.busy_percent),
        domain(e.running),
        domain(e.owner),
        e.waiting.to_string(),
        format!("{:.0}", e.switches_per_second),
        format!("{:.0}", e.handovers_per_second),
        format!("{:.1}", e.switch_percent),
        e.resets.to_string(),
        e.dead
            .as_ref()
            .map_or("up".into(), |r| format!("dead: {r}")),
    ]
}
