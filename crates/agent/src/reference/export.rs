//! Agents written in the layout of the reference release.

use std::collections::BTreeMap;
use std::path::Path;

use super::import::is_ours_alone;
use crate::checkpoint::{CheckpointError, Entry, Result, write_safetensors};
use crate::{Agent, Perceptual, RewardModel, Sees, TokenizerKind, ValueModel, WorldModelKind};

/// Writes an agent as safetensors with the names, shapes and buffers of the reference release, ready for its `load_state_dict`.
pub fn export(agent: &Agent, perceptual: Option<&Perceptual>, path: &Path) -> Result<()> {
    if agent.config.world_model.reward != RewardModel::Sign {
        let key = "world_model.reward other than \"sign\"";
        return Err(CheckpointError::NotReferences { key });
    }
    let policy = &agent.config.actor_critic;
    let (tokenizer, world_model) = (&agent.config.tokenizer, &agent.config.world_model);
    let unknown = [
        (tokenizer.kind != TokenizerKind::Vq, "tokenizer.kind other than \"vq\""),
        (world_model.kind != WorldModelKind::Token, "world_model.kind other than \"token\""),
        (policy.skip, "actor_critic.skip"),
        (policy.dense > 0, "actor_critic.dense"),
        (policy.sees != Sees::Frames, "actor_critic.sees other than \"frames\""),
        (policy.previous_action, "actor_critic.previous_action"),
        (policy.values != ValueModel::Mse, "actor_critic.values other than \"mse\""),
    ];
    if let Some((_, key)) = unknown.into_iter().find(|(has, _)| *has) {
        return Err(CheckpointError::NotReferences { key });
    }
    let mut entries = BTreeMap::new();
    for (prefix, network) in agent.networks(perceptual) {
        for (spec, layout) in network.params.specs().iter().zip(network.layouts()) {
            if is_ours_alone(prefix, &spec.name) {
                continue;
            }
            let shape = layout.reference_shape(spec.shape.dims());
            let values = layout.to_reference(spec.shape.dims(), &network.params.get(&spec.name)?);
            entries.insert(format!("{prefix}.{}", spec.name), Entry::floats(shape, &values));
        }
    }
    add_buffers(agent, perceptual.is_some(), &mut entries);
    write_safetensors(path, &entries, None)
}

/// What the release keeps beside its parameters: causal masks, the positions each head speaks for, the perceptual network's scaling.
fn add_buffers(agent: &Agent, perceptual: bool, entries: &mut BTreeMap<String, Entry>) {
    let (config, block) = (&agent.config.world_model, agent.world_model.tokens + 1);
    let length = config.steps * block;
    let mask: Vec<f32> =
        (0..length * length).map(|i| if i % length <= i / length { 1.0 } else { 0.0 }).collect();
    for layer in 0..config.layers {
        let name = format!("world_model.transformer.blocks.{layer}.attn.mask");
        entries.insert(name, Entry::floats(vec![length, length], &mask));
    }
    let actions: Vec<usize> = (0..length).filter(|i| i % block == block - 1).collect();
    // The last frame token is followed by an action, which nobody predicts.
    let frames: Vec<usize> = (0..length).filter(|i| i % block != block - 2).collect();
    for (head, positions) in [("observations", &frames), ("rewards", &actions), ("ends", &actions)] {
        entries.insert(format!("world_model.head_{head}.indices"), Entry::integers(positions));
    }
    if perceptual {
        for (name, values) in [("shift", crate::perceptual::SHIFT), ("scale", crate::perceptual::SCALE)] {
            let name = format!("tokenizer.lpips.scaling_layer.{name}");
            entries.insert(name, Entry::floats(vec![1, 3, 1, 1], &values));
        }
    }
}
