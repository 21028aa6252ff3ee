//! The perceptual network in a file of its own, for runs that start from pretrained weights.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engine::Device;
use safetensors::{SafeTensorError, SafeTensors};

use crate::checkpoint::{CheckpointError, Result, entries_of, fill, to_safetensors};
use crate::files::{failed, read, write_atomically};
use crate::{Agent, Network, Perceptual};

/// The file's name inside a folder.
const FILE: &str = "perceptual.safetensors";
/// The metadata's only entry: the CRC-32 of the tensors' bytes in the order of their names.
const CHECKSUM: &str = "iris-perceptual-crc32";

impl Perceptual {
    /// The network under the name it has in files of agents.
    fn named(&self) -> [(&'static str, &Network); 1] {
        [("tokenizer.lpips", &self.network)]
    }

    /// Writes the network to `folder`. The file appears whole or not at all.
    pub fn save(&self, folder: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let path = folder.join(FILE);
        write_atomically(&path, &self.to_bytes(&path)?)?;
        Ok(path)
    }

    /// The network as the bytes of a file, which errors call `path`.
    pub(crate) fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        let (entries, crc32) = entries_of(&self.named())?;
        let metadata = HashMap::from([(CHECKSUM.to_string(), crc32.to_string())]);
        to_safetensors(path, &entries, Some(metadata))
    }

    /// The network in `folder`: what [`save`](Perceptual::save) wrote, or that of an agent there, which may have none.
    pub fn load(device: &Device, folder: &Path, dropout: f32) -> Result<Option<Perceptual>> {
        let path = folder.join(FILE);
        let mut perceptual = match path.is_file() {
            true => Some(Perceptual::from_bytes(device, &path, &read(&path)?)?),
            false => Agent::load(device, folder)?.1,
        };
        if let Some(perceptual) = &mut perceptual {
            perceptual.dropout = dropout;
        }
        Ok(perceptual)
    }

    /// The same from the bytes of a file, which errors call `path`.
    pub(crate) fn from_bytes(device: &Device, path: &Path, bytes: &[u8]) -> Result<Perceptual> {
        let unreadable =
            |e: SafeTensorError| CheckpointError::NotSafetensors { path: path.into(), reason: e.to_string() };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
        let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
        let Some(crc32) = header.metadata().as_ref().and_then(|metadata| metadata.get(CHECKSUM)) else {
            return Err(CheckpointError::NotPerceptual { path: path.into(), key: CHECKSUM });
        };
        let Ok(crc32) = crc32.parse() else { return Err(CheckpointError::Checksum { path: path.into() }) };
        let perceptual = Perceptual::within(device, 0.0, bytes.len() / 4)?;
        fill(&perceptual.named(), path, &file, Some(crc32))?;
        Ok(perceptual)
    }
}
