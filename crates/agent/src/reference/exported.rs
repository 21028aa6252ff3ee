//! Safetensors with the names and shapes of others: what `export` writes, and what users convert PyTorch's files to.

use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};

use crate::checkpoint::{CheckpointError, Result, finite};
use crate::files::read;

/// A safetensors file in memory.
pub struct Exported {
    path: PathBuf,
    bytes: Vec<u8>,
    tensors: Vec<Tensor>,
}

/// Where a tensor lies in the file.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    bytes: Range<usize>,
}

impl Exported {
    /// Whether a file that begins with these bytes looks like safetensors: eight bytes of length, then JSON.
    pub fn begins_with(head: &[u8]) -> bool {
        // Headers of 4 GiB do not exist.
        matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..])
    }

    pub fn open(path: &Path) -> Result<Exported> {
        let bytes = read(path)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| unreadable(path, e))?;
        let tensors = file.iter().map(|(name, view)| {
            let first = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            Tensor {
                name: name.into(),
                shape: view.shape().to_vec(),
                dtype: view.dtype(),
                bytes: first..first + view.data().len(),
            }
        });
        Ok(Exported { path: path.into(), tensors: tensors.collect(), bytes })
    }

    /// Names and shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
    }

    /// Elements of all tensors together, at most.
    pub fn elements(&self) -> usize {
        self.bytes.len() / 4
    }

    /// The values of tensor number `index`, which must be float32 and finite.
    pub fn read(&self, index: usize) -> Result<Vec<f32>> {
        let Tensor { name, shape, dtype, bytes } = &self.tensors[index];
        let view = TensorView::new(*dtype, shape.clone(), &self.bytes[bytes.clone()]);
        finite(&self.path, name, &view.map_err(|e| unreadable(&self.path, e))?)
    }
}

fn unreadable(path: &Path, error: SafeTensorError) -> CheckpointError {
    CheckpointError::NotSafetensors { path: path.into(), reason: error.to_string() }
}
