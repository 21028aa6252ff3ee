//! Play, Replay, Look and Teach as the page uses them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::path::Path;

use common::Studio;
use common::page::{Heard, Page, Step};
use common::websocket::{BINARY, TEXT};
use serde_json::{Value, json};

/// Side of the frames of a tiny agent.
const SIZE: usize = 8;

fn studio(name: &str) -> Studio {
    Studio::new(name, |root: &Path| tiny::whole(&root.join("run"), tiny::config(1)))
}

fn run_id(studio: &Studio) -> String {
    studio.json("/api/runs")[0]["id"].as_str().unwrap().to_string()
}

/// Begins a session; what the page hears of it first.
fn start(page: &mut Page, mut message: Value) -> Value {
    message["type"] = json!("start");
    page.say(message);
    match page.hear() {
        Some(Heard::Said(session)) => session,
        other => panic!("{other:?}"),
    }
}

fn problem(page: &mut Page) -> String {
    match page.hear() {
        Some(Heard::Said(text)) if text["type"] == "problem" => text["message"].as_str().unwrap().into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_page_plays_goes_back_branches_and_records() {
    let studio = studio("play");
    let mut page = studio.page();
    let session = start(&mut page, json!({ "run": run_id(&studio), "seed": 3 }));
    assert_eq!(session["actions"], json!(["left", "stay", "right"]));
    assert_eq!((&session["game"], &session["dream"]), (&json!("arcade/catch"), &json!(true)));
    let Step { facts, images: first } = page.step();
    assert_eq!((&facts["step"], &facts["action"]), (&json!(0), &Value::Null));
    assert_eq!(first.each_ref().map(Vec::len), [SIZE * SIZE * 3; 3]);
    // The dream begins with what is left of the game's first frame.
    assert!(first[1] == first[2]);

    let mut played = Vec::new();
    for step in 1..=6 {
        page.say(json!({ "type": "step", "action": step % 3 }));
        let Step { facts, images } = page.step();
        assert_eq!((&facts["step"], &facts["by"]), (&json!(step), &json!("person")));
        let probabilities = facts["policy"]["probabilities"].as_array().unwrap();
        assert!((probabilities.iter().map(|p| p.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-4);
        played.push(images);
    }
    page.say(json!({ "type": "show", "step": 2 }));
    let Step { facts, images } = page.step();
    assert!(facts["step"] == 2 && facts["last"] == 6 && images == played[1]);
    for step in 3..=4 {
        page.say(json!({ "type": "step", "action": step % 3 }));
        let Step { facts, images } = page.step();
        assert!(facts["last"] == step && images == played[step as usize - 1], "{facts}");
    }
    page.say(json!({ "type": "reality" }));
    let Step { facts, images } = page.step();
    assert!(facts["dream"]["given"] == true && images[1] == images[2]);

    let id = session["id"].as_str().unwrap();
    let file = |name: &str| studio.get(&format!("/api/play/{id}/{name}"), &[]);
    let gif = file("recording.gif?from=0&to=4");
    assert!(gif.status == 200 && gif.body.starts_with(b"GIF89a"), "{}", gif.status);
    assert!(file("recording.png").body.starts_with(b"\x89PNG"));
    assert!(file("recording.npz").body.starts_with(b"PK"));
    assert_eq!([file("recording.exe").status, file("recording.gif?from=9").status], [404, 400]);
    assert_eq!(studio.get("/api/play/0123456789abcdef/recording.gif", &[]).status, 410);
}

#[test]
fn messages_that_cannot_be_obeyed_are_answered_and_change_nothing() {
    let studio = studio("malformed");
    let mut page = studio.page();
    for (message, reason) in [
        (json!({ "type": "step", "action": 0 }), "start a game first"),
        (json!({ "type": "start", "run": "../run" }), "there is no run ../run"),
        (json!({ "type": "start", "env": "arcade/nothing" }), "no game is called"),
        (json!({ "type": "start" }), "choose a run or a game"),
        (
            json!({ "type": "start", "run": run_id(&studio), "from": { "kind": "episode", "episode": "replay-9999", "step": 0 } }),
            "there is no episode replay-9999",
        ),
        (json!({ "type": "nonsense" }), "unknown variant"),
    ] {
        page.say(message.clone());
        let found = problem(&mut page);
        assert!(found.contains(reason), "{message}: {found}");
    }
    page.0.send(TEXT, b"{\"type\":");
    assert!(problem(&mut page).contains("cannot be read"));
    page.0.send(BINARY, b"bytes");
    assert_eq!(problem(&mut page), "messages are text");
    start(&mut page, json!({ "run": run_id(&studio) }));
    let before = page.step().images;
    page.say(json!({ "type": "step", "action": 3 }));
    assert_eq!(problem(&mut page), "there is no action 3: the game has 3");
    page.say(json!({ "type": "show", "step": 5 }));
    assert_eq!(problem(&mut page), "steps 0 to 0 are kept, not 5");
    page.say(json!({ "type": "show", "step": 0 }));
    assert!(page.step().images == before);
    // A message larger than any that means something ends the connection.
    page.0.send(TEXT, &vec![b' '; 100_000]);
    assert!(page.hear().is_none());
}

#[test]
fn a_page_that_stops_reading_holds_nobody_up_and_gets_the_newest_step() {
    let studio = studio("stalled");
    let id = run_id(&studio);
    let mut stalled = studio.page();
    start(&mut stalled, json!({ "env": "arcade/catch" }));
    // 3 kB each: far more than the buffers of a connection hold, if every step were sent.
    for _ in 0..8000 {
        stalled.say(json!({ "type": "step", "action": 1 }));
    }
    let mut other = studio.page();
    start(&mut other, json!({ "run": id }));
    other.step();
    for step in 1..=20 {
        other.say(json!({ "type": "step", "action": null }));
        assert_eq!(other.step().facts["step"], step);
    }
    // The one that reads again hears of fewer steps than were taken, and of the last.
    let mut heard = 0;
    loop {
        let facts = stalled.step().facts;
        heard += 1;
        if facts["step"] == 8000 {
            break;
        }
    }
    assert!(heard < 8000, "{heard}");
}

#[test]
fn games_beyond_the_limit_are_closed_and_say_so() {
    let studio = studio("many");
    let mut pages: Vec<Page> = (0..10).map(|_| studio.page()).collect();
    for page in &mut pages {
        start(page, json!({ "env": "arcade/catch" }));
        page.step();
    }
    pages[0].say(json!({ "type": "step", "action": 1 }));
    assert!(problem(&mut pages[0]).contains("closed to make room"));
    pages[9].say(json!({ "type": "step", "action": 1 }));
    assert_eq!(pages[9].step().facts["step"], 1);
    // It can be started again.
    start(&mut pages[0], json!({ "env": "arcade/catch" }));
    pages[0].step();
}

#[test]
fn episodes_are_listed_shown_dreamt_and_judged_within_bounds() {
    let studio = studio("replay");
    let id = run_id(&studio);
    let list = studio.json(&format!("/api/replay/{id}"));
    let list = list.as_array().unwrap();
    let of = |source: &str| list.iter().filter(|one| one["source"] == source).collect::<Vec<_>>();
    let lengths: u64 = of("replay").iter().map(|one| one["length"].as_u64().unwrap()).sum();
    assert_eq!(lengths, 40);
    assert!(!of("train").is_empty() && !of("evaluation").is_empty(), "{list:?}");
    for one in [of("replay")[0], of("evaluation")[0]] {
        let base = format!("/api/replay/{id}/{}", one["id"].as_str().unwrap());
        let episode = studio.json(&base);
        let length = episode["rewards"].as_array().unwrap().len();
        let total: f64 = episode["rewards"].as_array().unwrap().iter().map(|r| r.as_f64().unwrap()).sum();
        assert_eq!((&episode["size"], json!(total)), (&json!(SIZE), one["total"].clone()));
        let get = |rest: &str| studio.get(&format!("{base}/{rest}"), &[]);
        let all = get(&format!("frames?from=0&count={length}")).body;
        assert_eq!(all.len(), length * SIZE * SIZE * 3);
        assert_eq!(get("frames?from=1&count=2").body, all[SIZE * SIZE * 3..3 * SIZE * SIZE * 3]);
        for bad in [
            format!("frames?from=0&count={}", length + 1),
            "frames?from=0&count=0".into(),
            "frames?from=0&count=100000".into(),
            "frames?from=18446744073709551615&count=2".into(),
            "frames?from=-1&count=2".into(),
            "surprise?from=0&count=513".into(),
            "dream?from=1000&count=3".into(),
        ] {
            assert_eq!(get(&bad).status, 400, "{bad}");
        }
        let dream = get("dream?from=1&count=4");
        assert_eq!((dream.status, dream.body.len() % (SIZE * SIZE * 3)), (200, 0));
        let surprise = studio.json(&format!("{base}/surprise?from=0&count={length}"));
        let values = surprise["surprise"].as_array().unwrap();
        assert!(values.len() == length && values[0].is_null() && values[1..].iter().all(Value::is_number));
        // A part gives what the whole gave, up to what is remembered before it.
        let part = studio.json(&format!("{base}/surprise?from=1&count=1"));
        assert_eq!(part["surprise"], json!([values[1]]));

        let look = studio.get(&format!("/api/look/{id}/{}/2", one["id"].as_str().unwrap()), &[]).body;
        let header = u32::from_le_bytes(look[..4].try_into().unwrap()) as usize;
        let facts: Value = serde_json::from_slice(&look[4..4 + header]).unwrap();
        assert_eq!(look.len() - 4 - header, 2 * SIZE * SIZE * 3);
        assert!(look[4 + header..].starts_with(&all[2 * SIZE * SIZE * 3..3 * SIZE * SIZE * 3]));
        let tokens = facts["tokens"].as_array().unwrap().len();
        let surprises = facts["surprises"].as_array().unwrap();
        assert_eq!((tokens, surprises.len()), (facts["grid"].as_u64().unwrap().pow(2) as usize, tokens));
        let attention =
            studio.get(&format!("/api/look/{id}/{}/2/attention", one["id"].as_str().unwrap()), &[]).body;
        let header = u32::from_le_bytes(attention[..4].try_into().unwrap()) as usize;
        let shape: Value = serde_json::from_slice(&attention[4..4 + header]).unwrap();
        let weights: Vec<f32> =
            attention[4 + header..].as_chunks::<4>().0.iter().map(|w| f32::from_le_bytes(*w)).collect();
        let keys = shape["keys"].as_u64().unwrap() as usize;
        for row in weights.chunks_exact(keys) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        }
    }
    let codebook = studio.json(&format!("/api/look/{id}/codebook?frames=16"));
    let uses: u64 = codebook["uses"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert!(codebook["frames"] == 16 && uses.is_multiple_of(16), "{codebook}");
    assert_eq!(
        studio
            .get(&format!("/api/look/{id}/{}/0/attention", of("replay")[0]["id"].as_str().unwrap()), &[])
            .status,
        400
    );
}

#[test]
fn a_recorded_step_is_played_from_and_a_deleted_run_is_answered() {
    let studio = studio("from");
    let id = run_id(&studio);
    let list = studio.json(&format!("/api/replay/{id}"));
    let episode = list.as_array().unwrap().iter().rfind(|one| one["source"] == "replay").unwrap();
    let name = episode["id"].as_str().unwrap();
    let frames = studio.get(&format!("/api/replay/{id}/{name}/frames?from=3&count=1"), &[]).body;
    let mut page = studio.page();
    let from = json!({ "kind": "episode", "episode": name, "step": 3 });
    let session = start(&mut page, json!({ "run": id, "from": from }));
    // The game was played again up to that step.
    assert_eq!(session["real"], true);
    let Step { facts, images } = page.step();
    assert!(facts["game"]["steps"] == 3 && images[0] == frames);
    // An episode that was kept for people has no seed: its dream goes on alone.
    let kept = list.as_array().unwrap().iter().find(|one| one["source"] == "evaluation").unwrap();
    let from = json!({ "kind": "episode", "episode": kept["id"], "step": 1 });
    let session = start(&mut page, json!({ "run": id, "from": from }));
    assert_eq!(session["real"], false);
    assert!(page.step().images[0].is_empty());

    std::fs::remove_dir_all(studio.root.join("run")).unwrap();
    page.say(json!({ "type": "step", "action": 0 }));
    assert_eq!(page.step().facts["step"], 1);
    assert_eq!(studio.get(&format!("/api/replay/{id}/{name}"), &[]).status, 404);
    page.say(json!({ "type": "start", "run": id }));
    assert!(problem(&mut page).contains("it may have been deleted"));
}

#[test]
fn what_was_taught_becomes_the_beginning_of_a_replay() {
    let studio = studio("teach");
    let mut page = studio.page();
    start(&mut page, json!({ "env": "arcade/catch", "seed": 5, "from": { "kind": "training" } }));
    page.step();
    page.say(json!({ "type": "save", "size": SIZE }));
    assert_eq!(problem(&mut page), "nothing was played yet");
    for step in 1..=40 {
        page.say(json!({ "type": "step", "action": step % 3 }));
        page.step();
    }
    page.say(json!({ "type": "save", "size": 100_000 }));
    assert!(problem(&mut page).contains("pixels a side"));
    page.say(json!({ "type": "save", "size": SIZE }));
    let Some(Heard::Said(saved)) = page.hear() else { panic!("nothing was saved") };
    // A game of 35 steps, and the first four of the next, which began with a step of its own.
    assert_eq!((&saved["episodes"], &saved["steps"]), (&json!(2), &json!(39)));
    let folder = studio.root.join("taught/arcade/catch");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);

    let mut config = tiny::config(2);
    config.replay.from = folder.display().to_string();
    let (_, trainer) = tiny::begin(&studio.root.join("pupil"), config.clone());
    let table = trainer.replay.table();
    assert_eq!((table.records, table.episodes.len()), (39, 2));
    drop(trainer);
    // Frames of another size are refused with both sizes.
    config.agent.tokenizer.frame_size = 16;
    let refused = agent::train::Run::create(&tiny::device(), config, "", &studio.root.join("other"), |_| {});
    let reason = refused.err().unwrap().to_string();
    assert!(reason.contains("8 x 8 pixels") && reason.contains("16 x 16"), "{reason}");
    assert!(!studio.root.join("other").exists());
}
