//! Learning: the batches of the three networks' updates in an epoch.

use engine::Rng;

use super::cache::Cache;
use super::{Epoch, Phase, Result, Schedule, Stream, Trainer, WorldModelObjective};
use crate::replay::{Record, Replay, Segment};
use crate::{Acting, Agent, Dreamer, RewardModel, Sees};

impl Trainer {
    pub(super) fn learn_tokenizer(&mut self, epoch: &mut Epoch) -> Result<()> {
        self.cache.follow(&self.replay);
        let schedule = self.config.tokenizer.schedule.clone();
        let updates = schedule.updates_in(self.epoch);
        let mut rng = Rng::new(self.key(Stream::TokenizerBatches));
        self.tokenizer.set_key(self.key(Stream::Tokenizer));
        self.tokenizer.set_learning_rate(self.learning_rate(&schedule))?;
        let Trainer { agent, replay, cache, tokenizer, .. } = self;
        tokenizer.learn(&agent.tokenizer, (updates, schedule.accumulate), epoch, |batch| {
            let records: Vec<usize> = (0..schedule.batch).map(|_| replay.sample_step(&mut rng)).collect();
            cache.load_frames(replay, &records, &batch.frames)
        })?;
        if updates > 0 {
            cache.clear();
        }
        Ok(())
    }

    pub(super) fn learn_world_model(&mut self, epoch: &mut Epoch) -> Result<()> {
        let schedule = self.config.world_model.schedule.clone();
        let (updates, steps) = (schedule.updates_in(self.epoch), self.config.agent.world_model.steps);
        let mut rng = Rng::new(self.key(Stream::WorldModelBatches));
        self.world_model.set_key(self.key(Stream::WorldModel));
        self.world_model.set_learning_rate(self.learning_rate(&schedule))?;
        let truncation_ends = self.config.world_model.truncation_ends_episode;
        let mut ahead = rng.clone();
        let batch = schedule.batch * schedule.accumulate;
        let coming = Coming { phase: Phase::WorldModel, updates, batch, rendered: false };
        self.prepare(epoch, coming, |replay| replay.sample_starting(&mut ahead, steps))?;
        let Trainer { agent, replay, cache, world_model, .. } = self;
        world_model.learn(&agent.world_model, (updates, schedule.accumulate), epoch, |batch| {
            let segments: Vec<Segment> =
                (0..schedule.batch).map(|_| replay.sample_starting(&mut rng, steps)).collect();
            fill_sequences(cache, agent, replay, &segments, steps, batch, truncation_ends)
        })
    }

    pub(super) fn learn_actor_critic(&mut self, epoch: &mut Epoch) -> Result<()> {
        let (schedule, burn_in) =
            (self.config.actor_critic.schedule.clone(), self.config.actor_critic.burn_in);
        let updates = schedule.updates_in(self.epoch);
        let mut rng = Rng::new(self.key(Stream::ActorCriticBatches));
        self.actor_critic.set_key(self.key(Stream::ActorCritic));
        self.actor_critic.set_learning_rate(self.learning_rate(&schedule))?;
        self.dreamer.set_key(self.key(Stream::Dream));
        let mut ahead = rng.clone();
        let batch = schedule.batch * schedule.accumulate;
        let rendered = burn_in > 0 && self.config.agent.actor_critic.sees == Sees::Frames;
        let coming = Coming { phase: Phase::ActorCritic, updates, batch, rendered };
        self.prepare(epoch, coming, |replay| replay.sample_ending(&mut ahead, burn_in + 1))?;
        let Trainer { agent, replay, cache, dreamer, actor_critic, .. } = self;
        actor_critic.learn(agent, (updates, schedule.accumulate), epoch, |_| {
            let segments: Vec<Segment> =
                (0..schedule.batch).map(|_| replay.sample_ending(&mut rng, burn_in + 1)).collect();
            fill_dream_start(cache, agent, replay, &segments, burn_in, dreamer)?;
            dreamer.dream(agent, Acting::Policy { temperature: 1.0 })?;
            Ok(())
        })
    }

