//! Runs that are killed and continued end as if they had never been.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{SMALL, Scratch, iris, results, stderr, train};

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
        for ((name, expected), (_, got)) in results(&whole).into_iter().zip(results(&killed)) {
            assert!(expected == got, "{name} differs after being killed in epoch {}", epochs_before + 1);
        }
    }
}

/// Ctrl-C in the middle of an evaluation that would go on for long: the run stops there, says how to go on, and keeps its finished epoch.
#[test]
fn ctrl_c_stops_an_evaluation() {
    let scratch = Scratch::new("ctrl-c");
    let run = scratch.0.join("run");
    let mut child = iris()
        .arg("train")
        .args(SMALL)
        // Nothing is left for the second epoch but to evaluate.
        .args(["collection.epochs=1", "tokenizer.schedule.updates=0", "world_model.schedule.start_after=9"])
        .args(["actor_critic.schedule.start_after=9", "evaluation.episodes=10000", "--out"])
        .arg(&run)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.starts_with("epoch 1/4")));
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    assert!(!child.wait().unwrap().success());
    let last = said.last().unwrap();
    assert!(last.contains("stopped") && last.contains("--resume"), "{last}");
    assert!(run.join("checkpoints/000001/state.json").exists());
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
    assert!(results(&whole) == results(&killed));
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
