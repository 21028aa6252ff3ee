//! Storages as PyTorch names them, and tensors as views of them.

use std::sync::Arc;

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
}
