//! Playing over the socket: the same dream as `iris dream`, steps back, recordings, and messages that are refused.

use serde_json::json;

use crate::player::{dreamt, id};
use crate::server::{Studio, runs};
use crate::websocket::{BINARY, CLOSE, TEXT};

pub const ACTIONS: [&str; 3] = ["left", "stay", "right"];

/// Actions without a pattern that a world model could guess.
pub fn hundred() -> Vec<usize> {
    (0..100).map(|i| (i * i / 3) % 3).collect()
}

#[test]
fn a_hundred_steps_are_dreamt_as_iris_dream_does() {
    let studio = Studio::start(runs());
    let mut page = studio.page();
    let start = json!({ "type": "start", "run": id(&studio, "endless"), "env": "arcade/catch", "seed": 5 });
    let (session, first) = page.start(start);
    assert_eq!(session["actions"], json!(ACTIONS));
    let mut steps = vec![first];
    for action in hundred() {
        steps.push(page.act(action));
    }
    let names: Vec<&str> = hundred().into_iter().map(|action| ACTIONS[action]).collect();
    let expected = dreamt(&runs().join("endless"), "arcade/catch", 5, &names);
    assert_eq!(expected.len(), 101);
    for (step, frame) in steps.iter().zip(&expected) {
        assert!(step.images[2] == *frame, "step {}", step.number());
    }
    assert!(steps.iter().any(|step| step.facts["dream"]["slid"] == true));

    // A step back shows what was, and the same action leads to the same frame again, another one elsewhere.
    for back in [90, 30, 0] {
        page.say(json!({ "type": "show", "step": back }));
        assert!(page.step().images == steps[back].images);
        assert!(page.act(hundred()[back]).images == steps[back + 1].images, "after going back to {back}");
    }
    assert_eq!(page.act(2).facts["last"], 2);
}

/// What is no message at all ends the connection or is answered with the reason; other pages notice nothing. Messages that mean nothing are tested in
/// `crates/studio/tests/play.rs`.
#[test]
fn malformed_frames_end_their_connection_alone() {
    let mut studio = Studio::start(runs());
    let mut other = studio.page();
    other.start(json!({ "type": "start", "run": id(&studio, "one") }));
    let large = vec![b' '; 1 << 20];
    let deep = "[".repeat(4000);
    let refused = [
        (TEXT, &b"\xff\xfe"[..]),
        (TEXT, deep.as_bytes()),
        (TEXT, &large),
        (BINARY, &large),
        (3, b"a kind of message that does not exist"),
    ];
    for (number, (kind, message)) in refused.into_iter().enumerate() {
        let mut page = studio.page();
        page.0.send(kind, message);
        if let Some((TEXT, text)) = page.0.receive() {
            let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(text["type"], "problem", "message {number}: {text}");
        }
        assert_eq!(other.act(number % 3).number(), number as u64 + 1);
    }
    // Not masked, a length of 2^63, a continuation of nothing, every bit set.
    for frame in [
        &[0x81, 0x01, b'x'][..],
        &[0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x80, 0x80, 0, 0, 0, 0],
        &[0xff; 64],
    ] {
        let mut page = studio.page();
        page.0.send_raw(frame);
        while let Some((kind, _)) = page.0.receive() {
            assert_eq!(kind, CLOSE);
        }
    }
    // Half of a frame, and then nothing: it waits, alone.
    let mut half = studio.page();
    half.0.send_raw(&[0x81, 0xfe, 0x10]);
    assert_eq!(other.act(0).facts["action"], 0);
    assert!(studio.is_running());
}
