//! Play as a page does it: messages over the WebSocket, and steps with their images.
// Each test file uses a part of this.
#![allow(dead_code)]

use serde_json::{Value, json};

use super::websocket::{BINARY, TEXT, WebSocket};

/// Where pages play.
pub const PLAY: &str = "/api/play";

/// A step as the page gets it.
#[derive(Debug)]
pub struct Step {
    pub facts: Value,
    /// RGB bytes of the game, its reconstruction and the dream; empty where there is none.
    pub images: [Vec<u8>; 3],
}

impl Step {
    fn parse(bytes: &[u8]) -> Step {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let side = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
        assert_eq!(number(0), 1, "another version");
        let (facts, mut rest) = bytes[24..].split_at(number(8));
        let images = [12, 16, 20].map(|at| {
            let (image, others) = rest.split_at(3 * side(at) * side(at + 2));
            rest = others;
            image.to_vec()
        });
        assert!(rest.is_empty());
        let facts: Value = serde_json::from_slice(facts).unwrap();
        assert_eq!(facts["step"], number(4));
        Step { facts, images }
    }

    pub fn number(&self) -> u64 {
        self.facts["step"].as_u64().unwrap()
    }
}

#[derive(Debug)]
pub enum Heard {
    Step(Step),
    Said(Value),
}

/// The socket of a page that plays.
pub struct Page(pub WebSocket);

impl Page {
    /// Of the studio at this port of 127.0.0.1, which gave out the cookie.
    pub fn open(port: u16, cookie: &str) -> Page {
        let host = format!("127.0.0.1:{port}");
        let origin = format!("http://{host}");
        let headers = [("Host", &*host), ("Cookie", cookie), ("Origin", &origin)];
        Page(WebSocket::open(port, PLAY, &headers).unwrap_or_else(|answer| panic!("{answer:?}")))
    }

    pub fn say(&mut self, message: Value) {
        self.0.send_text(&message.to_string());
    }

    /// The next thing it hears; none when the studio has hung up.
    pub fn hear(&mut self) -> Option<Heard> {
        loop {
            match self.0.receive()? {
                (TEXT, text) => return Some(Heard::Said(serde_json::from_slice(&text).unwrap())),
                (BINARY, bytes) => return Some(Heard::Step(Step::parse(&bytes))),
                _ => {}
            }
        }
    }

    pub fn step(&mut self) -> Step {
        match self.hear() {
            Some(Heard::Step(step)) => step,
            Some(Heard::Said(text)) => panic!("{text}"),
            None => panic!("the studio hung up"),
        }
    }

    pub fn said(&mut self) -> Value {
        loop {
            match self.hear() {
                Some(Heard::Said(text)) => return text,
                Some(Heard::Step(_)) => {}
                None => panic!("the studio hung up"),
            }
        }
    }

    /// Begins a game, and returns what it hears first: about the session, and the first step.
    pub fn start(&mut self, message: Value) -> (Value, Step) {
        self.say(message);
        let session = self.said();
        assert_eq!(session["type"], "session", "{session}");
        (session, self.step())
    }

    /// One step by a person.
    pub fn act(&mut self, action: usize) -> Step {
        self.say(json!({ "type": "step", "action": action }));
        self.step()
    }
}
