//! The sizes of the networks. The defaults are the paper's; a tiny agent and the 64-token variant are other values of the same keys.

mod world_model;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rewards::BINS;
pub use world_model::{Draws, WorldModelConfig, WorldModelKind};

/// All three networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Number of actions; follows from the game.
    pub actions: usize,
    pub tokenizer: TokenizerConfig,
    pub world_model: WorldModelConfig,
    pub actor_critic: ActorCriticConfig,
}

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        AgentConfig {
            actions: 4,
            tokenizer: TokenizerConfig::default(),
            world_model: WorldModelConfig::default(),
            actor_critic: ActorCriticConfig::default(),
        }
    }
}

/// A value that a config may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, {rule}")]
pub struct ConfigError {
    /// Its dotted name.
    pub key: String,
    pub value: String,
    /// What it breaks, as the end of a sentence: "but must be at least 1".
    pub rule: String,
}

impl ConfigError {
    pub(crate) fn new(key: &str, value: impl std::fmt::Display, rule: impl Into<String>) -> ConfigError {
        ConfigError { key: key.into(), value: value.to_string(), rule: rule.into() }
    }

    /// The same about a config that is part of another.
    pub(crate) fn within(self, part: &str) -> ConfigError {
        ConfigError { key: format!("{part}.{}", self.key), ..self }
    }

    /// Refuses a number outside of a range.
    pub(crate) fn unless_within(
        key: &str,
        value: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<(), ConfigError> {
        let (least, most) = (*range.start(), *range.end());
        match range.contains(&value) {
            true => Ok(()),
            false if value == 0 && least == 1 => Err(ConfigError::new(key, value, "but must be at least 1")),
            false => Err(ConfigError::new(key, value, format!("but must be from {least} to {most}"))),
        }
    }
}

/// No size is larger than this.
const LARGEST: usize = 1 << 20;
/// Of things that there are many of: layers, blocks, resolutions.
const MOST: usize = 256;

impl AgentConfig {
    /// Refuses sizes that networks cannot have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (t, w, p) = (&self.tokenizer, &self.world_model, &self.actor_critic);
        for (key, value, range) in [
            ("actions", self.actions, 1..=LARGEST),
            ("tokenizer.frame_size", t.frame_size, 1..=LARGEST),
            ("tokenizer.channels", t.channels, 1..=LARGEST),
            ("tokenizer.resolutions", t.resolutions, 1..=MOST),
            ("tokenizer.residual_blocks", t.residual_blocks, 0..=MOST),
            ("tokenizer.groups", t.groups, 1..=LARGEST),
            ("tokenizer.vocabulary", t.vocabulary, 1..=LARGEST),
            ("tokenizer.embedding", t.embedding, 1..=LARGEST),
            ("world_model.patch", w.patch, 1..=LARGEST),
            ("world_model.context", w.context, 0..=LARGEST),
            ("world_model.steps", w.steps, 1..=LARGEST),
            ("world_model.layers", w.layers, 1..=MOST),
            ("world_model.heads", w.heads, 1..=LARGEST),
            ("world_model.width", w.width, 1..=LARGEST),
            ("actor_critic.hidden", p.hidden, 1..=LARGEST),
            ("actor_critic.dense", p.dense, 0..=LARGEST),
        ] {
            ConfigError::unless_within(key, value, range)?;
        }
        let halves = |size: usize, times: usize| times < 20 && size.is_multiple_of(1 << times);
        if !halves(t.frame_size, t.resolutions - 1) {
            let rule = format!("which cannot be halved {} times", t.resolutions - 1);
            return Err(ConfigError::new("tokenizer.frame_size", t.frame_size, rule));
        }
        if t.channels % t.groups != 0 {
            let rule = format!("which does not divide tokenizer.channels {}", t.channels);
            return Err(ConfigError::new("tokenizer.groups", t.groups, rule));
        }
        if w.width % w.heads != 0 {
            let rule = format!("which does not divide world_model.width {}", w.width);
            return Err(ConfigError::new("world_model.heads", w.heads, rule));
        }
        for (key, rate) in WorldModelConfig::DROPOUT.iter().zip(w.dropout()) {
            if !(0.0..1.0).contains(&rate) {
                let rule = "but must be at least 0 and below 1";
                return Err(ConfigError::new(&format!("world_model.{key}"), rate, rule));
            }
        }
        if t.attention_sizes.contains(&0) {
            let sizes = format!("{:?}", t.attention_sizes);
            return Err(ConfigError::new("tokenizer.attention_sizes", sizes, "but no image has size 0"));
        }
        self.validate_kinds()?;
        let channels = format!("{:?}", p.channels);
        if p.channels.iter().any(|channels| !(1..=LARGEST).contains(channels)) {
            let rule = format!("but each must be from 1 to {LARGEST}");
            return Err(ConfigError::new("actor_critic.channels", channels, rule));
        }
        if p.channels.is_empty() {
            return Err(ConfigError::new("actor_critic.channels", channels, "but needs at least one"));
        }
        if p.sees == Sees::Frames && !halves(t.frame_size, p.channels.len()) {
            let rule = format!("but frames of {} pixels must be halved once for each", t.frame_size);
            return Err(ConfigError::new("actor_critic.channels", channels, rule));
        }
        Ok(())
    }

