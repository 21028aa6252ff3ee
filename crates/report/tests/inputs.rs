//! Files and folders, good and odd, and the answer to each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};

use common::Scratch;
use report::{Report, Request, Rng, Settings, gather};
use serde_json::Value;

impl Scratch {
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A finished run of two evaluations.
    fn run(&self, name: &str, game: &str, seed: u64, last: f64) -> PathBuf {
        self.file(
            &format!("{name}/config.toml"),
            &format!("env = \"{game}\"\nseed = {seed}\nepochs = 2\n[agent]\n"),
        );
        let line = |epoch: u64, score: f64| {
            let progress = score / 10.0;
            format!(
                "{{\"epoch\":{epoch},\"collection/steps\":{}.0,\"evaluation/return\":{score},\
                 \"evaluation/progress\":{progress}}}\n",
                epoch * 400
            )
        };
        let metrics = self.file(&format!("{name}/metrics.jsonl"), &(line(1, 0.0) + &line(2, last)));
        metrics.parent().unwrap().to_path_buf()
    }
}

fn request(inputs: &[&Path], agents: &[&str]) -> Request {
    Request {
        inputs: inputs.iter().map(|path| path.to_path_buf()).collect(),
        agents: Some(agents.iter().map(|name| name.to_string()).collect()),
        name: "ours".to_string(),
        references: None,
        variants: Vec::new(),
        built_in: Vec::new(),
    }
}

fn report_of(request: &Request) -> Result<Value, String> {
    let settings = Settings { replicates: 50, seed: 0, rng: Rng::Fast };
    let report = gather(request).and_then(|gathered| Report::new(gathered, settings));
    report.map(|report| serde_json::to_value(&report).unwrap()).map_err(|error| error.to_string())
}

fn report(inputs: &[&Path]) -> Result<Value, String> {
    report_of(&request(inputs, &["none"]))
}

