//! How long the steps of a run take on this device, from a few of each phase on scratch copies: nothing of the run itself is touched.

use std::time::Instant;

use agent::train::{
    ActorCriticObjective, Learner, Phase, TokenizerObjective, TrainConfig, WorldModelObjective,
};
use agent::{Acting, Agent, Dreamer, Perceptual, Player, Sees};
use anyhow::Result;
use engine::{Adam, Buffer, Device, Key};
use envs::{Purpose, Random};

use crate::pace::{Forecast, steps_left};

/// Updates of the networks below which a run is over before its forecast would be worth the wait.
const WORTH_IT: f64 = 50.0;
/// Seconds above which an update is not timed whole on a CPU, but computed from smaller ones.
const SLOW: f64 = 0.5;
/// Steps of a game that are played to see how long it lasts, and the seconds it may take.
const GAME_STEPS: usize = 2000;
const GAME_SECONDS: f64 = 1.0;
/// Share of a reconstruction that goes into its first half, the tokens.
const ENCODING: f64 = 0.4;

/// Seconds of a step of every phase that is to come after `epoch` epochs. None for a run that is as short as its forecast.
pub fn forecast(device: &Device, config: &TrainConfig, epoch: usize) -> Result<Option<Forecast>> {
    let networks = [Phase::Tokenizer, Phase::WorldModel, Phase::ActorCritic];
    if networks.iter().map(|phase| steps_left(config, *phase, epoch)).sum::<f64>() < WORTH_IT {
        return Ok(None);
    }
    let mut trial =
        Trial { device, config, agent: Agent::new(device, &config.agent, 0)?, random: Random::new(0) };
    let mut forecast = Forecast::new();
    let (step, length) = trial.game()?;
    let [alone, frame] = trial.acting()?;
    let random = config.collection.random_epochs.min(config.epochs).saturating_sub(epoch) as f64;
    let played = config.collection.epochs.min(config.epochs).saturating_sub(epoch).max(1) as f64;
    // Games side by side share a pass of the policy.
    let act = (alone / config.collection.envs as f64).max(frame);
    forecast.insert(Phase::Collection, step + act * (1.0 - (random / played).min(1.0)));
    forecast.insert(Phase::Evaluation, length * (step + frame));
    let [encoded, decoded] = frames_to_look_at(config, epoch);
    let mut extra = encoded * frame * ENCODING;
    for phase in networks {
        let updates = steps_left(config, phase, epoch);
        if updates == 0.0 {
            continue;
        }
        let update = match phase {
            Phase::Tokenizer => trial.tokenizer()? * config.tokenizer.schedule.accumulate as f64,
            Phase::WorldModel => {
                trial.world_model()? * config.world_model.schedule.accumulate as f64
                    + std::mem::take(&mut extra) / updates
            }
            _ => {
                trial.actor_critic()? * config.actor_critic.schedule.accumulate as f64
                    + (extra + decoded * frame * (1.0 - ENCODING)) / updates
            }
        };
        forecast.insert(phase, update);
    }
    drop(trial);
    device.free_step_memory();
    Ok(Some(forecast))
}

/// Frames of the replay that are encoded, and decoded again, for the batches to come: each once after the tokenizer has changed.
fn frames_to_look_at(config: &TrainConfig, epoch: usize) -> [f64; 2] {
    // A thousand epochs stand for all.
    let stride = (config.epochs.saturating_sub(epoch) / 1000).max(1);
    let (w, p) = (&config.world_model.schedule, &config.actor_critic.schedule);
    let mut frames = [0.0; 2];
    for e in (epoch..config.epochs).step_by(stride) {
        let playing = e < config.collection.epochs;
        let collected = config.collection.steps as f64 * config.collection.epochs.min(e + 1) as f64;
        let replay = collected.min(config.replay.max_steps as f64);
        let sequences =
            w.updates_in(e) as f64 * (w.batch * w.accumulate) as f64 * config.agent.world_model.steps as f64;
        let dreams = p.updates_in(e) as f64 * (p.batch * p.accumulate) as f64;
        let before = dreams * config.actor_critic.burn_in as f64;
        let wanted = match config.agent.actor_critic.sees {
            Sees::Frames => [sequences + dreams, before],
            Sees::Codes => [sequences + dreams + before, 0.0],
        };
        for (sum, wanted) in frames.iter_mut().zip(wanted).filter(|(_, wanted)| *wanted > 0.0) {
            *sum += stride as f64
                * match config.tokenizer.schedule.updates_in(e) > 0 {
                    // So many of the replay are among as many draws with replacement.
                    true => replay * (1.0 - (-wanted / replay).exp()),
                    false if playing => config.collection.steps as f64,
                    false => 0.0,
                };
        }
    }
    frames
}

