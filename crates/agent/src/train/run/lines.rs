//! A file of JSON lines, one per epoch, that a resumed run cuts back to its checkpoint.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{FileError, failed, parent, read, sync_folder, write_atomically};

type Result<T, E = FileError> = std::result::Result<T, E>;
pub(super) type Line = serde_json::Map<String, serde_json::Value>;

/// What a checkpoint knows of such a file: lines after it belong to an epoch that was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    pub bytes: u64,
    /// CRC-32 of the bytes. Checkpoints of version 1 have none.
    pub checksum: Option<u32>,
}

pub(super) struct Lines {
    pub path: PathBuf,
    /// Length and CRC-32 of what the file holds.
    pub bytes: u64,
    pub checksum: u32,
}

impl Lines {
    /// Of a run that begins.
    pub fn new(path: PathBuf) -> Lines {
        Lines { path, bytes: 0, checksum: crc32fast::hash(&[]) }
    }

    pub fn mark(&self) -> Mark {
        Mark { bytes: self.bytes, checksum: Some(self.checksum) }
    }

    /// Of a run that goes on after `epoch`: forgets epochs that were not finished, and returns the text of the others. Lines that are lost stop nobody; without
    /// a mark nothing is known about them. `what` the lines hold is for the warning.
    pub fn resume(
        path: PathBuf,
        epoch: usize,
        mark: Option<Mark>,
        what: &str,
        warn: &mut dyn FnMut(String),
    ) -> Result<(Lines, Vec<u8>)> {
        let mut lines = Lines::new(path);
        let path = &lines.path;
        let found = match path.metadata() {
            Ok(file) if !file.is_file() => {
                return Err(failed("cut back", path)(std::io::Error::other("it is not a regular file")));
            }
            Ok(_) => read(path)?,
            Err(_) => Vec::new(),
        };
        let saved = |bytes: &[u8]| {
            mark.is_none_or(|mark| {
                bytes.len() as u64 == mark.bytes
                    && mark.checksum.is_none_or(|checksum| crc32fast::hash(bytes) == checksum)
            })
        };
        // Without a checksum the epochs say how far the lines count.
        let checked = mark.filter(|mark| mark.checksum.is_some());
        let beginning = checked.and_then(|mark| found.get(..usize::try_from(mark.bytes).ok()?));
        let kept = match beginning.filter(|beginning| saved(beginning)) {
            Some(beginning) => beginning.to_vec(),
            None => up_to(epoch, &found),
        };
        if let Some(mark) = mark.filter(|_| !saved(&kept)) {
            let problem = match (kept.len() as u64) < mark.bytes {
                true => format!("has lost {what} of earlier epochs; the run goes on without them"),
                false => {
                    format!(
                        "does not have its checksum: {what} of earlier epochs may be wrong; the run goes on"
                    )
                }
            };
            warn(format!("{} {problem}", path.display()));
        }
        if kept.len() < found.len() && found.starts_with(&kept) {
            // The common case, in place: a link stays a link.
            let cut =
                OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(kept.len() as u64));
            cut.map_err(failed("cut back", path))?;
        } else if kept != found || !path.exists() {
            write_atomically(path, &kept)?;
        }
        (lines.bytes, lines.checksum) = (kept.len() as u64, crc32fast::hash(&kept));
        Ok((lines, kept))
    }

    /// Appends a line and syncs it.
    pub fn append(&mut self, line: &Line) -> Result<()> {
        let text = format!("{}\n", serde_json::Value::Object(line.clone()));
        let new = !self.path.exists();
        let file = append(&self.path, text.as_bytes())?;
        let synced = file.sync_data().and_then(|()| file.metadata());
        let bytes = synced.map_err(failed("write", &self.path))?.len();
        if new {
            sync_folder(parent(&self.path))?;
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.checksum);
        hasher.update(text.as_bytes());
        self.checksum = hasher.finalize();
        // Somebody else has changed the file.
        if bytes != self.bytes + text.len() as u64 && self.path.is_file() {
            self.checksum = crc32fast::hash(&read(&self.path)?);
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// A line of numbers.
pub(super) fn numbers(epoch: usize, named: &[(String, f64)]) -> Line {
    let mut line = Line::from_iter([("epoch".to_string(), epoch.into())]);
    line.extend(named.iter().map(|(name, value)| (name.clone(), (*value).into())));
    line
}

/// The lines of finished epochs, each with its end.
fn up_to(epoch: usize, bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let known = serde_json::from_slice::<Line>(line).ok().and_then(|line| line.get("epoch")?.as_u64());
        if known.is_some_and(|of| of <= epoch as u64) {
            kept.extend_from_slice(line);
            kept.push(b'\n');
        }
    }
    kept
}

/// Appends to a file, which is made if need be.
pub(super) fn append(path: &Path, bytes: &[u8]) -> Result<File> {
    let append = || -> std::io::Result<File> {
        std::fs::create_dir_all(parent(path))?;
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(bytes)?;
        Ok(file)
    };
    append().map_err(failed("write", path))
}
