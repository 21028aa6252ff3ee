//! `iris sweep`: many runs, by a pool of processes on this machine or by Slurm. A run's own lock decides who trains it; nothing else is shared.

mod adopt;
mod cause;
mod mps;
mod places;
mod plan;
mod pool;
mod records;
mod screen;
mod slurm;
mod status;
mod task;
mod worker;

use std::path::{Path, PathBuf};

use anyhow::Result;
use envs::Game;

pub use plan::Plan;

use crate::Ended;
use crate::args::{SweepCommand, SweepNewArgs};
use crate::output::{pasteable, program, say, tell};
use crate::words::counted;
use plan::Sweep;

/// `roms` is the folder of ROMs that was named for this program, for those that it starts.
pub fn run(command: SweepCommand, roms: Option<&Path>) -> Result<Ended> {
    match command {
        SweepCommand::New(args) => new(&args)?,
        SweepCommand::Status(args) => status::run(&args)?,
        SweepCommand::Run(args) => return pool::run(&args, roms),
        SweepCommand::Task(args) => return task::run(args),
        SweepCommand::Slurm(args) => slurm::run(&args, roms)?,
    }
    Ok(Ended::Done)
}

/// Where the folder of a sweep, or `runs` in it, holds runs with several settings: the name of each variant and the folder of its runs.
pub fn variants(folder: &Path) -> Result<Option<Vec<(String, PathBuf)>>> {
    let above = folder.parent().filter(|_| folder.file_name().is_some_and(|name| name == "runs"));
    let Some(sweep) = [Some(folder), above].into_iter().flatten().find(|folder| Sweep::is_in(folder)) else {
        return Ok(None);
    };
    let names = Sweep::load(sweep)?.plan.variant_names()?;
    let named = |name: String| (name.clone(), sweep.join("runs").join(name));
    Ok((names.len() > 1).then(|| names.into_iter().map(named).collect()))
}

fn new(args: &SweepNewArgs) -> Result<()> {
    let plan = Plan::new(&args.preset, &args.games, &args.seeds, &args.overrides)?;
    let (sweep, is_new) = Sweep::create(&args.folder, plan)?;
    let (plan, folder) = (&sweep.plan, pasteable(&args.folder));
    let counts = [(plan.games.len(), "game"), (plan.seeds.len(), "seed")].map(|(n, thing)| counted(n, thing));
    let runs = counted(sweep.runs.len(), "run");
    match is_new {
        true => say!("{runs} in {folder}: {}", counts.join(", ")),
        false => say!("{folder} holds this sweep of {runs} already: nothing was changed"),
    }
    let unplayable = plan.games.iter().filter_map(|game| Game::find(game).ok()).find(|game| !game.is_built());
    if let Some(game) = unplayable {
        tell!(
            "note: this program cannot play {}: run scripts/atari, then build with --features atari before the sweep is run",
            game.name
        );
    }
    let program = program();
    say!("next: {program} sweep run {folder} --jobs 2     (on this machine)");
    say!("      {program} sweep slurm {folder}            (a Slurm job array)");
    say!("      {program} sweep status {folder}");
    Ok(())
}
