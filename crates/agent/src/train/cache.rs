//! Frames of the replay, their tokens and reconstructions, as batches of the networks' input. Tokens and reconstructions are computed at most once while
//! the tokenizer stays the same. Where there is a GPU and they fit, all three live there as tables, and a batch is a row of numbers that goes to the GPU.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use engine::{Buffer, Device, Key, StepId, Stepper, Tape, Tensor};

use super::Result;
use crate::{Agent, Replay};

/// Frames that go through the tokenizer at a time as a batch needs them, and at least where there are tables.
const CHUNK: usize = 64;
/// At most, where there are tables: what the tokenizer trains with fits as well.
const TABLE_CHUNK: usize = 256;

pub(super) struct Cache {
    stepper: Stepper,
    frames: Buffer,
    tokens_in: Buffer,
    tokens_out: Buffer,
    rendered: Buffer,
    kept: Kept,
}

/// Where what was computed is kept.
enum Kept {
    Host { tokens: HashMap<usize, Vec<i32>>, reconstructions: HashMap<usize, Vec<f32>> },
    Gpu(Tables),
}

/// Rows by record number, the newest `capacity` of them.
struct Tables {
    capacity: usize,
    frames: Buffer,
    tokens: Buffer,
    reconstructions: Buffer,
    /// Row numbers of the records being tokenised or rendered, i32 [frames at a time].
    places: Buffer,
    /// Row numbers of a batch, by its size.
    rows: HashMap<usize, Buffer>,
    /// Which record each row of the tables holds; a row of tokens or reconstructions is one behind until it is computed.
    uploaded: Vec<Option<usize>>,
    tokenised: Vec<Option<usize>>,
    rendered: Vec<Option<usize>>,
}

impl Cache {
    /// For a replay of up to `steps` steps, and a tokenizer that trains with `batch` frames.
    pub fn new(device: &Device, agent: &Agent, steps: usize, batch: usize) -> engine::Result<Cache> {
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        let pixels = size * size * 3;
        // The steppers and the networks' steps, which come later, need memory as well: more than twice as much at the paper's size.
        let row = pixels * (1 + device.float_size()) + 4 * k;
        let fits = |free: usize| steps.saturating_mul(row) < free / 4 && tables_are_wanted();
        let kept = match device.free_memory().is_some_and(fits) {
            false => Kept::Host { tokens: HashMap::new(), reconstructions: HashMap::new() },
            true => Kept::Gpu(Tables {
                capacity: steps,
                frames: device.buffer::<u8>("frames of the replay", [steps, size, size, 3])?,
                tokens: device.buffer::<i32>("tokens of the replay", [steps, k])?,
                reconstructions: device
                    .float_buffer("reconstructions of the replay", [steps, size, size, 3])?,
                places: device.buffer::<i32>("rows of the replay", [batch.clamp(CHUNK, TABLE_CHUNK)])?,
                rows: HashMap::new(),
                uploaded: vec![None; steps],
                tokenised: vec![None; steps],
                rendered: vec![None; steps],
            }),
        };
        Ok(Cache {
            stepper: Stepper::new(device, Key::new(0, 0)),
            frames: device.buffer::<u8>("frames to encode", [CHUNK, size, size, 3])?,
            tokens_in: device.buffer::<i32>("tokens to decode", [CHUNK, k])?,
            tokens_out: device.buffer::<i32>("encoded tokens", [CHUNK, k])?,
            rendered: device.buffer::<f32>("decoded frames", [CHUNK, size, size, 3])?,
            kept,
        })
    }

    /// Before an epoch: what belongs to steps that the replay has forgotten goes, and tables whose rows two records would share are given up for the
    /// host's memory.
    pub fn check_room(&mut self, replay: &Replay) {
        let table = replay.table();
        let oldest = table.episodes.first().map_or(table.records, |episode| episode.start);
        match &mut self.kept {
            Kept::Host { tokens, reconstructions } => {
                tokens.retain(|record, _| *record >= oldest);
                reconstructions.retain(|record, _| *record >= oldest);
            }
            Kept::Gpu(tables) if table.records - oldest > tables.capacity => {
                self.kept = Kept::Host { tokens: HashMap::new(), reconstructions: HashMap::new() };
                // Recordings keep the tables they use.
                for name in ["encode", "decode", "frame batch", "token batch", "reconstruction batch"] {
                    self.stepper.forget(name);
                }
            }
            Kept::Gpu(_) => {}
        }
    }

