//! Evaluation: whole games with the current policy, without exploring.

use engine::Key;

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

    pub(super) fn evaluate(&mut self, epoch: &mut Epoch) -> Result<()> {
        let config = &self.config.evaluation;
        let episodes = self.evaluation_episodes();
        let mut player = Player::new(&self.device, &self.agent, episodes.min(32))?;
        let key = Key { seed: evaluation_seed(self.config.seed), ..self.key(Stream::Evaluate) };
        let returns = player
            .evaluate(&self.agent, &self.game, episodes, config.temperature, key, |done| {
                epoch.progress(Phase::Evaluation, done, episodes).is_ok()
            })
            .map_err(|e| match e {
                PlayError::Stopped => TrainError::Interrupted,
                e => e.into(),
            })?;
        let mean = returns.iter().sum::<f32>() / returns.len() as f32;
        epoch.metrics.add("evaluation/return", mean);
        epoch.metrics.add("evaluation/progress", self.game.progress(mean));
        Ok(())
    }
}
