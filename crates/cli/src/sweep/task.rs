//! `iris sweep task`: one run of a sweep, begun or continued.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::train::{Run, RunError};
use anyhow::{Context, Result, bail};
use serde_json::json;

use super::adopt::is_foreign;
use super::cause::{is_full_disk, is_of_the_gpu};
use super::plan::{Planned, Sweep};
use crate::args::{ConfigArgs, DeviceName, SweepTaskArgs, TaskOptions, TrainArgs};
use crate::output::{tell, warn};
use crate::signals::Stop;
use crate::train::{self, Moment};
use crate::{Ended, in_words};

/// Stops of a run by Slurm without a new epoch after which it counts as failed.
const STOPS: usize = 5;
/// Time between two lines about progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

pub fn run(args: SweepTaskArgs) -> Result<Ended> {
    // First: whoever stops a run while it is being prepared gets the same answer.
    let stop = Stop::listen()?;
    let sweep = Sweep::load(&args.folder)?;
    let run = sweep.run(args.number)?.clone();
    if let Ok(begun) = Run::glance(&sweep.run_folder(&run), |_| ())
        && let Some(reason) = is_foreign(&sweep.run_folder(&run), &run, &begun.config)?
    {
        bail!("{reason}");
    }
    if !args.pipe {
        sweep.forget_failure(run.run);
        let epoch = Run::newest_epoch(&sweep.run_folder(&run)).unwrap_or(0);
        let gpus = usize::from(args.task.device.device == DeviceName::Cuda);
        // Without it only the GPU-hours are wrong.
        let _ = sweep.record_sharers(run.run, epoch, gpus);
    } else {
        stop_with_standard_input(stop.clone())?;
    }
    let mut report = Report { stop: stop.clone(), last: None };
    let trained = train::watched(
        train_args(&sweep, &run, args.task),
        stop,
        args.pipe.then_some(&mut |moment: Moment| report.moment(&moment)),
    );
    match trained {
        Err(error) if is_held(&error) => {
            tell!("{}: try again later", in_words(&error));
            report_if(args.pipe, json!({"held": true}));
            Ok(Ended::Stopped)
        }
        Err(error) if args.pipe => {
            let (disk_is_full, gpu_failed) = (is_full_disk(&error), is_of_the_gpu(&error));
            let words = in_words(&error);
            report_if(true, json!({"failed": words, "disk_is_full": disk_is_full, "gpu_failed": gpu_failed}));
            Err(error)
        }
        // No fault of the run, which goes on once there is room.
        Err(error) if is_full_disk(&error) => Err(error),
        Ok(Ended::Stopped) if !args.pipe && std::env::var_os("SLURM_RESTART_COUNT").is_some() => {
            stopped_again(&sweep, &run)
        }
        Err(error) => {
            // The exit status still says so.
            if let Err(problem) = sweep.record_failure(run.run, &in_words(&error)) {
                warn(format!("the failure is not recorded: {}", in_words(&problem)));
            }
            Err(error)
        }
        ended => ended,
    }
}

/// Slurm has stopped the run, and not for the first time: with a time limit shorter than an epoch that would go on forever.
fn stopped_again(sweep: &Sweep, run: &Planned) -> Result<Ended> {
    let epoch = Run::newest_epoch(&sweep.run_folder(run)).unwrap_or(0);
    let stops = sweep.count_stop(run.run, epoch)?;
    if stops < STOPS {
        return Ok(Ended::Stopped);
    }
    let reason = format!(
        "Slurm stopped it {stops} times before epoch {} was finished: give it more time (--time), or less notice of its end (--signal)",
        epoch + 1
    );
    sweep.record_failure(run.run, &reason)?;
    bail!("{}: {reason}", run.title(&sweep.plan));
}

/// What `iris train` would have been given.
fn train_args(sweep: &Sweep, run: &Planned, task: TaskOptions) -> TrainArgs {
    let folder = sweep.run_folder(run);
    let begun = Run::is_in(&folder);
    let (out, resume): (Option<PathBuf>, Option<PathBuf>) =
        if begun { (None, Some(folder)) } else { (Some(folder), None) };
    let (overrides, env, seed) = match begun {
        // A run keeps its own config, also if a newer program has other presets.
        true => (Vec::new(), None, None),
        false => (run.overrides.clone(), Some(run.env.clone()), Some(run.seed)),
    };
    TrainArgs {
        config: ConfigArgs { overrides, preset: sweep.plan.preset.clone(), config: None, env, seed },
        out,
        init: None,
        init_parts: None,
        replay: None,
        resume,
        go_on: false,
        forget_damaged: false,
        studio: false,
        port: None,
        task,
    }
}

/// Whether another process is training the run, or has begun it just now.
fn is_held(error: &anyhow::Error) -> bool {
    let held = |error: &RunError| matches!(error, RunError::GoingOn { .. } | RunError::Exists { .. });
    error.chain().any(|cause| cause.downcast_ref::<RunError>().is_some_and(held))
}

/// Stops the run when standard input ends: whoever started it wants it to, or is gone.
fn stop_with_standard_input(stop: Stop) -> Result<()> {
    let wait = move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        stop.ask();
    };
    std::thread::Builder::new().name("input".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Says on standard output how far the run is.
struct Report {
    stop: Stop,
    last: Option<Instant>,
}

impl Report {
    fn moment(&mut self, moment: &Moment) {
        if self.last.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let Moment { epoch, epochs, phase, done, total, left } = moment;
        let line = json!({"epoch": epoch, "epochs": epochs, "phase": phase, "done": done, "total": total, "left": left});
        if !report_if(true, line) {
            // Nobody listens any more.
            self.stop.ask();
        }
    }
}

/// Prints a line where somebody listens. Whether it was heard.
fn report_if(pipe: bool, line: serde_json::Value) -> bool {
    let mut out = std::io::stdout().lock();
    !pipe || writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}
