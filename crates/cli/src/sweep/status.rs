//! `iris sweep status`: what is done, running, waiting or failed.

use std::path::Path;

use agent::train::Run;
use anyhow::Result;
use serde_json::{Value, json};

use super::adopt::is_foreign;
use super::plan::{Planned, Sweep};
use crate::args::SweepStatusArgs;
use crate::config::combine;
use crate::output::say;
use crate::words::{counted, duration};

/// Epochs at the end of a run whose mean time says how long the next take: the first ones are shorter.
const RECENT: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Done,
    /// A process is training it.
    Running,
    Waiting,
    Failed(String),
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Done => "done",
            State::Running => "running",
            State::Waiting => "waiting",
            State::Failed(_) => "failed",
        }
    }
}

/// How far a run is.
pub struct Progress {
    pub state: State,
    pub epoch: usize,
    pub epochs: usize,
}

/// Where a run stands, by its files.
pub fn progress(sweep: &Sweep, run: &Planned) -> Result<Progress> {
    let folder = sweep.run_folder(run);
    // Before the checkpoints: a run that ends meanwhile is not taken for one that waits.
    let running = Run::is_going_on(&folder);
    let (epoch, epochs, foreign) = match Run::glance(&folder, |_| ()) {
        Ok(glance) => (glance.epoch, glance.config.epochs, is_foreign(&folder, run, &glance.config)?),
        Err(_) => (0, combine(&sweep.plan.preset, None, &run.settings())?.epochs, None),
    };
    let state = match foreign.clone().or_else(|| sweep.failure(run.run)) {
        Some(reason) if foreign.is_some() => State::Failed(reason),
        _ if running => State::Running,
        _ if epoch >= epochs && Run::is_in(&folder) => State::Done,
        Some(reason) => State::Failed(reason),
        None => State::Waiting,
    };
    Ok(Progress { state, epoch, epochs })
}

/// A run's progress and its time.
struct Measured<'a> {
    run: &'a Planned,
    progress: Progress,
    /// Of its finished epochs.
    seconds: f64,
    /// The same of GPUs: a run that shares one counts for its part.
    gpu_seconds: f64,
    per_epoch: Option<f64>,
}

struct Totals {
    counts: [usize; 4],
    hours: f64,
    gpu_hours: f64,
    seconds_left: Option<f64>,
}

pub fn run(args: &SweepStatusArgs) -> Result<()> {
    let sweep = Sweep::load(&args.folder)?;
    let mut measured = Vec::new();
    for run in &sweep.runs {
        let times = epoch_times(&sweep.run_folder(run));
        let recent = &times[times.len().saturating_sub(RECENT)..];
        let per_epoch = (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64);
        let progress = progress(&sweep, run)?;
        let gpu_seconds = on_gpus(&times, &sweep.sharers(run.run));
        measured.push(Measured { run, progress, seconds: total(&times), gpu_seconds, per_epoch });
    }
    let totals = totals(&measured);
    match args.json {
        true => say!("{}", as_json(&sweep, &measured, &totals)),
        false => say!("{}", in_words(&sweep, &measured, &totals)),
    }
    Ok(())
}

/// Seconds of every finished epoch.
fn epoch_times(folder: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("timing.jsonl")).unwrap_or_default();
    let seconds = |line: &str| serde_json::from_str::<Value>(line).ok()?.get("seconds")?.as_f64();
    text.lines().filter_map(seconds).collect()
}

/// From 0: the sum of no numbers is -0.
fn total<'a>(seconds: impl IntoIterator<Item = &'a f64>) -> f64 {
    seconds.into_iter().fold(0.0, |sum, seconds| sum + seconds)
}

/// Seconds of a GPU in the times of a run's epochs, with (epoch, processes that share its GPU from there on).
fn on_gpus(times: &[f64], sharers: &[(usize, usize)]) -> f64 {
    let of = |epoch: usize| sharers.iter().rev().find(|(from, _)| *from <= epoch).map_or(0, |(_, n)| *n);
    let parts = times.iter().enumerate().map(|(epoch, seconds)| match of(epoch) {
        0 => 0.0,
        sharers => seconds / sharers as f64,
    });
    parts.fold(0.0, |sum, part| sum + part)
}

