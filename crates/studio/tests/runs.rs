//! Runs as the page sees them: their list, curves, comparison, and what changes while they train.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;

use common::Studio;
use common::http::head;
use serde_json::{Value, json};

/// The run with this name.
fn named<'a>(runs: &'a Value, name: &str) -> &'a Value {
    runs.as_array()
        .unwrap()
        .iter()
        .find(|run| run["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {runs}"))
}

fn id(studio: &Studio, name: &str) -> String {
    named(&studio.json("/api/runs"), name)["id"].as_str().unwrap().to_string()
}

/// Values of a metric in the file of a run.
fn values(folder: &Path, metric: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()[metric].as_f64();
    text.lines().filter_map(line).collect()
}

#[test]
fn the_list_says_how_runs_are() {
    let mut going = None;
    let studio = Studio::new("list", |root| {
        tiny::whole(&root.join("catch/done"), tiny::config(1));
        let mut stopped = tiny::begin(&root.join("catch/stopped"), tiny::config(2));
        tiny::until(&mut stopped, 2);
        let mut running = tiny::begin(&root.join("running"), tiny::config(3));
        tiny::until(&mut running, 3);
        going = Some(running);
        tiny::tiny().save(None, &root.join("imported")).unwrap();
        std::fs::create_dir_all(root.join("broken/checkpoints/000001")).unwrap();
    });
    let runs = studio.json("/api/runs");
    let facts = |name: &str| {
        let run = named(&runs, name);
        ["kind", "state", "game", "seed", "epoch", "epochs"].map(|key| run[key].clone())
    };
    assert_eq!(
        facts("catch/done"),
        [json!("run"), json!("finished"), json!("arcade/catch"), json!(1), json!(4), json!(4)]
    );
    assert_eq!(
        facts("catch/stopped")[1..],
        [json!("stopped"), json!("arcade/catch"), json!(2), json!(2), json!(4)]
    );
    assert_eq!(
        facts("running")[1..],
        [json!("running"), json!("arcade/catch"), json!(3), json!(3), json!(4)]
    );
    assert_eq!(facts("imported")[..2], [json!("agent"), json!("imported")]);
    assert_eq!(facts("broken")[1], json!("stopped"));
    let problem = named(&runs, "broken")["problem"].as_str().unwrap();
    assert!(problem.contains("checkpoints/000001/state.json"), "{problem}");
    let done = named(&runs, "catch/done");
    let scores = values(&studio.root.join("catch/done"), "evaluation/return");
    assert_eq!(done["score"].as_f64(), scores.last().copied());
    assert_eq!(done["scores"], json!(scores));
    assert_eq!(done["steps"], json!(40.0));
    assert_eq!(done["seconds_left"], Value::Null);
    assert!(named(&runs, "running")["seconds_left"].as_f64().unwrap() >= 0.0);
    assert_eq!(done["group"], named(&runs, "running")["group"], "only the seed differs");
    assert!(!runs.to_string().contains(studio.root.to_str().unwrap()), "no path of this machine");
    // The run that goes on was not disturbed by being looked at.
    tiny::until(going.as_mut().unwrap(), 4);
    drop(going);
    drop(tiny::resume(&studio.root.join("catch/stopped")));
}

#[test]
fn curves_are_the_numbers_of_the_files() {
    let studio = Studio::new("curves", |root| {
        tiny::whole(&root.join("a"), tiny::config(1));
        tiny::whole(&root.join("b"), tiny::config(2));
        tiny::whole(&root.join("c"), agent::train::TrainConfig { epochs: 3, ..tiny::config(1) });
    });
    let ids = ["a", "b", "c"].map(|name| id(&studio, name));
    let metric = "collection/reward_per_step";
    let path = format!("/api/curves?runs={}&metric={metric}&band=range", ids.join(","));
    let curves = studio.json(&path);
    assert_eq!(curves["x"], json!([1.0, 2.0, 3.0, 4.0]));
    let groups = curves["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2, "{curves}");
    let [a, b, c] = ["a", "b", "c"].map(|name| values(&studio.root.join(name), metric));
    assert_eq!(groups[0]["label"], "arcade/catch, epochs=4");
    assert_eq!(groups[0]["runs"][0]["values"], json!(a));
    assert_eq!(groups[0]["runs"][1]["values"], json!(b));
    for epoch in 0..4 {
        let mean = groups[0]["mean"][epoch].as_f64().unwrap();
        assert!((mean - (a[epoch] + b[epoch]) / 2.0).abs() < 1e-12);
        assert_eq!(groups[0]["low"][epoch], json!(a[epoch].min(b[epoch])));
        assert_eq!(groups[0]["high"][epoch], json!(a[epoch].max(b[epoch])));
    }
    assert_eq!(groups[1]["runs"][0]["values"], json!([c[0], c[1], c[2], null]));
    let steps =
        studio.json(&format!("/api/curves?runs={}&metric={metric}&x=steps&single=true", ids.join(",")));
    assert_eq!(steps["x"], json!([10.0, 20.0, 30.0, 40.0]));
    assert_eq!(steps["groups"].as_array().unwrap().len(), 3);
    let csv = studio.get(&path.replace("/api/curves?", "/api/curves.csv?"), &[]);
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert!(csv.header("content-disposition").unwrap().contains("collection-reward-per-step.csv"));
    let text = csv.text();
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.starts_with("epoch,\"arcade/catch, epochs=4 (mean)\","), "{text}");
    let names = studio.json(&format!("/api/metrics?runs={}", ids[0]));
    let known = names.as_array().unwrap().iter().find(|known| known["name"] == metric).unwrap();
    assert!(known["meaning"].as_str().unwrap().starts_with("mean reward per step"), "{known}");
    for (query, message) in
        [("smooth=1", "smooth must be"), ("smooth=x", "smooth"), ("x=weeks", "x"), ("band=wide", "band")]
    {
        let answer = studio.get(&format!("/api/curves?metric={metric}&{query}"), &[]);
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text().contains(message), "{}", answer.text());
    }
    let many = vec!["x"; 501].join(",");
    assert_eq!(studio.get(&format!("/api/curves?metric={metric}&runs={many}"), &[]).status, 400);
}

