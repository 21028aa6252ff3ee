//! The readers of an agent's files, one by one, for `fuzz/`. Each returns what it would write, which must be read as the same again.

use std::path::Path;

use engine::Device;

use crate::checkpoint::{CheckpointError, Result};
use crate::train::StateError;
use crate::train::run::optimisers;
use crate::train::run::state::State;
use crate::{ActorCriticConfig, Agent, AgentConfig, TokenizerConfig, WorldModelConfig};

/// `state.json`.
pub fn state(bytes: &[u8]) -> Result<Vec<u8>, StateError> {
    State::parse(bytes)?.to_bytes()
}

/// `agent.safetensors`.
pub fn agent(device: &Device, bytes: &[u8]) -> Result<Vec<u8>> {
    let path = Path::new("agent");
    Agent::from_bytes(device, path, bytes)?.0.to_bytes(None, path)
}

/// `optimisers.safetensors` of an agent.
pub fn optimisers(agent: &Agent, bytes: &[u8]) -> Result<Vec<u8>> {
    let path = Path::new("optimisers");
    optimisers::from_bytes(agent, path, bytes)?;
    optimisers_of(agent)
}

/// What a checkpoint saves of an agent's optimisers.
pub fn optimisers_of(agent: &Agent) -> Result<Vec<u8>> {
    optimisers::to_bytes(agent, Path::new("optimisers"))
}

/// About the smallest agent there can be.
pub fn small_agent(device: &Device) -> Result<Agent, CheckpointError> {
    let config = AgentConfig {
        actions: 2,
        tokenizer: TokenizerConfig {
            frame_size: 4,
            channels: 1,
            resolutions: 1,
            residual_blocks: 0,
            attention_sizes: vec![],
            groups: 1,
            vocabulary: 2,
            embedding: 1,
        },
        world_model: WorldModelConfig {
            steps: 1,
            layers: 1,
            heads: 1,
            width: 1,
            ..WorldModelConfig::default()
        },
        actor_critic: ActorCriticConfig { channels: vec![1], hidden: 1, ..ActorCriticConfig::default() },
    };
    Ok(Agent::new(device, &config, 0)?)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::{Dtype, SafeTensors, tensor::TensorView};

    use super::*;

    /// One entry of the perceptual network's 15 million parameters made a file of any size ask for 59 MB.
    #[test]
    fn a_small_file_gets_no_large_network() {
        let device = Device::cpu(Some(1)).unwrap();
        let whole = small_agent(&device).unwrap().to_bytes(None, Path::new("agent")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&whole).unwrap();
        let file = SafeTensors::deserialize(&whole).unwrap();
        let metadata: HashMap<String, String> = header.metadata().clone().unwrap();
        let extra = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
        let tensors = file.tensors().into_iter().chain([("tokenizer.lpips.x".to_string(), extra)]);
        let bytes = safetensors::serialize(tensors, Some(metadata)).unwrap();
        let error = agent(&device, &bytes).unwrap_err();
        assert!(matches!(error, CheckpointError::Engine(engine::Error::TooManyParameters { .. })), "{error}");
    }
}
