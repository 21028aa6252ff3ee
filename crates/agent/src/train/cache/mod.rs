//! Frames of the replay, their tokens and reconstructions, as batches of the networks' input. All three are kept in tables on the device, the whole
//! replay if it fits: tokens and reconstructions are then computed at most once while the tokenizer stays the same, and a batch is a row of numbers.

mod table;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use engine::{Buffer, Device, Key, StepId, Stepper, Tape, Tensor};

use super::{Result, TrainConfig};
use crate::{Agent, Replay, Sees};
use table::Table;

/// Frames that go through the tokenizer at a time: as many as it trains with, within these bounds.
const CHUNK: std::ops::RangeInclusive<usize> = 64..=256;
/// Of the memory that is free. The networks' steps, which come later, need more than twice as much at the paper's size.
const SHARE: usize = 4;
/// Where nobody says how much is free.
const DEFAULT_BUDGET: usize = 2 << 30;
/// Environment variable with a budget in MiB. Results do not depend on it: tests of eviction set it.
const BUDGET_VARIABLE: &str = "IRIS_REPLAY_CACHE_MIB";

/// How large the tables are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Bytes that should do.
    pub budget: usize,
    /// The most steps that the replay holds.
    pub replay: usize,
    /// Frames through the tokenizer at a time.
    pub chunk: usize,
    /// Records of the largest batch of each kind, which is held in any case.
    pub frames: usize,
    pub tokens: usize,
    /// None where the policy looks at none.
    pub reconstructions: Option<usize>,
}

impl Capacity {
    pub fn new(device: &Device, config: &TrainConfig) -> Capacity {
        let (t, w, p) = (&config.tokenizer, &config.world_model, &config.actor_critic);
        let sequences = w.schedule.batch * config.agent.world_model.steps;
        let before_dreams = p.schedule.batch * p.burn_in;
        Capacity {
            budget: budget(device),
            replay: replay_steps(config),
            chunk: t.schedule.batch.clamp(*CHUNK.start(), *CHUNK.end()),
            frames: t.schedule.batch,
            tokens: sequences.max(before_dreams).max(p.schedule.batch),
            reconstructions: (config.agent.actor_critic.sees == Sees::Frames).then_some(before_dreams),
        }
    }
}

/// Bytes for the tables: a share of the device's free memory.
fn budget(device: &Device) -> usize {
    let variable = std::env::var(BUDGET_VARIABLE).ok().and_then(|text| text.parse::<usize>().ok());
    match variable {
        Some(mebibytes) => mebibytes.saturating_mul(1 << 20),
        None => match device.free_memory().or_else(available_memory) {
            Some(free) => free / SHARE,
            None => DEFAULT_BUDGET,
        },
    }
}

/// Bytes of the machine that programs can still have (Linux only).
fn available_memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The most steps the replay holds at once: what is collected, or what is kept of it and a long episode beyond.
fn replay_steps(config: &TrainConfig) -> usize {
    let frame_bytes = config.agent.tokenizer.frame_size.pow(2) * 3;
    let kept = config.replay.steps(Replay::step_bytes(frame_bytes));
    let epochs = config.collection.epochs.min(config.epochs);
    config.collection.steps.saturating_mul(epochs).min(kept.saturating_add(kept / 4)).max(1)
}

pub(super) struct Cache {
    stepper: Stepper,
    /// u8 [rows, H, W, 3]
    frames: Table,
    /// i32 [rows, K]
    tokens: Table,
    /// [rows, H, W, 3] in [0, 1]; none where the policy looks at none.
    reconstructions: Option<Table>,
    /// Rows of a chunk that goes through the tokenizer, i32 [chunk]: where it is read from and written to; -1 beyond its end.
    from: Buffer,
    to: Buffer,
    /// Rows of a batch, by its size.
    rows: HashMap<usize, Buffer>,
}

