//! Collection: the current policy plays, and the replay remembers what happens.

use engine::Rng;
use envs::Env;

use super::played::Played;
use super::{Epoch, Phase, Result, SetupError, Stream, Trainer};
use crate::player::episode_seed;
use crate::replay::{Record, Replay};

impl Trainer {
    /// Plays with the current policy and remembers what happens.
    pub(super) fn collect(&mut self, epoch: &mut Epoch) -> Result<()> {
        let config = self.config.collection.clone();
        let random = self.epoch < config.random_epochs;
        let actions = self.env.action_names().len() as u32;
        let mut explore = Rng::new(self.key(Stream::Explore));
        self.player.set_key(self.key(Stream::Collect));
        self.warm_player_up()?;
        let mut frame = vec![0; self.frame_bytes()];
        let mut total = 0.0;
        let mut played = Played::new(actions as usize);
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
            played.count_action(chosen as usize);
            self.replay.push(&frame, Record::new(chosen, outcome))?;
            if let Some(episode) = self.replay.table().episodes.last().filter(|_| outcome.done()) {
                // It may have begun epochs ago.
                let records = episode.start..episode.end();
                let total: Result<f32> =
                    records.map(|record| -> Result<f32> { Ok(self.replay.record(record)?.reward) }).sum();
                played.add_episode(total?, episode.len);
            }
            epoch.progress(Phase::Collection, step + 1, config.steps)?;
        }
        epoch.metrics.add("collection/reward_per_step", total / config.steps as f32);
        epoch.metrics.add("collection/episodes", played.episodes() as f32);
        epoch.metrics.add("collection/steps", self.replay.table().records as f32);
        epoch.played.insert(Phase::Collection.name().into(), played.summary(&self.env.action_names()));
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

    fn frame_bytes(&self) -> usize {
        let size = self.config.agent.tokenizer.frame_size;
        size * size * 3
    }
}

/// Plays the newest game again, up to where it was: from its fresh start, over the lives lost since. A game that is over ends again.
pub(super) fn replay_newest_game(env: &mut dyn Env, replay: &Replay) -> Result<(), SetupError> {
    for episode in replay.whole_newest_game() {
        env.reset(episode.seed)?;
        for record in episode.start..episode.start + episode.len {
            env.step(replay.record(record)?.action as usize)?;
        }
    }
    Ok(())
}
