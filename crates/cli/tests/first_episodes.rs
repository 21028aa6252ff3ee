//! Runs whose replay begins with episodes: of another run, or from a file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{SMALL, Scratch, assert_same_results, iris, stderr, train};

#[test]
fn a_replay_begins_with_given_episodes_and_the_run_continues_to_the_same_bits() {
    let scratch = Scratch::new("first-episodes");
    let at = |name: &str| scratch.0.join(name);
    let first = train(&at("first"), &["epochs=1", "evaluation.final_episodes=1"]);
    assert!(first.status.success(), "{}", stderr(&first));
    std::fs::create_dir(at("taught")).unwrap();
    let exported = iris()
        .arg("export-episodes")
        .arg(at("first"))
        .arg("--out")
        .arg(at("taught/0001.npz"))
        .output()
        .unwrap();
    assert!(exported.status.success(), "{}", stderr(&exported));

    let (taught, source) = (at("taught").display().to_string(), at("first").display().to_string());
    let whole = train(&at("whole"), &["--replay", &taught]);
    assert!(whole.status.success(), "{}", stderr(&whole));
    assert!(
        stderr(&whole).contains(&format!("begins with 50 steps of 2 episodes from {taught}")),
        "{}",
        stderr(&whole)
    );
    let metrics = std::fs::read_to_string(at("whole/metrics.jsonl")).unwrap();
    let seen =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["collection/steps"].as_f64();
    assert_eq!(metrics.lines().filter_map(seen).collect::<Vec<_>>(), [100.0, 150.0, 200.0, 250.0]);

    // A run whose steps they are gives the same ones.
    assert!(train(&at("same"), &["--replay", &source]).status.success());
    let same = std::fs::read_to_string(at("same/metrics.jsonl")).unwrap();
    assert_eq!(metrics, same);

    // The source is not needed any more; not even before the first epoch is over.
    for (moment, moved) in [("arcade/catch on", true), ("epoch 1/4", false)] {
        let killed = at(&format!("killed-{moved}"));
        let mut child = iris()
            .arg("train")
            .args(SMALL)
            .args(["--replay", &taught])
            .arg("--out")
            .arg(&killed)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line.starts_with(moment)));
        child.kill().unwrap();
        child.wait().unwrap();
        if moved {
            std::fs::rename(at("taught"), at("elsewhere")).unwrap();
        }
        let resumed = iris().args(["train", "--resume"]).arg(&killed).output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert_same_results(&at("whole"), &killed, &format!("after {moment}"));
        if moved {
            std::fs::rename(at("elsewhere"), at("taught")).unwrap();
        }
    }
}

#[test]
fn episodes_that_do_not_fit_are_refused_with_both_values() {
    let scratch = Scratch::new("unfit-episodes");
    let at = |name: &str| scratch.0.join(name);
    assert!(train(&at("catch"), &["epochs=1", "evaluation.final_episodes=1"]).status.success());
    let source = at("catch").display().to_string();
    std::fs::create_dir(at("empty")).unwrap();
    let empty = at("empty").display().to_string();
    for (extra, reason) in [
        (
            vec!["--replay", &source, "agent.tokenizer.frame_size=64"],
            "frames of 32 x 32 pixels, but the agent sees frames of 64 x 64",
        ),
        (
            vec!["--replay", &source, "collection.envs=2"],
            "collection.envs is 2, but must be 1 where the replay begins",
        ),
        (vec!["--replay", &empty], "holds no episodes"),
        (vec!["--replay", "/no/such/folder"], "cannot read /no/such/folder"),
    ] {
        let refused = train(&at("refused"), &extra);
        assert_eq!(refused.status.code(), Some(1), "{extra:?}");
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
        assert!(!at("refused").exists());
    }
    std::fs::write(at("empty/0001.npz"), "nonsense").unwrap();
    let refused = train(&at("refused"), &["--replay", &empty]);
    assert!(!refused.status.success() && stderr(&refused).contains("0001.npz"), "{}", stderr(&refused));
}
