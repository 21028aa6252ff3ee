//! The sizes of the networks. The defaults are the paper's; a tiny agent and the 64-token variant are other values of the same keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All three networks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Number of actions; taken from the game.
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

/// No size is larger than this.
const LARGEST: usize = 1 << 20;

impl AgentConfig {
    /// What is wrong with the sizes, if anything: every message names the key.
    pub fn validate(&self) -> Result<(), String> {
        let (t, w, p) = (&self.tokenizer, &self.world_model, &self.actor_critic);
        let positive = [
            ("actions", self.actions),
            ("tokenizer.frame_size", t.frame_size),
            ("tokenizer.channels", t.channels),
            ("tokenizer.resolutions", t.resolutions),
            ("tokenizer.groups", t.groups),
            ("tokenizer.vocabulary", t.vocabulary),
            ("tokenizer.embedding", t.embedding),
            ("world_model.steps", w.steps),
            ("world_model.layers", w.layers),
            ("world_model.heads", w.heads),
            ("world_model.width", w.width),
            ("actor_critic.hidden", p.hidden),
        ];
        // Things that there are many of: layers, blocks, resolutions.
        let counted = [
            ("tokenizer.resolutions", t.resolutions),
            ("tokenizer.residual_blocks", t.residual_blocks),
            ("world_model.layers", w.layers),
            ("actor_critic.channels", p.channels.len()),
        ];
        const MOST: usize = 256;
        if let Some((key, value)) = counted.iter().find(|(_, value)| *value > MOST) {
            return Err(format!("{key} is {value}, but must be at most {MOST}"));
        }
        if p.dense > LARGEST || p.channels.iter().any(|&c| c > LARGEST) {
            return Err(format!("actor_critic.channels and actor_critic.dense must be at most {LARGEST}"));
        }
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{key} must be at least 1"));
        }
        if let Some((key, value)) = positive.iter().find(|(_, value)| *value > LARGEST) {
            return Err(format!("{key} is {value}, but must be at most {LARGEST}"));
        }
        let halves = |size: usize, times: usize| times < 20 && size.is_multiple_of(1 << times);
        if !halves(t.frame_size, t.resolutions - 1) {
            let times = t.resolutions - 1;
            return Err(format!(
                "tokenizer.frame_size is {}, which cannot be halved {times} times",
                t.frame_size
            ));
        }
        if t.channels % t.groups != 0 {
            return Err(format!(
                "tokenizer.groups is {}, which does not divide tokenizer.channels {}",
                t.groups, t.channels
            ));
        }
        if w.width % w.heads != 0 {
            return Err(format!(
                "world_model.heads is {}, which does not divide world_model.width {}",
                w.heads, w.width
            ));
        }
        if !(0.0..1.0).contains(&w.dropout) {
            return Err(format!("world_model.dropout is {}, but must be at least 0 and below 1", w.dropout));
        }
        if p.channels.is_empty() || p.channels.contains(&0) || !halves(t.frame_size, p.channels.len()) {
            let channels = &p.channels;
            return Err(format!(
                "actor_critic.channels is {channels:?}: frames of {} pixels must be halved once for each",
                t.frame_size
            ));
        }
        Ok(())
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelConfig {
    /// L, the steps a sequence holds.
    pub steps: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads of a block.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActorCriticConfig {
    /// Channels of the convolutions; each is followed by a 2x2 max-pool.
    pub channels: Vec<usize>,
    /// Width of the LSTM.
    pub hidden: usize,
    /// Width of a linear layer with layer-norm between the convolutions and the LSTM; 0 for none, as in the paper.
    pub dense: usize,
    /// Let the heads see the LSTM's input beside its state; not in the paper.
    pub skip: bool,
}

impl Default for ActorCriticConfig {
    fn default() -> ActorCriticConfig {
        ActorCriticConfig { channels: vec![32, 32, 64, 64], hidden: 512, dense: 0, skip: false }
    }
}
