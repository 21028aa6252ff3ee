//! Everything a run is determined by. The defaults are the paper's.

use serde::{Deserialize, Serialize};

use crate::{AgentConfig, Returns};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// The game.
    pub env: String,
    pub seed: u64,
    pub epochs: usize,
    pub agent: AgentConfig,
    pub collection: CollectionConfig,
    pub tokenizer: TokenizerTraining,
    pub world_model: WorldModelTraining,
    pub actor_critic: ActorCriticTraining,
    pub evaluation: EvaluationConfig,
    pub replay: ReplayConfig,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            env: "arcade/catch".into(),
            seed: 0,
            epochs: 600,
            agent: AgentConfig::default(),
            collection: CollectionConfig::default(),
            tokenizer: TokenizerTraining::default(),
            world_model: WorldModelTraining::default(),
            actor_critic: ActorCriticTraining::default(),
            evaluation: EvaluationConfig::default(),
            replay: ReplayConfig::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CollectionConfig {
    /// Steps played per epoch.
    pub steps: usize,
    /// Epochs in which anything is played at all.
    pub epochs: usize,
    /// Epochs played with random actions before the policy takes over.
    pub random_epochs: usize,
    /// Share of random actions afterwards.
    pub epsilon: f32,
    pub temperature: f32,
}

impl Default for CollectionConfig {
    fn default() -> CollectionConfig {
        CollectionConfig { steps: 200, epochs: 500, random_epochs: 0, epsilon: 0.01, temperature: 1.0 }
    }
}

/// When and how much a network learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Epochs before it starts.
    pub start_after: usize,
    /// Updates in its first epoch; 0 for as many as in the others.
    pub first_updates: usize,
    /// Updates per epoch.
    pub updates: usize,
    pub batch: usize,
    pub learning_rate: f32,
    pub max_grad_norm: f32,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            start_after: 0,
            first_updates: 0,
            updates: 200,
            batch: 64,
            learning_rate: 1e-4,
            max_grad_norm: 10.0,
        }
    }
}

impl Schedule {
    /// Updates in epoch number `epoch`, from 0 on.
    pub fn updates_in(&self, epoch: usize) -> usize {
        match epoch {
            e if e < self.start_after => 0,
            e if e == self.start_after && self.first_updates > 0 => self.first_updates,
            _ => self.updates,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerTraining {
    pub schedule: Schedule,
    /// Weight of the squared reconstruction error beside the absolute one.
    pub squared_weight: f32,
    /// Whether the perceptual loss is on, over fixed random VGG16 features.
    pub perceptual: bool,
}

impl Default for TokenizerTraining {
    fn default() -> TokenizerTraining {
        let schedule = Schedule { start_after: 5, batch: 256, ..Schedule::default() };
        TokenizerTraining { schedule, squared_weight: 0.0, perceptual: true }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelTraining {
    pub schedule: Schedule,
    pub weight_decay: f32,
}

impl Default for WorldModelTraining {
    fn default() -> WorldModelTraining {
        WorldModelTraining {
            schedule: Schedule { start_after: 25, ..Schedule::default() },
            weight_decay: 0.01,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActorCriticTraining {
    pub schedule: Schedule,
    /// Imagined steps.
    pub horizon: usize,
    /// Frames that warm the policy's LSTM up.
    pub burn_in: usize,
    pub returns: Returns,
}

impl Default for ActorCriticTraining {
    fn default() -> ActorCriticTraining {
        ActorCriticTraining {
            schedule: Schedule { start_after: 50, ..Schedule::default() },
            horizon: 20,
            burn_in: 20,
            returns: Returns::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationConfig {
    /// Epochs between evaluations.
    pub every: usize,
    pub episodes: usize,
    /// Episodes of the last evaluation.
    pub final_episodes: usize,
    pub temperature: f32,
}

impl Default for EvaluationConfig {
    fn default() -> EvaluationConfig {
        EvaluationConfig { every: 5, episodes: 16, final_episodes: 100, temperature: 0.5 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Steps kept; the oldest episodes go first.
    pub max_steps: usize,
}

impl Default for ReplayConfig {
    fn default() -> ReplayConfig {
        ReplayConfig { max_steps: 100_000 }
    }
}
