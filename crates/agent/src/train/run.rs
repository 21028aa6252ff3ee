//! A run's folder: its config, what it measured, what it has seen, and checkpoints that continue it to the bit.
//!
//! ```text
//! config.toml            the resolved config
//! metrics.jsonl          one line per epoch
//! tensorboard/           the same as an event file
//! media/000012/          pictures of what the networks made of things after 12 epochs
//! replay/                see `Replay`
//! checkpoints/000012/    all state after 12 epochs; the last two are kept
//! lock                   held while the run goes on
//! ```

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use engine::Device;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use super::{TrainConfig, TrainError, Trainer, tensorboard};
use crate::Agent;
use crate::checkpoint::{CheckpointError, Entry, io, write_atomically, write_safetensors};
use crate::replay::{Replay, ReplayError, Table};

/// Checkpoints that are kept.
const KEPT: usize = 2;
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Train(#[from] Box<TrainError>),
    #[error("{reason}; --forget-damaged continues without the episodes that are damaged")]
    DamagedReplay { reason: ReplayError },
    #[error(
        "every episode of the replay in {path} is damaged: nothing can be learnt from it. `iris eval` still plays with the agent"
    )]
    NothingLeft { path: PathBuf },
    #[error("there is no folder {path}; name that of a run, which `iris train` prints when it starts")]
    NoSuchRun { path: PathBuf },
    #[error("the run in {path} is going on in another process: wait for it, or stop it with Ctrl-C")]
    GoingOn { path: PathBuf },
    #[error("{path} already holds a run: continue it with --resume, or choose another folder")]
    Exists { path: PathBuf },
    #[error("{path} holds metrics of a run whose checkpoints are gone: choose another folder, or delete it")]
    Leftovers { path: PathBuf },
    #[error("{path} holds an imported agent: choose another folder for the run")]
    HoldsAnAgent { path: PathBuf },
    #[error("{path} holds no checkpoint; name the folder of a run, which `iris train` prints when it starts")]
    NotARun { path: PathBuf },
    #[error(
        "no checkpoint in {path} can be continued: {reason}. Put one back from a copy, or begin a new run"
    )]
    NothingToResume { path: PathBuf, reason: Box<RunError> },
}

type Result<T, E = RunError> = std::result::Result<T, E>;

/// What a checkpoint holds beside the networks.
#[derive(Serialize, Deserialize)]
struct State {
    version: u32,
    epoch: usize,
    config: TrainConfig,
    replay: Table,
    /// Length of the metrics file: lines after it belong to an epoch that was not finished.
    metrics_bytes: u64,
}

/// What to do about episodes of the replay whose checksums are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    Refuse,
    Forget,
}

/// A run that goes on: nobody else can continue it meanwhile.
pub struct Run {
    folder: Folder,
    _lock: File,
}

/// Where a run is.
struct Folder(PathBuf);

impl Run {
    /// Starts a run in a new folder, with its config as text and a first checkpoint, so that it can be continued from the first moment on.
    pub fn create(
        device: &Device,
        config: TrainConfig,
        document: &str,
        folder: &Path,
    ) -> Result<(Run, Trainer)> {
        let run = Folder(folder.into());
        if Run::is_in(folder) {
            return Err(RunError::Exists { path: folder.into() });
        }
        if run.0.join("metrics.jsonl").metadata().is_ok_and(|file| file.len() > 0) {
            return Err(RunError::Leftovers { path: folder.into() });
        }
        if Agent::is_in(folder) {
            return Err(RunError::HoldsAnAgent { path: folder.into() });
        }
        let agent = Agent::new(device, &config.agent, config.seed).map_err(CheckpointError::from)?;
        let replay = run.open_replay(&config, Table::default())?;
        let mut trainer = Trainer::new(device, config, agent, replay, 0).map_err(Box::new)?;
        std::fs::create_dir_all(folder.join("checkpoints")).map_err(|e| io("create", folder, e))?;
        let run = Run { _lock: run.lock()?, folder: run };
        trainer.replay.begin_writing()?;
        write_atomically(&folder.join("config.toml"), document.as_bytes())?;
        run.write_checkpoint(&mut trainer, 0)?;
        Ok((run, trainer))
    }

