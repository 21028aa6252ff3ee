//! An agent small enough for tests.

use agent::{ActorCriticConfig, AgentConfig, TokenizerConfig, WorldModelConfig};

/// Small, with the paper's 16 tokens per frame and 20 steps.
pub fn small() -> AgentConfig {
    AgentConfig {
        actions: 5,
        tokenizer: TokenizerConfig {
            frame_size: 8,
            channels: 8,
            resolutions: 2,
            residual_blocks: 1,
            attention_sizes: vec![4],
            groups: 4,
            vocabulary: 11,
            embedding: 6,
            ..TokenizerConfig::default()
        },
        world_model: WorldModelConfig { layers: 3, width: 32, init_std: 0.3, ..WorldModelConfig::default() },
        actor_critic: ActorCriticConfig { channels: vec![4, 6], hidden: 7, ..ActorCriticConfig::default() },
    }
}
