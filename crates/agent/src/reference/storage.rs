//! Storages as PyTorch names them, and tensors as views of them.

use std::path::Path;
use std::sync::Arc;

use super::pickle::Tensors;
use crate::checkpoint::{CheckpointError, Result, all_finite};

/// Element types of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float32,
    Float64,
    Float16,
    BFloat16,
    Int64,
    Int32,
    Int16,
    Int8,
    UInt8,
    Bool,
}

impl Kind {
    pub fn from_storage(name: &str) -> Option<Kind> {
        Some(match name {
            "FloatStorage" => Kind::Float32,
            "DoubleStorage" => Kind::Float64,
            "HalfStorage" => Kind::Float16,
            "BFloat16Storage" => Kind::BFloat16,
            "LongStorage" => Kind::Int64,
            "IntStorage" => Kind::Int32,
            "ShortStorage" => Kind::Int16,
            "CharStorage" => Kind::Int8,
            "ByteStorage" => Kind::UInt8,
            "BoolStorage" => Kind::Bool,
            _ => return None,
        })
    }

    pub fn size(self) -> usize {
        match self {
            Kind::Float64 | Kind::Int64 => 8,
            Kind::Float32 | Kind::Int32 => 4,
            Kind::Float16 | Kind::BFloat16 | Kind::Int16 => 2,
            Kind::Int8 | Kind::UInt8 | Kind::Bool => 1,
        }
    }
}

/// A view of a storage, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name of the storage's file in the archive.
    pub key: Arc<str>,
    pub kind: Kind,
    /// Elements of the storage.
    pub storage_len: usize,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl TensorSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether every element lies inside the storage, and none is shared so often that reading them would need more than it holds.
    pub fn fits(&self) -> bool {
        let Some(elements) = self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) else {
            return false;
        };
        if elements == 0 {
            return true;
        }
        let mut steps = self.shape.iter().zip(&self.strides);
        let last = steps.try_fold(self.offset, |at, (&d, &s)| at.checked_add((d - 1).checked_mul(s)?));
        last.is_some_and(|last| last < self.storage_len) && elements <= self.storage_len
    }

    /// Positions of the elements in the storage, in row-major order.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).map(|mut index| {
            let mut at = self.offset;
            for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
                at += index % size * stride;
                index /= size;
            }
            at
        })
    }

    /// The elements, which must be finite float32, from the bytes of the whole storage; errors call the file `path` and the tensor `name`.
    pub fn values(&self, path: &Path, name: &str, storage: &[u8]) -> Result<Vec<f32>> {
        if self.kind != Kind::Float32 {
            let found = format!("{:?}", self.kind).to_lowercase();
            return Err(CheckpointError::WrongType { path: path.into(), name: name.into(), found });
        }
        let values = storage.as_chunks::<4>().0;
        all_finite(path, name, self.positions().map(|at| f32::from_le_bytes(values[at])).collect())
    }
}

/// The tensors of a file, and the bytes of its storages that may still be read. Tensors can share a storage; the limit bounds how often it is read again.
pub struct Catalogue {
    /// Names and shapes, in the order of the file.
    pub tensors: Tensors,
    left: u64,
}

impl Catalogue {
    /// How often the storages may be read, in sizes of the file.
    const MOST: u64 = 8;

    /// Of a file of `length` bytes.
    pub fn new(tensors: Tensors, length: u64) -> Catalogue {
        Catalogue { tensors, left: Catalogue::MOST.saturating_mul(length) }
    }

    /// Counts bytes that are about to be read.
    pub fn count(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.ok_or("too many tensors in it are parts of the same data")?;
        Ok(())
    }

    /// Elements of all tensors together, or of those that can be read where there are fewer.
    pub fn elements(&self) -> usize {
        let all = self.tensors.iter().fold(0, |n: usize, (_, spec)| n.saturating_add(spec.len()));
        all.min(usize::try_from(self.left / 4).unwrap_or(usize::MAX))
    }
}