    fn learning_rate(&self, schedule: &Schedule) -> f32 {
        schedule.learning_rate_in(self.epoch, self.config.epochs)
    }

    /// Before an epoch's batches: the tokens of all their records, and their reconstructions. The segments are drawn once more for it: those of a whole epoch
    /// need not fit into memory.
    fn prepare(
        &mut self,
        epoch: &mut Epoch,
        coming: Coming,
        mut draw: impl FnMut(&Replay) -> Segment,
    ) -> Result<()> {
        /// Records at a time.
        const PART: usize = 1 << 14;
        /// Draws per step of the replay, after which hardly a record is left that was not drawn.
        const ENOUGH: usize = 64;
        let Trainer { cache, agent, replay, .. } = self;
        let Coming { phase, updates, batch, rendered } = coming;
        let segments = (0..updates.saturating_mul(batch)).flat_map(|_| draw(replay).records());
        let mut records = segments.take(ENOUGH * replay.steps());
        loop {
            let part: Vec<usize> = records.by_ref().take(PART).collect();
            if part.is_empty() {
                return Ok(());
            }
            cache.prepare(agent, replay, &part, rendered, &mut || epoch.progress(phase, 0, updates))?;
        }
    }
}

/// Batches that an epoch is going to need.
struct Coming {
    phase: Phase,
    updates: usize,
    /// Segments per update.
    batch: usize,
    /// Whether reconstructions are needed beside the tokens.
    rendered: bool,
}

/// Tokens, actions, reward classes, ends and mask of segments into the world model's batch.
fn fill_sequences(
    cache: &mut Cache,
    agent: &Agent,
    replay: &Replay,
    segments: &[Segment],
    steps: usize,
    batch: &WorldModelObjective,
    truncation_ends: bool,
) -> Result<()> {
    let mut rows = vec![None; segments.len() * steps];
    let mut targets = Targets::new(agent.config.world_model.reward, truncation_ends, rows.len());
    for (row, segment) in segments.iter().enumerate() {
        for step in 0..segment.len {
            let (record, at) = (segment.record(step), row * steps + segment.pad_before + step);
            rows[at] = Some(record);
            targets.set(at, &replay.record(record)?);
        }
    }
    cache.load_tokens(agent, replay, &rows, &batch.tokens)?;
    Ok(targets.write(batch)?)
}

/// Actions of the steps of a batch, and what the world model is to predict of them. Steps that are not set are padding.
pub(super) struct Targets {
    model: RewardModel,
    /// Whether a time limit counts as an end.
    truncation_ends: bool,
    actions: Vec<i32>,
    /// [steps, classes]
    rewards: Vec<i32>,
    /// [steps, classes]
    amounts: Vec<f32>,
    ends: Vec<i32>,
    mask: Vec<i32>,
}

impl Targets {
    pub fn new(model: RewardModel, truncation_ends: bool, steps: usize) -> Targets {
        let [actions, ends, mask] = [(); 3].map(|()| vec![0; steps]);
        let (rewards, amounts) = (vec![0; steps * model.classes()], vec![0.0; steps * model.classes()]);
        Targets { model, truncation_ends, actions, rewards, amounts, ends, mask }
    }

    pub fn set(&mut self, at: usize, record: &Record) {
        let count = self.model.classes();
        let (classes, amounts) = self.model.target(record.reward);
        self.rewards[at * count..][..count].copy_from_slice(&classes[..count]);
        self.amounts[at * count..][..count].copy_from_slice(&amounts[..count]);
        let end = record.terminated || record.truncated && self.truncation_ends;
        (self.actions[at], self.ends[at], self.mask[at]) = (record.action as i32, i32::from(end), 1);
    }

