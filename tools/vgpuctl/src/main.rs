//! Administration, demo and benches.
#![forbid(unsafe_code)]

mod bench;
mod daemon;
mod demo;
mod inspect;
mod list;
mod table;
mod tree;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Args),
    Demo(demo::Args),
    Inspect(inspect::Args),
    List(list::Args),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.command {
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::List(args) => list::run(&args),
    }
}
