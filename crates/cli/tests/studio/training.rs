//! `iris train --studio`: a run that is watched and played with is the same as one that is not.

use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;

use serde_json::json;

use crate::common::{SMALL, Scratch, assert_same_results, iris, stderr, train};
use crate::page::{Heard, Page};
use crate::server::Studio;

/// Enough for a client to come in between the first checkpoint and the end.
const LONGER: [&str; 2] = ["world_model.schedule.updates=40", "evaluation.final_episodes=40"];

/// The id of the only run.
fn only(studio: &Studio) -> String {
    studio.get("/api/runs").json()[0]["id"].as_str().unwrap().to_string()
}

/// A page that plays with the run's agent, as soon as it has one.
fn begun(studio: &Studio) -> Page {
    let (run, mut page) = (only(studio), studio.page());
    loop {
        page.say(json!({ "type": "start", "run": run }));
        if page.said()["type"] == "session" {
            page.step();
            return page;
        }
    }
}

#[test]
fn a_run_is_the_same_to_the_bit_while_somebody_plays() {
    let scratch = Scratch::new("studio-beside");
    let (alone, watched) = (scratch.0.join("alone"), scratch.0.join("watched"));
    let output = train(&alone, &LONGER);
    assert!(output.status.success(), "{}", stderr(&output));
    let (said, _heard) = mpsc::channel();
    let mut studio = Studio::train(&watched, &[&LONGER[..], &["--port", "0"]].concat(), said);
    let mut page = begun(&studio);
    // Until the run ends, and the studio with it.
    let mut played = 0;
    loop {
        page.say(json!({ "type": "step", "action": played % 3 }));
        match page.hear() {
            Some(Heard::Step(_)) => played += 1,
            Some(Heard::Said(text)) => panic!("{text}"),
            None => break,
        }
    }
    assert!(studio.status().success());
    println!("{played} steps were played while the run trained");
    assert!(played > 10, "{played}");
    assert_same_results(&alone, &watched, "");
}

#[test]
fn ctrl_c_stops_the_run_and_its_studio() {
    let scratch = Scratch::new("studio-interrupted");
    let run = scratch.0.join("run");
    let (said, heard) = mpsc::channel();
    let mut studio = Studio::train(&run, &["epochs=100000", "--port", "0"], said);
    let mut page = begun(&studio);
    let epochs = || std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    while epochs() == 0 {
        page.act(0);
    }
    studio.signal("INT");
    assert_eq!(studio.status().code(), Some(75));
    let heard: Vec<String> = heard.iter().collect();
    assert!(heard.iter().any(|line| line.contains("stopping after this update")), "{heard:?}");
    while page.hear().is_some() {}
    // What it had done is kept.
    assert!(std::fs::read_dir(run.join("checkpoints")).unwrap().count() > 0);
    // A studio alone ends without a complaint.
    let mut alone = Studio::start(&scratch.0);
    alone.signal("INT");
    assert!(alone.status().success());
}

/// What `iris train --studio` says, when it does not begin to train.
fn refused(run: &Path, port: &str) -> String {
    let mut command = iris();
    let output = command
        .args(["train", "--studio", "--port", port])
        .args(SMALL)
        .arg("--out")
        .arg(run)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    stderr(&output)
}

#[test]
fn a_taken_port_is_named_before_a_run_begins() {
    let scratch = Scratch::new("studio-port");
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = refused(&scratch.0.join("run"), &port.to_string());
    assert!(said.contains(&format!("port {port} of 127.0.0.1 is taken")), "{said}");
    assert!(!scratch.0.join("run").exists());
    // Where nobody asked for a certain port, any other one will do. Whether or not this test is who has it, it is taken.
    let _usual = TcpListener::bind(("127.0.0.1", 4747));
    let (said, _heard) = mpsc::channel();
    let studio = Studio::train(&scratch.0.join("other"), &["epochs=100000"], said);
    assert_ne!(studio.port, 4747);
    assert_eq!(studio.get("/api/runs").json().as_array().unwrap().len(), 1);
}