/// Scratch copies of all that a run has.
struct Trial<'a> {
    device: &'a Device,
    config: &'a TrainConfig,
    agent: Agent,
    random: Random,
}

impl Trial<'_> {
    /// Seconds of a step, after those that warm up and that a GPU captures.
    fn time(&self, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
        let warm_up = if self.device.is_gpu() { 3 } else { 1 };
        let (mut best, mut runs) = (f64::INFINITY, warm_up + 3);
        let mut run = 0;
        while run < runs {
            let start = Instant::now();
            step()?;
            self.device.synchronise()?;
            let seconds = start.elapsed().as_secs_f64();
            if seconds > SLOW / 2.0 {
                runs = warm_up + 1;
            }
            if run >= warm_up {
                best = best.min(seconds);
            }
            run += 1;
        }
        Ok(best)
    }

    /// Seconds of an update with a batch: timed whole where that is quick, else computed from two small ones.
    fn update(&self, batch: usize, mut time: impl FnMut(&Self, usize) -> Result<f64>) -> Result<f64> {
        let small = [2, 5];
        if self.device.is_gpu() || batch <= small[1] {
            return time(self, batch);
        }
        let times = [time(self, small[0])?, time(self, small[1])?];
        match extrapolated(small, times, batch) {
            seconds if seconds < SLOW => time(self, batch),
            seconds => Ok(seconds),
        }
    }

    fn integers(&self, buffer: &Buffer, below: usize) -> Result<()> {
        let mut random = self.random.clone();
        let values: Vec<i32> = (0..buffer.shape().len()).map(|_| random.below(below) as i32).collect();
        Ok(buffer.write(&values)?)
    }

    fn tokenizer(&self) -> Result<f64> {
        let training = &self.config.tokenizer;
        self.update(training.schedule.batch, |trial, batch| {
            // A pretrained network takes as long as a random one.
            let perceptual = match training.perceptual.as_str() {
                "none" => None,
                _ => Some(Perceptual::random(trial.device, training.perceptual_dropout)?),
            };
            let sizes = &trial.config.agent.tokenizer;
            let objective = TokenizerObjective::new(trial.device, sizes, batch, perceptual, training.into())?;
            let mut random = trial.random.clone();
            let frames: Vec<u8> =
                (0..objective.frames.shape().len()).map(|_| random.next_u64() as u8).collect();
            objective.frames.write(&frames)?;
            let mut learner = Learner::new(trial.device, objective, Adam::default(), RATE)?;
            trial.time(|| Ok(learner.update(&trial.agent.tokenizer)?))
        })
    }

    fn world_model(&self) -> Result<f64> {
        self.update(self.config.world_model.schedule.batch, |trial, batch| {
            let sizes = &trial.config.agent;
            let objective = WorldModelObjective::new(trial.device, sizes, batch)?;
            trial.integers(&objective.tokens, sizes.tokenizer.vocabulary)?;
            trial.integers(&objective.actions, sizes.actions)?;
            trial.integers(&objective.rewards, 3)?;
            objective.mask.write(&vec![1i32; objective.mask.shape().len()])?;
            let mut learner = Learner::new(trial.device, objective, Adam::default(), RATE)?;
            trial.time(|| Ok(learner.update(&trial.agent.world_model)?))
        })
    }

    fn actor_critic(&self) -> Result<f64> {
        let training = &self.config.actor_critic;
        let dreams = |trial: &Trial, batch: usize, horizon: usize, burn_in: usize| {
            let (device, agent) = (trial.device, &trial.agent);
            let mut dreamer = Dreamer::new(device, agent, batch, horizon, burn_in, Key::new(0, 0))?;
            trial.integers(&dreamer.start().tokens, agent.config.tokenizer.vocabulary)?;
            dreamer.start().mask.write(&vec![1i32; dreamer.start().mask.shape().len()])?;
            let objective = ActorCriticObjective::new(dreamer.trajectories().clone(), training.returns);
            let mut learner = Learner::new(device, objective, Adam::default(), RATE)?;
            trial.time(|| {
                dreamer.dream(agent, Acting::Policy { temperature: 1.0 })?;
                Ok(learner.update(agent)?)
            })
        };
        let (batch, horizon, burn_in) = (training.schedule.batch, training.horizon, training.burn_in);
        // A fifth of a dream stands for it where that is still enough to see.
        let short = if self.device.is_gpu() { horizon } else { (horizon / 5).max(2).min(horizon) };
        let scale = horizon as f64 / short as f64;
        let seconds = self
            .update(batch, |trial, batch| dreams(trial, batch, short, burn_in * short / horizon))?
            * scale;
        match short < horizon && seconds < SLOW {
            true => dreams(self, batch, horizon, burn_in),
            false => Ok(seconds),
        }
    }

    /// Seconds that it takes to act in one game, and for each of several at once.
    fn acting(&mut self) -> Result<[f64; 2]> {
        let size = self.config.agent.tokenizer.frame_size;
        let several = if self.device.is_gpu() { 64 } else { 4 };
        let mut seconds = [0.0; 2];
        for (seconds, batch) in seconds.iter_mut().zip([1, several]) {
            let mut player = Player::new(self.device, &self.agent, batch)?;
            let frames = vec![0; batch * size * size * 3];
            let time = self.time(|| {
                player.act(&self.agent, &frames, 1.0)?;
                Ok(())
            })?;
            *seconds = time / batch as f64;
        }
        Ok(seconds)
    }

    /// Seconds of a step of the game, and the steps of a whole game by random play.
    fn game(&mut self) -> Result<(f64, f64)> {
        let size = self.config.agent.tokenizer.frame_size;
        let mut env = self.config.game(None)?.make(Purpose::Evaluate, size)?;
        let (actions, mut frame) = (env.action_names().len(), vec![0; size * size * 3]);
        let mut games = 0;
        let start = Instant::now();
        env.reset(0)?;
        for step in 1..=GAME_STEPS {
            let done = env.step(self.random.below(actions))?.done();
            env.render(&mut frame);
            if done {
                games += 1;
                env.reset(games)?;
            }
            let seconds = start.elapsed().as_secs_f64();
            if step == GAME_STEPS || seconds > GAME_SECONDS {
                return Ok((seconds / step as f64, step as f64 / games.max(1) as f64));
            }
        }
        Ok((0.0, 0.0))
    }
}

