//! `metrics.jsonl`, one line per epoch, and the same as an event file for TensorBoard.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::tensorboard;
use super::state::State;
use crate::files::{FileError, failed, parent, read, sync_folder, write_atomically};

type Result<T, E = FileError> = std::result::Result<T, E>;
type Line = serde_json::Map<String, serde_json::Value>;

pub(super) struct MetricsFile {
    path: PathBuf,
    events: PathBuf,
    /// Length and CRC-32 of what the file holds.
    pub bytes: u64,
    pub checksum: u32,
}

impl MetricsFile {
    /// Of a run that begins.
    pub fn new(run: &Path) -> MetricsFile {
        MetricsFile {
            path: run.join("metrics.jsonl"),
            // TensorBoard looks for this beginning; what follows is ours.
            events: run.join("tensorboard").join("events.out.tfevents.0.iris"),
            bytes: 0,
            checksum: crc32fast::hash(&[]),
        }
    }

    /// Of a run that goes on from `state`: forgets epochs that were not finished, and writes the event file anew from the others. MetricsFile that
    /// are lost stop nobody.
    pub fn resume(run: &Path, state: &State, warn: &mut dyn FnMut(String)) -> Result<MetricsFile> {
        let mut metrics = MetricsFile::new(run);
        let path = &metrics.path;
        let found = match path.metadata() {
            Ok(file) if !file.is_file() => {
                return Err(failed("cut back", path)(std::io::Error::other("it is not a regular file")));
            }
            Ok(_) => read(path)?,
            Err(_) => Vec::new(),
        };
        let saved = |bytes: &[u8]| match state.checksums {
            Some(checksums) => {
                bytes.len() as u64 == state.metrics_bytes && crc32fast::hash(bytes) == checksums.metrics
            }
            None => bytes.len() as u64 == state.metrics_bytes,
        };
        // Without a checksum the epochs say how far the lines count.
        let kept = match usize::try_from(state.metrics_bytes).ok().and_then(|len| found.get(..len)) {
            Some(beginning) if state.checksums.is_some() && saved(beginning) => beginning.to_vec(),
            _ => lines_up_to(state.epoch, &found),
        };
        if !saved(&kept) {
            let what = match (kept.len() as u64) < state.metrics_bytes {
                true => "has lost metrics of earlier epochs; the run goes on without them",
                false => {
                    "does not have its checksum: metrics of earlier epochs may be wrong; the run goes on"
                }
            };
            warn(format!("{} {what}", path.display()));
        }
        if kept.len() < found.len() && found.starts_with(&kept) {
            // The common case, in place: a link stays a link.
            let cut =
                OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(kept.len() as u64));
            cut.map_err(failed("cut back", path))?;
        } else if kept != found || !path.exists() {
            write_atomically(path, &kept)?;
        }
        (metrics.bytes, metrics.checksum) = (kept.len() as u64, crc32fast::hash(&kept));
        let times = tensorboard::times(&std::fs::read(&metrics.events).unwrap_or_default());
        // Where a time is lost, that of the epoch before it.
        let mut time = times.values().next().copied().unwrap_or_else(now);
        let mut events = tensorboard::header(time);
        for line in kept.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()) {
            time = times.get(&epoch_of(&line)).copied().unwrap_or(time);
            events.extend(event(&line, time));
        }
        let _ = std::fs::remove_file(&metrics.events);
        append(&metrics.events, &events)?;
        Ok(metrics)
    }

    pub fn append(&mut self, epoch: usize, metrics: &[(String, f64)]) -> Result<()> {
        let mut line = Line::from_iter([("epoch".to_string(), epoch.into())]);
        line.extend(metrics.iter().map(|(name, value)| (name.clone(), (*value).into())));
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
        if !self.events.exists() {
            append(&self.events, &tensorboard::header(now()))?;
        }
        // Not synced: a resumed run writes it anew.
        append(&self.events, &event(&line, now()))?;
        Ok(())
    }
}

/// The lines of finished epochs, each with its end.
fn lines_up_to(epoch: usize, bytes: &[u8]) -> Vec<u8> {
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

fn epoch_of(line: &Line) -> usize {
    line.get("epoch").and_then(|e| e.as_u64()).unwrap_or_default() as usize
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A line of the metrics as an event of this time.
fn event(line: &Line, time: f64) -> Vec<u8> {
    let values = line.iter().filter(|(name, _)| *name != "epoch");
    let values: Vec<(String, f64)> =
        values.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
    tensorboard::scalars(epoch_of(line), time, &values)
}

/// Appends to a file, which is made if need be.
fn append(path: &Path, bytes: &[u8]) -> Result<File> {
    let append = || -> std::io::Result<File> {
        std::fs::create_dir_all(parent(path))?;
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(bytes)?;
        Ok(file)
    };
    append().map_err(failed("write", path))
}
