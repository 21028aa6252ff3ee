//! Agents of the reference release, from its own checkpoints or from what `export` wrote.

use std::collections::BTreeSet;
use std::path::Path;

use engine::Device;

use super::tensors::TensorFile;
use crate::checkpoint::{CheckpointError, Result};
use crate::{
    ActorCriticConfig, Agent, AgentConfig, Perceptual, TokenizerConfig, TokenizerKind, WorldModelConfig,
};

/// Reads a checkpoint of the reference release (`last.pt`, also one from before PyTorch 1.6) or a file that [`export`](super::export) wrote: the agent, and the perceptual network if the
/// file has it. The sizes are found in the file; heads and groups, which leave no trace in it, are the paper's.
pub fn import(device: &Device, path: &Path) -> Result<(Agent, Option<Perceptual>)> {
    let mut file = TensorFile::open(path)?;
    let config = Shapes(&file).config()?;
    config.validate().map_err(|e| CheckpointError::BadConfig { path: path.into(), reason: e.to_string() })?;
    let agent = Agent::within(device, &config, 0, file.elements())?;
    let has_perceptual = file.names().any(|name| name.starts_with("tokenizer.lpips.net"));
    let perceptual = has_perceptual.then(|| Perceptual::within(device, 0.0, file.elements())).transpose()?;

    let mut unused: BTreeSet<String> = file.names().map(String::from).collect();
    for (prefix, network) in agent.networks(perceptual.as_ref()) {
        for (spec, layout) in network.params.specs().iter().zip(network.layouts()) {
            if is_ours_alone(prefix, &spec.name) {
                continue;
            }
            let name = format!("{prefix}.{}", spec.name);
            let theirs = file.read(&name, &layout.reference_shape(spec.shape.dims()))?;
            unused.remove(&name);
            network.params.set(&spec.name, &layout.from_reference(spec.shape.dims(), &theirs))?;
        }
    }
    let length = config.world_model.steps * (config.tokenizer.tokens() + 1);
    for name in unused.iter().filter(|name| is_mask(name)) {
        if !is_causal(&file.read(name, &[length, length])?, length) {
            return Err(CheckpointError::NotCausal { path: path.into(), name: name.clone() });
        }
    }
    match unused.into_iter().find(|name| !is_buffer(name)) {
        Some(name) => Err(CheckpointError::Extra { path: path.into(), name }),
        None => Ok((agent, perceptual)),
    }
}

/// Parameters of ours that the release keeps as constants.
pub(super) fn is_ours_alone(prefix: &str, name: &str) -> bool {
    prefix == "tokenizer.lpips" && name.starts_with("scaling.")
}

/// Entries of theirs that are no parameters: attention masks, positions of the heads, the perceptual network's colour scaling.
fn is_buffer(name: &str) -> bool {
    is_mask(name)
        || name.starts_with("world_model.") && name.ends_with(".indices")
        || name.starts_with("tokenizer.lpips.scaling_layer.")
}

fn is_mask(name: &str) -> bool {
    name.starts_with("world_model.") && name.ends_with(".attn.mask")
}

/// Whether a mask [length, length] lets every position see itself and all before it, and nothing else. The release's `block causal` masks also let frame tokens
/// see later ones of their frame.
fn is_causal(mask: &[f32], length: usize) -> bool {
    mask.chunks(length.max(1)).enumerate().all(|(query, row)| {
        row.iter().enumerate().all(|(key, &seen)| seen == if key <= query { 1.0 } else { 0.0 })
    })
}

/// The shapes in a file, by name.
struct Shapes<'a>(&'a TensorFile);

impl Shapes<'_> {
    /// Dimension `axis` of an entry that must be there and have `rank` dimensions.
    fn size(&self, name: &str, rank: usize, axis: usize) -> Result<usize> {
        let Some(shape) = self.0.shape(name) else {
            return Err(CheckpointError::Missing { path: self.0.path().into(), name: name.into() });
        };
        match shape.len() == rank && shape.iter().all(|&d| d > 0) {
            true => Ok(shape[axis]),
            false => Err(self.bad(format!("`{name}` has shape {shape:?}, expected {rank} dimensions"))),
        }
    }

    /// How many of `{prefix}{first}{suffix}`, `{prefix}{first + 1}{suffix}`, ... there are.
    fn count(&self, prefix: &str, first: usize, suffix: &str) -> usize {
        (first..).take_while(|i| self.0.shape(&format!("{prefix}{i}{suffix}")).is_some()).count()
    }

    fn bad(&self, reason: String) -> CheckpointError {
        CheckpointError::BadConfig { path: self.0.path().into(), reason }
    }

    fn config(&self) -> Result<AgentConfig> {
        let paper = AgentConfig::default();
        let channels = self.size("tokenizer.encoder.conv_in.weight", 4, 0)?;
        let resolutions = self.count("tokenizer.encoder.down.", 0, ".block.0.conv1.weight");

        // The policy sees the frame after one halving per convolution; its LSTM tells how large that is.
        let convs = self.count("actor_critic.conv", 1, ".weight");
        let policy_channels = (1..=convs)
            .map(|i| self.size(&format!("actor_critic.conv{i}.weight"), 4, 0))
            .collect::<Result<Vec<_>>>()?;
        let features = self.size("actor_critic.lstm.weight_ih", 2, 1)?;
        let last = policy_channels.last().copied().unwrap_or(1);
        let side = (features / last).isqrt();
        if side * side * last != features || convs > 16 || resolutions > 16 {
            return Err(
                self.bad(format!("the policy's {features} features are no square image of {last} channels"))
            );
        }
        let frame_size = side << convs;
        let attention_sizes = (0..resolutions)
            .filter(|level| {
                self.0.shape(&format!("tokenizer.encoder.down.{level}.attn.0.q.weight")).is_some()
            })
            .map(|level| frame_size >> level)
            .collect();
        let tokenizer = TokenizerConfig {
            kind: TokenizerKind::Vq,
            frame_size,
            channels,
            resolutions,
            residual_blocks: self.count("tokenizer.encoder.down.0.block.", 0, ".conv1.weight"),
            attention_sizes,
            groups: paper.tokenizer.groups.min(channels),
            vocabulary: self.size("tokenizer.embedding.weight", 2, 0)?,
            embedding: self.size("tokenizer.embedding.weight", 2, 1)?,
        };
        if resolutions == 0 || frame_size >> (resolutions - 1) == 0 {
            return Err(
                self.bad(format!("{resolutions} resolutions do not fit frames of {frame_size} pixels"))
            );
        }
        let positions = self.size("world_model.pos_emb.weight", 2, 0)?;
        Ok(AgentConfig {
            actions: self.size("actor_critic.actor_linear.weight", 2, 0)?,
            world_model: WorldModelConfig {
                steps: positions / (tokenizer.tokens() + 1),
                layers: self.count("world_model.transformer.blocks.", 0, ".ln1.weight"),
                width: self.size("world_model.pos_emb.weight", 2, 1)?,
                ..paper.world_model
            },
            tokenizer,
            actor_critic: ActorCriticConfig {
                channels: policy_channels,
                hidden: self.size("actor_critic.lstm.weight_hh", 2, 1)?,
                ..paper.actor_critic
            },
        })
    }
}
