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

mod folder;
mod metrics;
pub(crate) mod optimisers;
pub(crate) mod state;

use std::fs::File;
use std::path::{Path, PathBuf};

use engine::{Device, Error};

use super::{TrainConfig, TrainError, Trainer};
use crate::Agent;
use crate::checkpoint::{AGENT_FILE, CheckpointError};
use crate::files::{FileError, failed, parent, sync_folder, write_atomically, write_synced};
use crate::replay::{Replay, ReplayError, Table};
use folder::{Folder, OPTIMISERS_FILE, STATE_FILE};
use metrics::MetricsFile;
pub use state::StateError;
use state::{Checksums, State};

/// Checkpoints that are kept.
const KEPT: usize = 2;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("cannot use {path}: {reason}")]
    State { path: PathBuf, reason: StateError },
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Train(#[from] Box<TrainError>),
    #[error("{reason}; --forget-damaged continues without the episodes that are damaged")]
    DamagedReplay { reason: ReplayError },
    #[error(
        "every episode of the replay in {path} is damaged ({reason}): nothing can be learnt from it. `iris eval` still plays with the agent"
    )]
    NothingLeft { path: PathBuf, reason: ReplayError },
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
            RunError::Checkpoint(CheckpointError::File(error)) => &error.source,
            RunError::Replay(ReplayError::Io { source, .. }) => source,
            _ => return false,
        };
        // EMFILE and ENFILE have no kind of their own.
        matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::OutOfMemory)
            || matches!(source.raw_os_error(), Some(23 | 24))
    }
}

