//! Algorithm 1 of the paper: collect, learn the world, learn to act inside it.

mod cache;
mod config;
mod media;
mod run;
mod tensorboard;

use std::hash::Hash;
use std::path::{Path, PathBuf};

use engine::{Adam, Bits, Buffer, Device, Key, Lstm, Rng, StepId, Stepper, Tape, Tensor};
use envs::{Env, Game, Purpose};

pub use config::{
    ActorCriticTraining, CollectionConfig, EvaluationConfig, ReplayConfig, Schedule, TokenizerTraining,
    TrainConfig, WorldModelTraining,
};

pub use run::{Damaged, Run, RunError, StateError};
pub(crate) use run::{optimisers, state};

use crate::player::{episode_seed, evaluation_seed};
use crate::replay::{Record, Replay, ReplayError, Segment};
use crate::{
    Acting, ActorCriticLosses, Agent, AgentId, CheckpointError, Dreamer, Perceptual, PlayError, Player,
    TokenizerLosses, WorldModelBatch, WorldModelLosses,
};
use cache::Cache;

const IMAGINED_REWARD: &str = "actor_critic/train/imagined_reward_per_step";

/// Everything that an update depends on beside the contents of buffers. The trainer's own buffers stay the same as long as it lives.
#[derive(Hash)]
struct UpdateStep<Settings> {
    agent: AgentId,
    adam: Adam,
    /// Of the loss.
    settings: Settings,
}

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Env(#[from] envs::EnvError),
    #[error(transparent)]
    Replay(ReplayError),
    #[error("{0}; `iris train --forget-damaged --resume` goes on without the episodes that are damaged")]
    DamagedReplay(ReplayError),
    #[error(transparent)]
    Play(#[from] PlayError),
    #[error("tokenizer.perceptual: {0}")]
    Perceptual(#[from] CheckpointError),
    #[error(
        "tokenizer.perceptual: the agent in {path} has no perceptual network; use \"random\" or \"none\""
    )]
    NoPerceptual { path: PathBuf },
    #[error("{network}, epoch {epoch}: {reason}")]
    Diverged { network: &'static str, epoch: usize, reason: engine::Error },
    #[error("cannot save the run: {0}")]
    Save(String),
    #[error("stopped")]
    Interrupted,
}

type Result<T, E = TrainError> = std::result::Result<T, E>;

impl From<ReplayError> for TrainError {
    fn from(error: ReplayError) -> TrainError {
        match error {
            ReplayError::Io { .. } => TrainError::Replay(error),
            _ => TrainError::DamagedReplay(error),
        }
    }
}

impl TrainError {
    /// Which of the networks it was that diverged.
    fn of(self, network: &'static str, epoch: usize) -> TrainError {
        match self {
            TrainError::Engine(reason @ engine::Error::NotFinite { .. }) => {
                TrainError::Diverged { network, epoch, reason }
            }
            other => other,
        }
    }
}

/// Watches a run, and may stop it.
pub trait Observer {
    /// `done` of `total` steps of a phase are over. Returning false stops the run.
    fn progress(&mut self, phase: &'static str, done: usize, total: usize) -> bool;

    /// An epoch is over: its metrics, and the trainer in a state that can be saved.
    fn epoch_done(&mut self, trainer: &mut Trainer, metrics: &[(String, f64)]) -> Result<()>;
}

/// Who draws random numbers. Every epoch's numbers are a function of (seed, stream, epoch), so that a resumed run draws the same.
#[derive(Clone, Copy)]
enum Stream {
    Collect = 1,
    Explore,
    Tokenizer,
    TokenizerBatches,
    WorldModel,
    WorldModelBatches,
    ActorCritic,
    ActorCriticBatches,
    Dream,
    Evaluate,
    Media,
}

/// What is reported of an epoch.
#[derive(Default)]
struct Means(Vec<(String, f64)>);

impl Means {
    fn add(&mut self, name: &str, value: f32) {
        self.0.push((name.into(), f64::from(value)));
    }
}

/// Losses of an epoch's updates, added up on the device and read once.
struct Losses {
    sums: Buffer,
    /// In the order of the sums.
    names: Vec<&'static str>,
}

impl Losses {
    fn new(device: &Device, names: &[&'static str]) -> engine::Result<Losses> {
        Ok(Losses { sums: device.buffer::<f32>("losses", [names.len()])?, names: names.to_vec() })
    }

    fn begin(&self) -> Result<()> {
        Ok(self.sums.write(&vec![0f32; self.names.len()])?)
    }

    /// Part of captured steps: the names were given before. One loss more than there are names is an error.
    fn add(&self, tape: &mut Tape, named: &[(&'static str, Tensor)]) -> engine::Result<()> {
        named.iter().enumerate().try_for_each(|(i, (_, loss))| tape.accumulate(&self.sums, i, *loss))
    }

    /// Reports the means over `updates` updates.
    fn finish(&self, updates: usize, means: &mut Means) -> Result<()> {
        if updates > 0 {
            let sums = self.sums.read::<f32>()?;
            self.names.iter().zip(sums).for_each(|(name, sum)| means.add(name, sum / updates as f32));
        }
        Ok(())
    }
}

/// A run: the networks, what they have seen, and the game being played.
pub struct Trainer {
    pub config: TrainConfig,
    pub agent: Agent,
    pub replay: Replay,
    /// Finished epochs.
    pub epoch: usize,
    device: Device,
    game: Game,
    env: Box<dyn Env>,
    player: Player,
    perceptual: Option<Perceptual>,
    stepper: Stepper,
    dreamer: Dreamer,
    batches: Batches,
    cache: Cache,
    /// Of the network being updated, where captured steps read it.
    learning_rate: Buffer,
    tokenizer_losses: Losses,
    world_model_losses: Losses,
    behaviour_losses: Losses,
}

/// Input buffers of the three training steps.
struct Batches {
    frames: Buffer,
    tokens: Buffer,
    actions: Buffer,
    rewards: Buffer,
    ends: Buffer,
    mask: Buffer,
}

/// Trains until all epochs are over. This is the paper's Algorithm 1.
pub fn train(trainer: &mut Trainer, observer: &mut dyn Observer) -> Result<()> {
    while trainer.epoch < trainer.config.epochs {
        let mut means = Means::default();
        if trainer.epoch < trainer.config.collection.epochs {
            trainer.collect_experience(observer, &mut means)?;
        }
        let epoch = trainer.epoch + 1;
        trainer.update_tokenizer(observer, &mut means).map_err(|e| e.of("tokenizer", epoch))?;
        trainer.update_world_model(observer, &mut means).map_err(|e| e.of("world_model", epoch))?;
        trainer.update_behaviour(observer, &mut means).map_err(|e| e.of("actor_critic", epoch))?;
        if trainer.is_time_to_evaluate() {
            trainer.evaluate(observer, &mut means)?;
        }
        trainer.epoch += 1;
        observer.epoch_done(trainer, &means.0)?;
    }
    Ok(())
}

impl Trainer {
    /// A run with these networks and this replay, after `epoch` epochs. The game that was being played is played again up to where it was.
    pub fn new(
        device: &Device,
        config: TrainConfig,
        agent: Agent,
        replay: Replay,
        epoch: usize,
    ) -> Result<Trainer> {
        let game = Game::find(&config.env)?;
        let mut env = game.make(Purpose::Train, config.agent.tokenizer.frame_size)?;
        replay_newest_game(env.as_mut(), &replay)?;
        let (t, w, p) = (&config.agent.tokenizer, &config.agent.world_model, &config.actor_critic);
        let (batch, steps) = (config.world_model.schedule.batch, w.steps);
        let integers = |name: &str| device.buffer::<i32>(name, [batch, steps]);
        let batches = Batches {
            frames: device.buffer::<u8>(
                "frame batch",
                [config.tokenizer.schedule.batch, t.frame_size, t.frame_size, 3],
            )?,
            tokens: device.buffer::<i32>("token batch", [batch, steps, t.tokens()])?,
            actions: integers("action batch")?,
            rewards: integers("reward batch")?,
            ends: integers("end batch")?,
            mask: integers("mask batch")?,
        };
        let dropout = config.tokenizer.perceptual_dropout;
        let perceptual = match config.tokenizer.perceptual.as_str() {
            "none" => None,
            "random" => Some(Perceptual::random(device, dropout)?),
            folder => Some(pretrained(device, Path::new(folder), dropout)?),
        };
        let key = Key::new(config.seed, 0);
        Ok(Trainer {
            player: Player::new(device, &agent, 1)?,
            dreamer: Dreamer::new(device, &agent, p.schedule.batch, p.horizon, p.burn_in, key)?,
            stepper: Stepper::new(device, key),
            cache: Cache::new(device, &agent, replay_rows(&config), config.tokenizer.schedule.batch)?,
            learning_rate: device.scalar("learning rate", 0.0)?,
            tokenizer_losses: Losses::new(
                device,
                &TokenizerLosses::names(config.tokenizer.squared_weight != 0.0, perceptual.is_some()),
            )?,
            world_model_losses: Losses::new(device, &WorldModelLosses::NAMES)?,
            behaviour_losses: Losses::new(
                device,
                &[&ActorCriticLosses::NAMES[..], &[IMAGINED_REWARD]].concat(),
            )?,
            device: device.clone(),
            config,
            agent,
            replay,
            epoch,
            game,
            env,
            perceptual,
            batches,
        })
    }

    pub fn game(&self) -> &Game {
        &self.game
    }

    /// The first of this epoch's numbers of a stream.
    fn key(&self, stream: Stream) -> Key {
        Key { seed: self.config.seed, stream: stream as u32, step: (self.epoch as u64) << 32 }
    }

    fn is_time_to_evaluate(&self) -> bool {
        let next = self.epoch + 1;
        next == self.config.epochs || next.is_multiple_of(self.config.evaluation.every)
    }

    /// Plays with the current policy and remembers what happens.
    fn collect_experience(&mut self, observer: &mut dyn Observer, means: &mut Means) -> Result<()> {
        let config = self.config.collection.clone();
        let random = self.epoch < config.random_epochs;
        let actions = self.env.action_names().len() as u32;
        let mut explore = Rng::new(self.key(Stream::Explore));
        self.player.set_key(self.key(Stream::Collect));
        self.warm_player_up()?;
        let mut frame = vec![0; self.frame_bytes()];
        let mut total = 0.0;
        let mut finished = 0;
        for step in 0..config.steps {
            if self.replay.open_episode().is_none() {
                let seed = episode_seed(self.config.seed, self.replay.table().records);
                let continues = self.env.continues();
                self.env.reset(seed)?;
                self.replay.begin_episode(seed, continues);
                self.player.forget(0)?;
            }
            self.env.render(&mut frame);
            let chosen = match random {
                true => explore.below(actions),
                false => {
                    let chosen = self.player.act(&self.agent, &frame, config.temperature)?[0] as u32;
                    let other = explore.below(actions);
                    if explore.uniform() < config.epsilon { other } else { chosen }
                }
            };
            let outcome = self.env.step(chosen as usize)?;
            total += outcome.reward;
            finished += usize::from(outcome.done());
            self.replay.push(&frame, Record::new(chosen, outcome))?;
            self.check(observer, "collect", step, config.steps)?;
        }
        means.add("collection/reward_per_step", total / config.steps as f32);
        means.add("collection/episodes", finished as f32);
        means.add("collection/steps", self.replay.table().records as f32);
        Ok(())
    }

    /// Rebuilds the policy's memory of an episode that goes on from the epoch before: it has new weights now.
    fn warm_player_up(&mut self) -> Result<()> {
        self.player.forget(0)?;
        if let Some(episode) = self.replay.open_episode() {
            let mut frame = vec![0; self.frame_bytes()];
            let real = episode.len.min(self.config.actor_critic.burn_in);
            for record in episode.start + episode.len - real..episode.start + episode.len {
                self.replay.frame(record, &mut frame)?;
                self.player.act(&self.agent, &frame, 1.0)?;
            }
        }
        Ok(())
    }

    fn update_tokenizer(&mut self, observer: &mut dyn Observer, means: &mut Means) -> Result<()> {
        self.cache.check_room(&self.replay);
        let config = self.config.tokenizer.clone();
        let updates = config.schedule.updates_in(self.epoch);
        let mut rng = Rng::new(self.key(Stream::TokenizerBatches));
        self.stepper.set_key(self.key(Stream::Tokenizer));
        let adam = self.adam(&config.schedule, 0.0)?;
        self.tokenizer_losses.begin()?;
        let perceptual = self.perceptual.as_ref().map(|p| Bits(p.dropout));
        let id = self.step("tokenizer", adam, (Bits(config.squared_weight), perceptual));
        for update in 0..updates {
            let records: Vec<usize> =
                (0..config.schedule.batch).map(|_| self.replay.sample_step(&mut rng)).collect();
            self.cache.load_frames(&self.replay, &records, &self.batches.frames)?;
            let (tokenizer, perceptual) = (&self.agent.tokenizer, self.perceptual.as_ref());
            let (input, sums) = (&self.batches.frames, &self.tokenizer_losses);
            let rate = &self.learning_rate;
            self.stepper.run_captured(id, |tape| -> engine::Result<_> {
                let x = tape.buffer(input)?;
                let x = crate::tokenizer::from_bytes(tape, x)?;
                let losses = tokenizer.loss(tape, x, perceptual, config.squared_weight)?;
                tape.backward(losses.total)?;
                tape.adam(&tokenizer.network.params, rate, &adam)?;
                sums.add(tape, &losses.named())
            })?;
            self.check(observer, "tokenizer", update, updates)?;
        }
        if updates > 0 {
            self.cache.clear();
        }
        self.tokenizer_losses.finish(updates, means)?;
        self.updates_done(observer, "tokenizer", updates)
    }

    fn update_world_model(&mut self, observer: &mut dyn Observer, means: &mut Means) -> Result<()> {
        let config = self.config.world_model.clone();
        let updates = config.schedule.updates_in(self.epoch);
        let mut rng = Rng::new(self.key(Stream::WorldModelBatches));
        self.stepper.set_key(self.key(Stream::WorldModel));
        let adam = self.adam(&config.schedule, config.weight_decay)?;
        self.world_model_losses.begin()?;
        let id = self.step("world model", adam, ());
        let steps = self.config.agent.world_model.steps;
        let batch = config.schedule.batch;
        let mut ahead = rng.clone();
        self.prepare(observer, ("world model", updates), batch, false, |replay| {
            replay.sample_starting(&mut ahead, steps)
        })?;
        for update in 0..updates {
            let segments: Vec<Segment> =
                (0..batch).map(|_| self.replay.sample_starting(&mut rng, steps)).collect();
            self.fill_world_model_batch(&segments, steps)?;
            let (model, batches) = (&self.agent.world_model, &self.batches);
            let (sums, rate) = (&self.world_model_losses, &self.learning_rate);
            self.stepper.run_captured(id, |tape| -> engine::Result<_> {
                let batch = WorldModelBatch {
                    tokens: tape.buffer(&batches.tokens)?,
                    actions: tape.buffer(&batches.actions)?,
                    rewards: tape.buffer(&batches.rewards)?,
                    ends: tape.buffer(&batches.ends)?,
                    mask: tape.buffer(&batches.mask)?,
                };
                let losses = model.loss(tape, &batch, true)?;
                tape.backward(losses.total)?;
                tape.adam(&model.network.params, rate, &adam)?;
                sums.add(tape, &losses.named())
            })?;
            self.check(observer, "world model", update, updates)?;
        }
        self.world_model_losses.finish(updates, means)?;
        self.updates_done(observer, "world model", updates)
    }

    /// Before an epoch's batches: the tokens of all their records, and what they are rendered as, if there are tables for them. The segments are drawn once
    /// more for it: those of a whole epoch need not fit into memory.
    fn prepare(
        &mut self,
        observer: &mut dyn Observer,
        (phase, updates): (&'static str, usize),
        batch: usize,
        rendered: bool,
        mut draw: impl FnMut(&Replay) -> Segment,
    ) -> Result<()> {
        /// After how many records it may be stopped.
        const PART: usize = 1 << 14;
        if !self.cache.has_tables() {
            return Ok(());
        }
        let Trainer { cache, agent, replay, .. } = self;
        let segments = updates.saturating_mul(batch);
        let mut records = (0..segments).flat_map(|_| draw(replay).records());
        loop {
            let part: Vec<usize> = records.by_ref().take(PART).collect();
            if part.is_empty() {
                return Ok(());
            }
            cache.tokenise(agent, replay, &part)?;
            if rendered {
                cache.render(agent, &part)?;
            }
            if !observer.progress(phase, 0, updates) {
                return Err(TrainError::Interrupted);
            }
        }
    }

    /// Tokens, actions, reward classes, ends and mask of segments into the input buffers.
    fn fill_world_model_batch(&mut self, segments: &[Segment], steps: usize) -> Result<()> {
        let mut rows = vec![None; segments.len() * steps];
        let [mut actions, mut rewards, mut ends, mut mask] =
            [(); 4].map(|()| vec![0i32; segments.len() * steps]);
        for (row, segment) in segments.iter().enumerate() {
            for step in 0..segment.len {
                let (record, at) = (segment.first + step, row * steps + segment.pad_before + step);
                rows[at] = Some(record);
                let Record { action, reward, terminated, truncated } = self.replay.record(record)?;
                let end = terminated || truncated && self.config.world_model.truncation_ends_episode;
                // The sign of the reward, plus one.
                let class = 1 + i32::from(reward > 0.0) - i32::from(reward < 0.0);
                (actions[at], rewards[at], ends[at], mask[at]) = (action as i32, class, i32::from(end), 1);
            }
        }
        self.cache.load_tokens(&self.agent, &self.replay, &rows, &self.batches.tokens)?;
        for (buffer, values) in [
            (&self.batches.actions, actions),
            (&self.batches.rewards, rewards),
            (&self.batches.ends, ends),
            (&self.batches.mask, mask),
        ] {
            buffer.write(&values)?;
        }
        Ok(())
    }

    fn update_behaviour(&mut self, observer: &mut dyn Observer, means: &mut Means) -> Result<()> {
        let config = self.config.actor_critic.clone();
        let updates = config.schedule.updates_in(self.epoch);
        let mut rng = Rng::new(self.key(Stream::ActorCriticBatches));
        self.stepper.set_key(self.key(Stream::ActorCritic));
        self.dreamer.set_key(self.key(Stream::Dream));
        let adam = self.adam(&config.schedule, 0.0)?;
        let returns = config.returns;
        self.behaviour_losses.begin()?;
        let id = self.step("behaviour", adam, returns);
        let frames = config.burn_in + 1;
        let batch = config.schedule.batch;
        let mut ahead = rng.clone();
        self.prepare(observer, ("behaviour", updates), batch, config.burn_in > 0, |replay| {
            replay.sample_ending(&mut ahead, frames)
        })?;
        for update in 0..updates {
            let segments: Vec<Segment> =
                (0..batch).map(|_| self.replay.sample_ending(&mut rng, frames)).collect();
            self.fill_dream_start(&segments, config.burn_in)?;
            let dreamt = self.dreamer.dream(&self.agent, Acting::Policy { temperature: 1.0 })?;
            let policy = &self.agent.actor_critic;
            let (sums, rate) = (&self.behaviour_losses, &self.learning_rate);
            self.stepper.run_captured(id, |tape| -> engine::Result<_> {
                let frames = tape.buffer(&dreamt.frames)?;
                let state = Lstm { hidden: tape.buffer(&dreamt.hidden)?, cell: tape.buffer(&dreamt.cell)? };
                let output = policy.follow(tape, frames, state)?;
                let (actions, ends) = (tape.buffer(&dreamt.actions)?, tape.buffer(&dreamt.ends)?);
                let rewards = tape.buffer(&dreamt.rewards)?;
                let losses = policy.loss(tape, output, actions, rewards, ends, &returns)?;
                tape.backward(losses.total)?;
                tape.adam(&policy.network.params, rate, &adam)?;
                let reward = tape.mean(rewards)?;
                let mut named = losses.named().to_vec();
                named.push((IMAGINED_REWARD, reward));
                sums.add(tape, &named)
            })?;
            self.check(observer, "behaviour", update, updates)?;
        }
        self.behaviour_losses.finish(updates, means)?;
        self.updates_done(observer, "behaviour", updates)
    }

    /// Reconstructed frames before the dream, and the tokens of its first.
    fn fill_dream_start(&mut self, segments: &[Segment], burn_in: usize) -> Result<()> {
        let mut rows = vec![None; segments.len() * burn_in];
        for (row, segment) in segments.iter().enumerate() {
            for step in 0..segment.len - 1 {
                rows[row * burn_in + segment.pad_before + step] = Some(segment.first + step);
            }
        }
        let first: Vec<Option<usize>> = segments.iter().map(|s| Some(s.first + s.len - 1)).collect();
        let mask: Vec<i32> = rows.iter().map(|row| i32::from(row.is_some())).collect();
        let start = self.dreamer.start();
        if burn_in > 0 {
            self.cache.load_reconstructions(&self.agent, &self.replay, &rows, &start.frames)?;
            start.mask.write(&mask)?;
        }
        self.cache.load_tokens(&self.agent, &self.replay, &first, &start.tokens)
    }

    /// Plays whole games with the current policy, without exploring.
    fn evaluate(&mut self, observer: &mut dyn Observer, means: &mut Means) -> Result<()> {
        let config = &self.config.evaluation;
        let last = self.epoch + 1 == self.config.epochs;
        let episodes = if last { config.final_episodes } else { config.episodes };
        let mut player = Player::new(&self.device, &self.agent, episodes.min(32))?;
        let game = &self.game;
        let key = Key { seed: evaluation_seed(self.config.seed), ..self.key(Stream::Evaluate) };
        let returns = player
            .evaluate(&self.agent, game, episodes, config.temperature, key, |done| {
                observer.progress("evaluate", done, episodes)
            })
            .map_err(|e| match e {
                PlayError::Stopped => TrainError::Interrupted,
                e => e.into(),
            })?;
        let mean = returns.iter().sum::<f32>() / returns.len() as f32;
        means.add("evaluation/return", mean);
        means.add("evaluation/progress", game.progress(mean));
        Ok(())
    }

    /// The optimiser of an epoch's updates. Sets their learning rate.
    fn adam(&self, schedule: &Schedule, weight_decay: f32) -> Result<Adam> {
        self.learning_rate.write(&[schedule.learning_rate_in(self.epoch, self.config.epochs)])?;
        Ok(Adam { max_grad_norm: schedule.max_grad_norm, weight_decay, ..Adam::default() })
    }

    fn step(&self, name: &'static str, adam: Adam, settings: impl Hash) -> StepId {
        StepId::new(name, &UpdateStep { agent: self.agent.identity(), adam, settings })
    }

    fn frame_bytes(&self) -> usize {
        let size = self.config.agent.tokenizer.frame_size;
        size * size * 3
    }

    /// A device may still be at work when the last update has been handed to it; now it is not.
    fn updates_done(&self, observer: &mut dyn Observer, phase: &'static str, updates: usize) -> Result<()> {
        match updates {
            0 => Ok(()),
            _ => self.check(observer, phase, updates - 1, updates),
        }
    }

    fn check(
        &self,
        observer: &mut dyn Observer,
        phase: &'static str,
        done: usize,
        total: usize,
    ) -> Result<()> {
        match observer.progress(phase, done + 1, total) {
            true => Ok(()),
            false => Err(TrainError::Interrupted),
        }
    }
}

/// The perceptual network that came with an imported agent.
fn pretrained(device: &Device, folder: &Path, dropout: f32) -> Result<Perceptual> {
    let (_, perceptual) = Agent::load(device, folder)?;
    let mut perceptual = perceptual.ok_or_else(|| TrainError::NoPerceptual { path: folder.into() })?;
    perceptual.dropout = dropout;
    Ok(perceptual)
}

/// Plays the newest game again, up to where it was: from its fresh start, over the lives lost since. A game that is over ends again.
fn replay_newest_game(env: &mut dyn Env, replay: &Replay) -> Result<()> {
    for episode in replay.whole_newest_game() {
        env.reset(episode.seed)?;
        for record in episode.start..episode.start + episode.len {
            env.step(replay.record(record)?.action as usize)?;
        }
    }
    Ok(())
}

/// The most steps the replay holds at once: what is collected, or what is kept of it and a long episode beyond.
fn replay_rows(config: &TrainConfig) -> usize {
    let frame_bytes = config.agent.tokenizer.frame_size.pow(2) * 3;
    let kept = config.replay.steps(Replay::step_bytes(frame_bytes));
    let epochs = config.collection.epochs.min(config.epochs);
    config.collection.steps.saturating_mul(epochs).min(kept + kept / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AgentConfig;
    use crate::fuzzing::tiny_agent;

    /// Stops at the first update of a phase.
    struct StopsIn(&'static str);

    impl Observer for StopsIn {
        fn progress(&mut self, phase: &'static str, done: usize, _: usize) -> bool {
            phase != self.0 || done == 0
        }

        fn epoch_done(&mut self, _: &mut Trainer, _: &[(String, f64)]) -> Result<()> {
            Ok(())
        }
    }

    /// However many updates an epoch has, the first one comes at once.
    #[test]
    fn batches_are_drawn_as_they_are_needed() {
        let folder = std::env::temp_dir().join(format!("iris-updates-{}", std::process::id()));
        let device = Device::cpu(Some(1)).unwrap();
        for (phase, updates) in [("world model", [usize::MAX, 0]), ("behaviour", [0, usize::MAX])] {
            let _ = std::fs::remove_dir_all(&folder);
            let schedule = |updates| Schedule { start_after: 0, updates, batch: 2, ..Schedule::default() };
            let config = TrainConfig {
                agent: AgentConfig { actions: 3, ..tiny_agent(&device).unwrap().config },
                tokenizer: TokenizerTraining {
                    schedule: schedule(0),
                    perceptual: "none".into(),
                    ..TokenizerTraining::default()
                },
                world_model: WorldModelTraining {
                    schedule: schedule(updates[0]),
                    ..WorldModelTraining::default()
                },
                actor_critic: ActorCriticTraining {
                    schedule: schedule(updates[1]),
                    horizon: 2,
                    burn_in: 2,
                    ..ActorCriticTraining::default()
                },
                ..TrainConfig::default()
            };
            let (_, mut trainer) = Run::create(&device, config, "", &folder, |_| {}).unwrap();
            let stopped = train(&mut trainer, &mut StopsIn(phase));
            assert!(matches!(stopped, Err(TrainError::Interrupted)), "{stopped:?}");
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}
