//! The zip that `torch.save` writes: a pickle, and one file per storage.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zip::ZipArchive;

use super::pickle::{LARGEST_PICKLE, read_state_dict};
use super::storage::{Kind, TensorSpec};
use crate::checkpoint::{CheckpointError, Result, io};

/// An opened checkpoint: what it holds, read tensor by tensor.
pub struct Archive {
    path: PathBuf,
    zip: ZipArchive<BufReader<File>>,
    /// The folder inside the zip that everything lies in.
    folder: String,
    tensors: Vec<(String, Arc<TensorSpec>)>,
    /// Bytes of storages that may still be read. Tensors can share a storage; the limit bounds how often it is read again.
    readable: u64,
}

/// How often the storages may be read, in sizes of the file.
const READINGS: u64 = 8;

impl Archive {
    pub fn open(path: &Path) -> Result<Archive> {
        let file = File::open(path).map_err(|source| io("read", path, source))?;
        let not_pytorch = |reason: String| CheckpointError::NotPyTorch { path: path.into(), reason };
        let length = file.metadata().map_err(|source| io("read", path, source))?.len();
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| not_pytorch(format!("{e}")))?;
        let pickle = zip.file_names().find(|name| name.ends_with("/data.pkl")).map(String::from);
        let pickle = pickle.ok_or_else(|| not_pytorch("the zip has no data.pkl".into()))?;
        let folder = pickle.trim_end_matches("data.pkl").to_string();
        let order = format!("{folder}byteorder");
        if zip.index_for_name(&order).is_some() && entry(&mut zip, &order).map_err(not_pytorch)? != b"little"
        {
            return Err(not_pytorch("it was written on a big-endian machine".into()));
        }
        let refused = |reason| CheckpointError::Refused { path: path.into(), reason };
        let size = zip.by_name(&pickle).map_err(|e| not_pytorch(format!("entry {pickle}: {e}")))?.size();
        if size > LARGEST_PICKLE as u64 {
            return Err(refused(format!("it has {size} bytes, more than the {LARGEST_PICKLE} of any agent")));
        }
        let bytes = entry(&mut zip, &pickle).map_err(not_pytorch)?;
        let tensors = read_state_dict(&bytes).map_err(refused)?;
        // The pickle's claims about storages are checked before they are used.
        for (name, spec) in &tensors {
            let file = format!("{folder}data/{}", spec.key);
            let size = zip.by_name(&file).map_err(|e| not_pytorch(format!("entry {file}: {e}")))?.size();
            let claimed = (spec.storage_len as u64).checked_mul(spec.kind.size() as u64);
            if claimed.is_none_or(|claimed| claimed > size) {
                return Err(not_pytorch(format!("the data of `{name}` is cut off")));
            }
        }
        Ok(Archive { path: path.into(), zip, folder, tensors, readable: READINGS.saturating_mul(length) })
    }

    /// Names and shapes, in the order of the file.
    pub fn tensors(&self) -> &[(String, Arc<TensorSpec>)] {
        &self.tensors
    }

    /// Elements of all tensors together, or of those that can be read where there are fewer.
    pub fn elements(&self) -> usize {
        let all = self.tensors.iter().fold(0, |n: usize, (_, spec)| n.saturating_add(spec.len()));
        all.min(usize::try_from(self.readable / 4).unwrap_or(usize::MAX))
    }

    /// The values of tensor number `index`, which must be float32.
    pub fn read(&mut self, index: usize) -> Result<Vec<f32>> {
        let (name, spec) = &self.tensors[index];
        if spec.kind != Kind::Float32 {
            let found = format!("{:?}", spec.kind).to_lowercase();
            return Err(CheckpointError::WrongType { path: self.path.clone(), name: name.clone(), found });
        }
        let path = self.path.clone();
        let not_pytorch = |reason: String| CheckpointError::NotPyTorch { path, reason };
        let file = format!("{}data/{}", self.folder, spec.key);
        let bytes = match entry(&mut self.zip, &file) {
            Ok(bytes) => bytes,
            Err(reason) => return Err(not_pytorch(reason)),
        };
        let Some(readable) = self.readable.checked_sub(bytes.len() as u64) else {
            return Err(not_pytorch("too many tensors in it are parts of the same data".into()));
        };
        self.readable = readable;
        if bytes.len() / spec.kind.size() < spec.storage_len {
            return Err(not_pytorch(format!("the data of `{name}` is cut off")));
        }
        let values = bytes.as_chunks::<4>().0;
        let values: Vec<f32> = spec.positions().map(|at| f32::from_le_bytes(values[at])).collect();
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => {
                let (path, name, found) = (self.path.clone(), name.clone(), value.to_string());
                Err(CheckpointError::BadValue { path, name, found })
            }
            None => Ok(values),
        }
    }
}

/// The bytes of one entry, compared with their checksum. `torch.save` stores them uncompressed, so none can be larger than the file; anything else is
/// refused.
fn entry(zip: &mut ZipArchive<BufReader<File>>, name: &str) -> Result<Vec<u8>, String> {
    let file = zip.by_name(name).map_err(|e| format!("entry {name}: {e}"))?;
    if file.compression() != zip::CompressionMethod::Stored || file.size() != file.compressed_size() {
        return Err(format!("entry {name} is compressed"));
    }
    let (size, checksum) = (file.size(), file.crc32());
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).map_err(|e| format!("entry {name}: {e}"))?;
    if bytes.len() as u64 != size {
        return Err(format!("entry {name} is cut off"));
    }
    if crc32fast::hash(&bytes) != checksum {
        return Err(format!(
            "entry {name} is damaged, its checksum differs: copy or download the file again"
        ));
    }
    Ok(bytes)
}
