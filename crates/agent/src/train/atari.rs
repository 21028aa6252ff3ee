//! The Atari protocol of a run, in training and in evaluation. The defaults are the paper's.

use envs::Purpose;
use envs::atari::Protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// More no-ops than any game needs to begin.
const MOST_NOOPS: usize = 100_000;
/// Raw frames: half a year of play.
const LONGEST_GAME: usize = 1_000_000_000;
/// The emulator's own bound.
const MOST_SKIPPED: usize = 1000;

/// How Atari games are played; other games ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AtariConfig {
    pub training: AtariProtocol,
    pub evaluation: AtariProtocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AtariProtocol {
    /// An Atari game begins with 1 to this many raw frames without an action, chosen uniformly; 0 for none.
    pub noops: usize,
    /// Whether the loss of a life ends an episode. The next one goes on with the same game in training, and is a new game in an evaluation.
    pub life_loss_ends: bool,
    /// Raw frames of a game, over all its lives and with the no-ops, after which it is truncated.
    pub time_limit: usize,
    /// Raw frames of a step, all with the same action.
    pub frame_skip: usize,
    /// Probability that a raw frame repeats the action of the one before it. With 0, games called `atari/...` have no sticky actions, and games called
    /// `ALE/...-v5` their own, 0.25.
    pub sticky: f32,
    /// Whether the reward of a step is replaced by its sign; returns are then sums of signs.
    pub clip_rewards: bool,
}

impl Default for AtariConfig {
    fn default() -> AtariConfig {
        let [training, evaluation] = [Purpose::Train, Purpose::Evaluate].map(AtariProtocol::paper);
        AtariConfig { training, evaluation }
    }
}

impl Default for AtariProtocol {
    fn default() -> AtariProtocol {
        AtariProtocol::paper(Purpose::Train)
    }
}

impl AtariConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.training.validate().map_err(|e| e.within("training"))?;
        self.evaluation.validate().map_err(|e| e.within("evaluation"))
    }

    /// For training and evaluation.
    pub fn protocols(&self) -> [Protocol; 2] {
        [self.training.protocol(Purpose::Train), self.evaluation.protocol(Purpose::Evaluate)]
    }
}

impl AtariProtocol {
    fn paper(purpose: Purpose) -> AtariProtocol {
        let paper = Protocol::new(purpose);
        AtariProtocol {
            noops: paper.most_noops,
            life_loss_ends: paper.life_loss_ends,
            time_limit: paper.time_limit as usize,
            frame_skip: paper.frame_skip as usize,
            sticky: paper.sticky,
            clip_rewards: paper.clip_rewards,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::unless_within("noops", self.noops, 0..=MOST_NOOPS)?;
        ConfigError::unless_within("time_limit", self.time_limit, 1..=LONGEST_GAME)?;
        ConfigError::unless_within("frame_skip", self.frame_skip, 1..=MOST_SKIPPED)?;
        match (0.0..=1.0).contains(&self.sticky) {
            true => Ok(()),
            false => Err(ConfigError::new("sticky", self.sticky, "but must be from 0 to 1")),
        }
    }

    fn protocol(&self, purpose: Purpose) -> Protocol {
        // Valid numbers fit.
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Protocol {
            most_noops: self.noops,
            life_loss_ends: self.life_loss_ends,
            time_limit: number(self.time_limit),
            frame_skip: number(self.frame_skip),
            sticky: self.sticky,
            clip_rewards: self.clip_rewards,
            ..Protocol::new(purpose)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The traces hold for `Protocol::new`.
    #[test]
    fn the_defaults_are_the_protocol_of_the_traces() {
        let traced = [Purpose::Train, Purpose::Evaluate].map(Protocol::new);
        assert_eq!(AtariConfig::default().protocols(), traced);
        let old: AtariConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(old, AtariConfig::default());
    }

    #[test]
    fn numbers_that_no_game_can_have_are_refused() {
        let refused = |change: fn(&mut AtariConfig)| {
            let mut config = AtariConfig::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for (message, expected) in [
            (refused(|c| c.training.frame_skip = 0), "training.frame_skip is 0, but must be at least 1"),
            (
                refused(|c| c.evaluation.frame_skip = 1001),
                "evaluation.frame_skip is 1001, but must be from 1 to 1000",
            ),
            (refused(|c| c.evaluation.time_limit = 0), "evaluation.time_limit is 0, but must be at least 1"),
            (refused(|c| c.training.sticky = 1.5), "training.sticky is 1.5, but must be from 0 to 1"),
            (
                refused(|c| c.training.noops = 100_001),
                "training.noops is 100001, but must be from 0 to 100000",
            ),
        ] {
            assert_eq!(message, expected);
        }
    }
}