impl From<FileError> for RunError {
    fn from(error: FileError) -> RunError {
        CheckpointError::from(error).into()
    }
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
    metrics: MetricsFile,
    /// Checkpoints that can be read, oldest first.
    kept: Vec<Kept>,
    /// Hears about what is wrong but stops nobody.
    warn: Box<dyn FnMut(String)>,
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
        mut warn: impl FnMut(String) + 'static,
    ) -> Result<(Run, Trainer)> {
        let place = Folder::new(folder);
        Run::check_unused(folder)?;
        let agent = Agent::new(device, &config.agent, config.seed).map_err(CheckpointError::from)?;
        let replay = place.open_replay(&config, Table::default())?;
        let mut trainer = Trainer::new(device, config, agent, replay, 0).map_err(Box::new)?;
        std::fs::create_dir_all(place.checkpoints_folder()).map_err(failed("create", folder))?;
        let lock = place.lock(&mut warn)?;
        // Another process may have begun a run here while the networks were made.
        Run::check_unused(folder)?;
        trainer.replay.begin_writing()?;
        write_atomically(&folder.join("config.toml"), document.as_bytes())?;
        sync_folder(parent(folder))?;
        let metrics = MetricsFile::new(folder);
        let mut run = Run { folder: place, metrics, kept: Vec::new(), warn: Box::new(warn), _lock: lock };
        run.write_checkpoint(&mut trainer)?;
        Ok((run, trainer))
    }

    /// Refuses a folder that holds something already.
    fn check_unused(folder: &Path) -> Result<()> {
        if Run::is_in(folder) {
            return Err(RunError::Exists { path: folder.into() });
        }
        if folder.join("metrics.jsonl").metadata().is_ok_and(|file| file.len() > 0) {
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
        damaged: Damaged,
        mut warn: impl FnMut(String) + 'static,
    ) -> Result<(Run, Trainer)> {
        let folder = Folder::open(folder)?;
        // A folder that is no run gets no lock.
        if !Run::is_in(folder.path()) {
            return Err(RunError::NotARun { path: folder.path().into() });
        }
        let lock = folder.lock(&mut warn)?;
        let loaded = folder
            .newest_that_loads(&mut warn, |checkpoint, warn| folder.load(device, checkpoint, damaged, warn));
        let (mut trainer, state) = loaded.map_err(|error| match error {
            RunError::Replay(reason @ (ReplayError::CutOff { .. } | ReplayError::Foreign { .. })) => {
                RunError::DamagedReplay { reason }
            }
            error if error.is_of_the_machine() => error,
            RunError::Checkpoint(_) | RunError::State { .. } | RunError::Replay(_) => {
                RunError::NothingToResume { path: folder.path().into(), reason: Box::new(error) }
            }
            error => error,
        })?;
        let kept = folder.tidy(&state, &mut warn)?;
        trainer.replay.begin_writing()?;
        let metrics = MetricsFile::resume(folder.path(), &state, &mut warn)?;
        Ok((Run { folder, metrics, kept, warn: Box::new(warn), _lock: lock }, trainer))
    }

    /// Whether there is a run in a folder.
    pub fn is_in(folder: &Path) -> bool {
        !Folder::new(folder).checkpoints().is_empty()
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
            let mut replay = folder.open_replay(&state.config, state.replay)?;
            let mut damaged = replay.damaged_records()?;
            if !damaged.is_empty() && damaged.len() == replay.table().episodes.len() {
                let reason = damaged.swap_remove(0).1;
                return Err(RunError::NothingLeft { path: folder.path().into(), reason });
            }
            folder::forget(&mut replay, &damaged, warn);
            Ok((state.config, agent, replay))
        })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Appends the epoch's metrics and writes a checkpoint; it is there whole or not at all.
    pub fn save(&mut self, trainer: &mut Trainer, metrics: &[(String, f64)]) -> Result<()> {
        self.metrics.append(trainer.epoch, metrics)?;
        self.write_checkpoint(trainer)
    }

    fn write_checkpoint(&mut self, trainer: &mut Trainer) -> Result<()> {
        trainer.replay.flush()?;
        let checkpoints = self.folder.checkpoints_folder();
        let (partial, done) = (self.folder.partial(), self.folder.checkpoint(trainer.epoch));
        // What a crash left of an earlier attempt.
        let _ = std::fs::remove_dir_all(&partial);
        std::fs::create_dir_all(&partial).map_err(failed("create", &partial))?;
        let (agent, optimisers) = (partial.join(AGENT_FILE), partial.join(OPTIMISERS_FILE));
        let write = |path: &Path, bytes: Vec<u8>| -> Result<u32> {
            write_synced(path, &bytes)?;
            Ok(crc32fast::hash(&bytes))
        };
        let checksums = Checksums {
            agent: write(&agent, trainer.agent.to_bytes(None, &agent)?)?,
            optimisers: write(&optimisers, optimisers::to_bytes(&trainer.agent, &optimisers)?)?,
            metrics: self.metrics.checksum,
        };
        let (config, table) = (trainer.config.clone(), trainer.replay.table().clone());
        let state = State::new(trainer.epoch, config, table, self.metrics.bytes, checksums);
        let path = partial.join(STATE_FILE);
        write(&path, state.to_bytes().map_err(|reason| RunError::State { path: path.clone(), reason })?)?;
        sync_folder(&partial)?;
        if done.exists() {
            // Not of this run: what was newer than the checkpoint it went on from is out of the way.
            folder::set_aside(&done, &"a checkpoint of this epoch was already there", &mut self.warn)?;
        }
        std::fs::rename(&partial, &done).map_err(failed("write", &done))?;
        sync_folder(&checkpoints)?;
        self.kept.push(Kept::new(done, &state.replay));
        self.prune(&mut trainer.replay)
    }

    /// Removes the oldest checkpoints as long as enough that can be read remain, and what none of these needs of the replay.
    fn prune(&mut self, replay: &mut Replay) -> Result<()> {
        while self.kept.len() > KEPT {
            let previous = self.kept.len() - 2;
            match folder::check(&self.kept[previous].path) {
                Ok(_) => folder::remove(&self.kept.remove(0).path)?,
                Err(reason) => {
                    let Kept { path, .. } = self.kept.remove(previous);
                    folder::set_aside(&path, &reason, &mut self.warn)?;
                }
            }
        }
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
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::super::{Observer, Phase, train};
    use super::*;
    use crate::AgentConfig;
    use crate::fuzzing::tiny_agent;

    /// The checkpoint before would fare no better, or be taken although the newest is good.
    #[test]
    fn a_machine_without_memory_is_no_damage() {
        let folder = std::env::temp_dir().join(format!("iris-run-machine-{}", std::process::id()));
        let place = Folder::new(&folder);
        for epoch in [1, 2] {
            std::fs::create_dir_all(place.checkpoint(epoch)).unwrap();
        }
        let full = || Error::OutOfMemory { what: "parameters".into(), bytes: 1 << 30, place: "the GPU" };
        let denied = || failed("read", Path::new("state.json"))(std::io::ErrorKind::PermissionDenied.into());
        let attempts = |error: &dyn Fn() -> RunError| {
            let (mut attempts, mut said) = (0, 0);
            let found = place.newest_that_loads(&mut |_| said += 1, |_, _| -> Result<()> {
                attempts += 1;
                Err(error())
            });
            assert!(found.is_err());
            (attempts, said)
        };
        assert_eq!(attempts(&|| CheckpointError::from(full()).into()), (1, 0));
        assert_eq!(attempts(&|| denied().into()), (1, 0));
        let cut = || RunError::Replay(ReplayError::CutOff { path: "replay".into(), record: 3 });
        assert_eq!(attempts(&cut), (2, 1));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Saves every epoch, and damages a checkpoint after one.
    struct Saving {
        run: Run,
        damaged: usize,
    }

    impl Observer for Saving {
        fn progress(&mut self, _: Phase, _: usize, _: usize) -> bool {
            true
        }

        fn epoch_done(&mut self, trainer: &mut Trainer, metrics: &[(String, f64)]) -> Result<(), TrainError> {
            self.run.save(trainer, metrics).map_err(|e| TrainError::Save(e.to_string()))?;
            if trainer.epoch == self.damaged {
                let path = self.run.folder.checkpoint(trainer.epoch).join(AGENT_FILE);
                std::fs::write(path, "damaged").map_err(|e| TrainError::Save(e.to_string()))?;
            }
            Ok(())
        }
    }

    /// The one before the newest is read before an older one is removed.
    #[test]
    fn a_checkpoint_that_is_damaged_during_the_run_does_not_count() {
        let device = Device::cpu(Some(1)).unwrap();
        let agent = AgentConfig { actions: 3, ..tiny_agent(&device).unwrap().config };
        let mut config = TrainConfig { epochs: 4, agent, ..TrainConfig::default() };
        (config.collection.steps, config.collection.random_epochs) = (10, 9);
        for schedule in [
            &mut config.tokenizer.schedule,
            &mut config.world_model.schedule,
            &mut config.actor_critic.schedule,
        ] {
            (schedule.start_after, schedule.batch) = (9, 1);
        }
        config.tokenizer.perceptual = "none".into();
        (config.actor_critic.horizon, config.actor_critic.burn_in) = (2, 1);
        (config.evaluation.every, config.evaluation.final_episodes) = (0, 1);
        config.validate().unwrap();
        let folder = std::env::temp_dir().join(format!("iris-prune-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let warnings = Rc::new(RefCell::new(Vec::new()));
        let heard = warnings.clone();
        let warn = move |text: String| heard.borrow_mut().push(text);
        let (run, mut trainer) = Run::create(&device, config, "", &folder, warn).unwrap();
        train(&mut trainer, &mut Saving { run, damaged: 2 }).unwrap();
        let checkpoints = folder.join("checkpoints");
        let mut names: Vec<_> =
            std::fs::read_dir(&checkpoints).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["000002.damaged", "000003", "000004"]);
        let warnings = warnings.borrow();
        assert!(matches!(&warnings[..], [one] if one.contains("000002.damaged: ")), "{warnings:?}");
        // After epoch 3 the first one was still needed.
        drop(trainer);
        let (_, trainer) = Run::resume(&device, &folder, Damaged::Refuse, |text| panic!("{text}")).unwrap();
        assert_eq!((trainer.epoch, trainer.replay.steps()), (4, 40));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
