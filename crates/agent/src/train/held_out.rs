//! Losses on held-out episodes: games of the evaluation, which no network has learnt from. Dropout is off.
//!
//! Only the seed and the actions of a game are kept: it is played again from them, so that its frames need not fit into memory.

use std::ops::Range;

use engine::{Key, Rng, Stepper, Tensor};
use envs::{Env, EnvError, Game, Purpose};

use super::ended::Ended;
use super::learning::Targets;
use super::{Epoch, Phase, Result, WorldModelObjective};
use crate::Stretch;
use crate::picture::Cell;
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

    /// Plays the game again in `env`, for as many steps as `steps` says. `step` gets each with its frame, which has `bytes` bytes.
    pub fn play_again<E: From<EnvError>>(
        &self,
        env: &mut dyn Env,
        bytes: usize,
        steps: usize,
        mut step: impl FnMut(&[u8], Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut frame = vec![0; bytes];
        env.reset(self.seed)?;
        for action in self.actions.iter().take(steps) {
            env.render(&mut frame);
            step(&frame, Record::new(*action, env.step(*action as usize)?))?;
        }
        Ok(())
    }

    /// Some steps of the game, which is played again up to them, with frames of `size` x `size` pixels.
    pub fn steps(&self, game: &Game, size: usize, wanted: Range<usize>) -> Result<Stretch> {
        let mut env = game.make(Purpose::Evaluate, size)?;
        let (mut taken, mut number) = (Stretch::default(), 0);
        self.play_again(env.as_mut(), size * size * 3, wanted.end, |frame, record| -> Result<()> {
            if wanted.contains(&number) {
                let Record { action, reward, .. } = record;
                taken.cells.push(Cell { frame: frame.to_vec(), reward, end: record.ended(), given: false });
                taken.actions.push(action as usize);
            }
            number += 1;
            Ok(())
        })?;
        Ok(taken)
    }

    /// A step of one of these games that is followed by `steps` steps with itself, or by as many as there are: the game, and the step's number.
    /// All such steps are equally likely.
    pub fn choose<'a>(
        games: &'a [(f32, HeldOut)],
        steps: usize,
        rng: &mut Rng,
    ) -> Option<(&'a HeldOut, usize)> {
        let lengths = || games.iter().map(|(_, game)| game.actions.len());
        let steps = steps.min(lengths().max()?);
        let starts = |length: usize| if length > 0 { (length + 1).saturating_sub(steps) } else { 0 };
        let mut chosen = rng.below(u32::try_from(lengths().map(starts).sum::<usize>()).ok()?.max(1)) as usize;
        for (_, game) in games {
            match chosen.checked_sub(starts(game.actions.len())) {
                Some(rest) => chosen = rest,
                None => return Some((game, chosen)),
            }
        }
        None
    }
}

/// Successive steps of one game, at most as many as the world model looks at.
#[derive(Default)]
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
            epoch.made.metrics.add(&name, (sum / self.weight) as f32);
        }
    }
}

impl Ended<'_> {
    /// Adds the losses of tokenizer and world model on these games, of `evaluated`, to the metrics: of each network once it has begun to learn.
    pub fn measure_held_out(
        &mut self,
        games: &[(f32, HeldOut)],
        evaluated: usize,
        epoch: &mut Epoch,
    ) -> Result<()> {
        if self.config.tokenizer.schedule.start_after > self.number() || games.is_empty() {
            return Ok(());
        }
        let steps = self.config.agent.world_model.steps;
        let size = self.config.agent.tokenizer.frame_size;
        let mut env = self.game.make(Purpose::Evaluate, size)?;
        let mut stepper = Stepper::new(self.device, Key::new(0, 0));
        let (mut tokenizer, mut world_model) = (Means::default(), Means::default());
        let mut chunks: Vec<Chunk> = Vec::new();
        for (_, game) in games {
            let mut number = 0;
            game.play_again(env.as_mut(), size * size * 3, usize::MAX, |frame, record| -> Result<()> {
                if number % steps == 0 {
                    if chunks.len() == self.config.world_model.schedule.batch {
                        self.measure(&chunks, &mut stepper, &mut tokenizer, &mut world_model)?;
                        chunks.clear();
                        epoch.progress(Phase::Evaluation, evaluated, evaluated)?;
                    }
                    chunks.push(Chunk::default());
                }
                number += 1;
                if let Some(chunk) = chunks.last_mut() {
                    chunk.frames.extend_from_slice(frame);
                    chunk.records.push(record);
                }
                Ok(())
            })?;
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
        match self.config.world_model.schedule.start_after <= self.number() {
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
        let Ended { device, config, agent, tokenizer: Some(objective), .. } = self else {
            return Ok(Vec::new());
        };
        let size = config.agent.tokenizer.frame_size;
        let model = &agent.tokenizer;
        let all: Vec<u8> = chunks.iter().flat_map(|chunk| &chunk.frames).copied().collect();
        let mut tokens = Vec::new();
        for part in all.chunks(FRAMES * size * size * 3) {
            let count = part.len() / (size * size * 3);
            let frames = device.buffer::<u8>("held-out frames", [count, size, size, 3])?;
            frames.write(part)?;
            let (losses, found) = objective.without_dropout(|objective| {
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
        let batch = WorldModelObjective::new(self.device, &self.config.agent, chunks.len())?;
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
    use super::super::Made;
    use super::*;

    #[test]
    fn a_chosen_step_has_a_future() {
        let game = |length: usize| (0.0, HeldOut { seed: length as u64, actions: vec![0; length] });
        let mut rng = Rng::new(Key::new(0, 0));
        let mut chosen = |games: &[(f32, HeldOut)], steps: usize| {
            let found = (0..200).filter_map(|_| HeldOut::choose(games, steps, &mut rng));
            found.map(|(game, step)| (game.seed, step)).collect::<std::collections::BTreeSet<_>>()
        };
        let games = [game(3), game(0), game(5), game(2)];
        assert_eq!(chosen(&games, 3), [(3, 0), (5, 0), (5, 1), (5, 2)].into());
        assert_eq!(chosen(&games, 9), [(5, 0)].into());
        assert_eq!(chosen(&games, 1).len(), 10);
        assert!(chosen(&[], 3).is_empty() && chosen(&[game(0)], 3).is_empty());
    }

    #[test]
    fn larger_batches_count_for_more() {
        let mut means = Means::default();
        means.add(vec![("a/train/loss", 1.0), ("a/train/other", 0.0)], 30);
        means.add(vec![("a/train/loss", 5.0), ("a/train/other", 4.0)], 10);
        let mut epoch = Epoch { observer: &mut (), made: Made::new(1) };
        means.report(&mut epoch);
        let expected = [("a/eval/loss".to_string(), 2.0), ("a/eval/other".to_string(), 1.0)];
        assert_eq!(epoch.made.metrics.0, expected);
    }
}
