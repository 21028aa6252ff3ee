//! A run that is over is trained further.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Scratch, assert_same_results, iris, stderr, train};

/// As if it had been meant to be that long from the beginning, also when it is killed on the way.
#[test]
fn a_run_with_more_epochs_is_the_same_as_a_longer_one() {
    let scratch = Scratch::new("longer");
    let (whole, short) = (scratch.0.join("whole"), scratch.0.join("short"));
    // The last evaluation is like every other, because it is not the last.
    let evaluation = "evaluation.final_episodes=2";
    assert!(train(&whole, &[evaluation]).status.success());
    assert!(train(&short, &[evaluation, "epochs=2"]).status.success());
    let resume = |arguments: &[&str]| {
        let mut command = iris();
        command.args(["train", "--resume"]).arg(&short).args(arguments);
        command
    };
    let over = resume(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&over.stdout).into_owned();
    let hint = format!("train --resume {} epochs=4\n", short.display());
    assert!(said.starts_with("all 2 epochs of this run are over") && said.contains(&hint), "{said}");

    let mut child = resume(&["epochs=4"]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with("epoch 3/4")));
    child.kill().unwrap();
    child.wait().unwrap();
    // What it is to become is in its folder; saying it again does no harm.
    let resumed = resume(&["epochs=4"]).output().unwrap();
    assert!(resumed.status.success() && !stderr(&resumed).contains("warning"), "{}", stderr(&resumed));
    assert_same_results(&whole, &short, "");
    let config = |run: &std::path::Path| std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(config(&whole), config(&short));
}

#[test]
fn nothing_but_the_number_of_epochs_changes() {
    let scratch = Scratch::new("raised");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2", "world_model.schedule.final_learning_rate=1e-5"]).status.success());
    let resume = |change: &str| iris().args(["train", "--resume"]).arg(&run).arg(change).output().unwrap();
    for (change, answer) in [
        (
            "seed=3",
            "`seed=3` cannot be changed: a run is continued with its own config, of which only `epochs`",
        ),
        ("epochs=1", "epochs is 1, but the run has 2 already: it can only be made longer"),
        ("epochs=many", "`epochs=many`: write a whole number, such as epochs=30"),
        ("epochs", "`epochs`: write a whole number, such as epochs=30"),
        ("epochs=5000000000", "epochs is 5000000000, but must be from 1 to 4294967295"),
    ] {
        let output = resume(change);
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains(answer) && text.lines().count() == 1, "{text}");
    }
    assert!(!run.join("checkpoints/000003").exists());
    let output = resume("epochs=3");
    let text = stderr(&output);
    // The last rate of two epochs is that of the third of three.
    assert!(
        output.status.success() && !text.contains("warning") && !text.contains("learning rate"),
        "{text}"
    );
    let output = resume("epochs=5");
    let text = stderr(&output);
    assert!(
        text.contains("note: the learning rate of the world_model decays over all 5 epochs now"),
        "{text}"
    );
    assert!(run.join("checkpoints/000005").exists());
}
