//! A run's folder: its config, what it measured, what it has seen, and checkpoints that continue it to the bit.
//!
//! ```text
//! config.toml            the resolved config
//! metrics.jsonl          one line per epoch
//! tensorboard/           the same as an event file
//! episodes.jsonl         what was played in each epoch
//! timing.jsonl           where the time of each epoch went
//! media/000012/          pictures of what the networks made of things after 12 epochs
//! episodes/train/        the newest and the best episodes, also of evaluation and imagination
//! replay/                see `Replay`
//! checkpoints/000012/    all state after 12 epochs; the last two are kept
//! lock                   held while the run goes on
//! ```

mod folder;
mod lines;
mod metrics;
pub(crate) mod optimisers;
pub(crate) mod state;

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::{Device, Error};

use super::first_episodes::{FirstEpisodes, FirstEpisodesError};
use super::kept;
use super::{Ended, Epoch, Event, Made, Observer, SetupError, TrainConfig, TrainError, Trainer, Warning};
use crate::checkpoint::{AGENT_FILE, CheckpointError};
use crate::episodes::EpisodesError;
use crate::files::{FileError, failed, parent, sync_folder, write_atomically, write_synced};
use crate::replay::{Replay, ReplayError, Table};
use crate::{Agent, ConfigError};
use folder::{Folder, OPTIMISERS_FILE, STATE_FILE};
use lines::{Line, Lines, numbers};
use metrics::{METRICS_FILE, MetricsFile};
pub use state::StateError;
use state::{Checksums, State};

/// Checkpoints that are kept.
const KEPT: usize = 2;
const EPISODES_FILE: &str = "episodes.jsonl";
const TIMING_FILE: &str = "timing.jsonl";

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot use {path}: {reason}")]
    State { path: PathBuf, reason: StateError },
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Episodes(EpisodesError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    FirstEpisodes(#[from] FirstEpisodesError),
    #[error(transparent)]
    DamagedReplay { reason: ReplayError },
    #[error("every episode of the replay in {path} is damaged ({reason}): nothing can be learnt from it")]
    NothingLeft { path: PathBuf, reason: ReplayError },
    #[error("there is no folder {path}")]
    NoSuchRun { path: PathBuf },
    #[error("the run in {path} is going on in another process")]
    GoingOn { path: PathBuf },
    #[error("{path} already holds a run")]
    Exists { path: PathBuf },
    #[error("{path} holds metrics or episodes of a run whose checkpoints are gone")]
    Leftovers { path: PathBuf },
    #[error("{path} holds an imported agent")]
    HoldsAnAgent { path: PathBuf },
    #[error("{path} holds no checkpoint")]
    NotARun { path: PathBuf },
    #[error("no checkpoint in {path} can be continued: {reason}")]
    NothingToResume { path: PathBuf, reason: Box<RunError> },
    #[error("epochs is {epochs}, but the run has {planned} already: it can only be made longer")]
    FewerEpochs { epochs: usize, planned: usize },
    #[error(transparent)]
    Epochs(ConfigError),
}

type Result<T, E = RunError> = std::result::Result<T, E>;

impl RunError {
    /// Whether the machine is to blame, not the files: memory, rights or file handles that are missing now may be there later.
    fn is_of_the_machine(&self) -> bool {
        use std::io::ErrorKind;
        let source = match self {
            RunError::Checkpoint(CheckpointError::Engine(error)) => {
                return matches!(
                    error,
                    Error::OutOfMemory { .. } | Error::Gpu { .. } | Error::Threads { .. }
                );
            }
            RunError::File(error) | RunError::Checkpoint(CheckpointError::File(error)) => &error.source,
            RunError::Replay(ReplayError::Io { source, .. }) => source,
            _ => return false,
        };
        // EMFILE and ENFILE have no kind of their own.
        matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::OutOfMemory)
            || matches!(source.raw_os_error(), Some(23 | 24))
    }
}

/// What to do about episodes of the replay whose checksums are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    Refuse,
    Forget,
}

/// How a run is continued.
#[derive(Clone, Copy, Debug)]
pub struct Resume {
    pub damaged: Damaged,
    /// Trains up to this epoch, which must not be fewer than the run has; `None` for as many.
    pub epochs: Option<usize>,
}

