//! The format of `torch.save` before PyTorch 1.6, which the published weights of torchvision and LPIPS still have: five pickles one after the other,
//! then the storages, each as its number of elements (i64) and its values.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::pickle::{LARGEST_PICKLE, Reason, Tensors, read_names, read_state_dict, skip_value};
use super::storage::Catalogue;
use crate::checkpoint::{CheckpointError, Result, io};

/// The first two pickles: a magic number and the protocol, 1001.
pub const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

/// An opened file: its tensors, and where each storage lies.
pub struct Legacy {
    path: PathBuf,
    file: BufReader<File>,
    pub catalogue: Catalogue,
    /// First byte of a storage's values, by the storage's key.
    offsets: HashMap<Arc<str>, u64>,
}

impl Legacy {
    pub fn open(path: &Path) -> Result<Legacy> {
        let opened = File::open(path).map_err(|source| io("read", path, source))?;
        let length = opened.metadata().map_err(|source| io("read", path, source))?.len();
        let mut file = BufReader::new(opened);
        let mut head = Vec::new();
        let most = (MAGIC.len() + LARGEST_PICKLE) as u64;
        file.by_ref().take(most).read_to_end(&mut head).map_err(|source| io("read", path, source))?;
        let refused = |reason| CheckpointError::Refused { path: path.into(), reason };
        let Pickles { tensors, keys, end } = Pickles::read(&head).map_err(refused)?;
        let not_pytorch = |reason: String| CheckpointError::NotPyTorch { path: path.into(), reason };
        let offsets = offsets(&mut file, length, &tensors, &keys, end).map_err(not_pytorch)?;
        Ok(Legacy { path: path.into(), file, offsets, catalogue: Catalogue::new(tensors, length) })
    }

    /// The values of tensor number `index`, which must be float32.
    pub fn read(&mut self, index: usize) -> Result<Vec<f32>> {
        let (name, spec) = &self.catalogue.tensors[index].clone();
        // Inside the file: checked when it was opened.
        let (at, length) = (self.offsets[&spec.key], spec.storage_len * spec.kind.size());
        let not_pytorch = |reason| CheckpointError::NotPyTorch { path: self.path.clone(), reason };
        self.catalogue.count(length).map_err(not_pytorch)?;
        let mut bytes = vec![0; length];
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|source| io("read", &self.path, source))?;
        spec.values(&self.path, name, &bytes)
    }
}

/// What stands before the storages.
struct Pickles {
    tensors: Tensors,
    /// Storages in the order they lie in.
    keys: Vec<Arc<str>>,
    /// Bytes of all pickles.
    end: usize,
}

impl Pickles {
    fn read(head: &[u8]) -> Result<Pickles, Reason> {
        let mut at = MAGIC.len();
        let rest = |at: usize| head.get(at..).unwrap_or_default();
        // Byte order and sizes of C types on the machine that wrote it; storages are little-endian on all of them.
        at += skip_value(rest(at))?;
        let (tensors, read) = read_state_dict(rest(at))?;
        at += read;
        let (keys, read) = read_names(rest(at))?;
        Ok(Pickles { tensors, keys, end: at + read })
    }
}

/// The first byte of each storage's values. Sizes in the pickle must be those before the values, and all values inside the file.
fn offsets(
    file: &mut BufReader<File>,
    length: u64,
    tensors: &Tensors,
    keys: &[Arc<str>],
    end: usize,
) -> Result<HashMap<Arc<str>, u64>, Reason> {
    // Elements of each storage and bytes of an element.
    let mut sizes: HashMap<&str, (u64, u64)> = HashMap::new();
    for (name, spec) in tensors {
        let size = (spec.storage_len as u64, spec.kind.size() as u64);
        if sizes.insert(&spec.key, size).is_some_and(|other| other != size) {
            return Err(format!("`{name}` and another tensor disagree about the storage they share"));
        }
    }
    let (mut offsets, mut at) = (HashMap::new(), end as u64);
    for key in keys {
        let Some(&(elements, size)) = sizes.get(&**key) else {
            return Err(format!("no tensor lies in storage {key}"));
        };
        let mut count = [0; 8];
        let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut count));
        read.map_err(|_| cut_off())?;
        if u64::from_le_bytes(count) != elements {
            return Err(format!("storage {key} does not have the {elements} elements its tensors expect"));
        }
        let first = at + count.len() as u64;
        let end = elements.checked_mul(size).and_then(|bytes| bytes.checked_add(first));
        at = end.filter(|&end| end <= length).ok_or_else(cut_off)?;
        offsets.insert(key.clone(), first);
    }
    match tensors.iter().find(|(_, spec)| !offsets.contains_key(&spec.key)) {
        Some((name, spec)) => Err(format!("storage {} of `{name}` is missing", spec.key)),
        None => Ok(offsets),
    }
}

fn cut_off() -> Reason {
    "it is cut off".into()
}
