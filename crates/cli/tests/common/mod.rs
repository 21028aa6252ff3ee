//! Runs of the real binary on tiny budgets.
// Each test file uses a part of this.
#![allow(dead_code)]

#[cfg(unix)]
pub mod sweeps;

use std::path::Path;
use std::process::{Command, Output};

pub use agent::testing::Scratch;

/// A run of four epochs in which every phase happens, in a second or two, with the paper's networks.
pub const SMALL: [&str; 18] = [
    "--preset=tiny",
    "epochs=4",
    "collection.steps=50",
    "collection.random_epochs=1",
    "tokenizer.schedule.start_after=0",
    "tokenizer.schedule.first_updates=3",
    "tokenizer.schedule.updates=2",
    "tokenizer.schedule.batch=4",
    "world_model.schedule.start_after=1",
    "world_model.schedule.first_updates=3",
    "world_model.schedule.updates=2",
    "world_model.schedule.batch=3",
    "actor_critic.schedule.start_after=1",
    "actor_critic.schedule.updates=2",
    "actor_critic.schedule.batch=3",
    "evaluation.every=2",
    "evaluation.episodes=2",
    "evaluation.final_episodes=3",
];

pub fn iris() -> Command {
    on_the_cpu(Command::new(env!("CARGO_BIN_EXE_iris")))
}

/// A command that finds no GPU, whatever the program was built with and the machine has.
pub fn on_the_cpu(mut command: Command) -> Command {
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

pub fn train(folder: &Path, extra: &[&str]) -> Output {
    iris().arg("train").args(SMALL).args(extra).arg("--out").arg(folder).output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The event file of TensorBoard.
pub const EVENTS: &str = "tensorboard/events.out.tfevents.0.iris";

/// All that must be the same at the end of a run: newest checkpoint, metrics, replay. `timing.jsonl` is not.
pub fn results(run: &Path) -> Vec<(String, Vec<u8>)> {
    let files = [
        "metrics.jsonl",
        "episodes.jsonl",
        EVENTS,
        "replay/000000.data",
        "replay/000000.index",
        "media/000004/dream.png",
        "checkpoints/000004/agent.safetensors",
        "checkpoints/000004/optimisers.safetensors",
        "checkpoints/000004/state.json",
    ];
    let kept = kept_files(run);
    let names = ("names in episodes/".to_string(), kept.join("\n").into_bytes());
    let paths = files.iter().map(|file| file.to_string()).chain(kept);
    let read = |f: String| (f.clone(), std::fs::read(run.join(&f)).unwrap_or_else(|e| panic!("{f}: {e}")));
    let contents =
        paths.map(read).map(|(f, bytes)| if f == EVENTS { (f, without_times(bytes)) } else { (f, bytes) });
    [names].into_iter().chain(contents).collect()
}

/// Two runs ended with the same results to the bit; `when` says in a failure which case it was.
#[track_caller]
pub fn assert_same_results(expected: &Path, got: &Path, when: &str) {
    for ((name, expected), (other, got)) in results(expected).into_iter().zip(results(got)) {
        assert!(name == other && expected == got, "{name} differs {when}");
    }
}

/// The episodes that a run keeps, by their paths in its folder.
pub fn kept_files(run: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for kind in ["train", "evaluation", "imagination"] {
        let Ok(entries) = std::fs::read_dir(run.join("episodes").join(kind)) else { continue };
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        names.extend(entries.map(|entry| format!("episodes/{kind}/{}", name(entry.unwrap()))));
    }
    names.sort();
    names
}

/// An event file but for its wall times and the checksums over them.
fn without_times(mut file: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while at < file.len() {
        // Length, its checksum, the event, which starts with its time, its checksum.
        let length = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        assert_eq!(file[at + 12], 9, "an event without a time");
        file[at + 13..at + 21].fill(0);
        file[at + 12 + length..at + 16 + length].fill(0);
        at += length + 16;
    }
    file
}

/// Wall times of an event file, in its order.
pub fn wall_times(file: &[u8]) -> Vec<f64> {
    let mut times = Vec::new();
    let mut rest = file;
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        times.push(f64::from_le_bytes(rest[13..21].try_into().unwrap()));
        rest = &rest[length + 16..];
    }
    times
}