impl Cache {
    pub fn new(device: &Device, agent: &Agent, capacity: Capacity) -> engine::Result<Cache> {
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        let pixels = size * size * 3;
        let Capacity { budget, replay, chunk, .. } = capacity;
        // Tokens are a hundred times smaller than images: they come first, and usually all of them.
        let tokens = (budget / (4 * k)).min(replay);
        let rendered = if capacity.reconstructions.is_some() { device.float_size() } else { 0 };
        let images = ((budget - 4 * k * tokens) / (pixels * (1 + rendered))).min(replay);
        let (frames, tokens) =
            (images.max(capacity.frames).max(chunk), tokens.max(capacity.tokens).max(chunk));
        let reconstructions = |least: usize| -> engine::Result<Table> {
            let shape = [images.max(least).max(chunk), size, size, 3];
            Ok(Table::new(device.float_buffer("reconstructions of the replay", shape)?))
        };
        let chunk_rows = |name: &str| device.buffer::<i32>(name, [chunk]);
        Ok(Cache {
            stepper: Stepper::new(device, Key::new(0, 0)),
            frames: Table::new(device.buffer::<u8>("frames of the replay", [frames, size, size, 3])?),
            tokens: Table::new(device.buffer::<i32>("tokens of the replay", [tokens, k])?),
            reconstructions: capacity.reconstructions.map(reconstructions).transpose()?,
            from: chunk_rows("rows to read")?,
            to: chunk_rows("rows to write")?,
            rows: HashMap::new(),
        })
    }

    /// Forgets steps that the replay has forgotten.
    pub fn follow(&mut self, replay: &Replay) {
        let table = replay.table();
        let oldest = table.episodes.first().map_or(table.records, |episode| episode.start);
        for table in [&mut self.frames, &mut self.tokens].into_iter().chain(&mut self.reconstructions) {
            table.forget_before(oldest);
        }
    }

