//! Evaluation: whole games with the current policy, without exploring.

use engine::Key;

use super::held_out::HeldOut;
use super::played::Played;
use super::{Epoch, Phase, Result, Stream, TrainError, Trainer};
use crate::player::evaluation_seed;
use crate::{PlayError, Player};

impl Trainer {
    pub(super) fn is_time_to_evaluate(&self) -> bool {
        self.evaluation_episodes() > 0
    }

    fn evaluation_episodes(&self) -> usize {
        self.config.evaluation.episodes_after(self.epoch + 1, self.config.epochs)
    }

    /// Steps of the games that were played.
    pub(super) fn evaluate(&mut self, epoch: &mut Epoch) -> Result<usize> {
        let config = &self.config.evaluation;
        let episodes = self.evaluation_episodes();
        let mut player = Player::new(&self.device, &self.agent, episodes.min(32))?;
        let key = Key { seed: evaluation_seed(self.config.seed), ..self.key(Stream::Evaluate) };
        let names = self.action_names();
        let mut played = Played::new(names.len());
        let mut lengths = vec![0; episodes];
        let measured = if config.losses { config.episodes.min(episodes) } else { 0 };
        let mut held_out: Vec<HeldOut> = (0..episodes).map(|number| HeldOut::new(key.seed, number)).collect();
        let watch = |episode: usize, action: usize| {
            lengths[episode] += 1;
            held_out[episode].actions.push(action as u32);
            played.count_action(action);
        };
        let returns = player
            .evaluate_watched(&self.agent, &self.game, episodes, config.temperature, key, watch, |done| {
                epoch.progress(Phase::Evaluation, done, episodes).is_ok()
            })
            .map_err(|e| match e {
                PlayError::Stopped => TrainError::Interrupted,
                e => e.into(),
            })?;
        let mean = returns.iter().sum::<f32>() / returns.len() as f32;
        epoch.metrics.add("evaluation/return", mean);
        epoch.metrics.add("evaluation/progress", self.game.progress(mean));
        returns.iter().zip(&lengths).for_each(|(total, length)| played.add_episode(*total, *length));
        epoch.played.insert(Phase::Evaluation.name().into(), played.summary(&names));
        let held_out: Vec<(f32, HeldOut)> = returns.into_iter().zip(held_out).collect();
        self.measure_held_out(&held_out[..measured], episodes, epoch)?;
        epoch.evaluated = held_out;
        Ok(lengths.iter().sum())
    }
}