#[test]
fn a_comparison_shows_what_differs() {
    let studio = Studio::new("compare", |root| {
        tiny::whole(&root.join("a"), tiny::config(1));
        tiny::whole(&root.join("b"), tiny::config(2));
    });
    let found = studio.json(&format!("/api/compare?runs={},{}", id(&studio, "a"), id(&studio, "b")));
    let differing: Vec<&Value> =
        found["settings"].as_array().unwrap().iter().filter(|setting| setting["differs"] == true).collect();
    assert_eq!(differing.len(), 1, "{differing:?}");
    assert_eq!((&differing[0]["key"], &differing[0]["values"]), (&json!("seed"), &json!([1, 2])));
    let [a, b] = ["a", "b"].map(|name| *values(&studio.root.join(name), "evaluation/return").last().unwrap());
    let group = &found["groups"][0];
    assert_eq!(group["scores"], json!([a, b]));
    assert_eq!(group["score"]["value"], json!((a + b) / 2.0));
    assert_eq!(group["score"]["interval"], json!([a.min(b), a.max(b)]));
    assert_eq!(studio.json("/api/compare?runs=")["groups"], json!([]));
}

#[test]
fn a_run_that_is_deleted_while_it_is_shown_breaks_nothing() {
    let studio = Studio::new("deleted", |root| tiny::whole(&root.join("a"), tiny::config(1)));
    let id = id(&studio, "a");
    let path = format!("/api/curves?runs={id}&metric=evaluation/return");
    assert_eq!(studio.json(&path)["groups"].as_array().unwrap().len(), 1);
    std::fs::remove_dir_all(studio.root.join("a")).unwrap();
    assert_eq!(studio.json(&path), json!({ "x": [], "groups": [] }));
    assert_eq!(studio.json(&format!("/api/metrics?runs={id}")), json!([]));
    assert_eq!(studio.json(&format!("/api/compare?runs={id}"))["runs"], json!([]));
}

/// Reads server-sent events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(studio: &Studio, path: &str, last: Option<&str>) -> Events {
        let mut headers = vec![format!("Host: {}", studio.address), format!("Cookie: {}", studio.cookie())];
        headers.extend(last.map(|id| format!("Last-Event-ID: {id}")));
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let mut reader = BufReader::new(studio.stream(&format!("GET {path}"), &headers));
        let (status, headers) = head(&mut reader);
        assert_eq!(status, 200);
        assert!(headers.iter().any(|(name, value)| name == "content-type" && value == "text/event-stream"));
        Events(reader)
    }

    /// The next event: its name, id and data.
    fn next(&mut self) -> (String, String, Value) {
        let (mut event, mut id, mut data) = Default::default();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
            match line.trim_end().split_once(": ") {
                Some(("event", value)) => event = value.to_string(),
                Some(("id", value)) => id = value.to_string(),
                Some(("data", value)) => data = serde_json::from_str(value).unwrap(),
                // Empty lines end events, and chunks.
                _ if line == "\n" && !String::is_empty(&event) => return (event, id, data),
                _ => {}
            }
        }
    }
}

#[test]
fn a_page_hears_of_epochs_and_of_what_it_has_missed() {
    let mut run = None;
    let studio = Studio::new("live", |root| run = Some(tiny::begin(&root.join("a"), tiny::config(1))));
    let run = run.as_mut().unwrap();
    tiny::until(run, 1);
    let id = id(&studio, "a");
    let path = format!("/api/live?runs={id}");
    let mut events = Events::open(&studio, &path, None);
    let (event, first, _) = events.next();
    assert_eq!(event, "here");
    tiny::until(run, 2);
    let mut heard = Vec::new();
    while !heard.contains(&json!(id)) {
        let (event, _, data) = events.next();
        assert_eq!(event, "changed");
        heard.extend(data["runs"].as_array().unwrap().clone());
    }
    drop(events);
    tiny::until(run, 3);
    // The browser connects again and says where it was.
    let (event, _, data) = Events::open(&studio, &path, Some(&first)).next();
    assert_eq!((event.as_str(), &data["runs"]), ("changed", &json!([id])));
    // Whoever makes ids up hears something, too.
    for nonsense in ["", ";", "x;y:z", ";a:1,b:2", "\u{e9}"] {
        let _ = Events::open(&studio, &path, Some(nonsense)).next();
    }
}
