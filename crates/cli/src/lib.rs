//! The program `iris` as a function, so that a program with games of its own can be one too (see `examples/own_game.rs`).

mod advice;
mod args;
mod bench;
mod config;
mod convert;
mod device;
mod digest;
mod doctor;
mod dream;
mod eval;
mod export_episodes;
mod forecast;
mod foresee;
#[doc(hidden)]
pub mod fuzzing;
mod hub;
mod mistyped;
mod output;
mod pace;
mod presets;
mod progress;
mod reconstruct;
mod record;
mod report;
mod selftest;
mod signals;
mod source;
mod studio;
mod sweep;
mod trackio;
mod train;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use output::{say, tell};

/// What the user typed becomes a validated command, and its result an exit code.
pub fn main() -> ExitCode {
    let args = args::Args::try_parse().unwrap_or_else(|error| mistyped::refuse(error));
    if let Some(folder) = &args.roms {
        envs::atari::set_rom_folder(folder);
    }
    match run(args.command, args.roms.as_deref()) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Stopped) => ExitCode::from(signals::STOPPED),
        Err(error) => {
            tell!("error: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// How a command that did not fail ended.
enum Ended {
    Done,
    /// A signal stopped it before its end, and it can be continued.
    Stopped,
}

fn run(command: args::Command, roms: Option<&Path>) -> Result<Ended> {
    match command {
        args::Command::Train(args) => return train::run(args),
        args::Command::Sweep(args) => return sweep::run(args.command, roms),
        args::Command::Eval(args) => eval::run(args)?,
        args::Command::Reconstruct(args) => reconstruct::run(args)?,
        args::Command::Foresee(args) => foresee::run(args)?,
        args::Command::Record(args) => record::run(args)?,
        args::Command::Dream(args) => dream::run(args)?,
        args::Command::Envs => list_games(),
        args::Command::Config(args) => config::print(&args)?,
        args::Command::Import(args) => convert::import(args)?,
        args::Command::ImportPerceptual(args) => convert::import_perceptual(args)?,
        args::Command::Export(args) => convert::export(args)?,
        args::Command::ExportEpisodes(args) => export_episodes::run(args)?,
        args::Command::Bench(args) => bench::run(args)?,
        args::Command::Report(args) => report::run(args)?,
        args::Command::Studio(args) => studio::run(args)?,
        args::Command::Doctor => doctor::run()?,
        args::Command::Selftest(args) => selftest::run(args)?,
    }
    Ok(Ended::Done)
}

fn list_games() {
    let mut missing = false;
    for game in envs::all_games() {
        let built = game.is_built();
        missing |= !built;
        say!(
            "{:<20} random {:8.2}, {:<7} {:8.2}   {}{}",
            game.name,
            game.random,
            game.yardstick,
            game.skilled,
            if built { "" } else { "(not in this build) " },
            game.rules
        );
    }
    if missing {
        tell!(
            "note: games marked (not in this build) need the Atari emulator: run scripts/atari, then build with --features atari"
        );
    }
}

/// An error with what to do about it.
fn in_words(error: &anyhow::Error) -> String {
    advice::with(in_one_line(error), advice::on(error))
}

/// An error and its causes. Many errors of the libraries name their cause themselves: it is not said twice.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}
