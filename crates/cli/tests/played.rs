//! What a run says about the episodes it played and the time it took.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{Scratch, iris, stderr, train};
use serde_json::Value;

fn lines(run: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Sum of the counts of actions.
fn actions(part: &Value) -> f64 {
    part["actions"].as_object().unwrap().values().map(|count| count.as_f64().unwrap()).sum()
}

#[test]
fn episodes_and_times_agree_with_the_metrics() {
    let scratch = Scratch::new("played");
    let run = scratch.0.join("run");
    let output = train(&run, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (metrics, episodes, timing) =
        (lines(&run, "metrics.jsonl"), lines(&run, "episodes.jsonl"), lines(&run, "timing.jsonl"));
    let epochs =
        |lines: &[Value]| lines.iter().map(|line| line["epoch"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((epochs(&episodes), epochs(&timing)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));

    let mut ended = 0.0;
    for (played, metrics) in episodes.iter().zip(&metrics) {
        let collected = &played["collection"];
        assert_eq!(actions(collected), 50.0);
        assert_eq!(
            numbers(&collected["returns"]).len() as f64,
            metrics["collection/episodes"].as_f64().unwrap()
        );
        ended += numbers(&collected["lengths"]).iter().sum::<f64>();
        assert_eq!(played.get("evaluation").is_some(), metrics.get("evaluation/return").is_some());
        if let Some(evaluated) = played.get("evaluation") {
            let [mean, metric] = [&evaluated["return_mean"], &metrics["evaluation/return"]];
            assert_eq!(mean.as_f64().map(|mean| mean as f32), metric.as_f64().map(|metric| metric as f32));
            assert_eq!(actions(evaluated), numbers(&evaluated["lengths"]).iter().sum::<f64>());
        }
    }
    assert_eq!(numbers(&episodes[1]["evaluation"]["returns"]).len(), 2);
    assert_eq!(numbers(&episodes[3]["evaluation"]["returns"]).len(), 3);
    // All steps but those of the episode that is still being played.
    assert!((150.0..=200.0).contains(&ended), "{ended}");
    // Names of the game's actions.
    assert!(episodes[0]["collection"]["actions"]["left"].as_u64().unwrap() > 0);

    for line in &timing {
        let line = line.as_object().unwrap();
        let value = |name: &str| line[name].as_f64().unwrap();
        // On a CPU the next epoch waits for the end of this one, not the other way round.
        let took_time =
            |(name, value): (&String, &Value)| (value.as_f64() > Some(0.0)) == (name != "waiting/seconds");
        assert!(line.iter().all(took_time), "{line:?}");
        let parts = line.iter().filter(|(name, _)| name.ends_with("/seconds"));
        assert!(parts.map(|(_, seconds)| seconds.as_f64().unwrap()).sum::<f64>() <= value("seconds") * 1.001);
        let steps = value("collection/seconds") * value("collection/steps_per_second");
        assert!((steps - 50.0).abs() < 1e-6, "{steps}");
    }
    // Left out in the first epoch, and measured in the second.
    assert!(timing[0].get("world_model/seconds").is_none());
    assert!(timing[1].get("world_model/updates_per_second").is_some());
}

#[test]
fn lost_episodes_are_noticed_and_lines_of_unfinished_epochs_go() {
    let scratch = Scratch::new("played-lost");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let path = run.join("episodes.jsonl");
    let (whole, times) = (std::fs::read_to_string(&path).unwrap(), run.join("timing.jsonl"));
    let resume = || {
        let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    std::fs::write(&path, format!("{whole}{{\"epoch\":3}}\n")).unwrap();
    let timed = std::fs::read_to_string(&times).unwrap();
    std::fs::write(&times, format!("{timed}{{\"epoch\":3}}\n")).unwrap();
    assert!(!resume().contains("episodes.jsonl"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    assert_eq!(std::fs::read_to_string(&times).unwrap(), timed);

    let (first, _) = whole.split_once('\n').unwrap();
    std::fs::write(&path, format!("{first}\n")).unwrap();
    let said = resume();
    assert!(said.contains("episodes.jsonl has lost returns and lengths of earlier epochs"), "{said}");
    std::fs::write(&path, whole.replacen("left", "LEFT", 1)).unwrap();
    let said = resume();
    assert!(said.contains("returns and lengths of earlier epochs may be wrong"), "{said}");
}

/// Everything but the losses that were added is the same: measuring them changes no random number and no dropout.
#[test]
fn held_out_losses_change_nothing_else() {
    let scratch = Scratch::new("held-out");
    let runs = [scratch.0.join("with"), scratch.0.join("without")];
    for (run, losses) in runs.iter().zip(["evaluation.losses=true", "evaluation.losses=false"]) {
        let perceptual = ["tokenizer.perceptual=random", "tokenizer.perceptual_dropout=0.5"];
        let output = train(run, &[&perceptual[..], &[losses]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let [with, without] = runs.map(|run| lines(&run, "metrics.jsonl"));
    for (with, without) in with.iter().zip(&without) {
        let mut with = with.as_object().unwrap().clone();
        let names: Vec<String> = with.keys().filter(|name| name.contains("/eval/")).cloned().collect();
        let evaluated = with.contains_key("evaluation/return");
        assert_eq!(names.len(), if evaluated { 9 } else { 0 }, "{names:?}");
        for name in names {
            let held_out = with.remove(&name).unwrap().as_f64().unwrap();
            // Networks of a few updates are as bad at new games as at old ones, and no worse by far.
            let trained = with[&name.replace("/eval/", "/train/")].as_f64().unwrap();
            assert!(
                held_out > 0.0 && (0.2..5.0).contains(&(held_out / trained)),
                "{name}: {held_out}, {trained}"
            );
        }
        assert_eq!(&with, without.as_object().unwrap());
    }
}
