//! The readers of PyTorch's files, one by one, for `fuzz/`.

use std::path::Path;

use super::pickle::read_state_dict;
use super::tensors::TensorFile;
use crate::checkpoint::Result;

/// Name, elements of the storage, and positions in it, of every tensor in a pickle.
pub fn pickle(bytes: &[u8]) -> Result<Vec<(String, usize, Vec<usize>)>, String> {
    let (tensors, _) = read_state_dict(bytes)?;
    // A storage may claim any size as long as no file is looked at; the first positions stand for all.
    let positions = |spec: &super::storage::TensorSpec| spec.positions().take(1000).collect();
    Ok(tensors.into_iter().map(|(name, spec)| (name, spec.storage_len, positions(&spec))).collect())
}

/// Shape and values of every tensor in a file of any of the three formats, which all must be float32.
pub fn tensors(path: &Path) -> Result<Vec<(Vec<usize>, Vec<f32>)>> {
    let mut file = TensorFile::open(path)?;
    let names: Vec<String> = file.names().map(String::from).collect();
    let mut all = Vec::new();
    for name in names {
        let shape = file.shape(&name).unwrap_or_default().to_vec();
        let values = file.read(&name, &shape)?;
        all.push((shape, values));
    }
    Ok(all)
}
