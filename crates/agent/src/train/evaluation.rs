//! Evaluation: whole games with the current policy, without exploring.

use engine::{Device, Key};

use super::ended::Ended;
use super::held_out::HeldOut;
use super::played::Played;
use super::{Epoch, Phase, Result, Stream, TrainError};
use crate::player::evaluation_seed;
use crate::{PlayError, Player};

/// Games that are played side by side: a pass of the policy over many takes a GPU hardly longer than one over few.
fn places(device: &Device) -> usize {
    if device.is_gpu() { 100 } else { 32 }
}

impl Ended<'_> {
    /// Evaluates the epoch if that is due.
    pub fn evaluate(&mut self, epoch: &mut Epoch) -> Result<()> {
        let config = &self.config.evaluation;
        let episodes = config.episodes_after(self.epoch, self.config.epochs);
        if episodes == 0 {
            return Ok(());
        }
        let mut player = Player::new(self.device, self.agent, episodes.min(places(self.device)))?;
        let key = self.key(Stream::Evaluate, self.number());
        let key = Key { seed: evaluation_seed(self.config.seed), ..key };
        let mut played = Played::new(self.actions.len());
        let mut lengths = vec![0; episodes];
        let measured = if config.losses { config.episodes.min(episodes) } else { 0 };
        let mut held_out: Vec<HeldOut> = (0..episodes).map(|number| HeldOut::new(key.seed, number)).collect();
        let watch = |episode: usize, action: usize| {
            lengths[episode] += 1;
            held_out[episode].actions.push(action as u32);
            played.count_action(action);
        };
        let returns = player
            .evaluate_watched(self.agent, self.game, episodes, config.temperature, key, watch, |done| {
                epoch.progress(Phase::Evaluation, done, episodes).is_ok()
            })
            .map_err(|e| match e {
                PlayError::Stopped => TrainError::Interrupted,
                e => e.into(),
            })?;
        let mean = returns.iter().sum::<f32>() / returns.len() as f32;
        epoch.made.metrics.add("evaluation/return", mean);
        epoch.made.metrics.add("evaluation/progress", self.game.progress(mean));
        returns.iter().zip(&lengths).for_each(|(total, length)| played.add_episode(*total, *length));
        epoch.made.played.insert(Phase::Evaluation.name().into(), played.summary(&self.actions));
        let held_out: Vec<(f32, HeldOut)> = returns.into_iter().zip(held_out).collect();
        self.measure_held_out(&held_out[..measured], episodes, epoch)?;
        epoch.made.evaluated = held_out;
        epoch.made.clock.lap(Phase::Evaluation, lengths.iter().sum());
        Ok(())
    }
}
