//! Agents on disk: safetensors with the config and a format version in its metadata.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use engine::Device;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::{Agent, AgentConfig, Network, Perceptual};

/// The file's name inside an agent's folder.
const AGENT_FILE: &str = "agent.safetensors";

const FORMAT: &str = "iris-agent";
const VERSION: u32 = 1;

/// What the metadata says.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    config: AgentConfig,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// One variant per way a checkpoint can be bad.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot {doing} {path}: {source}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },

    #[error("{path} is not a readable safetensors file ({reason}); it may be cut off or damaged")]
    NotSafetensors { path: PathBuf, reason: String },

    #[error("{path} is a safetensors file, but not an agent of this program (its metadata lacks `{FORMAT}`)")]
    NotAnAgent { path: PathBuf },

    #[error("{path} has format version {found}; this program reads up to {VERSION}: use a newer one")]
    TooNew { path: PathBuf, found: u32 },

    #[error("{path}: the config in its metadata cannot be read: {reason}")]
    BadConfig { path: PathBuf, reason: String },

    #[error("{path} is damaged, or of another version of this program: {reason}")]
    BadState { path: PathBuf, reason: String },

    #[error("{path}: entry `{name}` is missing")]
    Missing { path: PathBuf, name: String },

    #[error("{path}: entry `{name}` is not part of this agent")]
    Extra { path: PathBuf, name: String },

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

    #[error("the reference release has nothing like {key}, so this agent cannot be written in its layout")]
    NotReferences { key: &'static str },

    #[error(transparent)]
    Engine(#[from] engine::Error),
}

pub(crate) type Result<T, E = CheckpointError> = std::result::Result<T, E>;

impl Agent {
    /// Whether a folder holds an agent by itself, as `iris import` writes them.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(AGENT_FILE).is_file()
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
        std::fs::create_dir_all(folder).map_err(|source| io("create", folder, source))?;
        let mut tensors = BTreeMap::new();
        for (prefix, network) in self.networks(perceptual) {
            for spec in network.params.specs() {
                let entry = Entry::floats(spec.shape.dims().to_vec(), &network.params.get(&spec.name)?);
                tensors.insert(format!("{prefix}.{}", spec.name), entry);
            }
        }
        let path = folder.join(AGENT_FILE);
        let header = serde_json::to_string(&Header { version: VERSION, config: self.config.clone() })
            .map_err(|e| CheckpointError::BadConfig { path: path.clone(), reason: e.to_string() })?;
        // One entry: a map of several would be written in a different order every time.
        let metadata = HashMap::from([(FORMAT.to_string(), header)]);
        write_safetensors(&path, &tensors, Some(metadata))?;
        Ok(path)
    }

    /// Reads what [`save`](Agent::save) wrote, with its perceptual network if it has one.
    pub fn load(device: &Device, folder: &Path) -> Result<(Agent, Option<Perceptual>)> {
        let path = folder.join(AGENT_FILE);
        let bytes = std::fs::read(&path).map_err(|source| io("read", &path, source))?;
        let unreadable = |e: SafeTensorError| CheckpointError::NotSafetensors {
            path: path.clone(),
            reason: e.to_string(),
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(unreadable)?;
        let file = SafeTensors::deserialize(&bytes).map_err(unreadable)?;
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
        let Header { config, .. } = serde_json::from_str(header).map_err(|e| bad_config(e.to_string()))?;
        config.validate().map_err(bad_config)?;
        let agent = Agent::within(device, &config, 0, bytes.len() / 4)?;
        let has_perceptual = file.names().iter().any(|name| name.starts_with("tokenizer.lpips."));
        let perceptual = has_perceptual.then(|| Perceptual::new(device, 0.0)).transpose()?;

        let mut known = 0;
        for (prefix, network) in agent.networks(perceptual.as_ref()) {
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
                if tensor.dtype() != Dtype::F32 {
                    let found = format!("{:?}", tensor.dtype());
                    return Err(CheckpointError::WrongType { path, name, found });
                }
                network.params.set(&spec.name, &from_bytes(tensor.data()))?;
                known += 1;
            }
        }
        if known < file.len() {
            let networks = agent.networks(perceptual.as_ref());
            let is_known = |name: &str| {
                networks.iter().any(|(prefix, network)| {
                    let own = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
                    own.is_some_and(|own| network.params.specs().iter().any(|spec| spec.name == own))
                })
            };
            let extra = file.names().into_iter().find(|name| !is_known(name)).unwrap_or_default().to_string();
            return Err(CheckpointError::Extra { path, name: extra });
        }
        Ok((agent, perceptual))
    }
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
    CheckpointError::Io { doing, path: path.to_path_buf(), source }
}

fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect()
}

/// Writes tensors by name.
pub(crate) fn write_safetensors(
    path: &Path,
    entries: &BTreeMap<String, Entry>,
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let unwritable =
        |e: SafeTensorError| CheckpointError::NotSafetensors { path: path.into(), reason: e.to_string() };
    let views = entries.iter().map(|(name, e)| {
        TensorView::new(e.dtype, e.shape.clone(), &e.bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    let file = safetensors::serialize(views, metadata).map_err(unwritable)?;
    write_atomically(path, &file)
}

/// Writes a file beside its place, makes sure it is on disk, and puts it there in one step: whoever looks sees the old one or the new one.
/// What a link leads to is written, and what is no file (a pipe, a device) is not replaced by one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = path.canonicalize().unwrap_or_else(|_| path.into());
    if target.exists() && !target.is_file() {
        return std::fs::write(&target, bytes).map_err(|source| io("write", path, source));
    }
    let path = &target;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|source| {
        // What is left of a failed attempt is of no use to anyone.
        let _ = std::fs::remove_file(&partial);
        io("write", path, source)
    })
}
