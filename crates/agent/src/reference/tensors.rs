//! Files of named tensors, whichever way they were written: `torch.save` of today, `torch.save` before PyTorch 1.6, or safetensors.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::exported::Exported;
use super::legacy::{self, Legacy};
use super::pickle::Tensors;
use crate::checkpoint::{CheckpointError, Result, io};

/// An opened file, read tensor by tensor.
pub struct TensorFile {
    path: PathBuf,
    source: Source,
    /// Number in the source and shape, by name.
    entries: BTreeMap<String, (usize, Vec<usize>)>,
}

enum Source {
    Zip(Archive),
    Legacy(Legacy),
    Safetensors(Exported),
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<TensorFile> {
        let mut head = Vec::new();
        let opened = std::fs::File::open(path).map_err(|source| io("read", path, source))?;
        let most = legacy::MAGIC.len() as u64;
        opened.take(most).read_to_end(&mut head).map_err(|source| io("read", path, source))?;
        let source = if Exported::begins_with(&head) {
            Source::Safetensors(Exported::open(path)?)
        } else if head == legacy::MAGIC {
            Source::Legacy(Legacy::open(path)?)
        } else {
            Source::Zip(Archive::open(path)?)
        };
        let shapes = |tensors: &Tensors| -> Vec<_> {
            tensors.iter().map(|(name, spec)| (name.clone(), spec.shape.clone())).collect()
        };
        let shapes = match &source {
            Source::Zip(Archive { catalogue, .. }) | Source::Legacy(Legacy { catalogue, .. }) => {
                shapes(&catalogue.tensors)
            }
            Source::Safetensors(file) => file.tensors().map(|(name, s)| (name.into(), s.to_vec())).collect(),
        };
        let entries = shapes.into_iter().enumerate().map(|(i, (name, shape))| (name, (i, shape)));
        Ok(TensorFile { path: path.into(), source, entries: entries.collect() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Elements of all tensors together, or of those that can be read where there are fewer.
    pub fn elements(&self) -> usize {
        match &self.source {
            Source::Zip(Archive { catalogue, .. }) | Source::Legacy(Legacy { catalogue, .. }) => {
                catalogue.elements()
            }
            Source::Safetensors(file) => file.elements(),
        }
    }

    /// Names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|(_, shape)| shape.as_slice())
    }

    /// The values of an entry, which must be finite float32 of this shape.
    pub fn read(&mut self, name: &str, expected: &[usize]) -> Result<Vec<f32>> {
        let (path, name) = (self.path.clone(), name.to_string());
        let Some((index, shape)) = self.entries.get(&name) else {
            return Err(CheckpointError::Missing { path, name });
        };
        if shape != expected {
            let (found, expected) = (shape.clone(), expected.to_vec());
            return Err(CheckpointError::WrongShape { path, name, found, expected });
        }
        match &mut self.source {
            Source::Zip(file) => file.read(*index),
            Source::Legacy(file) => file.read(*index),
            Source::Safetensors(file) => file.read(*index),
        }
    }
}
