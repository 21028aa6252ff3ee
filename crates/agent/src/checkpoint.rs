//! Agents on disk: safetensors with the config and a format version in its metadata.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use engine::Device;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::files::{FileError, failed, read, write_atomically};
use crate::{Agent, AgentConfig, Network, Perceptual};

/// The file's name inside an agent's folder.
pub(crate) const AGENT_FILE: &str = "agent.safetensors";

/// The name where an agent is published: the Hugging Face Hub looks for it.
const PUBLISHED_FILE: &str = "model.safetensors";

const FORMAT: &str = "iris-agent";
const VERSION: u32 = 1;

/// What the metadata says.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    config: AgentConfig,
    /// CRC-32 of the tensors' bytes in the order of their names; files of older programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32: Option<u32>,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// One variant per way a checkpoint can be bad.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] FileError),

    #[error("{path} is damaged: its checksum does not match the one saved with it")]
    Checksum { path: PathBuf },

    #[error("{path} is not a readable safetensors file ({reason}); it may be truncated or damaged")]
    NotSafetensors { path: PathBuf, reason: String },

    #[error("{path} is a safetensors file, but not an agent of this program (its metadata lacks `{FORMAT}`)")]
    NotAnAgent { path: PathBuf },

    #[error(
        "{path} is a safetensors file, but no perceptual network of this program (its metadata lacks `{key}`)"
    )]
    NotPerceptual { path: PathBuf, key: &'static str },

    #[error("{path} has format version {found}; this program reads up to {VERSION}")]
    TooNew { path: PathBuf, found: u32 },

    #[error("{path}: the config in its metadata cannot be read: {reason}")]
    BadConfig { path: PathBuf, reason: String },

    #[error("{path}: entry `{name}` is missing")]
    Missing { path: PathBuf, name: String },

    #[error("{path}: entry `{name}` is not part of this agent")]
    Extra { path: PathBuf, name: String },

    #[error("{path}: entry `{name}` is not part of a perceptual network")]
    ExtraWeights { path: PathBuf, name: String },

    #[error("{path}: entry `{name}` has shape {found:?}, expected {expected:?}")]
    WrongShape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },

    #[error("{path}: entry `{name}` holds {found}, expected float32")]
    WrongType { path: PathBuf, name: String, found: String },

    #[error("{path}: entry `{name}` holds {found}: the file is damaged, or the network had diverged")]
    BadValue { path: PathBuf, name: String, found: String },

    #[error("{path} is not a PyTorch checkpoint: {reason}")]
    NotPyTorch { path: PathBuf, reason: String },

    #[error("{path}: refused to read its pickle: {reason}")]
    Refused { path: PathBuf, reason: String },

    #[error(
        "{path}: `{name}` is not a causal mask; the agent was trained with another attention, such as the release's `block causal`, which this program does not have"
    )]
    NotCausal { path: PathBuf, name: String },

    #[error("the reference release has no {key}, so this agent cannot be exported")]
    NotReferences { key: &'static str },

    #[error(transparent)]
    Engine(#[from] engine::Error),
}

pub(crate) type Result<T, E = CheckpointError> = std::result::Result<T, E>;

impl Agent {
    /// Whether a folder holds an agent by itself, as `iris import` and [`publish`](Agent::publish) write them.
    pub fn is_in(folder: &Path) -> bool {
        Agent::file_in(folder).is_file()
    }

    /// The file of the agent in a folder.
    fn file_in(folder: &Path) -> PathBuf {
        let names = [AGENT_FILE, PUBLISHED_FILE].map(|name| folder.join(name));
        let found = names.iter().find(|path| path.is_file()).cloned();
        found.unwrap_or_else(|| folder.join(AGENT_FILE))
    }

    /// The networks under the names they have in files. The perceptual network is there when the agent came with one.
    pub(crate) fn networks<'a>(
        &'a self,
        perceptual: Option<&'a Perceptual>,
    ) -> Vec<(&'static str, &'a Network)> {
        let mut networks = vec![
            ("tokenizer", &self.tokenizer.network),
            ("world_model", &self.world_model.network),
            ("actor_critic", &self.actor_critic.network),
        ];
        networks.extend(perceptual.map(|p| ("tokenizer.lpips", &p.network)));
        networks
    }

    /// Writes the networks to `folder`. The file appears whole or not at all.
    pub fn save(&self, perceptual: Option<&Perceptual>, folder: &Path) -> Result<PathBuf> {
        self.save_as(perceptual, folder, AGENT_FILE)
    }

    /// The same under the name that others look for.
    pub fn publish(&self, folder: &Path) -> Result<PathBuf> {
        self.save_as(None, folder, PUBLISHED_FILE)
    }

    fn save_as(&self, perceptual: Option<&Perceptual>, folder: &Path, name: &str) -> Result<PathBuf> {
        std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let path = folder.join(name);
        write_atomically(&path, &self.to_bytes(perceptual, &path)?)?;
        Ok(path)
    }

    /// The networks as the bytes of a file, which errors call `path`.
    pub(crate) fn to_bytes(&self, perceptual: Option<&Perceptual>, path: &Path) -> Result<Vec<u8>> {
        let (tensors, crc32) = entries_of(&self.networks(perceptual))?;
        let crc32 = Some(crc32);
        let header = serde_json::to_string(&Header { version: VERSION, config: self.config.clone(), crc32 })
            .map_err(|e| CheckpointError::BadConfig { path: path.into(), reason: e.to_string() })?;
        // One entry: a map of several would be written in a different order every time.
        let metadata = HashMap::from([(FORMAT.to_string(), header)]);
        to_safetensors(path, &tensors, Some(metadata))
    }

    /// Reads what [`save`](Agent::save) wrote, with its perceptual network if it has one.
    pub fn load(device: &Device, folder: &Path) -> Result<(Agent, Option<Perceptual>)> {
        let path = Agent::file_in(folder);
        Agent::from_bytes(device, &path, &read(&path)?)
    }

    /// The same from the bytes of a file, which errors call `path`.
    pub(crate) fn from_bytes(
        device: &Device,
        path: &Path,
        bytes: &[u8],
    ) -> Result<(Agent, Option<Perceptual>)> {
        let path = path.to_path_buf();
        let unreadable = |e: SafeTensorError| CheckpointError::NotSafetensors {
            path: path.clone(),
            reason: e.to_string(),
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
        let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let Some(header) = metadata.get(FORMAT) else {
            return Err(CheckpointError::NotAnAgent { path });
        };
        let bad_config = |reason: String| CheckpointError::BadConfig { path: path.clone(), reason };
        // The version first: a newer config may not be readable.
        let version: Version = serde_json::from_str(header).map_err(|e| bad_config(e.to_string()))?;
        if version.version > VERSION {
            return Err(CheckpointError::TooNew { path, found: version.version });
        }
        let header: Header = serde_json::from_str(header).map_err(|e| bad_config(e.to_string()))?;
        let config = header.config;
        config.validate().map_err(|e| bad_config(e.to_string()))?;
        let agent = Agent::within(device, &config, 0, bytes.len() / 4)?;
        let has_perceptual = file.names().iter().any(|name| name.starts_with("tokenizer.lpips."));
        let perceptual =
            has_perceptual.then(|| Perceptual::within(device, 0.0, bytes.len() / 4)).transpose()?;

        fill(&agent.networks(perceptual.as_ref()), &path, &file, header.crc32)?;
        Ok((agent, perceptual))
    }
}

/// All parameters of networks under the names they have in files, and the CRC-32 of their bytes in the order of these names.
pub(crate) fn entries_of(networks: &[(&str, &Network)]) -> Result<(BTreeMap<String, Entry>, u32)> {
    let mut entries = BTreeMap::new();
    for (prefix, network) in networks {
        for spec in network.params.specs() {
            let entry = Entry::floats(spec.shape.dims().to_vec(), &network.params.get(&spec.name)?);
            entries.insert(format!("{prefix}.{}", spec.name), entry);
        }
    }
    let crc32 = checksum_of(entries.values().map(|entry| entry.bytes.as_slice()));
    Ok((entries, crc32))
}

/// Gives networks the parameters that [`entries_of`] wrote, which must be all of the file.
pub(crate) fn fill(
    networks: &[(&str, &Network)],
    path: &Path,
    file: &SafeTensors,
    crc32: Option<u32>,
) -> Result<()> {
    let path = path.to_path_buf();
    let mut entries = BTreeMap::new();
    for (prefix, network) in networks {
        for spec in network.params.specs() {
            let name = format!("{prefix}.{}", spec.name);
            let Ok(tensor) = file.tensor(&name) else {
                return Err(CheckpointError::Missing { path, name });
            };
            let expected = spec.shape.dims();
            if tensor.shape() != expected {
                let (found, expected) = (tensor.shape().to_vec(), expected.to_vec());
                return Err(CheckpointError::WrongShape { path, name, found, expected });
            }
            entries.insert(name, (network, spec, tensor));
        }
    }
    if let Some(extra) = file.names().into_iter().find(|name| !entries.contains_key(*name)) {
        return Err(CheckpointError::Extra { path, name: extra.to_string() });
    }
    let checksum = checksum_of(entries.values().map(|(_, _, tensor)| tensor.data()));
    if crc32.is_some_and(|crc32| crc32 != checksum) {
        return Err(CheckpointError::Checksum { path });
    }
    for (name, (network, spec, tensor)) in &entries {
        network.params.set(&spec.name, &finite(&path, name, tensor)?)?;
    }
    Ok(())
}

/// A tensor on its way to a file.
pub(crate) struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Entry {
    pub fn floats(shape: Vec<usize>, values: &[f32]) -> Entry {
        Entry { dtype: Dtype::F32, shape, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    pub fn counts(values: &[i32]) -> Entry {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Entry { dtype: Dtype::I32, shape: vec![values.len()], bytes }
    }

    pub fn integers(values: &[usize]) -> Entry {
        let bytes = values.iter().flat_map(|&v| (v as i64).to_le_bytes()).collect();
        Entry { dtype: Dtype::I64, shape: vec![values.len()], bytes }
    }
}

pub(crate) fn io(doing: &'static str, path: &Path, source: std::io::Error) -> CheckpointError {
    FileError { doing, path: path.into(), source }.into()
}

/// CRC-32 of parts, one after the other.
fn checksum_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// The numbers of an entry: f32, none of them NaN or infinite.
pub(crate) fn finite(path: &Path, name: &str, tensor: &TensorView) -> Result<Vec<f32>> {
    if tensor.dtype() != Dtype::F32 {
        let (path, name, found) = (path.into(), name.into(), format!("{:?}", tensor.dtype()));
        return Err(CheckpointError::WrongType { path, name, found });
    }
    let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    all_finite(path, name, values.collect())
}

/// The values of an entry, none of which may be NaN or infinite.
pub(crate) fn all_finite(path: &Path, name: &str, values: Vec<f32>) -> Result<Vec<f32>> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => {
            let (path, name, found) = (path.into(), name.into(), value.to_string());
            Err(CheckpointError::BadValue { path, name, found })
        }
        None => Ok(values),
    }
}

/// The bytes of a file with these tensors by name; errors call it `path`.
pub(crate) fn to_safetensors(
    path: &Path,
    entries: &BTreeMap<String, Entry>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let unwritable =
        |e: SafeTensorError| CheckpointError::NotSafetensors { path: path.into(), reason: e.to_string() };
    let views = entries.iter().map(|(name, e)| {
        TensorView::new(e.dtype, e.shape.clone(), &e.bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    safetensors::serialize(views, metadata).map_err(unwritable)
}

/// Writes tensors by name.
pub(crate) fn write_safetensors(
    path: &Path,
    entries: &BTreeMap<String, Entry>,
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    Ok(write_atomically(path, &to_safetensors(path, entries, metadata)?)?)
}
