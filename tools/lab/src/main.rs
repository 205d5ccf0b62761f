//! Builds and runs real Xen under QEMU, and scenarios in it.
//!
//! `lab run NAME` boots the Xen of Debian bookworm under QEMU's software
//! emulation, runs the scenario's script in dom0, brings the logs back and
//! judges what the script and its guests reported.

#![forbid(unsafe_code)]

mod cache;
mod check;
mod facts;
mod handover;
mod image;
mod machine;
mod payload;
mod program;
mod run;
mod scenario;
mod shell;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Real Xen under QEMU: images, scenarios, a dom0 prompt.
#[derive(Parser)]
#[command(name = "lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a scenario in dom0; target/lab/NAME/ holds its result and logs.
    Run {
        /// The scenario; `lab list` names them.
        name: String,
        #[command(flatten)]
        options: run::Options,
    },
    /// Boot dom0 and give its prompt on this terminal (leave with ctrl-a x).
    Shell {
        /// Do not build our programs first; take target/release as it is.
        #[arg(long)]
        no_build: bool,
    },
    /// Build the images that are missing, and nothing else.
    Images,
    /// List the scenarios.
    List,
}

/// All images of all scenarios.
fn images() -> anyhow::Result<()> {
    let cache = cache::Cache::open()?;
    image::Images::ensure(&cache)?;
    let of_guests = scenario::SCENARIOS.iter().flat_map(|s| s.kernels);
    for source in of_guests.filter_map(|kernel| kernel.source()) {
        image::KernelImage::ensure(&cache, &source)?;
    }
    image::KernelImage::ensure(&cache, &image::STUB)?;
    Ok(())
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Run { name, options } => run::run(&name, &options),
        Command::Shell { no_build } => shell::shell(no_build).map(|()| true),
        Command::Images => images().map(|()| true),
        Command::List => {
            for scenario in scenario::SCENARIOS {
                println!("{:8} {}", scenario.name, scenario.summary);
            }
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
