//! What `export` writes, read back: safetensors with the reference release's names and shapes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::checkpoint::{CheckpointError, Result};
use crate::files::{failed, read};

/// A safetensors file in memory.
pub struct Exported {
    path: PathBuf,
    bytes: Vec<u8>,
    tensors: Vec<(String, Vec<usize>)>,
}

impl Exported {
    /// Whether a file looks like safetensors: eight bytes of length, then JSON.
    pub fn is_in(path: &Path) -> bool {
        let mut start = [0; 9];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
        // Headers of 4 GiB do not exist.
        read.is_ok() && start[4..8] == [0; 4] && start[8] == b'{'
    }

    pub fn open(path: &Path) -> Result<Exported> {
        let bytes = read(path).map_err(|e| failed("read", path)(e.source))?;
        let not_safetensors = |reason: safetensors::SafeTensorError| CheckpointError::NotSafetensors {
            path: path.into(),
            reason: reason.to_string(),
        };
        let file = SafeTensors::deserialize(&bytes).map_err(not_safetensors)?;
        let tensors = file.iter().map(|(name, view)| (name.to_string(), view.shape().to_vec())).collect();
        Ok(Exported { path: path.into(), tensors, bytes })
    }

    /// Names and shapes.
    pub fn tensors(&self) -> &[(String, Vec<usize>)] {
        &self.tensors
    }

    /// Elements of all tensors together, at most.
    pub fn elements(&self) -> usize {
        self.bytes.len() / 4
    }

    /// The values of tensor number `index`, which must be float32 and finite.
    pub fn read(&self, index: usize) -> Result<Vec<f32>> {
        let (path, name) = (self.path.clone(), self.tensors[index].0.clone());
        let file = SafeTensors::deserialize(&self.bytes).and_then(|file| file.tensor(&name));
        let view = match file {
            Ok(view) => view,
            Err(e) => return Err(CheckpointError::NotSafetensors { path, reason: e.to_string() }),
        };
        if view.dtype() != Dtype::F32 {
            return Err(CheckpointError::WrongType { path, name, found: view.dtype().to_string() });
        }
        let values: Vec<f32> =
            view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(CheckpointError::BadValue { path, name, found: value.to_string() }),
            None => Ok(values),
        }
    }
}
