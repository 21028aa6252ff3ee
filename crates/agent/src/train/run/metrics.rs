//! `metrics.jsonl`, one line per epoch, and the same as an event file for TensorBoard.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::tensorboard;
use super::lines::{Line, Lines, Mark, append, numbers};
use super::state::State;
use crate::files::FileError;

type Result<T, E = FileError> = std::result::Result<T, E>;

pub(super) const METRICS_FILE: &str = "metrics.jsonl";

pub(super) struct MetricsFile {
    pub lines: Lines,
    events: PathBuf,
}

impl MetricsFile {
    /// Of a run that begins.
    pub fn new(run: &Path) -> MetricsFile {
        MetricsFile { lines: Lines::new(run.join(METRICS_FILE)), events: events(run) }
    }

    /// Of a run that goes on from `state`: forgets epochs that were not finished, and writes the event file anew from the others. Metrics that are lost stop
    /// nobody.
    pub fn resume(run: &Path, state: &State, warn: &mut dyn FnMut(String)) -> Result<MetricsFile> {
        let checksum = state.checksums.map(|checksums| checksums.metrics);
        let mark = Some(Mark { bytes: state.metrics_bytes, checksum });
        let (lines, kept) = Lines::resume(run.join(METRICS_FILE), state.epoch, mark, "metrics", warn)?;
        let metrics = MetricsFile { lines, events: events(run) };
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
        let line = numbers(epoch, metrics);
        self.lines.append(&line)?;
        if !self.events.exists() {
            append(&self.events, &tensorboard::header(now()))?;
        }
        // Not synced: a resumed run writes it anew.
        append(&self.events, &event(&line, now()))?;
        Ok(())
    }
}

/// TensorBoard looks for the beginning of this name; what follows is ours.
fn events(run: &Path) -> PathBuf {
    run.join("tensorboard").join("events.out.tfevents.0.iris")
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
