//! The zip that `torch.save` writes: a pickle, and one file per storage.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::pickle::{LARGEST_PICKLE, read_state_dict};
use super::storage::Catalogue;
use crate::checkpoint::{CheckpointError, Result, io};

/// An opened checkpoint: what it holds, read tensor by tensor.
pub struct Archive {
    path: PathBuf,
    zip: ZipArchive<BufReader<File>>,
    /// The folder inside the zip that everything lies in.
    folder: String,
    pub catalogue: Catalogue,
}

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
        let (tensors, _) = read_state_dict(&bytes).map_err(refused)?;
        // The pickle's claims about storages are checked before they are used.
        for (name, spec) in &tensors {
            let file = format!("{folder}data/{}", spec.key);
            let size = zip.by_name(&file).map_err(|e| not_pytorch(format!("entry {file}: {e}")))?.size();
            let claimed = (spec.storage_len as u64).checked_mul(spec.kind.size() as u64);
            if claimed.is_none_or(|claimed| claimed > size) {
                return Err(not_pytorch(format!("the data of `{name}` is cut off")));
            }
        }
        Ok(Archive { path: path.into(), zip, folder, catalogue: Catalogue::new(tensors, length) })
    }

    /// The values of tensor number `index`, which must be float32.
    pub fn read(&mut self, index: usize) -> Result<Vec<f32>> {
        let (name, spec) = &self.catalogue.tensors[index].clone();
        let not_pytorch = |reason| CheckpointError::NotPyTorch { path: self.path.clone(), reason };
        let file = format!("{}data/{}", self.folder, spec.key);
        let bytes = entry(&mut self.zip, &file).map_err(not_pytorch)?;
        self.catalogue.count(bytes.len()).map_err(not_pytorch)?;
        if bytes.len() / spec.kind.size() < spec.storage_len {
            return Err(not_pytorch(format!("the data of `{name}` is cut off")));
        }
        spec.values(&self.path, name, &bytes)
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