    /// The tokenizer has changed.
    pub fn clear(&mut self) {
        match &mut self.kept {
            Kept::Host { tokens, reconstructions } => {
                tokens.clear();
                reconstructions.clear();
            }
            Kept::Gpu(tables) => {
                tables.tokenised.fill(None);
                tables.rendered.fill(None);
            }
        }
    }

    /// The frames of these records into a buffer u8 [records, H, W, 3].
    pub fn load_frames(&mut self, replay: &Replay, records: &[usize], out: &Buffer) -> Result<()> {
        let pixels = self.frames.shape().len() / CHUNK;
        let Kept::Gpu(tables) = &mut self.kept else {
            let mut frames = vec![0; records.len() * pixels];
            out.device().on_host_threads(|| replay.frames(records, &mut frames))?;
            return Ok(out.write(&frames)?);
        };
        tables.upload(replay, records)?;
        let rows: Vec<Option<usize>> = records.iter().copied().map(Some).collect();
        tables.gather(&mut self.stepper, "frame batch", |t| &t.frames, &rows, out)
    }

    /// The tokens of these records, zeros where there is none, into a buffer i32 [records, K].
    pub fn load_tokens(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        rows: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        let records: Vec<usize> = rows.iter().flatten().copied().collect();
        self.tokenise(agent, replay, &records)?;
        match &mut self.kept {
            Kept::Gpu(tables) => tables.gather(&mut self.stepper, "token batch", |t| &t.tokens, rows, out),
            Kept::Host { tokens, .. } => Ok(out.write(&join(rows, tokens, out.shape().len()))?),
        }
    }

    /// The reconstructions of these records in [0, 1], zeros where there is none, into a buffer [records, H, W, 3].
    pub fn load_reconstructions(
        &mut self,
        agent: &Agent,
        replay: &Replay,
        rows: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        let records: Vec<usize> = rows.iter().flatten().copied().collect();
        self.tokenise(agent, replay, &records)?;
        self.render(agent, &records)?;
        match &mut self.kept {
            Kept::Gpu(tables) => {
                tables.gather(&mut self.stepper, "reconstruction batch", |t| &t.reconstructions, rows, out)
            }
            Kept::Host { reconstructions, .. } => {
                Ok(out.write(&join(rows, reconstructions, out.shape().len()))?)
            }
        }
    }

    /// Whether tokens and reconstructions can all be computed before the first of many batches, in fewer and larger steps than as batches need them.
    pub fn has_tables(&self) -> bool {
        matches!(self.kept, Kept::Gpu(_))
    }

