//! Runs on a real Atari game; only in a build that has the emulator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "atari")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{SMALL, Scratch, assert_same_results, iris, stderr};

/// Qbert loses lives quickly, so an epoch ends within a game that has been going on for several episodes.
const QBERT: [&str; 6] =
    ["--preset", "atari-small", "--env", "Qbert", "evaluation.every=9", "evaluation.final_episodes=1"];

fn train(folder: &Path, steps: usize) -> Command {
    let mut command = iris();
    let steps = format!("collection.steps={steps}");
    // Without its preset.
    command.arg("train").args(&SMALL[1..]).args(QBERT).arg(steps).arg("--out").arg(folder);
    command
}

/// Kills a run when it announces the end of this epoch, continues it, and compares it with one that nobody killed.
fn kill_and_compare(scratch: &Scratch, steps: usize, epoch: usize) {
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    let output = train(&whole, steps).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut child = train(&killed, steps).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with(&format!("epoch {epoch}/4"))));
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&killed).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_same_results(&whole, &killed, "");
}

/// The last step of the first epoch loses a life: between episodes, but in the middle of a game.
#[test]
fn a_run_killed_between_lives_finds_its_way_back() {
    let scratch = Scratch::new("lives");
    let probe = scratch.0.join("probe");
    let output = train(&probe, 150).arg("epochs=1").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let state = std::fs::read(probe.join("checkpoints/000001/state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let life = &state["replay"]["episodes"][0];
    assert_eq!(life["ended"], true, "{life}");
    kill_and_compare(&scratch, life["len"].as_u64().unwrap() as usize, 1);
}

#[test]
fn a_killed_run_finds_its_way_back_into_the_game() {
    let scratch = Scratch::new("atari");
    let whole = scratch.0.join("whole");
    kill_and_compare(&scratch, 150, 2);
    // The game went on over lost lives.
    let state = std::fs::read_to_string(whole.join("checkpoints/000004/state.json")).unwrap();
    assert!(state.contains("\"continues\":true"), "{state}");

    let film = scratch.0.join("film.gif");
    let record = |env: &str| {
        let mut command = iris();
        command.arg("record").arg(&whole).args(["--steps", "20", "--env", env, "--out"]).arg(&film);
        command.output().unwrap()
    };
    let output = record("atari/Qbert");
    assert!(output.status.success(), "{}", stderr(&output));
    // The screen of 210x160 beside the frame of 64x64 and what is left of it, three times as large, with three pixels around them, a bar for rewards and two lines of text.
    let bytes = std::fs::read(&film).unwrap();
    let size = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!((size(6), size(8)), (160 + 2 * 192 + 12, 210 + 6 + 5 + 2 * 11));
    let output = record("atari/Breakout");
    assert!(
        !output.status.success() && stderr(&output).contains("knows 6 actions, but atari/Breakout has 4")
    );
}

#[test]
fn a_missing_rom_is_named_with_the_places_looked_at() {
    let scratch = Scratch::new("roms");
    let run = scratch.0.join("run");
    let output = |command: &[&str]| {
        let mut iris = iris();
        iris.args(["--roms", "no/such/folder"]).args(command).args(["--env", "atari/Pong"]);
        iris.env("IRIS_ALE_DIR", scratch.0.join("nothing")).env("ALE_ROM_PATH", &scratch.0);
        // Nor any ale-py that this machine may have.
        iris.env("HOME", &scratch.0).env("PATH", &scratch.0);
        iris.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX").output().unwrap()
    };
    let missing = "there is no pong.bin in no/such/folder";
    let refused = output(&["train", "--out", run.to_str().unwrap()]);
    assert!(!refused.status.success() && stderr(&refused).contains(missing), "{}", stderr(&refused));
    assert!(!run.exists());
    // The config does not need the game.
    let printed = output(&["config"]);
    assert!(printed.status.success() && stderr(&printed).contains(missing), "{}", stderr(&printed));
    assert!(stderr(&printed).starts_with("note: agent.actions is left out"), "{}", stderr(&printed));
}

/// The protocol's numbers are the run's, in every command that plays its game.
#[test]
fn a_run_plays_by_the_protocol_of_its_config() {
    let scratch = Scratch::new("protocol");
    let run = scratch.0.join("run");
    // 20 steps of training, and a no-op and 10 steps of evaluation.
    let protocol = [
        "atari.training.noops=0",
        "atari.training.frame_skip=2",
        "atari.training.time_limit=40",
        "atari.evaluation.time_limit=41",
    ];
    let output = train(&run, 50).args(protocol).args(["epochs=2", "agent.tokenizer.frame_size=32"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the Atari protocol is not the paper's: atari.training.noops=0"));
    let lengths = |epoch: usize| -> Vec<u64> {
        let path = run.join(format!("checkpoints/{epoch:06}/state.json"));
        let state: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let episodes = state["replay"]["episodes"].as_array().unwrap();
        episodes.iter().map(|episode| episode["len"].as_u64().unwrap()).collect()
    };
    assert_eq!(lengths(2), [20; 5]);
    let resumed = iris().args(["train", "epochs=3", "--resume"]).arg(&run).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(lengths(3), [20, 20, 20, 20, 20, 20, 20, 10]);

    let played = |arguments: &[&str]| {
        let output = iris().args(arguments).arg(&run).current_dir(&scratch.0).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("atari.evaluation.time_limit=41"), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let recorded = played(&["record", "--out", "film.gif"]);
    assert!(recorded.starts_with("10 steps of atari/Qbert"), "{recorded}");
    played(&["eval", "--episodes", "2"]);
    let output = iris().args(["dream", "--test", "--from", "10"]).arg(&run).output().unwrap();
    assert!(stderr(&output).contains("the end of the game, which lasted 10 steps"), "{}", stderr(&output));
}