    /// Continues the run in `folder` from its newest checkpoint that can be read. `warn` hears about one that cannot. Nothing is changed before one
    /// is found.
    pub fn resume(
        device: &Device,
        folder: &Path,
        damaged: Damaged,
        mut warn: impl FnMut(String),
    ) -> Result<(Run, Trainer)> {
        let folder = Folder::open(folder)?;
        // A folder that is no run gets no lock.
        if !Run::is_in(&folder.0) {
            return Err(RunError::NotARun { path: folder.0 });
        }
        let run = Run { _lock: folder.lock()?, folder };
        let loaded = run.folder.newest_that_loads(&mut warn, |checkpoint, warn| {
            run.folder.load(device, checkpoint, damaged, warn)
        });
        let (mut trainer, metrics_bytes) = loaded.map_err(|error| match error {
            RunError::Replay(reason @ ReplayError::CutOff { .. }) => RunError::DamagedReplay { reason },
            RunError::Checkpoint(_) | RunError::Replay(_) => {
                RunError::NothingToResume { path: run.folder.0.clone(), reason: Box::new(error) }
            }
            error => error,
        })?;
        trainer.replay.begin_writing()?;
        run.cut_metrics_back(metrics_bytes, &mut warn)?;
        Ok((run, trainer))
    }

    /// Whether there is a run in a folder.
    pub fn is_in(folder: &Path) -> bool {
        !Folder(folder.into()).checkpoints().is_empty()
    }

    /// The agent of a run's newest checkpoint that can be read. `warn` hears about one that cannot.
    pub fn newest_agent(
        device: &Device,
        folder: &Path,
        mut warn: impl FnMut(String),
    ) -> Result<(TrainConfig, Agent)> {
        Folder::open(folder)?.newest_that_loads(&mut warn, |checkpoint, _| {
            Ok((read_state(checkpoint)?.config, Agent::load(device, checkpoint)?.0))
        })
    }

