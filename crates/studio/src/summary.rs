//! What the table of runs says about each of them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use agent::train::{Glance, Run, TrainConfig};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::index::{Kind, RunEntry, hash};
use crate::labels::labels;

/// Bytes at the end of a file of lines in which the newest values are looked for.
const TAIL: u64 = 256 << 10;

/// Epochs whose duration says how long the others will take.
const RECENT: usize = 5;

/// Evaluations that a small curve is drawn of.
const HISTORY: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A process trains it.
    Running,
    /// It has epochs left, and nobody trains it.
    Stopped,
    Finished,
    /// An agent without a run.
    Imported,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub entry: RunEntry,
    pub state: State,
    pub game: Option<String>,
    pub seed: Option<u64>,
    /// Finished epochs.
    pub epoch: Option<usize>,
    pub epochs: Option<usize>,
    /// Steps of the game that were played.
    pub steps: Option<f64>,
    /// Mean return of the newest evaluation, and how far that is from random to skilled play.
    pub score: Option<f64>,
    pub progress: Option<f64>,
    /// Mean returns of the newest evaluations, oldest first.
    pub scores: Vec<f64>,
    pub seconds_left: Option<f64>,
    /// When it last wrote something, in seconds since 1970.
    pub updated: Option<u64>,
    /// The same for runs that differ in their seed alone.
    pub group: String,
    /// What tells its group from others.
    pub label: String,
    /// Why something is missing.
    pub problem: Option<String>,
}

/// The config of a run by dotted keys, without tables.
pub type Settings = Map<String, Value>;

/// What a checkpoint says; read once.
#[derive(Clone)]
struct Position {
    stamp: Option<(PathBuf, Option<SystemTime>)>,
    epoch: Option<usize>,
    settings: Arc<Settings>,
    group: String,
    problem: Option<String>,
}

/// The newest values of a file of lines; read once per length.
#[derive(Clone, Default)]
struct Newest {
    length: u64,
    values: Vec<Map<String, Value>>,
}

#[derive(Clone, Default)]
struct Known {
    position: Option<Position>,
    metrics: Newest,
    timing: Newest,
}

/// Remembers what was read of each run until it changes.
#[derive(Default)]
pub struct Summaries(Mutex<HashMap<String, Known>>);

impl Summaries {
    /// A summary of every entry that there is; others are forgotten.
    pub fn of_all(&self, entries: &[RunEntry]) -> Vec<Summary> {
        self.lock().retain(|id, _| entries.iter().any(|entry| entry.id == *id));
        self.of(entries)
    }

    /// A summary of each of these entries.
    pub fn of(&self, entries: &[RunEntry]) -> Vec<Summary> {
        let mut known = self.lock();
        let mut settings = Vec::new();
        let mut summary = |entry: &RunEntry| match entry.kind {
            Kind::Run => {
                let known = known.entry(entry.id.clone()).or_default();
                settings.push(known.position(&entry.path).settings.clone());
                known.summary(entry)
            }
            Kind::Agent => {
                settings.push(Arc::default());
                imported(entry)
            }
        };
        let mut found: Vec<Summary> = entries.iter().map(&mut summary).collect();
        for (summary, label) in found.iter_mut().zip(labels(&settings)) {
            summary.label = label.unwrap_or_else(|| summary.entry.name.clone());
        }
        found
    }

    /// The config of a run, by dotted keys.
    pub fn settings(&self, entry: &RunEntry) -> Arc<Settings> {
        self.lock().entry(entry.id.clone()).or_default().position(&entry.path).settings.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn summary(&mut self, entry: &RunEntry) -> Summary {
        let path = &entry.path;
        let Position { epoch, settings, group, problem, .. } = self.position(path).clone();
        let (metrics, timing) = (path.join("metrics.jsonl"), path.join("timing.jsonl"));
        self.metrics.read(&metrics);
        self.timing.read(&timing);
        let newest_first = |name: &'static str| {
            self.metrics.values.iter().rev().filter_map(move |line| line.get(name)?.as_f64())
        };
        let number = |name| newest_first(name).next();
        let mut scores: Vec<f64> = newest_first("evaluation/return").take(HISTORY).collect();
        scores.reverse();
        let epoch = epoch.or(number("epoch").map(|epoch| epoch as usize));
        let whole = |key: &str| settings.get(key).and_then(Value::as_u64);
        let epochs = whole("epochs").map(|epochs| epochs as usize);
        let finished = epoch.zip(epochs).is_some_and(|(epoch, epochs)| epoch >= epochs);
        let state = match (Run::is_going_on(path), finished) {
            (true, _) => State::Running,
            (false, true) => State::Finished,
            (false, false) => State::Stopped,
        };
        let written = [metrics, timing, path.join("checkpoints")];
        let updated = written.iter().filter_map(|path| path.metadata().ok()?.modified().ok()).max();
        let left = (state == State::Running).then(|| self.seconds_left(epoch?, epochs?, updated)).flatten();
        Summary {
            entry: entry.clone(),
            state,
            game: settings.get("env").and_then(Value::as_str).map(Into::into),
            seed: whole("seed"),
            epoch,
            epochs,
            steps: number("collection/steps"),
            score: number("evaluation/return"),
            progress: number("evaluation/progress"),
            scores,
            seconds_left: left,
            updated: updated.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
            group,
            label: entry.name.clone(),
            problem,
        }
    }

