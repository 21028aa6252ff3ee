//! Frames that were rendered before. In a small game dreams come by the same frames over and over, and on a CPU a frame is found by its tokens much
//! faster than it is rendered.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use engine::{Buffer, Device, Key, Result, Stepper};

use crate::Agent;

/// Frames rendered at a time. Always as many: what a frame looks like to the last bit must not depend on which others were known.
const CHUNK: usize = 8;
/// Bytes of frames that are kept.
const BUDGET: usize = 64 << 20;

pub(crate) struct Gallery {
    stepper: Stepper,
    /// Of the tokenizer that rendered them.
    tokenizer: u64,
    /// Which of the frames shows these tokens.
    known: HashMap<Box<[i32]>, usize>,
    /// One after the other.
    frames: Vec<f32>,
    /// What is being rendered, i32 [CHUNK, K] and [CHUNK, H, W, 3].
    tokens: Buffer,
    rendered: Buffer,
    /// What [`show`](Gallery::show) was asked for, [B, H, W, 3] in [0, 1].
    shown: Buffer,
}

impl Gallery {
    /// For `batch` frames at a time. None on a GPU, where tokens would have to come to the host first.
    pub fn new(device: &Device, agent: &Agent, batch: usize) -> Result<Option<Gallery>> {
        if device.is_gpu() {
            return Ok(None);
        }
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        Ok(Some(Gallery {
            stepper: Stepper::new(device, Key::new(0, 0)),
            tokenizer: 0,
            known: HashMap::new(),
            frames: Vec::new(),
            tokens: device.buffer::<i32>("tokens to render", [CHUNK, k])?,
            rendered: device.buffer::<f32>("rendered frames", [CHUNK, size, size, 3])?,
            shown: device.buffer::<f32>("frames to look at", [batch, size, size, 3])?,
        }))
    }

    /// Forgets the frames of another tokenizer, or of this one before it changed. A dream begins with it.
    pub fn enter(&mut self, agent: &Agent) -> Result<()> {
        let mut hasher = DefaultHasher::new();
        for value in agent.tokenizer.network.params.values().read::<f32>()? {
            value.to_bits().hash(&mut hasher);
        }
        let tokenizer = hasher.finish();
        if tokenizer != self.tokenizer {
            self.clear();
            self.tokenizer = tokenizer;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.known.clear();
        self.frames.clear();
    }

    /// The frames with these tokens, i32 [B, K], as [B, H, W, 3] in [0, 1].
    pub fn show(&mut self, agent: &Agent, tokens: &Buffer) -> Result<&Buffer> {
        let (k, pixels) = (tokens.shape().last(), self.rendered.shape().len() / CHUNK);
        let tokens = tokens.read::<i32>()?;
        let missing = |gallery: &Gallery| {
            let mut missing: Vec<&[i32]> = Vec::new();
            for frame in tokens.chunks_exact(k) {
                if !gallery.known.contains_key(frame) && !missing.contains(&frame) {
                    missing.push(frame);
                }
            }
            missing
        };
        let mut new = missing(self);
        if (self.known.len() + new.len()) * pixels * size_of::<f32>() > BUDGET {
            self.clear();
            new = missing(self);
        }
        for chunk in new.chunks(CHUNK) {
            self.render(agent, chunk)?;
        }
        for (i, frame) in tokens.chunks_exact(k).enumerate() {
            let at = self.known[frame] * pixels;
            self.shown.write_at(i * pixels, &self.frames[at..at + pixels])?;
        }
        Ok(&self.shown)
    }

    fn render(&mut self, agent: &Agent, chunk: &[&[i32]]) -> Result<()> {
        let padded: Vec<i32> = chunk
            .iter()
            .chain(std::iter::repeat(&chunk[0]))
            .take(CHUNK)
            .copied()
            .flatten()
            .copied()
            .collect();
        self.tokens.write(&padded)?;
        let Gallery { stepper, tokens, rendered, .. } = self;
        stepper.infer(|tape| -> Result<()> {
            let tokens = tape.buffer(tokens)?;
            let frames = agent.tokenizer.render(tape, tokens)?;
            tape.store(rendered, 0, frames)
        })?;
        let pixels = self.rendered.shape().len() / CHUNK;
        self.frames.extend(self.rendered.read_range::<f32>(0, chunk.len() * pixels)?);
        for tokens in chunk {
            self.known.insert(Box::from(*tokens), self.known.len());
        }
        Ok(())
    }
}
