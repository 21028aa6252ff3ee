//! Arguments of `iris sweep`: many runs as one piece of work.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::{DeviceArgs, MemoryArgs, TrackioArgs, up_to};
use crate::presets;

/// Train many runs: games x seeds x settings, on one machine, several, or a Slurm cluster.
///
/// `iris sweep new` writes down the runs, `iris sweep run` trains them, `iris sweep status` says how far they are, and `iris report DIR` makes the paper's
/// tables from them.
#[derive(clap::Args)]
pub struct SweepArgs {
    #[command(subcommand)]
    pub command: SweepCommand,
}

#[derive(Subcommand)]
pub enum SweepCommand {
    New(SweepNewArgs),
    Status(SweepStatusArgs),
    Run(SweepRunArgs),
    Task(SweepTaskArgs),
    Slurm(SweepSlurmArgs),
}

/// Write down the runs of a sweep: every game with every seed and every combination of settings.
///
/// Writes `sweep.toml`, and `runs.jsonl` with one line per run, whose number is the index for `iris sweep task`. The order is fixed: all games with the first
/// seed come first. Nothing is trained yet.
#[derive(clap::Args)]
pub struct SweepNewArgs {
    /// Folder of the sweep.
    pub folder: PathBuf,

    /// Config values as key=value for every run. Several values separated by commas, such as `epochs=100,200`, make a run for each; quotes keep a comma in a
    /// value.
    pub overrides: Vec<String>,

    /// Games separated by commas, or a group: `atari-100k` (all 26) or `arcade` (the built-in ones).
    #[arg(long, required = true, value_delimiter = ',', value_name = "GAMES")]
    pub games: Vec<String>,

    /// Seeds: a range with both ends such as 0..4, or numbers separated by commas.
    #[arg(long, value_name = "SEEDS", default_value = "0..4")]
    pub seeds: String,

    /// Preset to start from; `iris config --help` lists them.
    #[arg(long, default_value = presets::DEFAULT)]
    pub preset: String,
}

/// Say which runs of a sweep are done, running, waiting or failed, and how long the rest takes.
///
/// The time left assumes that as many runs go on beside each other as now, at least one. A run-hour is an hour of one run; runs that share a GPU share
/// its GPU-hours.
#[derive(clap::Args)]
pub struct SweepStatusArgs {
    /// Folder of the sweep.
    pub folder: PathBuf,

    /// Print one line of JSON with all runs.
    #[arg(long)]
    pub json: bool,
}

/// Train the runs of a sweep on this machine, several beside each other.
///
/// Takes the next run that nobody holds, starts or continues it, and goes on until none is left. Several machines with the same file system may do so at once:
/// no run is trained twice. Ctrl-C stops all runs after their current updates, with exit status 75; the same command goes on. What a run prints is in
/// `logs` in the sweep's folder.
///
/// A run that fails is recorded with its reason and left out from then on. Several runs on one GPU share it through an MPS daemon of their own.
#[derive(clap::Args)]
pub struct SweepRunArgs {
    /// Folder of the sweep.
    pub folder: PathBuf,

    /// Runs beside each other.
    #[arg(long, default_value_t = 1, value_parser = up_to(1024))]
    pub jobs: usize,

    /// GPUs to use, such as 0,1: jobs take them in turn. By default the first, if the program can use one.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub gpus: Vec<usize>,

    /// Try failed runs again.
    #[arg(long)]
    pub retry: bool,

    #[command(flatten)]
    pub task: TaskOptions,
}

/// Train one run of a sweep, or continue it: what a job array calls.
///
/// Exits with 0 when the run is over, also if it was before, with 75 when it was stopped or another process is training it, and with 1 when it failed.
#[derive(clap::Args)]
pub struct SweepTaskArgs {
    /// Folder of the sweep.
    pub folder: PathBuf,

    /// Number of the run: its line in runs.jsonl, from 0.
    pub number: usize,

    /// Talk to `iris sweep run`: progress as JSON on standard output; the end of standard input stops the run.
    #[arg(long, hide = true)]
    pub pipe: bool,

    #[command(flatten)]
    pub task: TaskOptions,
}

/// Write a Slurm job array that trains the runs of a sweep, and submit it with --submit.
///
/// The array has the runs that are neither done nor failed. Slurm sends SIGUSR1 five minutes before the time limit, the run stops with exit status 75, and the
/// script requeues it; so it does after preemption. After a node failure Slurm requeues it. Arguments after `--` are passed to sbatch and may replace these
/// settings, such as `-- --partition=gpu --gres=gpu:1 --time=4:00:00`.
#[derive(clap::Args)]
pub struct SweepSlurmArgs {
    /// Folder of the sweep.
    pub folder: PathBuf,

    /// Submit the script with sbatch.
    #[arg(long)]
    pub submit: bool,

    /// Runs beside each other at most; by default as many as Slurm starts.
    #[arg(long, value_name = "N", value_parser = up_to(100_000))]
    pub at_once: Option<usize>,

    /// Also take the runs that failed.
    #[arg(long)]
    pub retry: bool,

    #[command(flatten)]
    pub task: TaskOptions,

    /// Arguments of sbatch.
    #[arg(last = true, value_name = "SBATCH_ARGS")]
    pub sbatch: Vec<String>,
}

/// What a run is started with beside its config: alone, or as one of a sweep.
#[derive(clap::Args)]
pub struct TaskOptions {
    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,

    #[command(flatten)]
    pub trackio: TrackioArgs,
}

impl TaskOptions {
    /// The same as words of a command line, but for the device, with this number of threads, and this many bytes of a GPU where none are given.
    pub fn arguments(&self, threads: Option<usize>, memory: Option<usize>) -> Vec<String> {
        let precision = &self.device.precision;
        let mut words = Vec::new();
        let mut add = |option: &str, value: String| words.extend([option.to_string(), value]);
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_string());
        name(precision.to_possible_value()).into_iter().for_each(|precision| add("--precision", precision));
        threads.iter().for_each(|threads| add("--threads", threads.to_string()));
        self.memory.gpu_memory.or(memory).iter().for_each(|bytes| add("--gpu-memory", format!("{bytes}B")));
        self.trackio.trackio.iter().for_each(|project| add("--trackio", project.clone()));
        words
    }
}
