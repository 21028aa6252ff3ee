//! The readers of PyTorch's files, one by one, for `fuzz/`.

use std::path::Path;

use super::archive::Archive;
use super::pickle::read_state_dict;
use crate::checkpoint::Result;

/// Name, elements of the storage, and positions in it, of every tensor in a pickle.
pub fn pickle(bytes: &[u8]) -> Result<Vec<(String, usize, Vec<usize>)>, String> {
    let tensors = read_state_dict(bytes)?;
    // A storage may claim any size as long as no file is looked at; the first positions stand for all.
    let positions = |spec: &super::storage::TensorSpec| spec.positions().take(1000).collect();
    Ok(tensors.into_iter().map(|(name, spec)| (name, spec.storage_len, positions(&spec))).collect())
}

/// Elements and values of every tensor in a checkpoint that is float32.
pub fn archive(path: &Path) -> Result<Vec<(usize, Vec<f32>)>> {
    let mut archive = Archive::open(path)?;
    let lengths: Vec<usize> = archive.tensors().iter().map(|(_, spec)| spec.len()).collect();
    let mut all = Vec::new();
    for (index, len) in lengths.into_iter().enumerate() {
        all.push((len, archive.read(index)?));
    }
    Ok(all)
}
