//! Administration, demo and benches.
#![forbid(unsafe_code)]

mod bench;
mod daemon;
mod demo;
mod inspect;
mod list;
mod migrate;
mod ratio;
mod restart;
mod set;
mod table;
mod top;
mod trace;
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
    MigrateFail(migrate::FailArgs),
    MigrateLimit(migrate::LimitArgs),
    MigrateStatus(migrate::Args),
    RestartDm(restart::Args),
    Set(set::Args),
    Top(top::Args),
    Trace(trace::Args),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.command {
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::List(args) => list::run(&args),
        Command::MigrateFail(args) => migrate::fail(&args),
        Command::MigrateLimit(args) => migrate::limit(&args),
        Command::MigrateStatus(args) => migrate::status(&args),
        Command::RestartDm(args) => restart::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
    }
}
