//! Adam's state of every network in a file, and the running range of returns where there is one.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;

use crate::Agent;
use crate::checkpoint::{CheckpointError, Entry, Result, finite, to_safetensors};

/// The buffers by name.
fn buffers(agent: &Agent) -> impl Iterator<Item = (String, &engine::Buffer)> {
    agent.networks(None).into_iter().flat_map(|(prefix, network)| {
        network
            .params
            .optimiser_state()
            .into_iter()
            .map(move |(name, buffer)| (format!("{prefix}.{name}"), buffer))
    })
}

/// The range of returns, which only a run that divides by it has.
const RANGE: &str = "actor_critic.return_range";

/// The bytes of a file, which errors call `path`.
pub(crate) fn to_bytes(agent: &Agent, path: &Path) -> Result<Vec<u8>> {
    let mut entries = BTreeMap::new();
    for (name, buffer) in buffers(agent) {
        let shape = buffer.shape().dims().to_vec();
        let entry = match buffer.dtype() {
            engine::DType::I32 => Entry::counts(&buffer.read::<i32>()?),
            _ => Entry::floats(shape, &buffer.read::<f32>()?),
        };
        entries.insert(name, entry);
    }
    let range = agent.actor_critic.return_range.buffer().read::<f32>()?;
    if range[1] != 0.0 {
        entries.insert(RANGE.into(), Entry::floats(vec![range.len()], &range));
    }
    to_safetensors(path, &entries, None)
}

/// Fills the optimisers of an agent from the bytes of a file, which errors call `path`.
pub(crate) fn from_bytes(agent: &Agent, path: &Path, bytes: &[u8]) -> Result<()> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| CheckpointError::NotSafetensors { path: path.into(), reason: e.to_string() })?;
    let mut known = Vec::new();
    for (name, buffer) in buffers(agent) {
        let Ok(tensor) = file.tensor(&name) else {
            return Err(CheckpointError::Missing { path: path.into(), name });
        };
        let (found, expected) = (tensor.shape().to_vec(), buffer.shape().dims().to_vec());
        if found != expected {
            return Err(CheckpointError::WrongShape { path: path.into(), name, found, expected });
        }
        let bad = |found: String| CheckpointError::BadValue { path: path.into(), name: name.clone(), found };
        match buffer.dtype() {
            engine::DType::I32 => {
                if tensor.dtype() != safetensors::Dtype::I32 {
                    return Err(bad(format!("{:?} instead of int32", tensor.dtype())));
                }
                let words = tensor.data().as_chunks::<4>().0;
                let counts: Vec<i32> = words.iter().map(|word| i32::from_le_bytes(*word)).collect();
                if let Some(count) = counts.iter().find(|count| **count < 0) {
                    return Err(bad(format!("{count} updates")));
                }
                buffer.write(&counts)?;
            }
            _ => {
                let values = finite(path, &name, &tensor)?;
                // Adam takes the root of a second moment.
                let negative = values.iter().find(|value| name.ends_with("second_moments") && **value < 0.0);
                if let Some(value) = negative {
                    return Err(bad(value.to_string()));
                }
                buffer.write(&values)?;
            }
        }
        known.push(name);
    }
    if let Ok(tensor) = file.tensor(RANGE) {
        let (path, name): (_, String) = (path.to_path_buf(), RANGE.into());
        let buffer = agent.actor_critic.return_range.buffer();
        let values = finite(&path, RANGE, &tensor)?;
        match values[..] {
            [range, 1.0] if range >= 0.0 => buffer.write(&values)?,
            [_, _] => return Err(CheckpointError::BadValue { path, name, found: format!("{values:?}") }),
            _ => {
                let (found, expected) = (tensor.shape().to_vec(), buffer.shape().dims().to_vec());
                return Err(CheckpointError::WrongShape { path, name, found, expected });
            }
        }
        known.push(name);
    }
    match file.names().into_iter().find(|name| !known.iter().any(|known| known == name)) {
        Some(name) => Err(CheckpointError::Extra { path: path.into(), name: name.to_string() }),
        None => Ok(()),
    }
}