/// Any: an update takes as long with every learning rate.
const RATE: f32 = 1e-4;

/// The time of a large batch from those of two small ones: a part for every update and a part for every element of its batch.
fn extrapolated(batches: [usize; 2], seconds: [f64; 2], batch: usize) -> f64 {
    let [small, large] = batches.map(|batch| batch as f64);
    let slope = (seconds[1] - seconds[0]) / (large - small);
    // Noise must not make batches free, nor dearer than one by one.
    let slope = slope.clamp(0.1 * seconds[1] / large, seconds[1] / large);
    seconds[1] + slope * (batch as f64 - large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_are_computed_from_small_ones() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        // 0.1 s for the update, 0.2 s for each element.
        near(extrapolated([2, 5], [0.5, 1.1], 64), 0.1 + 64.0 * 0.2);
        // The small one was disturbed: as if each element took as long as before.
        near(extrapolated([2, 5], [3.0, 1.0], 55), 1.0 + 50.0 * 0.02);
        near(extrapolated([2, 5], [0.0, 1.0], 10), 2.0);
    }

    #[test]
    fn frames_are_looked_at_once_per_change_of_the_tokenizer() {
        let mut config = TrainConfig { epochs: 3, ..TrainConfig::default() };
        (config.collection.steps, config.actor_critic.burn_in) = (100, 4);
        let schedule = |schedule: &mut agent::train::Schedule, start, updates, batch| {
            (schedule.start_after, schedule.updates, schedule.batch) = (start, updates, batch);
        };
        schedule(&mut config.tokenizer.schedule, 0, 1, 1);
        schedule(&mut config.world_model.schedule, 1, 1_000_000, 10);
        schedule(&mut config.actor_critic.schedule, 2, 1_000_000, 10);
        // So many draws that every frame is among them: 200 in the second epoch, 300 in the third.
        let [encoded, decoded] = frames_to_look_at(&config, 0);
        assert!((encoded - 500.0).abs() < 1e-6 && (decoded - 300.0).abs() < 1e-6, "{encoded} {decoded}");
        // A tokenizer that stays as it is: only the new frames.
        config.tokenizer.schedule.updates = 0;
        assert_eq!(frames_to_look_at(&config, 0), [200.0, 100.0]);
        assert_eq!(frames_to_look_at(&config, 3), [0.0, 0.0]);
    }
}
