//! Where a run is: its lock and its checkpoints.

use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::Device;
use safetensors::SafeTensors;

use super::super::{TrainConfig, Trainer};
use super::state::{State, StateError};
use super::{Damaged, KEPT, Kept, Result, Resume, RunError, optimisers};
use crate::Agent;
use crate::checkpoint::{AGENT_FILE, CheckpointError};
use crate::files::{failed, read, write_atomically};
use crate::replay::{Replay, ReplayError, Table};

pub(super) const OPTIMISERS_FILE: &str = "optimisers.safetensors";
pub(super) const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "lock";
/// Who looks whether a run is locked holds its lock for much less than this.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 5;
/// How the names of checkpoints end that are being removed.
const REMOVED: &str = ".removed";

pub(super) struct Folder(PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Folder {
        Folder(path.into())
    }

    /// A run that is there.
    pub fn open(path: &Path) -> Result<Folder> {
        match path.is_dir() {
            true => Ok(Folder(path.into())),
            false => Err(RunError::NoSuchRun { path: path.into() }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn checkpoints_folder(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    pub fn checkpoint(&self, epoch: usize) -> PathBuf {
        self.checkpoints_folder().join(format!("{epoch:06}"))
    }

    /// Where a checkpoint is written.
    pub fn partial(&self) -> PathBuf {
        self.checkpoints_folder().join("partial")
    }

    /// Keeps other processes from continuing the run, until it is dropped.
    pub fn lock(&self, warn: &mut dyn FnMut(String)) -> Result<File> {
        let path = self.0.join(LOCK_FILE);
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(failed("write", &path))?;
        let mut outcome = file.try_lock();
        for _ in 0..LOOKS {
            if !matches!(outcome, Err(TryLockError::WouldBlock)) {
                break;
            }
            // Somebody may only be looking, see `is_locked`.
            std::thread::sleep(LOOK);
            outcome = file.try_lock();
        }
        self.check_lock(outcome, warn)?;
        Ok(file)
    }

    /// Whether another process holds the lock. Takes it for a moment to find out.
    pub fn is_locked(&self) -> bool {
        let file = File::open(self.0.join(LOCK_FILE));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// What it means that a lock was had or not.
    fn check_lock(&self, outcome: Result<(), TryLockError>, warn: &mut dyn FnMut(String)) -> Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(RunError::GoingOn { path: self.0.clone() }),
            // Some network file systems know no locks.
            Err(TryLockError::Error(reason)) => {
                warn(format!(
                    "the file system of {} has no locks ({reason}): make sure that no other process trains this run",
                    self.0.display()
                ));
                Ok(())
            }
        }
    }

    pub fn open_replay(&self, config: &TrainConfig, table: Table) -> Result<Replay> {
        let size = config.agent.tokenizer.frame_size;
        let max_steps = config.replay.steps(Replay::step_bytes(size * size * 3));
        let games = config.collection.envs;
        let replay = Replay::open(&self.0.join("replay"), size * size * 3, max_steps, games, table)?;
        Ok(replay.sampling(config.replay.sampling))
    }

    /// The replay as a checkpoint knows it, without episodes that are damaged.
    pub fn look_at_replay(&self, state: &State, warn: &mut dyn FnMut(String)) -> Result<Replay> {
        let mut replay = self.open_replay(&state.config, state.replay.clone())?;
        let mut damaged = replay.damaged_records()?;
        if !damaged.is_empty() && damaged.len() == replay.table().episodes.len() {
            let reason = damaged.swap_remove(0).1;
            return Err(RunError::NothingLeft { path: self.0.clone(), reason });
        }
        forget(&mut replay, &damaged, warn);
        Ok(replay)
    }

    /// What the folder of checkpoints holds.
    fn entries(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.checkpoints_folder()) else { return Vec::new() };
        entries.filter_map(|e| Some(e.ok()?.path())).collect()
    }

    /// Finished checkpoints, oldest first.
    pub fn checkpoints(&self) -> Vec<PathBuf> {
        let epochs = self.entries().into_iter().filter_map(|path| {
            let epoch = epoch_of(&path)?;
            (self.checkpoint(epoch) == path).then_some((epoch, path))
        });
        let mut found: Vec<_> = epochs.collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// What `load` makes of the newest checkpoint that it can read; the first error if there is none.
    pub fn newest_that_loads<T, W: FnMut(String)>(
        &self,
        warn: &mut W,
        mut load: impl FnMut(&Path, &mut W) -> Result<T>,
    ) -> Result<T> {
        let mut first = None;
        let mut checkpoints = self.checkpoints();
        while let Some(checkpoint) = checkpoints.pop() {
            match load(&checkpoint, warn) {
                // The checkpoint is good: the one before it would lose more, or fare no better.
                Err(
                    error @ (RunError::DamagedReplay { .. }
                    | RunError::Setup(_)
                    | RunError::FewerEpochs { .. }
                    | RunError::Epochs(_)),
                ) => return Err(error),
                Err(error) if error.is_of_the_machine() => return Err(error),
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

    /// The run as a checkpoint describes it.
    pub fn load(
        &self,
        device: &Device,
        checkpoint: &Path,
        options: Resume,
        warn: &mut dyn FnMut(String),
    ) -> Result<(Trainer, State)> {
        let mut state = read_state(checkpoint)?;
        if let Some(epochs) = options.epochs {
            let planned = state.config.epochs;
            if epochs < planned {
                return Err(RunError::FewerEpochs { epochs, planned });
            }
            state.config.epochs = epochs;
            state.config.validate().map_err(RunError::Epochs)?;
        }
        let agent = read_agent(device, checkpoint, &state)?;
        let path = checkpoint.join(OPTIMISERS_FILE);
        let bytes = read_checked(&path, state.checksums.map(|c| c.optimisers))?;
        optimisers::from_bytes(&agent, &path, &bytes)?;
        let mut replay = self.open_replay(&state.config, state.replay.clone())?;
        let mut bad = replay.damaged_episodes()?;
        if options.damaged == Damaged::Refuse && !bad.is_empty() {
            return Err(match bad.swap_remove(0).1 {
                // The checkpoint before may do without what is missing, or know another replay.
                error @ (ReplayError::CutOff { .. } | ReplayError::Foreign { .. }) => error.into(),
                reason => RunError::DamagedReplay { reason },
            });
        }
        if !bad.is_empty() && bad.len() == replay.table().episodes.len() {
            let reason = bad.swap_remove(0).1;
            return Err(RunError::NothingLeft { path: self.0.clone(), reason });
        }
        forget(&mut replay, &bad, warn);
        let trainer = Trainer::new(device, state.config.clone(), agent, replay, state.epoch)?;
        Ok((trainer, state))
    }

    /// Before a run goes on from `state`: sets newer and unreadable checkpoints aside, and removes what an interrupted removal or attempt left and
    /// what is older than those that are kept, which are returned.
    pub fn tidy(&self, state: &State, warn: &mut dyn FnMut(String)) -> Result<Vec<Kept>> {
        let mut kept = vec![Kept::new(self.checkpoint(state.epoch), &state.replay)];
        for path in self.checkpoints().into_iter().rev() {
            let epoch = epoch_of(&path).unwrap_or_default();
            if epoch > state.epoch {
                set_aside(&path, &format!("the run goes on from epoch {}", state.epoch), warn)?;
            } else if epoch < state.epoch && kept.len() >= KEPT {
                remove(&path)?;
            } else if epoch < state.epoch {
                match check(&path) {
                    Ok(state) => kept.push(Kept::new(path, &state.replay)),
                    Err(reason) => set_aside(&path, &reason, warn)?,
                }
            }
        }
        kept.reverse();
        let removed = |path: &Path| {
            path.file_name().is_some_and(|n| n.as_encoded_bytes().ends_with(REMOVED.as_bytes()))
        };
        for path in self.entries().into_iter().filter(|path| removed(path)).chain([self.partial()]) {
            if path.exists() {
                std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(kept)
    }
}

/// Forgets damaged episodes and says so in one line.
pub(super) fn forget(replay: &mut Replay, bad: &[(usize, ReplayError)], warn: &mut dyn FnMut(String)) {
    let Some((_, first)) = bad.first() else { return };
    let (episodes, steps) = (replay.table().episodes.len(), replay.steps());
    replay.forget(&bad.iter().map(|(episode, _)| *episode).collect::<Vec<_>>());
    let lost = steps - replay.steps();
    warn(format!(
        "{first}; {} of {episodes} episodes with {lost} of {steps} steps are damaged and forgotten",
        bad.len()
    ));
}

/// The epoch that the name of a checkpoint says.
pub(super) fn epoch_of(checkpoint: &Path) -> Option<usize> {
    let name = checkpoint.file_name()?.to_str()?;
    name.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok())?
}

/// Removes a checkpoint. What is left when that is interrupted has another name.
pub(super) fn remove(checkpoint: &Path) -> Result<()> {
    let leftover = renamed(checkpoint, REMOVED);
    let _ = std::fs::remove_dir_all(&leftover);
    match std::fs::rename(checkpoint, &leftover) {
        // Somebody else has removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        moved => moved.map_err(failed("remove", checkpoint))?,
    }
    // What cannot be removed now, because somebody reads it, is removed when the run is continued.
    let _ = std::fs::remove_dir_all(&leftover);
    Ok(())
}

/// Gives a checkpoint that nobody can use a name that nobody looks for. It is never deleted.
pub(super) fn set_aside(checkpoint: &Path, reason: &dyn Display, warn: &mut dyn FnMut(String)) -> Result<()> {
    let free = (1..).map(|number| match number {
        1 => renamed(checkpoint, ".damaged"),
        number => renamed(checkpoint, &format!(".damaged-{number}")),
    });
    let Some(place) = free.into_iter().find(|place| !place.exists()) else { return Ok(()) };
    match std::fs::rename(checkpoint, &place) {
        // Somebody else has removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        moved => moved.map_err(failed("rename", checkpoint))?,
    }
    warn(format!("{} is kept as {}: {reason}", checkpoint.display(), place.display()));
    Ok(())
}

fn renamed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

pub(super) fn read_state(checkpoint: &Path) -> Result<State> {
    let path = checkpoint.join(STATE_FILE);
    let bad = |reason| RunError::State { path: path.clone(), reason };
    let state = State::parse(&read(&path)?).map_err(bad)?;
    match epoch_of(checkpoint) {
        Some(folder) if folder != state.epoch => {
            Err(bad(StateError::WrongFolder { found: state.epoch, folder }))
        }
        _ => Ok(state),
    }
}

pub(super) fn write_state(checkpoint: &Path, state: &State) -> Result<()> {
    let path = checkpoint.join(STATE_FILE);
    let bytes = state.to_bytes().map_err(|reason| RunError::State { path: path.clone(), reason })?;
    Ok(write_atomically(&path, &bytes)?)
}

/// The bytes of a file, if they have this checksum.
fn read_checked(path: &Path, checksum: Option<u32>) -> Result<Vec<u8>> {
    let bytes = read(path)?;
    match checksum {
        Some(checksum) if checksum != crc32fast::hash(&bytes) => {
            Err(CheckpointError::Checksum { path: path.into() }.into())
        }
        _ => Ok(bytes),
    }
}

pub(super) fn read_agent(device: &Device, checkpoint: &Path, state: &State) -> Result<Agent> {
    let path = checkpoint.join(AGENT_FILE);
    let bytes = read_checked(&path, state.checksums.map(|c| c.agent))?;
    let (agent, _) = Agent::from_bytes(device, &path, &bytes)?;
    match agent.config == state.config.agent {
        true => Ok(agent),
        false => Err(RunError::State { path: checkpoint.join(STATE_FILE), reason: StateError::OtherAgent }),
    }
}

/// Whether the files of a checkpoint are whole, as far as can be told without networks.
pub(super) fn check(checkpoint: &Path) -> Result<State> {
    let state = read_state(checkpoint)?;
    for (file, checksum) in [
        (AGENT_FILE, state.checksums.map(|c| c.agent)),
        (OPTIMISERS_FILE, state.checksums.map(|c| c.optimisers)),
    ] {
        let path = checkpoint.join(file);
        let bytes = read_checked(&path, checksum)?;
        SafeTensors::deserialize(&bytes)
            .map_err(|e| CheckpointError::NotSafetensors { path: path.clone(), reason: e.to_string() })?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_named() {
        let folder = Folder(PathBuf::from("runs/one"));
        let mut said = Vec::new();
        let unsupported = std::io::Error::from(std::io::ErrorKind::Unsupported);
        folder.check_lock(Err(TryLockError::Error(unsupported)), &mut |text| said.push(text)).unwrap();
        assert!(
            said.len() == 1 && said[0].starts_with("the file system of runs/one has no locks"),
            "{said:?}"
        );
        let held = folder.check_lock(Err(TryLockError::WouldBlock), &mut |text| said.push(text));
        assert!(matches!(held, Err(RunError::GoingOn { .. })) && said.len() == 1);
    }
}
