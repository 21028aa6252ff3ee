//! `iris export --hub`: a folder for the Hugging Face Hub, and agents that come from one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{Scratch, iris, stderr, train};

#[test]
fn a_run_is_published_and_used_as_an_agent() {
    let scratch = Scratch::new("hub");
    let (run, hub) = (scratch.0.join("run"), scratch.0.join("hub"));
    assert!(train(&run, &[]).status.success());
    let export = |hub: &Path| iris().arg("export").arg(&run).arg("--hub").arg(hub).output().unwrap();
    let exported = export(&hub);
    assert!(exported.status.success(), "{}", stderr(&exported));
    let said = String::from_utf8(exported.stdout).unwrap();
    assert!(said.contains("hf upload USER/iris-catch "), "{said}");
    for file in [
        "config.json",
        "model.safetensors",
        "replay.gif",
        "dream.gif",
        "tensorboard/events.out.tfevents.0.iris",
    ] {
        assert!(hub.join(file).is_file(), "{file}");
    }
    // The agent of the tiny preset is none of the release's.
    assert!(!hub.join("last.safetensors").exists());
    let read = |file: &str| std::fs::read_to_string(hub.join(file)).unwrap();
    assert_eq!(read("metrics.jsonl"), std::fs::read_to_string(run.join("metrics.jsonl")).unwrap());
    let results: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    let (mean, returns) = (results["mean"].as_f64().unwrap(), results["returns"].as_array().unwrap());
    let metrics = read("metrics.jsonl");
    let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!((returns.len(), Some(mean)), (3, last["evaluation/return"].as_f64()));
    let card = read("README.md");
    assert!(card.starts_with("---\nlibrary_name: iris\n"), "{card}");
    assert!(card.contains(&format!("      value: {mean:.2} +/- ")), "{card}");
    assert!(
        card.contains("pipeline_tag: reinforcement-learning") && card.contains("\n- arcade/catch\n"),
        "{card}"
    );

    // Every command that takes an agent knows its game, and plays as the run does.
    let play = |agent: &Path| {
        let output = iris().arg("eval").arg(agent).args(["--episodes", "3"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    assert_eq!(play(&hub), play(&run));
    let picture = scratch.0.join("out.png");
    for words in [&["dream", "--futures", "1"][..], &["record", "--steps", "5"], &["reconstruct"]] {
        let output = iris().args(words).arg(&hub).arg("--out").arg(&picture).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
    let trained = train(&scratch.0.join("next"), &["--init", hub.to_str().unwrap()]);
    assert!(trained.status.success(), "{}", stderr(&trained));

    // Again is fine; a folder with anything else is left alone, and so is an agent without a run.
    assert!(export(&hub).status.success());
    let refused = export(&scratch.0);
    assert!(stderr(&refused).contains("holds other files: choose another folder"), "{}", stderr(&refused));
    let agent = iris().arg("export").arg(&hub).arg("--hub").arg(scratch.0.join("copy")).output().unwrap();
    assert!(stderr(&agent).contains("only runs can be published"), "{}", stderr(&agent));
    let nothing = iris().arg("export").arg(&run).output().unwrap();
    assert!(!nothing.status.success() && stderr(&nothing).contains("--out"), "{}", stderr(&nothing));
    std::fs::write(hub.join("config.toml"), "epochs = -1\n").unwrap();
    let changed = iris().arg("eval").arg(&hub).output().unwrap();
    assert!(stderr(&changed).contains("config.toml is no config of a run"), "{}", stderr(&changed));
}