    /// The same with the replay as it was then. Nothing is changed; the run may be going on.
    pub fn look(
        device: &Device,
        folder: &Path,
        mut warn: impl FnMut(String),
    ) -> Result<(TrainConfig, Agent, Replay)> {
        let folder = Folder::open(folder)?;
        folder.newest_that_loads(&mut warn, |checkpoint, _| {
            let state = read_state(checkpoint)?;
            let replay = folder.open_replay(&state.config, state.replay)?;
            Ok((state.config, Agent::load(device, checkpoint)?.0, replay))
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Appends the epoch's metrics and writes a checkpoint; it is there whole or not at all.
    pub fn save(&self, trainer: &mut Trainer, metrics: &[(String, f64)]) -> Result<()> {
        let metrics_bytes = self.append_metrics(trainer.epoch, metrics)?;
        self.write_checkpoint(trainer, metrics_bytes)
    }

    fn write_checkpoint(&self, trainer: &mut Trainer, metrics_bytes: u64) -> Result<()> {
        trainer.replay.flush()?;
        let folder = self.folder().join("checkpoints");
        let (partial, done) = (folder.join("partial"), folder.join(format!("{:06}", trainer.epoch)));
        // What a crash left of an earlier attempt.
        let _ = std::fs::remove_dir_all(&partial);
        trainer.agent.save(None, &partial)?;
        write_optimisers(&trainer.agent, &partial.join("optimisers.safetensors"))?;
        let state = State {
            version: VERSION,
            epoch: trainer.epoch,
            config: trainer.config.clone(),
            replay: trainer.replay.table().clone(),
            metrics_bytes,
        };
        let path = partial.join("state.json");
        let text = serde_json::to_string(&state)
            .map_err(|e| CheckpointError::BadState { path: path.clone(), reason: e.to_string() })?;
        write_atomically(&path, text.as_bytes())?;
        let _ = std::fs::remove_dir_all(&done);
        std::fs::rename(&partial, &done).map_err(|e| io("write", &done, e))?;
        let mut checkpoints = self.folder.checkpoints();
        for old in checkpoints.drain(..checkpoints.len().saturating_sub(KEPT)) {
            std::fs::remove_dir_all(&old).map_err(|e| io("remove", &old, e))?;
        }
        // What even the oldest checkpoint does not know any more.
        let oldest = read_state(&checkpoints[0])?.replay;
        let needed = oldest.episodes.first().map_or(oldest.records, |e| e.start);
        Ok(trainer.replay.discard_before(needed)?)
    }

    fn append_metrics(&self, epoch: usize, metrics: &[(String, f64)]) -> Result<u64> {
        let mut line = serde_json::Map::from_iter([("epoch".to_string(), epoch.into())]);
        line.extend(metrics.iter().map(|(name, value)| (name.clone(), (*value).into())));
        let text = format!("{}\n", serde_json::Value::Object(line.clone()));
        let bytes = append(&self.metrics_path(), text.as_bytes())?;
        let events = self.events_path();
        if !events.exists() {
            append(&events, &tensorboard::header())?;
        }
        append(&events, &event(&line))?;
        Ok(bytes)
    }

    fn metrics_path(&self) -> PathBuf {
        self.folder().join("metrics.jsonl")
    }

    fn events_path(&self) -> PathBuf {
        // TensorBoard looks for this beginning; what follows is ours.
        self.folder().join("tensorboard").join("events.out.tfevents.0.iris")
    }

    /// Forgets metrics of epochs that were not finished, and writes the event file anew from the others. Metrics that are lost stop nobody.
    fn cut_metrics_back(&self, bytes: u64, warn: &mut impl FnMut(String)) -> Result<()> {
        let path = self.metrics_path();
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let cut = file.and_then(|file| {
            let found = file.metadata()?.len();
            file.set_len(found.min(bytes))?;
            Ok(found)
        });
        let found = cut.map_err(|e| io("cut back", &path, e))?;
        let text = std::fs::read(&path).map_err(|e| io("read", &path, e))?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(serde_json::from_str).collect();
        let lost = found < bytes || lines.iter().any(Result::is_err);
        if lost {
            warn(format!(
                "{} has lost metrics of earlier epochs; the run goes on without them",
                path.display()
            ));
        }
        let mut kept = Vec::new();
        let mut events = tensorboard::header();
        for line in lines.into_iter().flatten() {
            events.extend(event(&line));
            kept.push(format!("{}\n", serde_json::Value::Object(line)));
        }
        if lost {
            write_atomically(&path, kept.concat().as_bytes())?;
        }
        let path = self.events_path();
        let _ = std::fs::remove_file(&path);
        append(&path, &events)?;
        Ok(())
    }
}

impl Folder {
    /// A run that is there.
    fn open(folder: &Path) -> Result<Folder> {
        match folder.is_dir() {
            true => Ok(Folder(folder.into())),
            false => Err(RunError::NoSuchRun { path: folder.into() }),
        }
    }

    /// Keeps other processes from continuing the run, until it is dropped.
    fn lock(&self) -> Result<File> {
        let path = self.0.join("lock");
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(|e| io("write", &path, e))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(RunError::GoingOn { path: self.0.clone() }),
            // Some network file systems know no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        }
    }

    fn open_replay(&self, config: &TrainConfig, table: Table) -> Result<Replay> {
        let size = config.agent.tokenizer.frame_size;
        let max_steps = config.replay.steps(Replay::step_bytes(size * size * 3));
        Ok(Replay::open(&self.0.join("replay"), size * size * 3, max_steps, table)?)
    }

    /// Finished checkpoints, oldest first.
    fn checkpoints(&self) -> Vec<PathBuf> {
        let folder = self.0.join("checkpoints");
        let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
        let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        found.retain(|path| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        });
        found.sort();
        found
    }

    /// What `load` makes of the newest checkpoint that it can read; the first error if there is none.
    fn newest_that_loads<T, W: FnMut(String)>(
        &self,
        warn: &mut W,
        mut load: impl FnMut(&Path, &mut W) -> Result<T>,
    ) -> Result<T> {
        let mut first = None;
        let mut checkpoints = self.checkpoints();
        while let Some(checkpoint) = checkpoints.pop() {
            match load(&checkpoint, warn) {
                // The checkpoint is good: the one before it would lose more, or fare no better.
                Err(error @ (RunError::DamagedReplay { .. } | RunError::Train(_))) => return Err(error),
                Err(error) => {
                    if !checkpoints.is_empty() {
                        warn(format!("{error}; trying the checkpoint before it"));
                    }
                    first.get_or_insert(error);
                }
                loaded => return loaded,
            }
        }
        Err(first.unwrap_or_else(|| RunError::NotARun { path: self.0.clone() }))
    }

    /// The run as a checkpoint describes it, with the length of its metrics.
    fn load(
        &self,
        device: &Device,
        checkpoint: &Path,
        damaged: Damaged,
        warn: &mut impl FnMut(String),
    ) -> Result<(Trainer, u64)> {
        let state = read_state(checkpoint)?;
        let (agent, _) = Agent::load(device, checkpoint)?;
        read_optimisers(&agent, &checkpoint.join("optimisers.safetensors"))?;
        let mut replay = self.open_replay(&state.config, state.replay)?;
        let mut bad = replay.damaged_episodes()?;
        if damaged == Damaged::Refuse && !bad.is_empty() {
            return Err(match bad.swap_remove(0).1 {
                // The checkpoint before may do without what is missing.
                error @ ReplayError::CutOff { .. } => error.into(),
                reason => RunError::DamagedReplay { reason },
            });
        }
        for (_, error) in &bad {
            warn(format!("{error}; its episode is forgotten"));
        }
        replay.forget(&bad.iter().map(|(episode, _)| *episode).collect::<Vec<_>>());
        if !bad.is_empty() && replay.steps() == 0 {
            return Err(RunError::NothingLeft { path: self.0.clone() });
        }
        let trainer = Trainer::new(device, state.config, agent, replay, state.epoch).map_err(Box::new)?;
        Ok((trainer, state.metrics_bytes))
    }
}

/// A line of the metrics as an event.
fn event(line: &serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    let epoch = line.get("epoch").and_then(|e| e.as_u64()).unwrap_or_default();
    let values = line.iter().filter(|(name, _)| *name != "epoch");
    let values: Vec<(String, f64)> =
        values.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
    tensorboard::scalars(epoch as usize, &values)
}

/// Appends to a file, which is made if need be, and returns its length.
fn append(path: &Path, bytes: &[u8]) -> Result<u64> {
    let append = || -> std::io::Result<u64> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        Ok(file.metadata()?.len())
    };
    Ok(append().map_err(|e| io("write", path, e))?)
}

fn read_state(checkpoint: &Path) -> Result<State> {
    let path = checkpoint.join("state.json");
    let text = std::fs::read_to_string(&path).map_err(|e| io("read", &path, e))?;
    let state: State = serde_json::from_str(&text)
        .map_err(|e| CheckpointError::BadState { path: path.clone(), reason: e.to_string() })?;
    match state.version > VERSION {
        true => Err(CheckpointError::TooNew { path, found: state.version }.into()),
        false => Ok(state),
    }
}

/// Adam's state of every network, by name.
fn optimiser_states(agent: &Agent) -> impl Iterator<Item = (String, &engine::Buffer)> {
    agent.networks(None).into_iter().flat_map(|(prefix, network)| {
        network
            .params
            .optimiser_state()
            .into_iter()
            .map(move |(name, buffer)| (format!("{prefix}.{name}"), buffer))
    })
}

fn write_optimisers(agent: &Agent, path: &Path) -> Result<()> {
    let mut entries = BTreeMap::new();
    for (name, buffer) in optimiser_states(agent) {
        let shape = buffer.shape().dims().to_vec();
        let entry = match buffer.dtype() {
            engine::DType::I32 => Entry::counts(&buffer.read::<i32>().map_err(CheckpointError::from)?),
            _ => Entry::floats(shape, &buffer.read::<f32>().map_err(CheckpointError::from)?),
        };
        entries.insert(name, entry);
    }
    Ok(write_safetensors(path, &entries, None)?)
}

fn read_optimisers(agent: &Agent, path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).map_err(|e| io("read", path, e))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| CheckpointError::NotSafetensors { path: path.into(), reason: e.to_string() })?;
    for (name, buffer) in optimiser_states(agent) {
        let Ok(tensor) = file.tensor(&name) else {
            return Err(CheckpointError::Missing { path: path.into(), name }.into());
        };
        let words = tensor.data().as_chunks::<4>().0;
        let written = match buffer.dtype() {
            engine::DType::I32 => {
                buffer.write(&words.iter().map(|w| i32::from_le_bytes(*w)).collect::<Vec<_>>())
            }
            _ => buffer.write(&words.iter().map(|w| f32::from_le_bytes(*w)).collect::<Vec<_>>()),
        };
        written.map_err(CheckpointError::from)?;
    }
    Ok(())
}