    fn position(&mut self, folder: &Path) -> &Position {
        let modified = |path: &Path| path.metadata().ok().and_then(|file| file.modified().ok());
        let stamp = Run::newest_checkpoint(folder).map(|path| {
            let modified = modified(&path);
            (path, modified)
        });
        match &mut self.position {
            Some(position) if position.stamp == stamp => {}
            position => *position = Some(Position::read(folder, stamp)),
        }
        self.position.get_or_insert_with(|| Position::read(folder, None))
    }

    /// From the mean duration of the newest epochs, less what the current one has taken.
    fn seconds_left(&self, epoch: usize, epochs: usize, updated: Option<SystemTime>) -> Option<f64> {
        let seconds = |line: &Map<String, Value>| line.get("seconds")?.as_f64();
        let recent: Vec<f64> = self.timing.values.iter().rev().filter_map(seconds).take(RECENT).collect();
        let each = recent.iter().sum::<f64>() / recent.len() as f64;
        let since = updated.and_then(|time| time.elapsed().ok()).map_or(0.0, |time| time.as_secs_f64());
        let left = each * epochs.saturating_sub(epoch) as f64 - since.min(each);
        left.is_finite().then_some(left.max(0.0))
    }
}

impl Position {
    fn read(folder: &Path, stamp: Option<(PathBuf, Option<SystemTime>)>) -> Position {
        let text = || std::fs::read_to_string(folder.join("config.toml")).ok();
        let (config, epoch, problem) = match Run::glance(folder, |_| ()) {
            Ok(Glance { config, epoch }) => (Some(config), Some(epoch), None),
            // The text for people is better than nothing.
            Err(error) => {
                let config = text().and_then(|text| toml::from_str::<TrainConfig>(&text).ok());
                // No page needs to know where the folder is.
                let place = folder.display().to_string();
                let inside = format!("{place}{}", std::path::MAIN_SEPARATOR);
                let problem = error.to_string().replace(&inside, "").replace(&place, "the folder");
                (config, None, Some(problem))
            }
        };
        let mut settings = Settings::new();
        if let Some(value) = config.and_then(|config| serde_json::to_value(config).ok()) {
            flatten("", value, &mut settings);
        }
        // Of runs without settings nobody knows whether they belong together.
        let group = if settings.is_empty() { hash(&folder.to_string_lossy()) } else { group(&settings) };
        Position { stamp, epoch, settings: Arc::new(settings), group, problem }
    }
}

/// `{"a": {"b": 1}}` becomes `{"a.b": 1}`.
fn flatten(prefix: &str, value: Value, into: &mut Settings) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                flatten(&key, value, into);
            }
        }
        value => drop(into.insert(prefix.into(), value)),
    }
}

/// Everything but the seed.
fn group(settings: &Settings) -> String {
    let mut text = String::new();
    for (key, value) in settings.iter().filter(|(key, _)| *key != "seed") {
        text += &format!("{key}={value}\n");
    }
    hash(&text)
}

fn imported(entry: &RunEntry) -> Summary {
    let modified = entry.path.join("agent.safetensors").metadata().and_then(|file| file.modified());
    Summary {
        entry: entry.clone(),
        state: State::Imported,
        game: None,
        seed: None,
        epoch: None,
        epochs: None,
        steps: None,
        score: None,
        progress: None,
        scores: Vec::new(),
        seconds_left: None,
        updated: modified.ok().and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
        group: entry.id.clone(),
        label: entry.name.clone(),
        problem: None,
    }
}

impl Newest {
    /// Reads the end of a file again if its length has changed. A file that is gone has no values.
    fn read(&mut self, path: &Path) {
        let length = path.metadata().map_or(0, |file| file.len());
        if length != self.length {
            self.values = tail(path).unwrap_or_default();
            self.length = length;
        }
    }
}

/// The whole lines at the end of a file.
fn tail(path: &Path) -> std::io::Result<Vec<Map<String, Value>>> {
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    // A line that is cut off or still being written is no object.
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_everything_but_the_seed() {
        let settings = |seed: u64, epochs: usize| {
            let config = TrainConfig { seed, epochs, ..TrainConfig::default() };
            let mut settings = Settings::new();
            flatten("", serde_json::to_value(config).unwrap(), &mut settings);
            settings
        };
        assert_eq!(settings(3, 9)["seed"], 3);
        assert_eq!(settings(3, 9)["tokenizer.schedule.batch"], 256);
        assert_eq!(group(&settings(3, 9)), group(&settings(4, 9)));
        assert_ne!(group(&settings(3, 9)), group(&settings(3, 10)));
    }

    #[test]
    fn the_time_left_is_that_of_the_newest_epochs() {
        let mut known = Known::default();
        assert_eq!(known.seconds_left(2, 4, None), None);
        let line = |seconds: f64| Map::from_iter([("seconds".to_string(), seconds.into())]);
        known.timing.values = [100.0, 2.0, 2.0, 2.0, 2.0, 2.0].map(line).to_vec();
        assert_eq!(known.seconds_left(6, 16, None), Some(20.0));
        // An epoch that takes longer than it should never makes it grow.
        assert_eq!(known.seconds_left(6, 16, Some(UNIX_EPOCH)), Some(18.0));
        assert_eq!(known.seconds_left(16, 16, None), Some(0.0));
    }
}