/// How far a run has come.
pub struct Glance {
    /// Finished epochs.
    pub epoch: usize,
    pub config: TrainConfig,
}

/// A run that goes on: nobody else can continue it meanwhile.
pub struct Run {
    folder: Folder,
    metrics: MetricsFile,
    episodes: Lines,
    timing: Lines,
    /// Checkpoints that can be read, oldest first.
    kept: Vec<Kept>,
    _lock: File,
}

/// A checkpoint that can be read.
struct Kept {
    path: PathBuf,
    /// The oldest record it needs.
    first_record: usize,
}

impl Kept {
    fn new(path: PathBuf, table: &Table) -> Kept {
        Kept { path, first_record: table.episodes.first().map_or(table.records, |e| e.start) }
    }
}

impl Run {
    /// Starts a run in a new folder, with its config as text and a first checkpoint, so that it can be continued from the first moment on.
    pub fn create(
        device: &Device,
        config: TrainConfig,
        document: &str,
        folder: &Path,
        mut warn: impl FnMut(String),
    ) -> Result<(Run, Trainer)> {
        let place = Folder::new(folder);
        Run::check_unused(folder)?;
        let first = FirstEpisodes::open(&config, &mut warn)?;
        let agent = Agent::new(device, &config.agent, config.seed).map_err(CheckpointError::from)?;
        config.init.apply(device, &agent, &mut warn).map_err(SetupError::from)?;
        let replay = place.open_replay(&config, Table::default())?;
        let mut trainer = Trainer::new(device, config, agent, replay, 0)?;
        std::fs::create_dir_all(place.checkpoints_folder()).map_err(failed("create", folder))?;
        let lock = place.lock(&mut warn)?;
        // Another process may have begun a run here while the networks were made.
        Run::check_unused(folder)?;
        trainer.replay.begin_writing()?;
        first.write(&trainer.config, &mut trainer.replay)?;
        let metrics = MetricsFile::new(folder);
        let [episodes, timing] = [EPISODES_FILE, TIMING_FILE].map(|name| Lines::new(folder.join(name)));
        let mut run = Run { folder: place, metrics, episodes, timing, kept: Vec::new(), _lock: lock };
        run.write_config(document)?;
        sync_folder(parent(folder))?;
        trainer.replay.flush()?;
        run.write_checkpoint(&trainer.ended(), &mut warn)?;
        Ok((run, trainer))
    }

    /// Refuses a folder that holds something already.
    fn check_unused(folder: &Path) -> Result<()> {
        if Run::is_in(folder) {
            return Err(RunError::Exists { path: folder.into() });
        }
        let measured = [METRICS_FILE, EPISODES_FILE, TIMING_FILE];
        let measured =
            measured.iter().any(|name| folder.join(name).metadata().is_ok_and(|file| file.len() > 0));
        if measured || kept::are_in(folder) {
            return Err(RunError::Leftovers { path: folder.into() });
        }
        match Agent::is_in(folder) {
            true => Err(RunError::HoldsAnAgent { path: folder.into() }),
            false => Ok(()),
        }
    }

    /// Continues the run in `folder` from its newest checkpoint that can be read. `warn` hears about one that cannot. Nothing is changed before one
    /// is found.
    pub fn resume(
        device: &Device,
        folder: &Path,
        options: Resume,
        mut warn: impl FnMut(String),
    ) -> Result<(Run, Trainer)> {
        let folder = Folder::open(folder)?;
        // A folder that is no run gets no lock.
        if !Run::is_in(folder.path()) {
            return Err(RunError::NotARun { path: folder.path().into() });
        }
        let lock = folder.lock(&mut warn)?;
        let loaded = folder
            .newest_that_loads(&mut warn, |checkpoint, warn| folder.load(device, checkpoint, options, warn));
        let (mut trainer, state) = loaded.map_err(|error| match error {
            RunError::Replay(reason @ (ReplayError::CutOff { .. } | ReplayError::Foreign { .. })) => {
                RunError::DamagedReplay { reason }
            }
            error if error.is_of_the_machine() => error,
            RunError::Checkpoint(_) | RunError::File(_) | RunError::State { .. } | RunError::Replay(_) => {
                RunError::NothingToResume { path: folder.path().into(), reason: Box::new(error) }
            }
            error => error,
        })?;
        let kept = folder.tidy(&state, &mut warn)?;
        kept::resume(folder.path(), state.epoch)?;
        trainer.replay.begin_writing()?;
        let metrics = MetricsFile::resume(folder.path(), &state, &mut warn)?;
        let mut resume = |name: &str, mark, what| {
            Lines::resume(folder.path().join(name), state.epoch, mark, what, &mut warn)
                .map(|(lines, _)| lines)
        };
        let episodes = resume(EPISODES_FILE, state.episodes, "returns and lengths")?;
        // Written after the checkpoint, which therefore does not know it.
        let timing = resume(TIMING_FILE, None, "times")?;
        if options.epochs.is_some() {
            for checkpoint in &kept {
                let mut state = folder::read_state(&checkpoint.path)?;
                if state.config.epochs != trainer.config.epochs {
                    state.config.epochs = trainer.config.epochs;
                    folder::write_state(&checkpoint.path, &state)?;
                }
            }
        }
        Ok((Run { folder, metrics, episodes, timing, kept, _lock: lock }, trainer))
    }