    /// Refuses sizes that the kinds of tokenizer and world model cannot have.
    fn validate_kinds(&self) -> Result<(), ConfigError> {
        let (t, w) = (&self.tokenizer, &self.world_model);
        if t.kind == TokenizerKind::Fsq {
            if t.levels().is_none() {
                let rule =
                    format!("which is no power with the exponent tokenizer.embedding, {}", t.embedding);
                return Err(ConfigError::new("tokenizer.vocabulary", t.vocabulary, rule));
            }
            for (key, used) in [
                ("tokenizer.residual_blocks", t.residual_blocks > 0),
                ("tokenizer.attention_sizes", !t.attention_sizes.is_empty()),
            ] {
                if used {
                    let rule = "which the plain networks of tokenizer.kind \"fsq\" do not have";
                    return Err(ConfigError::new(key, "set", rule));
                }
            }
            if t.resolutions > 20 || t.channels << (t.resolutions - 1) > LARGEST {
                let rule = format!("which doubles too often in {} resolutions", t.resolutions);
                return Err(ConfigError::new("tokenizer.channels", t.channels, rule));
            }
        }
        if w.context >= w.steps {
            let rule = format!("but must be less than world_model.steps, {}", w.steps);
            return Err(ConfigError::new("world_model.context", w.context, rule));
        }
        if w.kind == WorldModelKind::Token && w.draws != Draws::AtOnce {
            let rule = "but must be \"at-once\" where world_model.kind is \"token\"".to_string();
            return Err(ConfigError::new("world_model.draws", "in-order", rule));
        }
        let rule = match w.kind {
            WorldModelKind::Token if w.patch != 1 => {
                "but must be 1 where world_model.kind is \"token\"".into()
            }
            WorldModelKind::Frame if !t.grid().is_multiple_of(w.patch) => {
                format!("which does not divide a frame's grid of {0}x{0} tokens", t.grid())
            }
            WorldModelKind::Frame if w.patch * w.patch * t.vocabulary > LARGEST => {
                format!("whose tokens of {} kinds are too many for one position", t.vocabulary)
            }
            WorldModelKind::Frame if !w.width.is_multiple_of(w.patch * w.patch) => {
                format!("whose square does not divide world_model.width {}", w.width)
            }
            _ => return Ok(()),
        };
        Err(ConfigError::new("world_model.patch", w.patch, rule))
    }

    /// Why networks of these sizes are not as fast on a device as they could be: a line per reason.
    pub fn slow_paths(&self, device: &engine::Device) -> Vec<String> {
        let (tokenizer, world_model) = (&self.tokenizer, &self.world_model);
        device.slow_paths(&engine::NetworkShapes {
            channels: if tokenizer.kind == TokenizerKind::Vq { tokenizer.channels } else { 0 },
            groups: tokenizer.groups,
            width: world_model.width,
            heads: world_model.heads,
            hidden: if world_model.kind == WorldModelKind::Token { world_model.hidden() } else { 0 },
        })
    }

