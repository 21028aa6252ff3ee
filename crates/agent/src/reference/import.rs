//! Agents of the reference release, from its own checkpoints or from what `export` wrote.

use std::collections::BTreeMap;
use std::path::Path;

use engine::Device;

use super::archive::Archive;
use super::exported::Exported;
use crate::checkpoint::{CheckpointError, Result};
use crate::{ActorCriticConfig, Agent, AgentConfig, Perceptual, TokenizerConfig, WorldModelConfig};

/// A file with the release's tensors.
enum Source {
    PyTorch(Archive),
    Exported(Exported),
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        Ok(match Exported::is_in(path) {
            true => Source::Exported(Exported::open(path)?),
            false => Source::PyTorch(Archive::open(path)?),
        })
    }

    /// Name and shape of every tensor.
    fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        match self {
            Source::PyTorch(archive) => {
                archive.tensors().iter().map(|(name, spec)| (name.clone(), spec.shape.clone())).collect()
            }
            Source::Exported(file) => file.tensors().to_vec(),
        }
    }

    fn elements(&self) -> usize {
        match self {
            Source::PyTorch(archive) => archive.elements(),
            Source::Exported(file) => file.elements(),
        }
    }

    fn read(&mut self, index: usize) -> Result<Vec<f32>> {
        match self {
            Source::PyTorch(archive) => archive.read(index),
            Source::Exported(file) => file.read(index),
        }
    }
}

/// Reads a checkpoint of the reference release (`last.pt`) or a file that [`export`](super::export) wrote: the agent, and the perceptual network if the
/// file has it. The sizes are found in the file; heads and groups, which leave no trace in it, are the paper's.
pub fn import(device: &Device, path: &Path) -> Result<(Agent, Option<Perceptual>)> {
    let mut archive = Source::open(path)?;
    let shapes = Shapes::new(path, &archive);
    let config = shapes.config()?;
    config.validate().map_err(|e| CheckpointError::BadConfig { path: path.into(), reason: e.to_string() })?;
    let agent = Agent::within(device, &config, 0, archive.elements())?;
    let has_perceptual = shapes.entries.keys().any(|name| name.starts_with("tokenizer.lpips.net"));
    let perceptual =
        has_perceptual.then(|| Perceptual::within(device, 0.0, archive.elements())).transpose()?;

    let mut unused: BTreeMap<String, usize> =
        shapes.entries.iter().map(|(n, (i, _))| (n.clone(), *i)).collect();
    for (prefix, network) in agent.networks(perceptual.as_ref()) {
        for (spec, layout) in network.params.specs().iter().zip(network.layouts()) {
            if is_ours_alone(prefix, &spec.name) {
                continue;
            }
            let name = format!("{prefix}.{}", spec.name);
            let expected = layout.reference_shape(spec.shape.dims());
            let Some(index) = unused.remove(&name) else {
                return Err(CheckpointError::Missing { path: path.into(), name });
            };
            let found = shapes.entries[&name].1.clone();
            if found != expected {
                return Err(CheckpointError::WrongShape { path: path.into(), name, found, expected });
            }
            let theirs = archive.read(index)?;
            network.params.set(&spec.name, &layout.from_reference(spec.shape.dims(), &theirs))?;
        }
    }
    let length = config.world_model.steps * (config.tokenizer.tokens() + 1);
    for (name, &index) in unused.iter().filter(|(name, _)| is_mask(name)) {
        let (found, expected) = (shapes.entries[name].1.clone(), vec![length, length]);
        if found != expected {
            return Err(CheckpointError::WrongShape {
                path: path.into(),
                name: name.clone(),
                found,
                expected,
            });
        }
        if !is_causal(&archive.read(index)?, length) {
            return Err(CheckpointError::NotCausal { path: path.into(), name: name.clone() });
        }
    }
    match unused.into_keys().find(|name| !is_buffer(name)) {
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
struct Shapes<'a> {
    path: &'a Path,
    entries: BTreeMap<String, (usize, Vec<usize>)>,
}

impl<'a> Shapes<'a> {
    fn new(path: &'a Path, source: &Source) -> Shapes<'a> {
        let tensors = source.shapes().into_iter().enumerate();
        Shapes { path, entries: tensors.map(|(i, (name, shape))| (name, (i, shape))).collect() }
    }

    /// Dimension `axis` of an entry that must be there and have `rank` dimensions.
    fn size(&self, name: &str, rank: usize, axis: usize) -> Result<usize> {
        let Some((_, shape)) = self.entries.get(name) else {
            return Err(CheckpointError::Missing { path: self.path.into(), name: name.into() });
        };
        match shape.len() == rank && shape.iter().all(|&d| d > 0) {
            true => Ok(shape[axis]),
            false => Err(self.bad(format!("`{name}` has shape {shape:?}, expected {rank} dimensions"))),
        }
    }

    /// How many of `{prefix}{first}{suffix}`, `{prefix}{first + 1}{suffix}`, ... there are.
    fn count(&self, prefix: &str, first: usize, suffix: &str) -> usize {
        (first..).take_while(|i| self.entries.contains_key(&format!("{prefix}{i}{suffix}"))).count()
    }

    fn bad(&self, reason: String) -> CheckpointError {
        CheckpointError::BadConfig { path: self.path.into(), reason }
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
                self.entries.contains_key(&format!("tokenizer.encoder.down.{level}.attn.0.q.weight"))
            })
            .map(|level| frame_size >> level)
            .collect();
        let tokenizer = TokenizerConfig {
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