    /// Whether there is a run in a folder.
    pub fn is_in(folder: &Path) -> bool {
        !Folder::new(folder).checkpoints().is_empty()
    }

    /// How far a run has come, by its newest checkpoint that can be read. Nothing is changed; the run may be going on.
    pub fn glance(folder: &Path, mut warn: impl FnMut(String)) -> Result<Glance> {
        Folder::open(folder)?.newest_that_loads(&mut warn, |checkpoint, _| {
            let state = folder::read_state(checkpoint)?;
            Ok(Glance { epoch: state.epoch, config: state.config })
        })
    }

    /// Whether a process is training the run in a folder. Never where the file system has no locks.
    pub fn is_going_on(folder: &Path) -> bool {
        Folder::new(folder).is_locked()
    }

    /// The folder of a run's newest checkpoint.
    pub fn newest_checkpoint(folder: &Path) -> Option<PathBuf> {
        Folder::new(folder).checkpoints().pop()
    }

    /// The agent of a run's newest checkpoint that can be read. `warn` hears about one that cannot.
    pub fn newest_agent(
        device: &Device,
        folder: &Path,
        mut warn: impl FnMut(String),
    ) -> Result<(TrainConfig, Agent)> {
        Folder::open(folder)?.newest_that_loads(&mut warn, |checkpoint, _| {
            let state = folder::read_state(checkpoint)?;
            let agent = folder::read_agent(device, checkpoint, &state)?;
            Ok((state.config, agent))
        })
    }

    /// The same with the replay as it was then. Nothing is changed; the run may be going on.
    pub fn look(
        device: &Device,
        folder: &Path,
        mut warn: impl FnMut(String),
    ) -> Result<(TrainConfig, Agent, Replay)> {
        let folder = Folder::open(folder)?;
        folder.newest_that_loads(&mut warn, |checkpoint, warn| {
            let state = folder::read_state(checkpoint)?;
            let agent = folder::read_agent(device, checkpoint, &state)?;
            let replay = folder.look_at_replay(&state, warn)?;
            Ok((state.config, agent, replay))
        })
    }

    /// The replay alone.
    pub fn open_replay(folder: &Path, mut warn: impl FnMut(String)) -> Result<(TrainConfig, Replay)> {
        let folder = Folder::open(folder)?;
        folder.newest_that_loads(&mut warn, |checkpoint, warn| {
            let state = folder::read_state(checkpoint)?;
            let replay = folder.look_at_replay(&state, warn)?;
            Ok((state.config, replay))
        })
    }

