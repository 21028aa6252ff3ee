//! Tokens and reconstructions of replay frames, computed at most once while the tokenizer stays the same.

use std::collections::HashMap;

use engine::{Buffer, Device, Key, Stepper};

use super::Result;
use crate::{Agent, Replay};

/// Frames that go through the tokenizer at a time.
const CHUNK: usize = 64;

pub(super) struct Cache {
    stepper: Stepper,
    frames: Buffer,
    tokens_in: Buffer,
    tokens_out: Buffer,
    rendered: Buffer,
    tokens: HashMap<usize, Vec<i32>>,
    reconstructions: HashMap<usize, Vec<f32>>,
}

impl Cache {
    pub fn new(device: &Device, agent: &Agent) -> Cache {
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        Cache {
            stepper: Stepper::new(device, Key::new(0, 0)),
            frames: device.buffer::<u8>("frames to encode", [CHUNK, size, size, 3]),
            tokens_in: device.buffer::<i32>("tokens to decode", [CHUNK, k]),
            tokens_out: device.buffer::<i32>("encoded tokens", [CHUNK, k]),
            rendered: device.buffer::<f32>("decoded frames", [CHUNK, size, size, 3]),
            tokens: HashMap::new(),
            reconstructions: HashMap::new(),
        }
    }

    /// The tokenizer has changed.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.reconstructions.clear();
    }

    /// Makes sure the tokens of these records are known.
    pub fn tokenise(&mut self, agent: &Agent, replay: &Replay, records: &[usize]) -> Result<()> {
        let missing = missing(records, &self.tokens);
        let frame_bytes = self.frames.shape().len() / CHUNK;
        let mut bytes = vec![0; self.frames.shape().len()];
        for chunk in missing.chunks(CHUNK) {
            for (record, frame) in chunk.iter().zip(bytes.chunks_exact_mut(frame_bytes)) {
                replay.frame(*record, frame)?;
            }
            self.frames.write(&bytes)?;
            let (frames, out) = (&self.frames, &self.tokens_out);
            self.stepper.infer(|tape| -> engine::Result<()> {
                let x = tape.buffer(frames)?;
                let x = crate::tokenizer::from_bytes(tape, x)?;
                let y = agent.tokenizer.encode(tape, x)?;
                let tokens = agent.tokenizer.quantise(tape, y)?.tokens;
                tape.store(out, 0, tokens)
            })?;
            let tokens = self.tokens_out.read::<i32>()?;
            let k = tokens.len() / CHUNK;
            for (record, tokens) in chunk.iter().zip(tokens.chunks_exact(k)) {
                self.tokens.insert(*record, tokens.to_vec());
            }
        }
        Ok(())
    }

    /// Makes sure the reconstructions of these records, whose tokens are known, are known too.
    pub fn render(&mut self, agent: &Agent, records: &[usize]) -> Result<()> {
        let missing = missing(records, &self.reconstructions);
        let k = self.tokens_in.shape().len() / CHUNK;
        let mut tokens = vec![0; CHUNK * k];
        for chunk in missing.chunks(CHUNK) {
            for (record, row) in chunk.iter().zip(tokens.chunks_exact_mut(k)) {
                row.copy_from_slice(self.tokens(*record));
            }
            self.tokens_in.write(&tokens)?;
            let (tokens, out) = (&self.tokens_in, &self.rendered);
            self.stepper.infer(|tape| -> engine::Result<()> {
                let tokens = tape.buffer(tokens)?;
                let frames = agent.tokenizer.render(tape, tokens)?;
                tape.store(out, 0, frames)
            })?;
            let frames = self.rendered.read::<f32>()?;
            let pixels = frames.len() / CHUNK;
            for (record, frame) in chunk.iter().zip(frames.chunks_exact(pixels)) {
                self.reconstructions.insert(*record, frame.to_vec());
            }
        }
        Ok(())
    }

    /// The tokens of a record given to [`tokenise`](Cache::tokenise).
    pub fn tokens(&self, record: usize) -> &[i32] {
        self.tokens.get(&record).map_or(&[], Vec::as_slice)
    }

    /// The reconstruction of a record given to [`render`](Cache::render), in [0, 1].
    pub fn frame(&self, record: usize) -> &[f32] {
        self.reconstructions.get(&record).map_or(&[], Vec::as_slice)
    }
}

/// The records that are not in the map, each once, in order.
fn missing<V>(records: &[usize], known: &HashMap<usize, V>) -> Vec<usize> {
    let mut missing: Vec<usize> = records.iter().copied().filter(|r| !known.contains_key(r)).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}