fn notes(report: &Value) -> String {
    report["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note.as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_score_file_is_an_agent() {
    let scratch = Scratch::new("scores");
    let path = scratch.file("mine.json", r#"{"Pong": [14.6, -20.7], "atari/breakout": [30.5, 30.5]}"#);
    let report = report(&[&path]).unwrap();
    let agent = &report["agents"][0];
    assert_eq!(agent["name"], "mine");
    assert_eq!(agent["games"]["Pong"]["normalised"], serde_json::json!([1.0, 0.0]));
    assert_eq!(agent["games"]["Breakout"]["mean"], 30.5);
    assert_eq!(agent["aggregates"]["mean"]["value"], 0.75);
    assert_eq!(agent["superhuman"], 1);
}

#[test]
fn nan_is_refused() {
    let scratch = Scratch::new("nan");
    let path = scratch.file("mine.json", r#"{"Pong": [1.0, NaN]}"#);
    assert!(report(&[&path]).unwrap_err().contains("holds NaN or Infinity"));
}

#[test]
fn null_is_refused() {
    let scratch = Scratch::new("null");
    let path = scratch.file("mine.json", r#"{"Pong": [1.0, null]}"#);
    assert!(report(&[&path]).unwrap_err().contains("run 2 of Pong is null, not a score"));
}

#[test]
fn an_empty_list_is_a_missing_game() {
    let scratch = Scratch::new("empty");
    let path = scratch.file("mine.json", r#"{"Pong": [1.0, 2.0], "Breakout": []}"#);
    let report = report(&[&path]).unwrap();
    assert!(notes(&report).contains("mine: the list of Breakout is empty; the game counts as missing"));
    assert_eq!(report["agents"][0]["games"].as_object().unwrap().len(), 1);
}

#[test]
fn no_scores_at_all_are_refused() {
    let scratch = Scratch::new("nothing");
    for (name, text) in [("a.json", "{}"), ("b.json", r#"{"Pong": []}"#), ("c.json", "")] {
        assert!(report(&[&scratch.file(name, text)]).unwrap_err().ends_with("holds no scores"), "{text}");
    }
}

#[test]
fn other_files_are_refused() {
    let scratch = Scratch::new("format");
    let error = |name: &str, text: &str| report(&[&scratch.file(name, text)]).unwrap_err();
    assert!(error("a.json", "not json").contains("is not JSON"));
    assert!(error("b.json", "[1, 2]").contains("not an object from games to scores"));
    assert!(error("c.json", r#"{"Pong": 3}"#).contains("Pong has no list of scores"));
    assert!(error("d.json", "{} {}").contains("it holds 2 JSON values"));
    assert!(report(&[&scratch.0.join("absent.json")]).unwrap_err().contains("cannot read"));
}

#[test]
fn unknown_games_need_references() {
    let scratch = Scratch::new("unknown");
    let path = scratch.file("mine.json", r#"{"Zaxxon": [5.0], "Pong": [1.0], "Skiing": [2.0]}"#);
    let error = report(&[&path]).unwrap_err();
    assert!(error.contains("no random and human score for Zaxxon, Skiing"), "{error}");
    let references = scratch.file("references.json", r#"{"Zaxxon": [0, 10], "Skiing": [-2, 2]}"#);
    let mut request = request(&[&path], &["none"]);
    request.references = Some(references);
    let report = report_of(&request).unwrap();
    assert_eq!(report["agents"][0]["games"]["Zaxxon"]["normalised_mean"], 0.5);
    assert!(!notes(&report).contains("normalised with"), "{}", notes(&report));
    request.references = Some(scratch.file("bad.json", r#"{"Zaxxon": [3, 3]}"#));
    assert!(report_of(&request).unwrap_err().contains("Zaxxon must be [random, human]"));
}

#[test]
fn references_that_replace_the_benchmark_are_said() {
    let scratch = Scratch::new("replaced");
    let path = scratch.file("mine.json", r#"{"Pong": [0.5, 1.0]}"#);
    let mut request = request(&[&path], &["IRIS"]);
    request.references =
        Some(scratch.file("references.json", r#"{"pong": [0, 1], "Breakout": [1.7, 30.5]}"#));
    let report = report_of(&request).unwrap();
    assert_eq!(report["agents"][1]["games"]["Pong"]["normalised"], serde_json::json!([0.5, 1.0]));
    let notes = notes(&report);
    assert!(notes.contains("Pong: your scores are normalised with [0, 1] of "), "{notes}");
    assert!(notes.contains("the published agents' with the benchmark's [-20.7, 14.6]; they do not compare"));
    assert!(!notes.contains("Breakout: your scores"), "the same as the benchmark's");
}

#[test]
fn built_in_games_need_no_references() {
    let scratch = Scratch::new("built-in");
    let path = scratch.file("mine.json", r#"{"arcade/catch": [5.0, 1.5], "arcade/throw": [1.0]}"#);
    let mut request = request(&[&path], &["none"]);
    request.built_in = vec![("arcade/catch".to_string(), [-2.0, 5.0])];
    let error = report_of(&request).unwrap_err();
    assert!(error.contains("no random and human score for arcade/throw"), "{error}");
    scratch.file("mine.json", r#"{"arcade/catch": [5.0, 1.5]}"#);
    let report = report_of(&request).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["normalised"], serde_json::json!([1.0, 0.5]));
    // A run of it knows its own progress, which counts.
    let run = scratch.run("run", "arcade/catch", 0, 4.0);
    request.inputs = vec![run];
    let report = report_of(&request).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["normalised"], serde_json::json!([0.4]));
}

#[test]
fn a_broken_run_does_not_stop_the_others() {
    let scratch = Scratch::new("broken");
    scratch.run("runs/a", "arcade/catch", 0, 4.0);
    let broken = scratch.run("runs/b", "arcade/catch", 1, 5.0).join("metrics.jsonl");
    let text = std::fs::read_to_string(&broken).unwrap();
    std::fs::write(&broken, text.replacen("{\"epoch\":2", "epoch 2", 1)).unwrap();
    scratch.run("runs/c", "arcade/catch", 2, 3.0);
    scratch.file("runs/c/config.toml", "env = 3\n");
    let report = report(&[&scratch.0.join("runs")]).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["scores"], serde_json::json!([4.0]));
    let notes = notes(&report);
    assert!(
        notes.contains("runs/b/metrics.jsonl, line 2: not a JSON object; the run is left out"),
        "{notes}"
    );
    assert!(notes.contains("runs/c/config.toml: no settings of a run"), "{notes}");
}

#[test]
fn a_game_named_twice_is_refused() {
    let scratch = Scratch::new("twice");
    for (name, text) in
        [("a.json", r#"{"Pong": [1], "Pong": [2]}"#), ("b.json", r#"{"Pong": [1], "ALE/Pong-v5": [2]}"#)]
    {
        assert!(report(&[&scratch.file(name, text)]).unwrap_err().ends_with("names Pong twice"));
    }
}

#[test]
fn missing_games_are_said() {
    let scratch = Scratch::new("missing");
    let path = scratch.file("mine.json", r#"{"Pong": [1.0, 2.0, 3.0]}"#);
    let report = report_of(&request(&[&path], &["IRIS"])).unwrap();
    assert!(notes(&report).contains("mine: 1 of 26 games"), "{}", notes(&report));
    assert_eq!(report["agents"][1]["missing_games"].as_array().unwrap().len(), 25);
    assert_eq!(report["improvement"]["subject"], "mine");
    assert_eq!(report["improvement"]["over"][0]["games"], 1);
}

#[test]
fn one_run_has_no_interval() {
    let scratch = Scratch::new("one");
    let path = scratch.file("mine.json", r#"{"Pong": [1.0], "Breakout": [2.0, 3.0]}"#);
    let report = report(&[&path]).unwrap();
    assert!(report["agents"][0]["aggregates"]["mean"]["interval"].is_null());
    assert!(report["agents"][0]["profile"][3]["interval"].is_null());
    assert!(notes(&report).contains("mine: too few runs for an interval; one run of Pong"));
}

#[test]
fn two_agents_of_one_name_are_refused_and_ours_replaces_a_published_one() {
    let scratch = Scratch::new("names");
    let a = scratch.file("a/IRIS.json", r#"{"Pong": [1.0, 2.0]}"#);
    let b = scratch.file("b/IRIS.json", r#"{"Pong": [1.0, 2.0]}"#);
    assert!(report(&[&a, &b]).unwrap_err().contains("two agents are called IRIS"));
    let report = report_of(&request(&[&a], &["IRIS", "SPR"])).unwrap();
    assert_eq!(report["agents"].as_array().unwrap().len(), 2);
    assert!(notes(&report).contains("yours is shown instead of the published one"));
}

#[test]
fn runs_are_found_and_grouped() {
    let scratch = Scratch::new("runs");
    scratch.run("runs/a", "arcade/catch", 0, 4.0);
    scratch.run("runs/deeper/b", "arcade/catch", 1, 5.0);
    scratch.run("runs/c", "atari/Pong", 0, 14.6);
    let report = report(&[&scratch.0.join("runs")]).unwrap();
    let agent = &report["agents"][0];
    assert_eq!(agent["name"], "ours");
    // Without references the run's own progress counts, with them they do.
    assert_eq!(agent["games"]["arcade/catch"]["normalised"], serde_json::json!([0.4, 0.5]));
    assert_eq!(agent["games"]["Pong"]["normalised"], serde_json::json!([1.0]));
    assert_eq!(agent["curve"].as_array().unwrap().len(), 2);
    assert_eq!(agent["curve"][1]["steps"], 800.0);
    assert!(notes(&report).contains("1 to 2 runs per game"));
}

#[test]
fn the_newest_run_of_a_seed_counts() {
    let scratch = Scratch::new("seeds");
    let old = scratch.run("runs/z-old", "arcade/catch", 3, 1.0);
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options()
        .write(true)
        .open(old.join("metrics.jsonl"))
        .unwrap()
        .set_modified(hour_ago)
        .unwrap();
    scratch.run("runs/a-new", "arcade/catch", 3, 2.0);
    let report = report(&[&scratch.0.join("runs")]).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["scores"], serde_json::json!([2.0]));
    assert!(notes(&report).contains("arcade/catch with seed 3 again"), "{}", notes(&report));
}

/// The last evaluation belongs to a curve too: epochs without play leave the steps where they were.
#[test]
fn evaluations_after_the_last_step_count() {
    let scratch = Scratch::new("learnt-on");
    let run = scratch.run("run", "Pong", 0, 3.0);
    let metrics = run.join("metrics.jsonl");
    let end = "{\"epoch\":3,\"tokenizer/train/total_loss\":0.5}\n{\"epoch\":4,\"evaluation/return\":9.0}\n";
    std::fs::write(&metrics, std::fs::read_to_string(&metrics).unwrap() + end).unwrap();
    let report = report(&[&run]).unwrap();
    let curve = report["agents"][0]["curve"].as_array().unwrap();
    let value = |i: usize| (curve[i]["steps"].as_f64().unwrap(), curve[i]["iqm"]["value"].as_f64().unwrap());
    // Pong from -20.7 to 14.6.
    assert_eq!(curve.len(), 2, "{curve:?}");
    assert_eq!((value(0).0, value(1).0), (400.0, 800.0));
    assert!((value(1).1 - 29.7 / 35.3).abs() < 1e-9, "{curve:?}");
}

#[test]
fn runs_without_an_end() {
    let scratch = Scratch::new("unfinished");
    let run = scratch.run("runs/a", "arcade/catch", 0, 4.0);
    scratch.file("runs/a/config.toml", "env = \"arcade/catch\"\nseed = 0\nepochs = 9\n");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    scratch.file("runs/a/metrics.jsonl", &(metrics + "{\"epoch\": 3, \"evalua"));
    scratch.file("runs/b/config.toml", "env = \"arcade/catch\"\nseed = 1\n");
    scratch.file("runs/b/metrics.jsonl", "{\"epoch\": 1}\n");
    let report = report(&[&scratch.0.join("runs")]).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["scores"], serde_json::json!([4.0]));
    assert!(notes(&report).contains("epoch 2 of 9"));
    assert!(notes(&report).contains("never evaluated, left out"));
}

#[test]
fn bad_runs_are_refused() {
    let scratch = Scratch::new("bad-runs");
    let run = scratch.run("a", "arcade/catch", 0, 4.0);
    scratch.file("a/metrics.jsonl", "{\"epoch\":1}\n{\"evaluation/return\":null}\n");
    assert!(
        report(&[&run]).unwrap_err().contains("metrics.jsonl, line 2: evaluation/return is not a number")
    );
    scratch.file("a/metrics.jsonl", "nonsense\n");
    assert!(report(&[&run]).unwrap_err().contains("line 1: not a JSON object"));
    scratch.file("a/metrics.jsonl", "{\"evaluation/return\":1.0}\n");
    assert!(report(&[&run]).unwrap_err().contains("no random and human score for arcade/catch"));
    scratch.file("a/metrics.jsonl", "{\"epoch\":1}\n");
    assert!(report(&[&run]).unwrap_err().ends_with("holds no scores"));
    scratch.file("a/config.toml", "seed = 1\n");
    assert!(report(&[&run]).unwrap_err().contains("missing field `env`"));
    std::fs::create_dir_all(scratch.0.join("empty")).unwrap();
    assert!(report(&[&scratch.0.join("empty")]).unwrap_err().contains("no run"));
}

#[test]
fn evaluations_are_runs() {
    let scratch = Scratch::new("evals");
    let evaluation = |mean: f64| {
        format!("{{\"env\":\"arcade/catch\",\"seed\":0,\"mean\":{mean},\"progress\":{}}}\n", mean / 5.0)
    };
    let all = scratch.file("all.jsonl", &(evaluation(4.0) + &evaluation(5.0)));
    let again = scratch.file("again.json", &evaluation(5.0));
    let report = report(&[&all, &again]).unwrap();
    assert_eq!(report["agents"][0]["games"]["arcade/catch"]["normalised"], serde_json::json!([0.8, 1.0]));
    assert_eq!(report["agents"][0]["source"], "2 evaluations");
    assert!(notes(&report).contains("the same evaluation of arcade/catch was given twice"));
}
