//! Many pages, a page that stops reading, and runs that go away: the studio goes on, with bounded memory.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;

use serde_json::json;

use crate::common::Scratch;
use crate::http::{connect, head, send};
use crate::page::{Heard, Page};
use crate::player::id;
use crate::server::{Studio, runs};

/// At once.
const PAGES: usize = 50;
/// What the studio may need beside an agent: a page that plays keeps at most 128 MiB of what was played, eight pages play.
const MOST_BYTES: u64 = 1 << 30;

/// The stream of events that every page listens to.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(studio: &Studio, cookie: &str, runs: &str) -> Events {
        let mut stream = connect(studio.port);
        let headers = [("Host", &*studio.host()), ("Cookie", cookie), ("Accept", "text/event-stream")];
        send(&mut stream, &format!("GET /api/live?runs={runs}"), &headers, b"");
        let mut reader = BufReader::new(stream);
        assert_eq!(head(&mut reader).0, 200);
        Events(reader)
    }

    /// Reads up to a line that contains `text`.
    fn wait(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended before {text}");
        }
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[test]
fn fifty_pages_at_once() {
    let mut studio = Studio::start(runs());
    let run = id(&studio, "one");
    let before = studio.memory();
    let cookie = studio.cookie();
    let mut events: Vec<Events> = (0..PAGES).map(|_| Events::open(&studio, &cookie, &run)).collect();
    events.iter_mut().for_each(|events| events.wait("event"));
    let listening = studio.memory();
    // Everybody plays; those who came first make room for those who come last, and are told so.
    let mut pages: Vec<Page> = (0..PAGES).map(|_| studio.page()).collect();
    for (seed, page) in pages.iter_mut().enumerate() {
        page.start(json!({ "type": "start", "run": run, "seed": seed }));
    }
    let playing = studio.memory();
    let (mut closed, mut played) = (0, 0);
    for page in &mut pages {
        page.say(json!({ "type": "step", "action": 0 }));
        match page.hear() {
            Some(Heard::Step(step)) => {
                assert_eq!(step.number(), 1);
                played += 1;
            }
            Some(Heard::Said(text)) => {
                assert!(text["message"].as_str().unwrap().contains("start it again"), "{text}");
                closed += 1;
            }
            None => panic!("the studio hung up"),
        }
    }
    assert!(played >= 4 && closed + played == PAGES, "{played} played, {closed} closed");
    // Whoever was closed can start again.
    pages[0].start(json!({ "type": "start", "run": run }));
    pages[0].act(1);
    drop((pages, events));
    assert_eq!(studio.get("/api/runs").status, 200);
    let after = studio.memory();
    println!(
        "{PAGES} pages: {} MiB before, {} MiB listening, {} MiB playing, {} MiB after",
        mib(before),
        mib(listening),
        mib(playing),
        mib(after)
    );
    assert!(playing.max(after) < before + MOST_BYTES && studio.is_running());
}

#[test]
fn a_page_that_stops_reading_holds_up_nobody() {
    let mut studio = Studio::start(runs());
    let run = id(&studio, "one");
    let mut stuck = studio.page();
    stuck.start(json!({ "type": "start", "run": run }));
    stuck.say(json!({
        "type": "settings", "rate": 240, "auto": true, "policy": true, "eyes": "game", "temperature": 1, "horizon": 8,
    }));
    let mut page = studio.page();
    page.start(json!({ "type": "start", "run": run }));
    let before = studio.memory();
    for i in 0..500 {
        page.act(i % 3);
    }
    let after = studio.memory();
    println!("a page that stops reading: {} MiB before, {} MiB after", mib(before), mib(after));
    assert!(after < before + MOST_BYTES / 4 && studio.is_running());
    // It reads again: the newest step comes, not all that it has missed.
    stuck.say(json!({
        "type": "settings", "rate": 1, "auto": false, "policy": true, "eyes": "game", "temperature": 1, "horizon": 8,
    }));
    stuck.step();
}

#[test]
fn a_run_that_is_deleted_while_shown_is_gone() {
    let scratch = Scratch::new("studio-deleted");
    for name in ["kept", "gone"] {
        copy(&runs().join("one"), &scratch.0.join(name));
    }
    let mut studio = Studio::start(&scratch.0);
    let (kept, gone) = (id(&studio, "kept"), id(&studio, "gone"));
    let mut events = Events::open(&studio, &studio.cookie(), &format!("{kept},{gone}"));
    events.wait("event: here");
    let mut page = studio.page();
    page.start(json!({ "type": "start", "run": gone }));
    let paths = [
        format!("/api/replay/{gone}"),
        format!("/api/look/{gone}/codebook"),
        format!("/api/curves?metric=evaluation%2Freturn&runs={kept},{gone}"),
        format!("/api/compare?runs={kept},{gone}"),
    ];
    for path in &paths {
        assert_eq!(studio.get(path).status, 200, "{path}");
    }
    std::fs::remove_dir_all(scratch.0.join("gone")).unwrap();
    events.wait("\"list\":true");
    assert_eq!(studio.get("/api/runs").json().as_array().unwrap().len(), 1);
    for path in &paths[..2] {
        let answer = studio.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("deleted"), "{}", answer.text());
    }
    // What is left is shown.
    for path in &paths[2..] {
        let answer = studio.get(path);
        assert!(answer.status == 200 && !answer.text().contains(&gone), "{path}: {}", answer.text());
    }
    // Who plays plays on: the agent is in memory.
    assert_eq!(page.act(0).number(), 1);
    page.say(json!({ "type": "start", "run": gone }));
    let said = page.said();
    assert!(said["type"] == "problem" && said["message"].as_str().unwrap().contains("deleted"), "{said}");
    page.start(json!({ "type": "start", "run": kept }));
    assert!(studio.is_running());
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}
