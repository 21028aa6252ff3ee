//! The sizes of the networks. The defaults are the paper's; a tiny agent and the 64-token variant are other values of the same keys.

use serde::{Deserialize, Serialize};

/// All three networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Number of actions of the game.
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

impl AgentConfig {
    /// The paper's 64-token variant: one resolution fewer, so an 8x8 grid of tokens.
    pub fn with_64_tokens(actions: usize) -> AgentConfig {
        let tokenizer = TokenizerConfig { resolutions: 4, ..TokenizerConfig::default() };
        AgentConfig { actions, tokenizer, ..AgentConfig::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerConfig {
    /// Height and width of a frame in pixels.
    pub frame_size: usize,
    /// Channels of every convolution.
    pub channels: usize,
    /// Sizes the frame passes through; each is half of the one before.
    pub resolutions: usize,
    /// Residual blocks per resolution in the encoder; the decoder has one more.
    pub residual_blocks: usize,
    /// Sizes at which residual blocks are followed by attention.
    pub attention_sizes: Vec<usize>,
    /// Groups of the group-norms.
    pub groups: usize,
    /// Number of codebook entries.
    pub vocabulary: usize,
    /// Width of a codebook entry.
    pub embedding: usize,
}

impl Default for TokenizerConfig {
    fn default() -> TokenizerConfig {
        TokenizerConfig {
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
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelConfig {
    /// L, the steps a sequence holds.
    pub steps: usize,
    pub layers: usize,
    pub heads: usize,
    /// Width of an embedded token.
    pub width: usize,
    /// On embeddings, attention weights and both residual branches.
    pub dropout: f32,
    /// Standard deviation of the initial linear and embedding weights.
    pub init_std: f32,
}

impl Default for WorldModelConfig {
    fn default() -> WorldModelConfig {
        WorldModelConfig { steps: 20, layers: 10, heads: 4, width: 256, dropout: 0.1, init_std: 0.02 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActorCriticConfig {
    /// Channels of the convolutions; each is followed by a 2x2 max-pool.
    pub channels: Vec<usize>,
    /// Width of the LSTM.
    pub hidden: usize,
}

impl Default for ActorCriticConfig {
    fn default() -> ActorCriticConfig {
        ActorCriticConfig { channels: vec![32, 32, 64, 64], hidden: 512 }
    }
}