    /// The tokenizer has changed.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.reconstructions.iter_mut().for_each(Table::clear);
    }

    /// The frames of these records into a buffer u8 [records, H, W, 3].
    pub fn load_frames(&mut self, replay: &Replay, records: &[usize], out: &Buffer) -> Result<()> {
        self.upload(replay, records)?;
        let rows: Vec<Option<usize>> = records.iter().copied().map(Some).collect();
        self.gather("frame batch", |cache| Some(&cache.frames), &rows, out)
    }

    /// The tokens of these records, zeros where there is none, into a buffer i32 [records, K].
    pub fn load_tokens(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        rows: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        self.tokenise(agent, replay, &present(rows), &mut || Ok(()))?;
        self.gather("token batch", |cache| Some(&cache.tokens), rows, out)
    }

    /// The reconstructions of these records in [0, 1], zeros where there is none, into a buffer [records, H, W, 3].
    pub fn load_reconstructions(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        rows: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        self.render(agent, replay, &present(rows), &mut || Ok(()))?;
        self.gather("reconstruction batch", |cache| cache.reconstructions.as_ref(), rows, out)
    }

    /// Computes the tokens of records that batches are going to need, and their reconstructions if these are `rendered`: in fewer and fuller chunks than
    /// batch by batch. Does nothing where the tables do not hold the whole replay. After each chunk `go_on` may stop it.
    pub fn prepare(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        records: &[usize],
        rendered: bool,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.tokens.capacity() >= replay.steps() {
            self.tokenise(agent, replay, records, go_on)?;
        }
        match &self.reconstructions {
            Some(table) if rendered && table.capacity() >= replay.steps() => {
                self.render(agent, replay, records, go_on)
            }
            _ => Ok(()),
        }
    }

    /// Makes sure that the frames of these records are on the device.
    fn upload(&mut self, replay: &Replay, records: &[usize]) -> Result<()> {
        let (device, capacity) = (self.frames.buffer.device().clone(), self.frames.capacity());
        let pixels = self.frames.buffer.shape().len() / capacity;
        let missing = self.frames.begin(records);
        for chunk in missing.chunks(self.chunk()) {
            let mut bytes = vec![0; chunk.len() * pixels];
            device.on_host_threads(|| replay.frames(chunk, &mut bytes))?;
            let rows = self.frames.reserve(chunk.len())?;
            for (row, frame) in rows.iter().zip(bytes.chunks_exact(pixels)) {
                self.frames.buffer.write_at(row * pixels, frame)?;
            }
            self.frames.fill(chunk, &rows);
        }
        Ok(())
    }

    /// Makes sure that the tokens of these records are known.
    fn tokenise(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        records: &[usize],
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let missing = self.tokens.begin(records);
        for chunk in missing.chunks(self.chunk()) {
            self.upload(replay, chunk)?;
            let rows = self.tokens.reserve(chunk.len())?;
            self.place(&self.from, chunk.iter().map(|record| self.frames.row(*record)))?;
            self.place(&self.to, rows.iter().copied().map(Some))?;
            let Cache { stepper, frames, tokens, from, to, .. } = self;
            stepper.infer_captured(
                StepId::new("encode", &agent.identity()),
                |tape| -> engine::Result<()> {
                    let (from, to) = (tape.buffer(from)?, tape.buffer(to)?);
                    let x = tape.gather_rows(&frames.buffer, from)?;
                    let found = tokens_of(tape, agent, x)?;
                    tape.scatter_rows(&tokens.buffer, to, found)
                },
            )?;
            self.tokens.fill(chunk, &rows);
            go_on()?;
        }
        Ok(())
    }

    /// Makes sure that the reconstructions of these records are known.
    fn render(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        records: &[usize],
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some(table) = &mut self.reconstructions else { return Ok(()) };
        let missing = table.begin(records);
        self.tokenise(agent, replay, &missing, go_on)?;
        for chunk in missing.chunks(self.chunk()) {
            let Some(table) = &mut self.reconstructions else { return Ok(()) };
            let rows = table.reserve(chunk.len())?;
            let reconstructions = table.buffer.clone();
            self.place(&self.from, chunk.iter().map(|record| self.tokens.row(*record)))?;
            self.place(&self.to, rows.iter().copied().map(Some))?;
            let Cache { stepper, tokens, from, to, .. } = self;
            stepper.infer_captured(
                StepId::new("decode", &agent.identity()),
                |tape| -> engine::Result<()> {
                    let (from, to) = (tape.buffer(from)?, tape.buffer(to)?);
                    let tokens = tape.gather_rows(&tokens.buffer, from)?;
                    let frames = agent.tokenizer.render(tape, tokens)?;
                    tape.scatter_rows(&reconstructions, to, frames)
                },
            )?;
            self.reconstructions.iter_mut().for_each(|table| table.fill(chunk, &rows));
            go_on()?;
        }
        Ok(())
    }

    /// Frames through the tokenizer at a time.
    fn chunk(&self) -> usize {
        self.from.shape().len()
    }

    /// Says which rows the records of a chunk have.
    fn place(&self, out: &Buffer, rows: impl Iterator<Item = Option<usize>>) -> Result<()> {
        let mut places = vec![-1; self.chunk()];
        places.iter_mut().zip(rows).for_each(|(place, row)| *place = row.map_or(-1, |row| row as i32));
        Ok(out.write(&places)?)
    }

    /// Rows of one of the tables into a buffer; zeros where there is no record.
    fn gather(
        &mut self,
        name: &'static str,
        table: impl Fn(&Cache) -> Option<&Table>,
        records: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        let Some(found) = table(self) else { return Ok(()) };
        let row = |record: &Option<usize>| record.and_then(|r| found.row(r)).map_or(-1, |row| row as i32);
        let buffer = found.buffer.clone();
        let numbers: Vec<i32> = records.iter().map(row).collect();
        let index = match self.rows.entry(records.len()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                new.insert(out.device().buffer::<i32>("rows of a batch", [records.len()])?).clone()
            }
        };
        index.write(&numbers)?;
        let id = StepId::new(name, &[&buffer, &index, out].map(Buffer::identity));
        Ok(self.stepper.infer_captured(id, |tape| -> engine::Result<()> {
            let index = tape.buffer(&index)?;
            let rows = tape.gather_rows(&buffer, index)?;
            tape.store(out, 0, rows)
        })?)
    }
}

/// The records of a batch without its padding.
fn present(rows: &[Option<usize>]) -> Vec<usize> {
    rows.iter().flatten().copied().collect()
}

/// Frames u8 [B, H, W, 3] -> tokens i32 [B, K]
fn tokens_of(tape: &mut Tape, agent: &Agent, frames: Tensor) -> engine::Result<Tensor> {
    let x = crate::tokenizer::from_bytes(tape, frames)?;
    let y = agent.tokenizer.encode(tape, x)?;
    Ok(agent.tokenizer.quantise(tape, y)?.tokens)
}

#[cfg(test)]
mod tests;
