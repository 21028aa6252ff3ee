//! Run folders: `config.toml` says what was played, `metrics.jsonl` how it went, and the newest checkpoint whether both are still what the
//! run wrote.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;

use crate::ReportError;
use crate::agents::Point;
use crate::games::Games;

const METRICS: &str = "metrics.jsonl";

/// One training run that was evaluated at least once.
#[derive(Debug)]
pub struct Run {
    pub path: PathBuf,
    pub game: String,
    pub seed: u64,
    pub modified: SystemTime,
    pub score: f64,
    pub normalised: f64,
    pub points: Vec<Point>,
    /// Epochs done and planned, where it stopped early.
    pub unfinished: Option<(u64, u64)>,
}

#[derive(Deserialize)]
struct Config {
    env: String,
    seed: u64,
    epochs: Option<u64>,
}

/// What a checkpoint says about the other files.
#[derive(Deserialize)]
struct Checkpoint {
    config: Config,
    metrics_bytes: usize,
    #[serde(default)]
    checksums: Option<Checksums>,
}

#[derive(Deserialize)]
struct Checksums {
    metrics: u32,
}

impl Checkpoint {
    /// The newest that is whole. A folder with metrics alone has none.
    fn newest(folder: &Path) -> Option<Checkpoint> {
        let entries = std::fs::read_dir(folder.join("checkpoints")).ok()?;
        let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        let is_number = |path: &Path| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        };
        folders.retain(|path| is_number(path));
        folders.sort();
        folders.iter().rev().find_map(|path| Checkpoint::parse(&std::fs::read(path.join("state.json")).ok()?))
    }

    /// The text begins with the checksum of the rest of it, which version 1 did not have.
    fn parse(text: &[u8]) -> Option<Checkpoint> {
        if let Some(rest) = text.strip_prefix(b"{\"crc32\":\"") {
            let (checksum, rest) = rest.split_at_checked(8)?;
            let signed = rest.strip_prefix(b"\",")?;
            if format!("{:08x}", crc32fast::hash(signed)).as_bytes() != checksum {
                return None;
            }
        }
        serde_json::from_slice(text).ok()
    }

    /// Whether the metrics are those that were there when it was written.
    fn knows(&self, metrics: &[u8]) -> bool {
        let Some(checksums) = &self.checksums else { return true };
        metrics.get(..self.metrics_bytes).is_some_and(|known| crc32fast::hash(known) == checksums.metrics)
    }
}

/// The run folders in a folder, itself among them, sorted.
pub fn find(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let mut found = Vec::new();
    search(folder, &mut found)?;
    match found.is_empty() {
        true => Err(ReportError::NoRuns { path: folder.to_path_buf() }),
        false => Ok(found),
    }
}

fn search(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), ReportError> {
    if folder.join(METRICS).is_file() {
        found.push(folder.to_path_buf());
        return Ok(());
    }
    let read = |source| ReportError::Read { path: folder.to_path_buf(), source };
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        // Links are not followed: they may lead back here.
        if entry.file_type().map_err(read)?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    folders.iter().try_for_each(|folder| search(folder, found))
}

/// Reads a run; None when it was never evaluated.
pub fn load(folder: &Path, games: &Games) -> Result<Option<Run>, ReportError> {
    // Before the metrics, which a run that goes on appends to first.
    let checkpoint = Checkpoint::newest(folder);
    let path = folder.join(METRICS);
    let metrics = text(&path)?;
    let config = match checkpoint {
        Some(checkpoint) if !checkpoint.knows(metrics.as_bytes()) => {
            return Err(ReportError::Changed { path });
        }
        // The file is for people: the run goes by this one.
        Some(checkpoint) => checkpoint.config,
        None => {
            let path = folder.join("config.toml");
            toml::from_str(&text(&path)?).map_err(|error| ReportError::Config {
                path,
                why: format!("no settings of a run: {}", error.message()),
            })?
        }
    };
    let game = games.played(&config.env);
    let bad =
        |line: usize, why: &str| ReportError::Metrics { path: path.clone(), line, why: why.to_string() };
    let mut points: Vec<Point> = Vec::new();
    let (mut last, mut epochs, mut played) = (None, 0, None);
    for (index, line) in metrics.split_inclusive('\n').enumerate() {
        // The last line of a run that is still writing.
        if !line.ends_with('\n') {
            break;
        }
        let number = index + 1;
        let record: Value = serde_json::from_str(line).map_err(|_| bad(number, "not a JSON object"))?;
        let key = |name: &str| record.get(name).and_then(Value::as_f64);
        epochs = key("epoch").map_or(epochs, |epoch| epoch as u64);
        // Epochs that only learn, such as a run's last ones, say nothing about it.
        played = key("collection/steps").or(played);
        let Some(value) = record.get("evaluation/return") else { continue };
        let Some(score) = value.as_f64() else {
            return Err(bad(number, "evaluation/return is not a number; leave the run out"));
        };
        let reference = games.get(&game).map(|reference| reference.normalise(score));
        let Some(normalised) = reference.or(key("evaluation/progress")) else {
            return Err(ReportError::UnknownGames { path: path.clone(), games: game });
        };
        if let Some(steps) = played {
            // A run continued from an earlier epoch overwrites what came after it.
            points.truncate(points.partition_point(|point| point.steps < steps));
            points.push(Point { steps, normalised });
        }
        last = Some((score, normalised));
    }
    let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
    let modified = modified.map_err(|source| ReportError::Read { path: path.clone(), source })?;
    let unfinished = config.epochs.filter(|&planned| epochs < planned).map(|planned| (epochs, planned));
    let path = folder.to_path_buf();
    Ok(last.map(|(score, normalised)| Run {
        path,
        game,
        seed: config.seed,
        modified,
        score,
        normalised,
        points,
        unfinished,
    }))
}

fn text(path: &Path) -> Result<String, ReportError> {
    std::fs::read_to_string(path).map_err(|source| ReportError::Read { path: path.to_path_buf(), source })
}
