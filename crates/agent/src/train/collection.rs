//! Collection: the current policy plays, and the replay remembers what happens.

use engine::Rng;
use envs::Env;

use super::played::Played;
use super::{Epoch, Phase, Result, SetupError, Stream, Trainer};
use crate::player::episode_seed;
use crate::replay::{Episode, Record, Replay};

impl Trainer {
    /// Plays with the current policy and remembers what happens. Games side by side make a step each in turn.
    pub(super) fn collect(&mut self, epoch: &mut Epoch) -> Result<()> {
        let config = self.config.collection.clone();
        let (random, games) = (self.epoch < config.random_epochs, config.envs);
        let names = self.action_names();
        let actions = names.len() as u32;
        let mut explore = Rng::new(self.key(Stream::Explore));
        self.player.set_key(self.key(Stream::Collect));
        self.warm_player_up()?;
        let device = self.device.clone();
        let mut frames = vec![0; games * self.frame_bytes()];
        let mut total = 0.0;
        let mut played = Played::new(actions as usize);
        for round in 0..config.steps / games {
            let continues = self.envs.continues();
            let first = self.replay.table().records;
            let begins = |game| self.replay.open_episode(game).is_none();
            let seed = |game| begins(game).then(|| episode_seed(self.config.seed, first + game));
            let seeds: Vec<Option<u64>> = (0..games).map(seed).collect();
            device.on_host_threads(|| self.envs.reset(&seeds))?;
            for game in (0..games).filter(|game| seeds[*game].is_some()) {
                self.player.forget(game)?;
            }
            device.on_host_threads(|| self.envs.render(&mut frames));
            let chosen: Vec<usize> = match random {
                true => (0..games).map(|_| explore.below(actions) as usize).collect(),
                false => {
                    let chosen = self.player.act(&self.agent, &frames, config.temperature)?;
                    let explored = |chosen: i32| {
                        let other = explore.below(actions) as usize;
                        if explore.uniform() < config.epsilon { other } else { chosen as usize }
                    };
                    let taken: Vec<usize> = chosen.iter().copied().map(explored).collect();
                    for (game, (taken, chosen)) in taken.iter().zip(chosen).enumerate() {
                        if *taken != chosen as usize {
                            self.player.took(game, *taken)?;
                        }
                    }
                    taken
                }
            };
            let taken: Vec<Option<usize>> = chosen.iter().copied().map(Some).collect();
            let outcomes = device.on_host_threads(|| self.envs.step(&taken))?;
            let steps = outcomes.into_iter().flatten().zip(frames.chunks_exact(frames.len() / games));
            for (game, (outcome, frame)) in steps.enumerate() {
                if let Some(seed) = seeds[game] {
                    self.replay.begin_episode(seed, continues[game]);
                }
                total += outcome.reward;
                played.count_action(chosen[game]);
                self.replay.push(frame, Record::new(chosen[game] as u32, outcome))?;
                if let Some(episode) = self.replay.newest_episode(game).filter(|_| outcome.done()) {
                    // It may have begun epochs ago.
                    let reward = |record| -> Result<f32> { Ok(self.replay.record(record)?.reward) };
                    let total = episode.records().map(reward).sum::<Result<f32>>()?;
                    played.add_episode(total, episode.len);
                    epoch.collected.push((total, episode));
                }
            }
            epoch.progress(Phase::Collection, (round + 1) * games, config.steps)?;
        }
        epoch.metrics.add("collection/reward_per_step", total / config.steps as f32);
        epoch.metrics.add("collection/episodes", played.episodes() as f32);
        epoch.metrics.add("collection/steps", self.replay.table().records as f32);
        epoch.played.insert(Phase::Collection.name().into(), played.summary(&names));
        Ok(())
    }

    /// Rebuilds the policy's memory of episodes that go on from the epoch before: it has new weights now.
    fn warm_player_up(&mut self) -> Result<()> {
        let (games, bytes) = (self.config.collection.envs, self.frame_bytes());
        (0..games).try_for_each(|game| self.player.forget(game))?;
        let burn_in = self.config.actor_critic.burn_in;
        let open = |game| self.replay.open_episode(game).filter(|episode| episode.len > 0);
        let open: Vec<Option<Episode>> = (0..games).map(open).collect();
        let newest = |episode: &Option<Episode>| -> Vec<usize> {
            let skipped = |episode: &Episode| episode.len.saturating_sub(burn_in);
            episode.iter().flat_map(|episode| episode.records().skip(skipped(episode))).collect()
        };
        let newest: Vec<Vec<usize>> = open.iter().map(newest).collect();
        let most = newest.iter().map(Vec::len).max().unwrap_or(0);
        let mut frames = vec![0; games * bytes];
        for step in 0..most {
            // All end together, so that shorter ones begin later.
            let record = |game: usize| newest[game].get((step + newest[game].len()).checked_sub(most)?);
            for (game, frame) in frames.chunks_exact_mut(bytes).enumerate() {
                if let (Some(record), Some(episode)) = (record(game), open[game]) {
                    self.replay.frame(*record, frame)?;
                    self.tell_previous_action(game, episode.before(*record))?;
                }
            }
            self.player.act(&self.agent, &frames, 1.0)?;
            for game in (0..games).filter(|game| record(*game).is_none()) {
                self.player.forget(game)?;
            }
        }
        for (game, episode) in open.iter().enumerate() {
            self.tell_previous_action(game, episode.and_then(|episode| episode.records().next_back()))?;
        }
        Ok(())
    }

    /// Tells the player what was done in a record, if its policy is given the previous action.
    fn tell_previous_action(&mut self, game: usize, record: Option<usize>) -> Result<()> {
        if let Some(record) = record.filter(|_| self.config.agent.actor_critic.previous_action) {
            self.player.took(game, self.replay.record(record)?.action as usize)?;
        }
        Ok(())
    }

    pub(super) fn action_names(&self) -> Vec<String> {
        self.envs.first().map_or_else(Vec::new, |env| env.action_names())
    }

    fn frame_bytes(&self) -> usize {
        let size = self.config.agent.tokenizer.frame_size;
        size * size * 3
    }
}

/// Plays one of the games again, up to where it was: from its fresh start, over the lives lost since. A game that is over ends again.
pub(super) fn replay_newest_game(env: &mut dyn Env, replay: &Replay, game: usize) -> Result<(), SetupError> {
    for episode in replay.whole_newest_game(game) {
        env.reset(episode.seed)?;
        for record in episode.records() {
            env.step(replay.record(record)?.action as usize)?;
        }
    }
    Ok(())
}