    /// The paper's 64-token variant: one resolution fewer, so an 8x8 grid of tokens.
    pub fn with_64_tokens(actions: usize) -> AgentConfig {
        let tokenizer = TokenizerConfig { resolutions: 4, ..TokenizerConfig::default() };
        AgentConfig { actions, tokenizer, ..AgentConfig::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// "vq" for the paper's autoencoder with a codebook, or "fsq" for a plain convolutional one, whose codes are numbers rounded to a few levels each.
    pub kind: TokenizerKind,
    /// Height and width of a frame in pixels.
    pub frame_size: usize,
    /// Channels of every convolution; with the kind "fsq" those of the first, which double as the image halves.
    pub channels: usize,
    /// Number of resolutions in the encoder; each is half of the one before.
    pub resolutions: usize,
    /// Residual blocks per resolution in the encoder; the decoder has one more. None with the kind "fsq".
    pub residual_blocks: usize,
    /// Resolutions, in pixels, at which residual blocks are followed by attention.
    pub attention_sizes: Vec<usize>,
    /// Groups of group normalisation.
    pub groups: usize,
    /// Codebook size: the number of different tokens. With the kind "fsq" a power with the exponent `embedding`, such as 512, 8^3, for three numbers of
    /// eight levels.
    pub vocabulary: usize,
    /// Dimension of a codebook entry.
    pub embedding: usize,
}

/// The families of tokenizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Residual blocks and attention around a codebook, as in the paper.
    #[default]
    Vq,
    /// A plain convolutional autoencoder around finite scalar quantisation.
    Fsq,
}

impl Default for TokenizerConfig {
    fn default() -> TokenizerConfig {
        TokenizerConfig {
            kind: TokenizerKind::Vq,
            frame_size: 64,
            channels: 64,
            resolutions: 5,
            residual_blocks: 2,
            attention_sizes: vec![16, 8],
            groups: 32,
            vocabulary: 512,
            embedding: 512,
        }
    }
}

impl TokenizerConfig {
    /// Height and width of the token grid.
    pub fn grid(&self) -> usize {
        self.frame_size >> (self.resolutions - 1)
    }

    /// K, the number of tokens of a frame.
    pub fn tokens(&self) -> usize {
        self.grid() * self.grid()
    }

    /// Levels of each of the `embedding` numbers of a code, where their combinations are the vocabulary.
    pub fn levels(&self) -> Option<usize> {
        let exponent = u32::try_from(self.embedding).ok().filter(|exponent| *exponent < 32)?;
        let levels = (self.vocabulary as f64).powf(1.0 / f64::from(exponent)).round() as usize;
        (levels >= 2 && levels.checked_pow(exponent) == Some(self.vocabulary)).then_some(levels)
    }
}

/// What the policy looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sees {
    /// Frames as the tokenizer reconstructs them, as in the paper.
    #[default]
    Frames,
    /// The codebook's embeddings of a frame's tokens, in their grid. No frame is rendered for the policy.
    Codes,
}

/// How the value function is learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ValueModel {
    /// One number by squared error, as in the paper.
    #[default]
    Mse,
    /// A distribution over bins of symlog(return) by cross-entropy. The value is what it expects.
    SymlogBins,
}

impl ValueModel {
    /// Outputs of the value head.
    pub fn outputs(self) -> usize {
        match self {
            ValueModel::Mse => 1,
            ValueModel::SymlogBins => BINS,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActorCriticConfig {
    /// What the policy looks at: "frames" for reconstructed frames, as in the paper, or "codes" for the embeddings of their tokens, which need no
    /// rendering.
    pub sees: Sees,
    /// Channels of the convolutions; each is followed by a 2x2 max-pool. Where the policy sees codes, the first is the width of a linear layer over
    /// each code, and the others are convolutions without pooling.
    pub channels: Vec<usize>,
    /// Hidden units of the LSTM.
    pub hidden: usize,
    /// Units of a linear layer with layer normalisation between the convolutions and the LSTM; 0 omits it, as in the paper.
    pub dense: usize,
    /// Feed the input of the LSTM to the heads, too (skip connection); false in the paper.
    pub skip: bool,
    /// Feed an embedding of the previous action to the LSTM; false in the paper.
    pub previous_action: bool,
    /// How values are learnt: "mse" by squared error, as in the paper, or "symlog-bins" as a distribution over logarithmic bins, the same as
    /// `world_model.reward` has.
    pub values: ValueModel,
}

impl Default for ActorCriticConfig {
    fn default() -> ActorCriticConfig {
        ActorCriticConfig {
            sees: Sees::Frames,
            channels: vec![32, 32, 64, 64],
            hidden: 512,
            dense: 0,
            skip: false,
            previous_action: false,
            values: ValueModel::Mse,
        }
    }
}
