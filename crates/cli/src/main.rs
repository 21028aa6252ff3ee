//! `iris`: what the user typed becomes a validated command, and a Result becomes an exit code.

mod args;
mod bench;
mod config;
mod convert;
mod eval;
mod report;
mod train;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match args::Args::parse().command {
        args::Command::Train(args) => train::run(args),
        args::Command::Eval(args) => eval::run(args),
        args::Command::Envs => {
            for game in &envs::arcade::GAMES {
                println!(
                    "{:<16} random {:5.2}, perfect {:5.2}   {}",
                    game.name, game.random, game.perfect, game.rules
                );
            }
            Ok(())
        }
        args::Command::Config(args) => config::print(&args),
        args::Command::Import(args) => convert::import(args),
        args::Command::Export(args) => convert::export(args),
        args::Command::Bench(args) => bench::run(args),
        args::Command::Report(args) => report::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