fn totals(measured: &[Measured]) -> Totals {
    let count = |name| measured.iter().filter(|run| run.progress.state.name() == name).count();
    let counts = ["done", "running", "waiting", "failed"].map(count);
    let hours = total(measured.iter().map(|run| &run.seconds)) / 3600.0;
    let gpu_hours = total(measured.iter().map(|run| &run.gpu_seconds)) / 3600.0;
    // Runs without a finished epoch are taken to be like the others.
    let known: Vec<f64> = measured.iter().filter_map(|run| run.per_epoch).collect();
    let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
    let open = measured.iter().filter(|run| matches!(run.progress.state, State::Running | State::Waiting));
    let left = |run: &Measured| {
        let epochs = run.progress.epochs.saturating_sub(run.progress.epoch) as f64;
        Some(epochs * run.per_epoch.or(mean)?)
    };
    let left: Option<f64> = open.map(left).sum();
    Totals { counts, hours, gpu_hours, seconds_left: left.map(|left| left / counts[1].max(1) as f64) }
}

fn as_json(sweep: &Sweep, measured: &[Measured], totals: &Totals) -> Value {
    let [done, running, waiting, failed] = totals.counts;
    let run = |m: &Measured| {
        let Progress { state, epoch, epochs } = &m.progress;
        let reason = if let State::Failed(reason) = state { Some(reason) } else { None };
        json!({
            "run": m.run.run, "env": m.run.env, "seed": m.run.seed, "overrides": m.run.overrides,
            "folder": sweep.run_folder(m.run).display().to_string(), "state": state.name(),
            "epoch": epoch, "epochs": epochs, "seconds": m.seconds, "reason": reason,
        })
    };
    json!({
        "folder": sweep.folder.display().to_string(), "done": done, "running": running, "waiting": waiting,
        "failed": failed, "seconds_left": totals.seconds_left, "run_hours": totals.hours, "gpu_hours": totals.gpu_hours,
        "runs": measured.iter().map(run).collect::<Vec<_>>(),
    })
}

fn in_words(sweep: &Sweep, measured: &[Measured], totals: &Totals) -> String {
    let [done, running, waiting, failed] = totals.counts;
    let mut lines = Vec::new();
    for m in measured {
        let Progress { state, epoch, epochs } = &m.progress;
        let what = match state {
            State::Running => format!("running, epoch {epoch}/{epochs}"),
            State::Waiting if *epoch > 0 => format!("waiting, epoch {epoch}/{epochs}"),
            State::Failed(reason) => format!("failed after {} of {epochs} epochs: {reason}", epoch),
            State::Done | State::Waiting => continue,
        };
        lines.push(format!("{:>5}  {}: {what}", m.run.run, m.run.title(&sweep.plan)));
    }
    lines.push(format!(
        "{}: {done} done, {running} running, {waiting} waiting, {failed} failed",
        counted(measured.len(), "run")
    ));
    let mut times = format!("{:.1} run-hours", totals.hours);
    if totals.gpu_hours > 0.0 {
        times += &format!(", {:.1} GPU-hours", totals.gpu_hours);
    }
    times += " so far";
    if let Some(left) = totals.seconds_left.filter(|_| running + waiting > 0) {
        times += &format!(
            ", about {} left with {} beside each other",
            duration(left),
            counted(running.max(1), "run")
        );
    }
    lines.push(times);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_share_a_gpu_share_its_hours() {
        let times = [8.0; 5];
        assert_eq!(on_gpus(&times, &[]), 0.0);
        // An epoch on the CPU, two on a GPU alone, then with three others.
        assert_eq!(on_gpus(&times, &[(0, 0), (1, 1), (3, 4)]), 8.0 + 8.0 + 2.0 + 2.0);
        // Stopped without a new epoch, and gone on elsewhere.
        assert_eq!(on_gpus(&times, &[(0, 1), (0, 2)]), 20.0);
        assert_eq!(format!("{:.1}", total(&[])), "0.0");
    }
}