    /// The epoch of the newest checkpoint.
    pub fn newest_epoch(folder: &Path) -> Option<usize> {
        folder::epoch_of(Folder::new(folder).checkpoints().last()?)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the config as a text for people; a run goes by its checkpoints.
    pub fn write_config(&self, document: &str) -> Result<()> {
        Ok(write_atomically(&self.folder().join("config.toml"), document.as_bytes())?)
    }

    /// Ends an epoch whose part of the replay is on disk: evaluates it where that is due, and saves its pictures, episodes, metrics and a checkpoint, which is there
    /// whole or not at all. Whether the observer asked for the end.
    pub(super) fn finish(
        &mut self,
        mut ended: Ended,
        made: Made,
        observer: &mut dyn Observer,
    ) -> Result<ControlFlow<()>, TrainError> {
        let mut evaluating = Epoch { observer, made };
        ended.evaluate(&mut evaluating)?;
        let made = evaluating.made;
        let (epoch, metrics) = (made.epoch, &made.metrics.0[..]);
        let mut stopped = false;
        let mut tell = |event: Event| stopped |= observer.event(event).is_break();
        tell(Event::Epoch { epoch, metrics: metrics.to_vec() });
        let mut dreams = Vec::new();
        if !made.evaluated.is_empty() {
            let media = self.folder().join("media").join(format!("{epoch:06}"));
            let drawn = ended.draw(&media, &made.evaluated)?;
            if !drawn.tells_apart {
                tell(Event::Warning(Warning::SameTokens { picture: media.join("reconstructions.png") }));
            }
            dreams = drawn.dreams;
        }
        ended.keep_episodes(self.folder.path(), &made, &dreams)?;
        self.metrics.append(epoch, metrics).map_err(RunError::from)?;
        let mut played = Line::from_iter([("epoch".to_string(), epoch.into())]);
        played.extend(made.played);
        self.episodes.append(&played).map_err(RunError::from)?;
        self.write_checkpoint(&ended, &mut |text| tell(Event::Warning(Warning::Files(text))))?;
        kept::prune(self.folder.path()).map_err(RunError::from)?;
        self.timing.append(&numbers(epoch, &made.clock.saved())).map_err(RunError::from)?;
        tell(Event::Saved { epoch });
        Ok(if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn write_checkpoint(&mut self, ended: &Ended, warn: &mut dyn FnMut(String)) -> Result<()> {
        let checkpoints = self.folder.checkpoints_folder();
        let (partial, done) = (self.folder.partial(), self.folder.checkpoint(ended.epoch));
        // What a crash left of an earlier attempt.
        let _ = std::fs::remove_dir_all(&partial);
        std::fs::create_dir_all(&partial).map_err(failed("create", &partial))?;
        let (agent, optimisers) = (partial.join(AGENT_FILE), partial.join(OPTIMISERS_FILE));
        let write = |path: &Path, bytes: Vec<u8>| -> Result<u32> {
            write_synced(path, &bytes)?;
            Ok(crc32fast::hash(&bytes))
        };
        let checksums = Checksums {
            agent: write(&agent, ended.agent.to_bytes(None, &agent)?)?,
            optimisers: write(&optimisers, optimisers::to_bytes(ended.agent, &optimisers)?)?,
            metrics: self.metrics.lines.checksum,
        };
        let (config, table) = (ended.config.clone(), ended.replay.table().clone());
        let mut state = State::new(ended.epoch, config, table, self.metrics.lines.bytes, checksums);
        state.episodes = Some(self.episodes.mark());
        let path = partial.join(STATE_FILE);
        write(&path, state.to_bytes().map_err(|reason| RunError::State { path: path.clone(), reason })?)?;
        sync_folder(&partial)?;
        if done.exists() {
            // Not of this run: what was newer than the checkpoint it went on from is out of the way.
            folder::set_aside(&done, &"a checkpoint of this epoch was already there", warn)?;
        }
        std::fs::rename(&partial, &done).map_err(failed("write", &done))?;
        sync_folder(&checkpoints)?;
        self.kept.push(Kept::new(done, &state.replay));
        self.prune(warn)
    }

    /// Removes the oldest checkpoints as long as enough that can be read remain.
    fn prune(&mut self, warn: &mut dyn FnMut(String)) -> Result<()> {
        while self.kept.len() > KEPT {
            let previous = self.kept.len() - 2;
            match folder::check(&self.kept[previous].path) {
                Ok(_) => folder::remove(&self.kept.remove(0).path)?,
                Err(reason) => {
                    let Kept { path, .. } = self.kept.remove(previous);
                    folder::set_aside(&path, &reason, warn)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what no checkpoint needs of the replay.
    pub(super) fn discard(&self, replay: &mut Replay) -> Result<()> {
        let needed = self.kept.first().map_or(0, |oldest| oldest.first_record);
        if replay.holds_shards_before(needed)? {
            // After a power failure no checkpoint may be there that needs them.
            sync_folder(&self.folder.checkpoints_folder())?;
            replay.discard_before(needed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
