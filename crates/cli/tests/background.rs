//! Epochs that end beside the next one leave a run's folder as those that end before it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{SMALL, Scratch, assert_same_results, iris, stderr, train};

/// So many games that the next epoch begins long before the evaluation of the second is over.
const LONG: [&str; 2] = ["evaluation.episodes=320", "evaluation.losses=true"];

fn background() -> Command {
    let mut command = iris();
    command.env("IRIS_BACKGROUND", "1").arg("train");
    command
}

fn resume(run: &Path) -> Output {
    background().arg("--resume").arg(run).output().unwrap()
}

/// Starts a run and waits until its third epoch plays while the second is evaluated.
fn start(run: &Path) -> Child {
    let mut command = background();
    command.args(SMALL).args(LONG).arg("--out").arg(run).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let started = Instant::now();
    // A record of the index has 30 bytes, an epoch 50 records.
    while run.join("replay/000000.index").metadata().map_or(0, |file| file.len()) <= 100 * 30 {
        assert!(started.elapsed() < Duration::from_secs(300));
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

fn lines(run: &Path, file: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(run.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_in_the_background_has_the_same_files() {
    let scratch = Scratch::new("background");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    for more in [
        &["evaluation.every=1", "evaluation.losses=true"][..],
        &["collection.envs=2", "actor_critic.returns.scale=percentiles"],
    ] {
        [&whole, &run].into_iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        assert!(train(&whole, more).status.success());
        let output = background().args(SMALL).args(more).arg("--out").arg(&run).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_same_results(&whole, &run, "");
    }
    let said = stderr(&resume(&run));
    assert!(said.is_empty() || !said.contains("error"), "{said}");
    let times = lines(&run, "timing.jsonl");
    assert_eq!(times.len(), 4);
    assert!(times.iter().all(|line| line["waiting/seconds"].is_f64() && line["saving/seconds"].is_f64()));
}

/// Killed, or stopped, while an epoch's evaluation runs beside the next one: both epochs are repeated.
#[test]
fn an_evaluation_that_was_cut_off_is_repeated() {
    let scratch = Scratch::new("background-kill");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &LONG).status.success());
    for signal in ["-KILL", "-TERM"] {
        let _ = std::fs::remove_dir_all(&run);
        let child = start(&run);
        assert!(Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap().success());
        let stopped = child.wait_with_output().unwrap();
        assert_eq!(lines(&run, "metrics.jsonl").len(), 1, "{signal}: the evaluation was over too early");
        assert!(!run.join("checkpoints/000002").exists());
        if signal == "-TERM" {
            assert_eq!(stopped.status.code(), Some(75));
            let said = stderr(&stopped);
            assert!(said.contains("stopped with 1 of 4 epochs finished and saved"), "{said}");
        }
        let resumed = resume(&run);
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert_same_results(&whole, &run, "");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_from_the_background() {
    let scratch = Scratch::new("background-full");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &[]).status.success());
    std::fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::symlink("/dev/full", run.join("metrics.jsonl")).unwrap();
    let output = background().args(SMALL).arg("--out").arg(&run).output().unwrap();
    let foreground = scratch.0.join("foreground");
    std::fs::create_dir_all(&foreground).unwrap();
    std::os::unix::fs::symlink("/dev/full", foreground.join("metrics.jsonl")).unwrap();
    let expected = train(&foreground, &[]);
    let error = |output: &Output| stderr(output).lines().last().unwrap().to_string();
    assert!(error(&output).contains("metrics.jsonl: No space left"), "{}", stderr(&output));
    assert_eq!(error(&output), error(&expected).replace("foreground", "run"));
    assert_eq!(output.status.code(), expected.status.code());
    std::fs::remove_file(run.join("metrics.jsonl")).unwrap();
    let resumed = resume(&run);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_same_results(&whole, &run, "");
}

/// Training does not go on for an epoch of hours after the one before could not be saved.
#[cfg(target_os = "linux")]
#[test]
fn a_failure_in_the_background_stops_training_at_the_next_update() {
    let scratch = Scratch::new("background-early");
    let run = scratch.0.join("run");
    std::fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::symlink("/dev/full", run.join("metrics.jsonl")).unwrap();
    let endless = ["tokenizer.schedule.start_after=1", "tokenizer.schedule.updates=1000000"];
    let mut command = background();
    command.args(SMALL).args(["evaluation.every=0", "tokenizer.schedule.first_updates=0"]).args(endless);
    let mut child = command.arg("--out").arg(&run).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(300) {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert!(stderr(&output).lines().last().unwrap().contains("No space left"), "{}", stderr(&output));
}
