//! Sizes and kind of the world model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RewardModel;

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelConfig {
    /// "token" for the paper's, which predicts one token after the other, or "frame" for one that predicts all tokens of the next frame in one pass.
    pub kind: WorldModelKind,
    /// Height and width, in tokens, of what a position of a frame holds; 1 with the kind "token".
    pub patch: usize,
    /// How the kind "frame" draws the tokens of a frame: "at-once", each by itself given the past, or "in-order", each given those before it in its frame, too,
    /// which a small layer sums up without another pass of the transformer. "at-once" with the kind "token".
    pub draws: Draws,
    /// Recorded steps that the world model sees before the first frame of a dream; 0 in the paper.
    pub context: usize,
    /// Context window in steps (the paper's L).
    pub steps: usize,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Attention heads per block.
    pub heads: usize,
    /// Embedding dimension.
    pub width: usize,
    /// Dropout rate on embeddings. `dropout` sets this and the next two keys.
    pub embedding_dropout: f32,
    /// Dropout rate on attention weights.
    pub attention_dropout: f32,
    /// Dropout rate on both residual branches of a block.
    pub residual_dropout: f32,
    /// Standard deviation of the initial linear and embedding weights.
    pub init_std: f32,
    /// Rewards that the world model learns: "sign" for their signs, as in the reference release, "mse" for the rewards themselves by squared error, or
    /// "symlog-bins" for a distribution over logarithmic bins, where rewards differ in size.
    pub reward: RewardModel,
}

/// The families of world models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorldModelKind {
    /// A GPT over single tokens, as in the paper.
    #[default]
    Token,
    /// A transformer over patches of frames with block-causal attention.
    Frame,
}

/// How the tokens of a frame that is predicted in one pass depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Draws {
    /// Not at all, given the past.
    #[default]
    AtOnce,
    /// Each is told of those before it, row by row.
    InOrder,
}

/// The keys as they may stand in a file: `dropout` stands for each of its three keys that is not there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WorldModelKeys {
    kind: WorldModelKind,
    patch: usize,
    draws: Draws,
    context: usize,
    steps: usize,
    layers: usize,
    heads: usize,
    width: usize,
    dropout: Option<f32>,
    embedding_dropout: Option<f32>,
    attention_dropout: Option<f32>,
    residual_dropout: Option<f32>,
    init_std: f32,
    reward: RewardModel,
}

impl Default for WorldModelKeys {
    fn default() -> WorldModelKeys {
        let WorldModelConfig {
            kind,
            patch,
            draws,
            context,
            steps,
            layers,
            heads,
            width,
            init_std,
            reward,
            ..
        } = WorldModelConfig::default();
        WorldModelKeys {
            kind,
            patch,
            draws,
            context,
            steps,
            layers,
            heads,
            width,
            dropout: None,
            embedding_dropout: None,
            attention_dropout: None,
            residual_dropout: None,
            init_std,
            reward,
        }
    }
}

impl<'de> Deserialize<'de> for WorldModelConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<WorldModelConfig, D::Error> {
        let keys = WorldModelKeys::deserialize(deserializer)?;
        let usual = WorldModelConfig::default();
        let rate = |own: Option<f32>, usual: f32| own.or(keys.dropout).unwrap_or(usual);
        Ok(WorldModelConfig {
            kind: keys.kind,
            patch: keys.patch,
            draws: keys.draws,
            context: keys.context,
            steps: keys.steps,
            layers: keys.layers,
            heads: keys.heads,
            width: keys.width,
            embedding_dropout: rate(keys.embedding_dropout, usual.embedding_dropout),
            attention_dropout: rate(keys.attention_dropout, usual.attention_dropout),
            residual_dropout: rate(keys.residual_dropout, usual.residual_dropout),
            init_std: keys.init_std,
            reward: keys.reward,
        })
    }
}

impl WorldModelConfig {
    /// The keys that `dropout` sets.
    pub const DROPOUT: [&'static str; 3] = ["embedding_dropout", "attention_dropout", "residual_dropout"];

    /// The rates, in the order of [`DROPOUT`](WorldModelConfig::DROPOUT).
    pub fn dropout(&self) -> [f32; 3] {
        [self.embedding_dropout, self.attention_dropout, self.residual_dropout]
    }

    /// Width of the hidden layer between the two of a block's MLP.
    pub fn hidden(&self) -> usize {
        4 * self.width
    }
}

impl Default for WorldModelConfig {
    fn default() -> WorldModelConfig {
        WorldModelConfig {
            kind: WorldModelKind::Token,
            patch: 1,
            draws: Draws::AtOnce,
            context: 0,
            steps: 20,
            layers: 10,
            heads: 4,
            width: 256,
            embedding_dropout: 0.1,
            attention_dropout: 0.1,
            residual_dropout: 0.1,
            init_std: 0.02,
            reward: RewardModel::Sign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Configs and checkpoints of older versions have one key for the three rates.
    #[test]
    fn one_dropout_stands_for_three() {
        let read = |json: &str| serde_json::from_str::<WorldModelConfig>(json).map(|config| config.dropout());
        assert_eq!(read("{}").unwrap(), [0.1; 3]);
        assert_eq!(read(r#"{"dropout": 0.3}"#).unwrap(), [0.3; 3]);
        assert_eq!(read(r#"{"attention_dropout": 0.2, "dropout": 0.3}"#).unwrap(), [0.3, 0.2, 0.3]);
        assert_eq!(read(r#"{"residual_dropout": 0.0}"#).unwrap(), [0.1, 0.1, 0.0]);
        assert!(read(r#"{"droput": 0.3}"#).is_err());
        let config = WorldModelConfig { attention_dropout: 0.5, steps: 3, ..WorldModelConfig::default() };
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<WorldModelConfig>(&json).unwrap(), config);
    }
}
