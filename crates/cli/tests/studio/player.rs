//! Play as a page does it: messages over the WebSocket, and what `iris dream` shows for the same actions.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{iris, stderr};
use crate::server::Studio;
use crate::websocket::{BINARY, TEXT, WebSocket};

/// Side of a tiny agent's frames.
pub const SIZE: usize = 32;

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

pub enum Heard {
    Step(Step),
    Said(Value),
}

/// The socket of a page that plays.
pub struct Page(pub WebSocket);

impl Page {
    pub fn open(studio: &Studio) -> Page {
        let (host, cookie) = (studio.host(), studio.cookie());
        let origin = format!("http://{host}");
        let headers = [("Host", &*host), ("Cookie", &cookie), ("Origin", &origin)];
        Page(WebSocket::open(studio.port, PLAY, &headers).unwrap_or_else(|answer| panic!("{answer:?}")))
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

/// The id of a run or an agent.
pub fn id(studio: &Studio, name: &str) -> String {
    let listed = studio.get("/api/runs").json();
    let entry = listed.as_array().unwrap().iter().find(|entry| entry["name"] == name);
    entry.unwrap_or_else(|| panic!("{name} is not in {listed}"))["id"].as_str().unwrap().to_string()
}

/// What `iris dream` shows from the beginning of the evaluation game of a seed, frame by frame.
pub fn dreamt(agent: &Path, game: &str, seed: u64, actions: &[&str]) -> Vec<Vec<u8>> {
    let out = agent.join("strip");
    let mut command = iris();
    command.arg("dream").arg(agent).args(["--env", game, "--from", "0", "--futures", "1"]);
    // The last action leads to a frame that is not drawn.
    let (steps, seed) = ((actions.len() + 1).to_string(), seed.to_string());
    command.args(["--seed", &seed, "--steps", &steps, "--actions", &actions.join(","), "--out"]).arg(&out);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let file = std::fs::File::open(out.join("dream.png")).unwrap();
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let width = reader.next_frame(&mut bytes).unwrap().width as usize;
    // The second row: rows of 118 pixels (caption, border, frame of 96, bar), cells of 102.
    let (scale, top) = (96 / SIZE, 118 + 11 + 3);
    let frame = |cell: usize| {
        let pixel = |i: usize| ((top + i / SIZE * scale) * width + cell * 102 + 3 + i % SIZE * scale) * 3;
        (0..SIZE * SIZE).flat_map(|i| bytes[pixel(i)..pixel(i) + 3].to_vec()).collect()
    };
    (0..=actions.len()).map(frame).collect()
}

/// The arrays of an npz file, without their headers.
pub fn arrays(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = zip::ZipArchive::new(Cursor::new(file)).unwrap();
    let names: Vec<String> = archive.file_names().map(String::from).collect();
    let mut array = |name: &String| {
        let mut bytes = Vec::new();
        archive.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        bytes.split_off(header)
    };
    names.iter().map(|name| (name.clone(), array(name))).collect()
}
