//! The same on every device that `Device::under_test` names.

use std::path::Path;

use engine::Rng;

use super::*;
use crate::testing::Scratch;
use crate::{AgentConfig, Record, TokenizerConfig};

const SIZE: usize = 16;
const PIXELS: usize = SIZE * SIZE * 3;
const EPISODE: usize = 5;

fn agent(device: &Device) -> Agent {
    let tokenizer = TokenizerConfig {
        frame_size: SIZE,
        channels: 4,
        resolutions: 2,
        groups: 2,
        attention_sizes: vec![8],
        ..TokenizerConfig::default()
    };
    Agent::new(device, &AgentConfig { tokenizer, ..AgentConfig::default() }, 0).unwrap()
}

/// The frame of a record: no two are alike.
fn frame(record: usize) -> Vec<u8> {
    let mut rng = Rng::new(Key::new(record as u64, 0));
    (0..PIXELS).map(|_| rng.below(256) as u8).collect()
}

fn empty_replay(folder: &Path, max_steps: usize) -> Replay {
    let mut replay = Replay::open(folder, PIXELS, max_steps, 1, crate::Table::default()).unwrap();
    replay.begin_writing().unwrap();
    replay
}

fn play(replay: &mut Replay, episodes: usize) {
    for _ in 0..episodes {
        let first = replay.table().records;
        replay.begin_episode(first as u64, false);
        for step in 0..EPISODE {
            let terminated = step + 1 == EPISODE;
            let record = Record { action: 0, reward: 0.0, terminated, truncated: false };
            replay.push(&frame(first + step), record).unwrap();
        }
    }
}

/// Tables for batches of so many records, and a replay of `replay` steps in bytes for `held` of them.
fn cache(device: &Device, agent: &Agent, batch: usize, replay: usize, held: usize) -> Cache {
    let tokens = 4 * agent.config.tokenizer.tokens() * replay.min(held);
    let capacity = Capacity {
        budget: held * PIXELS * (1 + device.float_size()) + tokens,
        replay,
        chunk: 4,
        frames: batch,
        tokens: batch,
        reconstructions: Some(batch),
    };
    Cache::new(device, agent, capacity).unwrap()
}

/// What a cache gives for the records: frames, tokens and reconstructions.
struct Batch {
    frames: Vec<u8>,
    tokens: Vec<i32>,
    reconstructions: Vec<f32>,
}

struct Reader {
    frames: Buffer,
    tokens: Buffer,
    reconstructions: Buffer,
}

impl Reader {
    fn new(device: &Device, agent: &Agent, batch: usize) -> Reader {
        let k = agent.config.tokenizer.tokens();
        Reader {
            frames: device.buffer::<u8>("frames", [batch, SIZE, SIZE, 3]).unwrap(),
            tokens: device.buffer::<i32>("tokens", [batch, k]).unwrap(),
            reconstructions: device.buffer::<f32>("reconstructions", [batch, SIZE, SIZE, 3]).unwrap(),
        }
    }

    fn read(&self, cache: &mut Cache, agent: &Agent, replay: &Replay, records: &[usize]) -> Batch {
        let rows: Vec<Option<usize>> = records.iter().copied().map(Some).collect();
        cache.load_frames(replay, records, &self.frames).unwrap();
        cache.load_tokens(agent, replay, &rows, &self.tokens).unwrap();
        cache.load_reconstructions(agent, replay, &rows, &self.reconstructions).unwrap();
        Batch {
            frames: self.frames.read().unwrap(),
            tokens: self.tokens.read().unwrap(),
            reconstructions: self.reconstructions.read().unwrap(),
        }
    }
}

fn expect_equal(a: &Batch, b: &Batch) {
    assert!(a.frames == b.frames && a.tokens == b.tokens && a.reconstructions == b.reconstructions);
}