    /// Makes sure the tokens of these records are known.
    pub fn tokenise(&mut self, agent: &Agent, replay: &Replay, records: &[usize]) -> Result<()> {
        let Cache { stepper, frames, tokens_out, kept, .. } = self;
        let id = StepId::new("encode", &agent.identity());
        match kept {
            Kept::Gpu(tables) => {
                tables.upload(replay, records)?;
                let missing = missing(records, |r| tables.tokenised[r % tables.capacity] == Some(r));
                for chunk in missing.chunks(tables.chunk()) {
                    tables.place(chunk)?;
                    let Tables { places, frames, tokens, .. } = &*tables;
                    stepper.infer_captured(id, |tape| -> engine::Result<()> {
                        let places = tape.buffer(places)?;
                        let x = tape.gather_rows(frames, places)?;
                        let found = tokens_of(tape, agent, x)?;
                        tape.scatter_rows(tokens, places, found)
                    })?;
                    chunk.iter().for_each(|&r| tables.tokenised[r % tables.capacity] = Some(r));
                }
            }
            Kept::Host { tokens, .. } => {
                let mut bytes = vec![0; frames.shape().len()];
                let missing = missing(records, |r| tokens.contains_key(&r));
                for chunk in missing.chunks(CHUNK) {
                    frames.device().on_host_threads(|| replay.frames(chunk, &mut bytes))?;
                    frames.write(&bytes)?;
                    stepper.infer_captured(id, |tape| -> engine::Result<()> {
                        let x = tape.buffer(frames)?;
                        let found = tokens_of(tape, agent, x)?;
                        tape.store(tokens_out, 0, found)
                    })?;
                    let found = tokens_out.read::<i32>()?;
                    let k = found.len() / CHUNK;
                    for (record, row) in chunk.iter().zip(found.chunks_exact(k)) {
                        tokens.insert(*record, row.to_vec());
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes sure the reconstructions of these records, whose tokens are known, are known too.
    pub fn render(&mut self, agent: &Agent, records: &[usize]) -> Result<()> {
        let Cache { stepper, tokens_in, rendered, kept, .. } = self;
        let id = StepId::new("decode", &agent.identity());
        match kept {
            Kept::Gpu(tables) => {
                let missing = missing(records, |r| tables.rendered[r % tables.capacity] == Some(r));
                for chunk in missing.chunks(tables.chunk()) {
                    tables.place(chunk)?;
                    let Tables { places, tokens, reconstructions, .. } = &*tables;
                    stepper.infer_captured(id, |tape| -> engine::Result<()> {
                        let places = tape.buffer(places)?;
                        let tokens = tape.gather_rows(tokens, places)?;
                        let frames = agent.tokenizer.render(tape, tokens)?;
                        tape.scatter_rows(reconstructions, places, frames)
                    })?;
                    chunk.iter().for_each(|&r| tables.rendered[r % tables.capacity] = Some(r));
                }
            }
            Kept::Host { tokens, reconstructions } => {
                let missing = missing(records, |r| reconstructions.contains_key(&r));
                for chunk in missing.chunks(CHUNK) {
                    let rows: Vec<Option<usize>> = chunk.iter().copied().map(Some).collect();
                    tokens_in.write(&join(&rows, tokens, tokens_in.shape().len()))?;
                    stepper.infer_captured(id, |tape| -> engine::Result<()> {
                        let tokens = tape.buffer(tokens_in)?;
                        let frames = agent.tokenizer.render(tape, tokens)?;
                        tape.store(rendered, 0, frames)
                    })?;
                    let frames = rendered.read::<f32>()?;
                    let pixels = frames.len() / CHUNK;
                    for (record, frame) in chunk.iter().zip(frames.chunks_exact(pixels)) {
                        reconstructions.insert(*record, frame.to_vec());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tables {
    /// Makes sure the frames of these records are on the GPU.
    fn upload(&mut self, replay: &Replay, records: &[usize]) -> Result<()> {
        let bytes = self.frames.shape().len() / self.capacity;
        let mut frame = vec![0; bytes];
        for record in missing(records, |r| self.uploaded[r % self.capacity] == Some(r)) {
            let row = record % self.capacity;
            replay.frame(record, &mut frame)?;
            self.frames.write_at(row * bytes, &frame)?;
            self.uploaded[row] = Some(record);
        }
        Ok(())
    }

    /// Frames at a time.
    fn chunk(&self) -> usize {
        self.places.shape().len()
    }

    /// Says which rows a chunk of records has.
    fn place(&self, records: &[usize]) -> Result<()> {
        let mut places = vec![-1; self.chunk()];
        places.iter_mut().zip(records).for_each(|(place, r)| *place = (r % self.capacity) as i32);
        Ok(self.places.write(&places)?)
    }

    /// Rows of one of the tables into a buffer; zeros where there is no record.
    fn gather(
        &mut self,
        stepper: &mut Stepper,
        name: &'static str,
        table: impl Fn(&Tables) -> &Buffer,
        rows: &[Option<usize>],
        out: &Buffer,
    ) -> Result<()> {
        let numbers: Vec<i32> = rows.iter().map(|r| r.map_or(-1, |r| (r % self.capacity) as i32)).collect();
        let index = match self.rows.entry(rows.len()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                new.insert(out.device().buffer::<i32>("rows of a batch", [rows.len()])?).clone()
            }
        };
        index.write(&numbers)?;
        let table = table(self);
        let id = StepId::new(name, &[table, &index, out].map(Buffer::identity));
        Ok(stepper.infer_captured(id, |tape| -> engine::Result<()> {
            let index = tape.buffer(&index)?;
            let rows = tape.gather_rows(table, index)?;
            tape.store(out, 0, rows)
        })?)
    }
}

/// Tests of the way without tables set this variable.
fn tables_are_wanted() -> bool {
    std::env::var_os("IRIS_REPLAY_TABLES").is_none_or(|value| value != "off")
}

/// Frames u8 [B, H, W, 3] -> tokens i32 [B, K]
fn tokens_of(tape: &mut Tape, agent: &Agent, frames: Tensor) -> engine::Result<Tensor> {
    let x = crate::tokenizer::from_bytes(tape, frames)?;
    let y = agent.tokenizer.encode(tape, x)?;
    Ok(agent.tokenizer.quantise(tape, y)?.tokens)
}

/// The records of which `known` does not hold, each once, in order.
fn missing(records: &[usize], known: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut missing: Vec<usize> = records.iter().copied().filter(|&r| !known(r)).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// The values of these records one after the other, zeros where there is none and to the end of `len`.
fn join<T: Copy + Default>(rows: &[Option<usize>], values: &HashMap<usize, Vec<T>>, len: usize) -> Vec<T> {
    let mut joined = vec![T::default(); len];
    let each = rows.iter().flatten().find_map(|r| values.get(r)).map_or(1, Vec::len);
    for (line, row) in joined.chunks_exact_mut(each.max(1)).zip(rows) {
        if let Some(found) = row.and_then(|r| values.get(&r)) {
            line.copy_from_slice(found);
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentConfig, Record, Table, TokenizerConfig};

    /// With a tokenizer that does not change any more, nothing else empties the cache.
    #[test]
    fn what_the_replay_forgets_is_forgotten() -> Result<()> {
        let device = Device::cpu(Some(1))?;
        let tokenizer = TokenizerConfig {
            frame_size: 16,
            channels: 4,
            resolutions: 2,
            groups: 2,
            attention_sizes: vec![],
            ..TokenizerConfig::default()
        };
        let agent = Agent::new(&device, &AgentConfig { tokenizer, ..AgentConfig::default() }, 0)?;
        let folder = std::env::temp_dir().join(format!("iris-cache-{}", std::process::id()));
        let mut replay = Replay::open(&folder, 16 * 16 * 3, 6, Table::default())?;
        replay.begin_writing()?;
        let mut cache = Cache::new(&device, &agent, 100, 1)?;
        let out = device.float_buffer("reconstructions", [3, 16, 16, 3])?;
        for game in 0..5 {
            replay.begin_episode(game, false);
            for step in 0..3 {
                let record = Record { action: 0, reward: 0.0, terminated: step == 2, truncated: false };
                replay.push(&[game as u8; 16 * 16 * 3], record)?;
            }
            let newest: Vec<_> = (replay.table().records - 3..replay.table().records).map(Some).collect();
            cache.check_room(&replay);
            cache.load_reconstructions(&agent, &replay, &newest, &out)?;
            let Kept::Host { tokens, reconstructions } = &cache.kept else { panic!("a CPU has no tables") };
            let kept = replay.table().records.min(9);
            assert!(tokens.len() <= kept && reconstructions.len() <= kept, "{}", tokens.len());
            assert!(newest.iter().flatten().all(|record| reconstructions.contains_key(record)));
        }
        std::fs::remove_dir_all(&folder).unwrap();
        Ok(())
    }
}
