//! The protocol against what the emulator's Python package and Pillow give: `tests/golden/atari_traces.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rayon::prelude::*;
use serde::Deserialize;

use super::env::Atari;
use super::protocol::Protocol;
use crate::{Env, Purpose, Step};

#[derive(Deserialize)]
struct Traces {
    noop_seed: u32,
    action_seed: u32,
    games: BTreeMap<String, BTreeMap<String, Trace>>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Trace {
    actions: usize,
    steps: usize,
    records: usize,
    first_frame_crc: String,
    crc_every_100: Vec<String>,
    final_crc: String,
    episodes: usize,
    total_reward: f64,
}

/// The traces' random numbers.
struct Lcg(u32);

impl Lcg {
    fn draw(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        (self.0 >> 16) as usize % n
    }
}

/// Records of a trace, little-endian: checksum of the frame, reward, end.
#[derive(Default)]
struct Records {
    crc: crc32fast::Hasher,
    count: usize,
    every_100: Vec<String>,
    first_frame: String,
}

impl Records {
    fn add(&mut self, env: &Atari, reward: f32, end: bool) {
        let mut frame = vec![0; 64 * 64 * 3];
        env.render(&mut frame);
        let frame = crc32fast::hash(&frame);
        if self.count == 0 {
            self.first_frame = format!("{frame:08x}");
        }
        self.crc.update(&frame.to_le_bytes());
        self.crc.update(&reward.to_le_bytes());
        self.crc.update(&[u8::from(end)]);
        self.count += 1;
        if self.count.is_multiple_of(100) {
            self.every_100.push(self.checksum());
        }
    }

    fn checksum(&self) -> String {
        format!("{:08x}", self.crc.clone().finalize())
    }
}

/// Plays a trace anew.
fn play(title: &str, protocol: Protocol, steps: usize, mut noops: Lcg, mut actions: Lcg) -> Trace {
    let mut env = Atari::new(title, protocol).unwrap();
    let (count, mut games) = (env.action_names().len(), 0);
    let mut start = |env: &mut Atari| {
        if env.continues() {
            return env.start(0, 0).unwrap();
        }
        env.start(games, 1 + noops.draw(protocol.most_noops)).unwrap();
        games += 1;
    };
    let mut records = Records::default();
    let (mut episodes, mut total_reward) = (0, 0.0);
    start(&mut env);
    records.add(&env, 0.0, false);
    for _ in 0..steps {
        let step: Step = env.step(actions.draw(count)).unwrap();
        records.add(&env, step.reward, step.done());
        total_reward += f64::from(step.reward);
        if step.done() {
            episodes += 1;
            start(&mut env);
            records.add(&env, 0.0, false);
        }
    }
    Trace {
        actions: count,
        steps,
        records: records.count,
        first_frame_crc: records.first_frame.clone(),
        final_crc: records.checksum(),
        crc_every_100: records.every_100,
        episodes,
        total_reward,
    }
}

/// `train`, `test`, or either with `_limit_` and a number of raw frames.
fn protocol(mode: &str) -> Protocol {
    let (purpose, limit) = mode.split_once("_limit_").map_or((mode, None), |(purpose, n)| (purpose, Some(n)));
    let mut protocol = Protocol::new(match purpose {
        "train" => Purpose::Train,
        "test" => Purpose::Evaluate,
        other => panic!("no mode is called {other}"),
    });
    if let Some(limit) = limit {
        protocol.time_limit = limit.parse().unwrap();
    }
    protocol
}

/// `IRIS_ATARI_TRACES` names another file of the same form.
#[test]
fn atari_traces_match_in_every_game_and_mode() {
    let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/atari_traces.json"));
    let path = std::env::var_os("IRIS_ATARI_TRACES").map_or_else(own, PathBuf::from);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let traces: Traces = serde_json::from_str(&text).unwrap();
    let all: Vec<_> =
        traces.games.iter().flat_map(|(game, modes)| modes.iter().map(move |(m, t)| (game, m, t))).collect();
    let wrong: Vec<String> = all
        .par_iter()
        .filter_map(|(game, mode, expected)| {
            let (noops, actions) = (Lcg(traces.noop_seed), Lcg(traces.action_seed));
            let found = play(game, protocol(mode), expected.steps, noops, actions);
            (found != **expected).then(|| format!("{game} {mode}: {found:?} instead of {expected:?}"))
        })
        .collect();
    println!("{} of {} traces match", all.len() - wrong.len(), all.len());
    assert!(!all.is_empty());
    assert!(wrong.is_empty(), "{} of {} traces differ:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