/// Whatever was computed together with what, and whatever had to make room.
#[test]
fn small_tables_give_the_same_bits_as_large_ones() {
    const BATCH: usize = 6;
    let scratch = Scratch::new("eviction");
    let device = Device::under_test(2).unwrap();
    let agent = agent(&device);
    let mut replay = empty_replay(&scratch.0, 1000);
    play(&mut replay, 6);
    let steps = replay.steps();
    let mut large = cache(&device, &agent, BATCH, steps, steps);
    let mut small = cache(&device, &agent, BATCH, steps, 0);
    assert_eq!((large.tokens.capacity(), large.frames.capacity()), (steps, steps));
    assert_eq!((small.tokens.capacity(), small.reconstructions.as_ref().unwrap().capacity()), (BATCH, BATCH));
    // Everything at once, as before an epoch; small tables leave it to the batches.
    let all: Vec<usize> = (0..steps).collect();
    let mut chunks = [0, 0];
    for (cache, chunks) in [&mut large, &mut small].into_iter().zip(&mut chunks) {
        let go_on = &mut || {
            *chunks += 1;
            Ok(())
        };
        cache.prepare(&agent, &replay, &all, true, go_on).unwrap();
    }
    assert_eq!(chunks, [2 * steps.div_ceil(4), 0]);
    let reader = Reader::new(&device, &agent, BATCH);
    let mut rng = Rng::new(Key::new(0, 0));
    for _ in 0..20 {
        let records: Vec<usize> = (0..BATCH).map(|_| replay.sample_step(&mut rng)).collect();
        let batch = reader.read(&mut large, &agent, &replay, &records);
        expect_equal(&batch, &reader.read(&mut small, &agent, &replay, &records));
        let frames: Vec<u8> = records.iter().flat_map(|record| frame(*record)).collect();
        assert!(batch.frames == frames);
        assert!(batch.tokens.iter().any(|token| *token != batch.tokens[0]), "a tokenizer without eyes");
    }
    // Padding is zeros.
    small.load_tokens(&agent, &replay, &[None, Some(3), None, None, None, None], &reader.tokens).unwrap();
    let (tokens, k) = (reader.tokens.read::<i32>().unwrap(), agent.config.tokenizer.tokens());
    assert!(tokens[..k].iter().chain(&tokens[2 * k..]).all(|token| *token == 0));
    assert!(tokens[k..2 * k].iter().any(|token| *token != 0));
}

/// With a tokenizer that does not change any more, nothing else empties the tables.
#[test]
fn what_the_replay_forgets_is_forgotten() {
    let scratch = Scratch::new("forgotten");
    let device = Device::under_test(1).unwrap();
    let agent = agent(&device);
    let mut replay = empty_replay(&scratch.0, 12);
    let mut cache = cache(&device, &agent, EPISODE, 20, 20);
    let reader = Reader::new(&device, &agent, EPISODE);
    for game in 0..8 {
        play(&mut replay, 1);
        cache.follow(&replay);
        let newest: Vec<usize> = (game * EPISODE..(game + 1) * EPISODE).collect();
        let batch = reader.read(&mut cache, &agent, &replay, &newest);
        let frames: Vec<u8> = newest.iter().flat_map(|record| frame(*record)).collect();
        assert!(batch.frames == frames, "game {game}");
        let oldest = replay.table().episodes[0].start;
        for table in [&cache.frames, &cache.tokens].into_iter().chain(&cache.reconstructions) {
            assert!((0..oldest).all(|record| table.row(record).is_none()));
            assert!((oldest..newest[0]).all(|record| table.row(record).is_some()), "there was room for it");
        }
    }
    assert!(replay.steps() < 40);
}

#[test]
fn tokens_of_an_older_tokenizer_are_not_used() {
    let scratch = Scratch::new("changed");
    let device = Device::under_test(1).unwrap();
    let agent = agent(&device);
    let mut replay = empty_replay(&scratch.0, 1000);
    play(&mut replay, 2);
    let reader = Reader::new(&device, &agent, EPISODE);
    let records: Vec<usize> = (2..2 + EPISODE).collect();
    let mut cached = cache(&device, &agent, EPISODE, 10, 10);
    let before = reader.read(&mut cached, &agent, &replay, &records);
    let params = &agent.tokenizer.network.params;
    for spec in params.specs() {
        let values: Vec<f32> = params.get(&spec.name).unwrap().iter().map(|value| value * -0.5).collect();
        params.set(&spec.name, &values).unwrap();
    }
    cached.clear();
    let after = reader.read(&mut cached, &agent, &replay, &records);
    assert!(before.frames == after.frames && before.tokens != after.tokens);
    let mut fresh = cache(&device, &agent, EPISODE, 10, 10);
    expect_equal(&after, &reader.read(&mut fresh, &agent, &replay, &records));
}
