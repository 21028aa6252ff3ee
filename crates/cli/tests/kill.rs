//! Runs that are killed and continued end as if they had never been.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{SMALL, Scratch, assert_same_results, iris, results, stderr, train};

#[test]
fn a_killed_run_continues_to_the_same_bits() {
    let scratch = Scratch::new("kill");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    assert!(train(&whole, &[]).status.success());
    for epochs_before in [1, 3] {
        let _ = std::fs::remove_dir_all(&killed);
        let mut child =
            iris().arg("train").args(SMALL).arg("--out").arg(&killed).stderr(Stdio::piped()).spawn().unwrap();
        // It says so when an epoch is saved; then it is shot in the middle of the next.
        let announced = format!("epoch {epochs_before}/4");
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.starts_with(&announced)));
        child.kill().unwrap();
        child.wait().unwrap();
        let resumed = iris().args(["train", "--threads", "1", "--resume"]).arg(&killed).output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert_same_results(&whole, &killed, &format!("after being killed in epoch {}", epochs_before + 1));
    }
}

/// Three games side by side, all of them unfinished when it is killed.
#[test]
fn a_killed_run_of_several_games_continues_to_the_same_bits() {
    let scratch = Scratch::new("kill-games");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    let games = ["collection.envs=3", "collection.steps=54"];
    let output = train(&whole, &games);
    assert!(output.status.success(), "{}", stderr(&output));
    let (mut child, mut said) = start(&games, &killed);
    assert!(said.any(|line| line.starts_with("epoch 2/4")));
    child.kill().unwrap();
    child.wait().unwrap();
    let state = std::fs::read(killed.join("checkpoints/000002/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let episodes = state["replay"]["episodes"].as_array().unwrap();
    assert!(episodes.iter().all(|episode| episode["stride"] == 3));
    assert_eq!(episodes.iter().filter(|episode| episode["ended"] == false).count(), 3);
    let resumed = iris().args(["train", "--threads", "1", "--resume"]).arg(&killed).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_same_results(&whole, &killed, "");
    // A game's own steps, without those of the games beside it.
    let file = scratch.0.join("episodes.npz");
    let exported = iris().arg("export-episodes").arg(&whole).arg("--out").arg(&file).output().unwrap();
    assert!(exported.status.success(), "{}", stderr(&exported));
    assert!(String::from_utf8_lossy(&exported.stdout).contains("with 216 steps"));
    let dreamt = iris().arg("dream").arg(&whole).arg("--out").arg(scratch.0.join("dream")).output().unwrap();
    assert!(dreamt.status.success(), "{}", stderr(&dreamt));
}

fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// A run and the lines it says.
fn start(arguments: &[&str], folder: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = iris();
    command.arg("train").args(SMALL).args(arguments).arg("--out").arg(folder).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    (child, said)
}

/// Ctrl-C in the middle of an evaluation that would go on for long: the run stops there, says how to go on, and keeps its finished epoch.
#[test]
fn ctrl_c_stops_an_evaluation() {
    let scratch = Scratch::new("ctrl-c");
    let run = scratch.0.join("run");
    // Nothing is left for the second epoch but to evaluate.
    let nothing =
        ["collection.epochs=1", "tokenizer.schedule.updates=0", "world_model.schedule.start_after=9"];
    let long = ["actor_critic.schedule.start_after=9", "evaluation.episodes=10000"];
    let (mut child, mut said) = start(&[&nothing[..], &long].concat(), &run);
    assert!(said.any(|line| line.starts_with("epoch 1/4")));
    send("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(75));
    let last = said.last().unwrap();
    assert!(last.starts_with("stopped with 1 of 4 epochs finished") && last.contains("--resume"), "{last}");
    assert!(run.join("checkpoints/000001/state.json").exists());
}

/// What Ctrl-C, schedulers and terminals send: an exit code of its own, and nothing is lost.
#[test]
fn a_run_stopped_by_a_signal_continues_to_the_same_bits() {
    let scratch = Scratch::new("signals");
    let (whole, stopped) = (scratch.0.join("whole"), scratch.0.join("stopped"));
    assert!(train(&whole, &[]).status.success());
    for (signal, moment) in [
        ("-INT", "arcade/catch on"),
        ("-TERM", "epoch 1/4"),
        ("-HUP", "arcade/catch on"),
        ("-USR1", "epoch 1/4"),
    ] {
        // Runs go on after it where these tests run under `nohup`.
        if signal == "-HUP" && hangups_are_ignored() {
            continue;
        }
        let _ = std::fs::remove_dir_all(&stopped);
        let (mut child, mut said) = start(&[], &stopped);
        assert!(said.any(|line| line.starts_with(moment)));
        send(signal, &child);
        assert_eq!(child.wait().unwrap().code(), Some(75), "{signal}");
        let rest: Vec<String> = said.collect();
        assert!(rest.iter().any(|line| line.starts_with("stopping after this update")), "{signal}: {rest:?}");
        assert!(rest.last().unwrap().ends_with(&format!(" train --resume {}", stopped.display())));
        let resumed = iris().args(["train", "--resume"]).arg(&stopped).output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert_same_results(&whole, &stopped, &format!("after {signal}"));
    }
}

fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}

#[test]
fn a_second_signal_does_not_wait() {
    let scratch = Scratch::new("impatient");
    let run = scratch.0.join("run");
    // The second epoch begins with an update of seconds.
    let long = ["collection.epochs=1", "tokenizer.schedule.start_after=1", "tokenizer.schedule.batch=600"];
    let (mut child, mut said) = start(&long, &run);
    assert!(said.any(|line| line.starts_with("epoch 1/4")));
    send("-TERM", &child);
    assert!(said.any(|line| line.starts_with("stopping after this update")));
    send("-INT", &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// `nohup iris train &` outlives its terminal.
#[cfg(target_os = "linux")]
#[test]
fn a_run_under_nohup_does_not_hear_the_terminal_close() {
    let scratch = Scratch::new("nohup");
    let mut command = common::on_the_cpu(Command::new("sh"));
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_iris"), "train"]).args(SMALL);
    command.arg("--out").arg(scratch.0.join("run")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.starts_with("arcade/catch on")));
    send("-HUP", &child);
    assert!(said.last().unwrap().starts_with("epoch 4/4"));
    assert!(child.wait().unwrap().success());
}

/// Killed before its first epoch is over, a run starts again from its beginning.
#[test]
fn a_run_killed_at_once_can_be_continued() {
    let scratch = Scratch::new("early");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    assert!(train(&whole, &[]).status.success());
    let mut child =
        iris().arg("train").args(SMALL).arg("--out").arg(&killed).stderr(Stdio::piped()).spawn().unwrap();
    // The first line names the folder, which then holds a first checkpoint.
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&killed).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_same_results(&whole, &killed, "");
}

/// One command begins a run, continues it, and leaves it alone when it is over.
#[test]
fn the_command_that_began_a_run_continues_it() {
    let scratch = Scratch::new("continue");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &[]).status.success());
    let (mut child, mut said) = start(&["--continue"], &run);
    assert!(said.any(|line| line.starts_with("epoch 1/4")));
    send("-TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(75));

    // Other settings are refused with their names, and nothing is changed.
    let refused = train(&run, &["--continue", "seed=1", "collection.steps=60"]);
    let text = stderr(&refused);
    assert!(!refused.status.success() && text.lines().count() == 1, "{text}");
    assert!(text.contains("other settings: collection.steps is 50, not 60, seed is 0, not 1."), "{text}");

    let continued = train(&run, &["--continue"]);
    assert!(continued.status.success(), "{}", stderr(&continued));
    assert_same_results(&whole, &run, "");
    let again = train(&run, &["--continue"]);
    assert!(again.status.success(), "{}", stderr(&again));
    let said = String::from_utf8(again.stdout).unwrap();
    assert!(said.starts_with("all 4 epochs of this run are over."), "{said}");
    assert_same_results(&whole, &run, "");

    // More epochs make it longer, fewer are what it has.
    let longer = train(&run, &["--continue", "epochs=5"]);
    assert!(longer.status.success() && stderr(&longer).contains("epoch 5/5"), "{}", stderr(&longer));
    let fewer = train(&run, &["--continue", "epochs=2"]);
    assert!(fewer.status.success() && stderr(&fewer).lines().count() == 1, "{}", stderr(&fewer));
    let nowhere = iris().args(["train", "--continue"]).output().unwrap();
    assert!(!nowhere.status.success() && stderr(&nowhere).contains("--out"), "{}", stderr(&nowhere));
}

/// Takes a minute or two and depends on the clock, so it runs only when asked for:
/// `cargo test --release -p iris --test kill -- --ignored`.
#[test]
#[ignore = "depends on the clock"]
fn killed_at_random_moments() {
    let scratch = Scratch::new("random");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    let started = Instant::now();
    assert!(train(&whole, &[]).status.success());
    let duration = started.elapsed();
    let expected = results(&whole);
    let mut survived = 0;
    for moment in 0..24u32 {
        let _ = std::fs::remove_dir_all(&killed);
        let mut child =
            iris().arg("train").args(SMALL).arg("--out").arg(&killed).stderr(Stdio::null()).spawn().unwrap();
        // Spread over the run, a little off the grid.
        let at = duration * (4 * moment + moment * 7 % 4) / 96;
        std::thread::sleep(at);
        child.kill().unwrap();
        child.wait().unwrap();
        // Once more while it is being continued.
        if let Ok(mut child) = iris().args(["train", "--resume"]).arg(&killed).stderr(Stdio::null()).spawn() {
            std::thread::sleep(duration / 5 + Duration::from_millis(u64::from(moment)));
            let _ = child.kill();
            child.wait().unwrap();
        }
        let resumed = iris().args(["train", "--resume"]).arg(&killed).output().unwrap();
        if !resumed.status.success() {
            // Killed before there was anything: the command that started it starts it again.
            let text = stderr(&resumed);
            assert!(text.contains("holds no checkpoint") || text.contains("there is no folder"), "{text}");
            assert!(train(&killed, &[]).status.success());
        } else {
            survived += 1;
        }
        assert!(results(&killed) == expected, "differs after being killed at {at:?}");
    }
    println!("killed at 24 moments of {duration:?}, and again while continued; {survived} had a checkpoint");
    assert!(survived >= 20);
}
