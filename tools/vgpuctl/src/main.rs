//! Administration, demo and benches.

mod demo;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.command {
        Command::Demo(args) => demo::run(&args),
    }
}
