//! Losses on held-out episodes: games of the evaluation, which no network has learnt from. Dropout is off.
//!
//! Only the seed and the actions of a game are kept: it is played again from them, so that its frames need not fit into memory.

use engine::{Key, Stepper, Tensor};
use envs::Purpose;

use super::learning::Targets;
use super::{Epoch, Phase, Result, Trainer, WorldModelObjective};
use crate::player::episode_seed;
use crate::replay::Record;

/// Frames that go through the tokenizer at a time.
const FRAMES: usize = 256;

/// A game that was evaluated.
pub(super) struct HeldOut {
    seed: u64,
    pub actions: Vec<u32>,
}

impl HeldOut {
    /// Game number `number` of an evaluation.
    pub fn new(seed: u64, number: usize) -> HeldOut {
        HeldOut { seed: episode_seed(seed, number), actions: Vec::new() }
    }
}

/// Successive steps of one game, at most as many as the world model looks at.
struct Chunk {
    /// u8 [len, H, W, 3]
    frames: Vec<u8>,
    records: Vec<Record>,
}

/// Losses of a batch, under the names of training.
type Named = Vec<(&'static str, f32)>;

/// Means of losses over batches of different sizes.
#[derive(Default)]
struct Means {
    /// Sums by name.
    sums: Vec<(String, f64)>,
    weight: f64,
}

impl Means {
    fn add(&mut self, losses: Named, weight: usize) {
        if self.sums.is_empty() {
            let name = |(name, _): &(&'static str, f32)| (name.replace("/train/", "/eval/"), 0.0);
            self.sums = losses.iter().map(name).collect();
        }
        self.weight += weight as f64;
        for ((_, sum), (_, loss)) in self.sums.iter_mut().zip(losses) {
            *sum += f64::from(loss) * weight as f64;
        }
    }

    fn report(self, epoch: &mut Epoch) {
        for (name, sum) in self.sums {
            epoch.metrics.add(&name, (sum / self.weight) as f32);
        }
    }
}

impl Trainer {
    /// Adds the losses of tokenizer and world model on these games, of `evaluated`, to the metrics: of each network once it has begun to learn.
    pub(super) fn measure_held_out(
        &mut self,
        games: &[HeldOut],
        evaluated: usize,
        epoch: &mut Epoch,
    ) -> Result<()> {
        if self.config.tokenizer.schedule.start_after > self.epoch || games.is_empty() {
            return Ok(());
        }
        let steps = self.config.agent.world_model.steps;
        let mut env = self.game.make(Purpose::Evaluate, self.config.agent.tokenizer.frame_size)?;
        let mut frame = vec![0; self.config.agent.tokenizer.frame_size.pow(2) * 3];
        let mut stepper = Stepper::new(&self.device, Key::new(0, 0));
        let (mut tokenizer, mut world_model) = (Means::default(), Means::default());
        let mut chunks: Vec<Chunk> = Vec::new();
        for game in games {
            env.reset(game.seed)?;
            for part in game.actions.chunks(steps) {
                let mut chunk = Chunk { frames: Vec::new(), records: Vec::new() };
                for action in part {
                    env.render(&mut frame);
                    chunk.frames.extend_from_slice(&frame);
                    chunk.records.push(Record::new(*action, env.step(*action as usize)?));
                }
                chunks.push(chunk);
                if chunks.len() == self.config.world_model.schedule.batch {
                    self.measure(&chunks, &mut stepper, &mut tokenizer, &mut world_model)?;
                    chunks.clear();
                    epoch.progress(Phase::Evaluation, evaluated, evaluated)?;
                }
            }
        }
        if !chunks.is_empty() {
            self.measure(&chunks, &mut stepper, &mut tokenizer, &mut world_model)?;
        }
        tokenizer.report(epoch);
        world_model.report(epoch);
        Ok(())
    }

    fn measure(
        &mut self,
        chunks: &[Chunk],
        stepper: &mut Stepper,
        tokenizer: &mut Means,
        world_model: &mut Means,
    ) -> Result<()> {
        let tokens = self.measure_tokenizer(chunks, stepper, tokenizer)?;
        match self.config.world_model.schedule.start_after <= self.epoch {
            true => self.measure_world_model(chunks, &tokens, stepper, world_model),
            false => Ok(()),
        }
    }

    /// Tokens of all frames of the chunks, [N, K].
    fn measure_tokenizer(
        &mut self,
        chunks: &[Chunk],
        stepper: &mut Stepper,
        means: &mut Means,
    ) -> Result<Vec<i32>> {
        let Trainer { device, config, agent, tokenizer, .. } = self;
        let size = config.agent.tokenizer.frame_size;
        let model = &agent.tokenizer;
        let all: Vec<u8> = chunks.iter().flat_map(|chunk| &chunk.frames).copied().collect();
        let mut tokens = Vec::new();
        for part in all.chunks(FRAMES * size * size * 3) {
            let count = part.len() / (size * size * 3);
            let frames = device.buffer::<u8>("held-out frames", [count, size, size, 3])?;
            frames.write(part)?;
            let (losses, found) = tokenizer.objective.without_dropout(|objective| {
                stepper.infer(|tape| -> engine::Result<(Named, Vec<i32>)> {
                    let losses = objective.losses_of(tape, model, &frames)?.named();
                    let x = tape.buffer(&frames)?;
                    let found = model.reconstruct(tape, x)?.0;
                    Ok((read(tape, &losses)?, tape.read(found)?))
                })
            })?;
            means.add(losses, count);
            tokens.extend(found);
        }
        Ok(tokens)
    }

    fn measure_world_model(
        &mut self,
        chunks: &[Chunk],
        tokens: &[i32],
        stepper: &mut Stepper,
        means: &mut Means,
    ) -> Result<()> {
        let (steps, k) = (self.config.agent.world_model.steps, self.config.agent.tokenizer.tokens());
        let truncation_ends = self.config.world_model.truncation_ends_episode;
        let places = chunks.len() * steps;
        let mut targets = Targets::new(self.config.agent.world_model.reward, truncation_ends, places);
        let mut padded = vec![0i32; places * k];
        let mut real = 0;
        for (row, chunk) in chunks.iter().enumerate() {
            for (step, record) in chunk.records.iter().enumerate() {
                let at = row * steps + step;
                targets.set(at, record);
                padded[at * k..][..k].copy_from_slice(&tokens[real * k..][..k]);
                real += 1;
            }
        }
        let batch = WorldModelObjective::new(&self.device, &self.config.agent, chunks.len())?;
        batch.tokens.write(&padded)?;
        targets.write(&batch)?;
        let model = &self.agent.world_model;
        let losses = stepper.infer(|tape| -> engine::Result<Named> {
            let losses = batch.losses_if(tape, model, false)?.named();
            read(tape, &losses)
        })?;
        means.add(losses, real);
        Ok(())
    }
}

/// The values of scalars.
fn read(tape: &engine::Tape, named: &[(&'static str, Tensor)]) -> engine::Result<Named> {
    named.iter().map(|(name, loss)| Ok((*name, tape.read::<f32>(*loss)?[0]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_batches_count_for_more() {
        let mut means = Means::default();
        means.add(vec![("a/train/loss", 1.0), ("a/train/other", 0.0)], 30);
        means.add(vec![("a/train/loss", 5.0), ("a/train/other", 4.0)], 10);
        let mut observer = ();
        let (metrics, played, clock) = (Default::default(), Default::default(), super::super::Clock::start());
        let mut epoch = Epoch { observer: &mut observer, metrics, played, clock };
        means.report(&mut epoch);
        let expected = [("a/eval/loss".to_string(), 2.0), ("a/eval/other".to_string(), 1.0)];
        assert_eq!(epoch.metrics.0, expected);
    }
}
