//! `iris train` on tiny budgets, as a user runs it: a whole run, killed and continued, and given nonsense.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A run of four epochs in which every phase happens, in a second or two.
const SMALL: [&str; 17] = [
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

fn iris() -> Command {
    Command::new(env!("CARGO_BIN_EXE_iris"))
}

fn train(folder: &Path, extra: &[&str]) -> Output {
    iris().arg("train").args(SMALL).args(extra).arg("--out").arg(folder).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("iris-train-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All that must be the same at the end of a run: newest checkpoint, metrics, replay.
fn results(run: &Path) -> Vec<(String, Vec<u8>)> {
    let files = [
        "metrics.jsonl",
        "replay/frames.bin",
        "replay/steps.bin",
        "checkpoints/000004/agent.safetensors",
        "checkpoints/000004/optimisers.safetensors",
        "checkpoints/000004/state.json",
    ];
    files
        .iter()
        .map(|f| (f.to_string(), std::fs::read(run.join(f)).unwrap_or_else(|e| panic!("{f}: {e}"))))
        .collect()
}

#[test]
fn a_run_goes_through_every_phase_and_can_be_evaluated() {
    let scratch = Scratch::new("whole");
    let run = scratch.0.join("run");
    let output = train(&run, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("200 steps of arcade/catch") && said.contains("of the way"), "{said}");

    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!(metrics.lines().count(), 4);
    for name in [
        "tokenizer/train/commitment_loss",
        "world_model/train/loss_obs",
        "actor_critic/train/loss_values",
        "collection/steps",
        "evaluation/return",
    ] {
        assert!(last[name].as_f64().is_some_and(f64::is_finite), "{name} in {last}");
    }
    // Two checkpoints are kept, and the resolved config.
    assert_eq!(std::fs::read_dir(run.join("checkpoints")).unwrap().count(), 2);
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("actions = 3") && config.contains("steps = 50"), "{config}");

    // The tiny preset's policy has parts that the reference release does not know.
    let file = scratch.0.join("out.safetensors");
    let export =
        iris().arg("export").arg(run.join("checkpoints/000004")).arg("--out").arg(&file).output().unwrap();
    assert!(!export.status.success() && !file.exists());
    assert!(stderr(&export).contains("has nothing like actor_critic.skip"), "{}", stderr(&export));

    let evaluate = |seed: &str| {
        let output = iris().arg("eval").arg(&run).args(["--episodes", "5", "--seed", seed]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let result = evaluate("1");
    assert_eq!(result["returns"].as_array().unwrap().len(), 5);
    assert_eq!(result, evaluate("1"));
}

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

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let scratch = Scratch::new("damaged");
    let (whole, damaged) = (scratch.0.join("whole"), scratch.0.join("damaged"));
    assert!(train(&whole, &[]).status.success());
    assert!(train(&damaged, &[]).status.success());
    let newest = damaged.join("checkpoints/000004/optimisers.safetensors");
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&damaged).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("trying the checkpoint before it"), "{}", stderr(&resumed));
    assert!(results(&whole) == results(&damaged));

    // Nothing left to continue from.
    std::fs::remove_dir_all(damaged.join("checkpoints")).unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&damaged).output().unwrap();
    assert!(
        !resumed.status.success() && stderr(&resumed).contains("holds no checkpoint"),
        "{}",
        stderr(&resumed)
    );
}

#[test]
fn nonsense_is_answered_with_one_line_that_helps() {
    let scratch = Scratch::new("nonsense");
    let run = scratch.0.join("run");
    let refused = |arguments: &[&str]| {
        let output = train(&run, arguments);
        assert!(!output.status.success() && !run.exists(), "{arguments:?}");
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    assert_eq!(
        refused(&["collection.stepz=5"]),
        "error: no key is called `collection.stepz`. Did you mean `steps`?\n"
    );
    assert!(
        refused(&["collection.steps=many"]).contains("`collection.steps` must be an integer, not a string")
    );
    assert!(refused(&["collection.steps=0"]).contains("collection.steps must be at least 1"));
    assert!(refused(&["collection=5"]).contains("`collection` is a table; set one of its keys"));
    assert!(refused(&["epochs"]).contains("`epochs` is not an override: write key.sub=value"));
    assert!(
        refused(&["agent.world_model.heads=3"])
            .contains("agent.world_model.heads is 3, which does not divide")
    );
    assert!(refused(&["actor_critic.horizon=9"]).contains("actor_critic.horizon is 9, but must be from 2"));
    assert!(refused(&["agent.tokenizer.frame_size=64"]).contains("arcade/catch draws 32x32 pixels"));
    assert!(refused(&["--env", "arcade/cacth"]).contains("Did you mean `arcade/catch`?"));
    assert!(refused(&["--preset", "tinny"]).contains("Did you mean `tiny`?"));
    assert!(refused(&["--config", "no/such/file.toml"]).contains("cannot read no/such/file.toml"));

    assert!(train(&run, &[]).status.success());
    let again = train(&run, &[]);
    assert!(!again.status.success() && stderr(&again).contains("already holds a run"), "{}", stderr(&again));
}

#[test]
fn the_printed_config_is_one_that_train_takes() {
    let scratch = Scratch::new("config");
    let print = |arguments: &[&str]| {
        let output = iris().arg("config").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let changed = print(&["collection.steps=7", "--env", "arcade/pong", "--seed", "5"]);
    let file = scratch.0.join("changed.toml");
    std::fs::write(&file, &changed).unwrap();
    assert_eq!(print(&["--config", file.to_str().unwrap()]), changed);
    assert!(
        changed.contains("steps = 7")
            && changed.contains("env = \"arcade/pong\"")
            && changed.contains("seed = 5")
    );
    let games = String::from_utf8(iris().arg("envs").output().unwrap().stdout).unwrap();
    assert!(["catch", "pong", "breakout", "freeway"].iter().all(|name| games.contains(name)), "{games}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_run_with_a_clear_line() {
    // /dev/full accepts nothing; the replay is made to write there.
    let scratch = Scratch::new("full");
    let run = scratch.0.join("run");
    std::fs::create_dir_all(run.join("replay")).unwrap();
    std::os::unix::fs::symlink("/dev/full", run.join("replay/frames.bin")).unwrap();
    let output = train(&run, &[]);
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("cannot write the replay") && text.contains("No space left"), "{text}");
}