    pub fn write(&self, batch: &WorldModelObjective) -> engine::Result<()> {
        for (buffer, values) in [
            (&batch.actions, &self.actions),
            (&batch.rewards, &self.rewards),
            (&batch.ends, &self.ends),
            (&batch.mask, &self.mask),
        ] {
            buffer.write(values)?;
        }
        batch.amounts.iter().try_for_each(|buffer| buffer.write(&self.amounts))
    }
}

/// What the policy saw and did before the dream, and the tokens of its first frame.
fn fill_dream_start(
    cache: &mut Cache,
    agent: &Agent,
    replay: &Replay,
    segments: &[Segment],
    burn_in: usize,
    dreamer: &Dreamer,
) -> Result<()> {
    let mut rows = vec![None; segments.len() * burn_in];
    for (row, segment) in segments.iter().enumerate() {
        for step in 0..segment.len - 1 {
            rows[row * burn_in + segment.pad_before + step] = Some(segment.record(step));
        }
    }
    let first: Vec<Option<usize>> = segments.iter().map(|s| Some(s.record(s.len - 1))).collect();
    let mask: Vec<i32> = rows.iter().map(|row| i32::from(row.is_some())).collect();
    let start = dreamer.start();
    if burn_in > 0 {
        match agent.config.actor_critic.sees {
            Sees::Frames => cache.load_reconstructions(agent, replay, &rows, &start.before)?,
            Sees::Codes => cache.load_tokens(agent, replay, &rows, &start.before)?,
        }
        start.mask.write(&mask)?;
    }
    if let Some(previous) = &start.previous {
        let none = agent.config.actions as i32;
        let mut actions = vec![none; segments.len() * (burn_in + 1)];
        for (row, segment) in actions.chunks_exact_mut(burn_in + 1).zip(segments) {
            let records = segment.before.into_iter().chain(segment.records().take(segment.len - 1));
            let first = segment.pad_before + usize::from(segment.before.is_none());
            for (action, record) in row[first..].iter_mut().zip(records) {
                *action = replay.record(record)?.action as i32;
            }
        }
        previous.write(&actions)?;
    }
    if let Some(context) = &start.context {
        let count = context.actions.shape().last();
        let mut records = Vec::with_capacity(segments.len() * count);
        let mut actions = Vec::with_capacity(segments.len() * count);
        for segment in segments {
            for back in (1..=count).rev() {
                let record = segment.record((segment.len - 1).saturating_sub(back));
                records.push(Some(record));
                let known = back < segment.len;
                actions.push(if known { replay.record(record)?.action as i32 } else { 0 });
            }
        }
        cache.load_tokens(agent, replay, &records, &context.tokens)?;
        context.actions.write(&actions)?;
    }
    cache.load_tokens(agent, replay, &first, &start.tokens)
}

#[cfg(test)]
mod tests {
    use engine::Device;

    use super::super::*;
    use crate::AgentConfig;
    use crate::fuzzing::tiny_agent;
    use crate::testing::Scratch;

    /// Stops at the first update of a phase.
    struct StopsIn(Phase);

    impl Observer for StopsIn {
        fn event(&mut self, event: Event) -> ControlFlow<()> {
            match event {
                Event::Progress { phase, done, .. } if phase == self.0 && done > 0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }

    /// However many updates an epoch has, the first one comes at once.
    #[test]
    fn batches_are_drawn_as_they_are_needed() {
        let device = Device::cpu(Some(1)).unwrap();
        for (phase, updates) in [(Phase::WorldModel, [usize::MAX, 0]), (Phase::ActorCritic, [0, usize::MAX])]
        {
            let scratch = Scratch::new("updates");
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
            let (mut run, mut trainer) = Run::create(&device, config, "", &scratch.0, |_| {}).unwrap();
            let stopped = train(&mut run, &mut trainer, &mut StopsIn(phase));
            assert!(matches!(stopped, Err(TrainError::Interrupted)), "{stopped:?}");
        }
    }
}
