//! Episodes that a run's replay begins with: played by a person, exported, or of another run.

use std::path::{Path, PathBuf};

use super::{Run, RunError, TrainConfig};
use crate::episodes::{Archive, EpisodesError};
use crate::files::failed;
use crate::player::episode_seed;
use crate::replay::{Episode, Record, Replay};

/// Frames that are read together.
const AT_ONCE: usize = 256;

/// Why a run cannot begin with these episodes.
#[derive(Debug, thiserror::Error)]
pub enum FirstEpisodesError {
    #[error(transparent)]
    Episodes(#[from] EpisodesError),
    #[error(transparent)]
    Run(#[from] Box<RunError>),
    #[error("{path} holds no episodes: neither a run with steps in its replay nor an .npz file of episodes")]
    None { path: PathBuf },
    #[error(
        "{path} holds frames of {found} x {found} pixels, but the agent sees frames of {needed} x {needed}"
    )]
    FrameSize { path: PathBuf, found: usize, needed: usize },
    #[error("{path} holds action {found}, but the game has {known} actions, counted from 0")]
    Actions { path: PathBuf, found: u32, known: usize },
}

type Result<T, E = FirstEpisodesError> = std::result::Result<T, E>;

/// Episodes that fit a run.
pub(super) struct FirstEpisodes {
    from: Vec<Source>,
}

enum Source {
    Archive(Archive),
    Run(Box<Replay>),
}

impl FirstEpisodes {
    /// Finds the episodes that the config asks for, and refuses those that the run cannot learn from.
    pub fn open(config: &TrainConfig, warn: &mut dyn FnMut(String)) -> Result<FirstEpisodes> {
        let path = Path::new(&config.replay.from);
        let mut from = Vec::new();
        if config.replay.from.is_empty() {
            return Ok(FirstEpisodes { from });
        }
        if Run::is_in(path) {
            let (its, replay) = Run::open_replay(path, warn).map_err(Box::new)?;
            check_size(path, its.agent.tokenizer.frame_size, config)?;
            from.push(Source::Run(Box::new(replay)));
        } else {
            for file in archives(path)? {
                let archive = Archive::open(&file)?;
                check_size(&file, archive.size(), config)?;
                from.push(Source::Archive(archive));
            }
        }
        let mut steps = 0;
        for source in &from {
            source.each_record(|record| {
                steps += 1;
                match (record.action as usize) < config.agent.actions {
                    true => Ok(()),
                    false => Err(FirstEpisodesError::Actions {
                        path: source.path(path),
                        found: record.action,
                        known: config.agent.actions,
                    }),
                }
            })?;
        }
        match steps {
            0 => Err(FirstEpisodesError::None { path: path.into() }),
            _ => Ok(FirstEpisodes { from }),
        }
    }

    /// Appends the episodes to a replay.
    pub fn write(&self, config: &TrainConfig, to: &mut Replay) -> Result<()> {
        let size = config.agent.tokenizer.frame_size;
        for source in &self.from {
            match source {
                Source::Archive(archive) => {
                    for episode in archive.episodes() {
                        let records = &archive.records()[episode.clone()];
                        let mut left = records.iter();
                        begin(config.seed, to);
                        archive.frames(episode, |frame| push(to, frame, left.next(), left.len() == 0))?;
                    }
                }
                Source::Run(replay) => {
                    let bytes = size * size * 3;
                    let mut frames = vec![0; AT_ONCE * bytes];
                    for episode in replay.table().episodes.iter().filter(|episode| episode.len > 0) {
                        let all: Vec<usize> = episode.records().collect();
                        begin(config.seed, to);
                        for some in all.chunks(AT_ONCE) {
                            let frames = &mut frames[..some.len() * bytes];
                            replay.frames(some, frames).map_err(EpisodesError::from)?;
                            for (record, frame) in some.iter().zip(frames.chunks_exact(bytes)) {
                                let step = replay.record(*record).map_err(EpisodesError::from)?;
                                push(to, frame, Some(&step), Some(record) == all.last())?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Source {
    fn path(&self, run: &Path) -> PathBuf {
        match self {
            Source::Archive(archive) => archive.path().into(),
            Source::Run(_) => run.into(),
        }
    }

    fn each_record(&self, mut each: impl FnMut(Record) -> Result<()>) -> Result<()> {
        match self {
            Source::Archive(archive) => archive.records().iter().try_for_each(|record| each(*record)),
            Source::Run(replay) => {
                let episodes = replay.table().episodes.iter();
                let mut records = episodes.flat_map(Episode::records);
                records.try_for_each(|record| each(replay.record(record).map_err(EpisodesError::from)?))
            }
        }
    }
}

/// Begins an episode that cannot be played again: it has the seed that the run would have given it, but nothing is known about the beginning of its
/// game, so that none counts as a game in progress.
fn begin(seed: u64, to: &mut Replay) {
    to.begin_episode(episode_seed(seed, to.table().records), true);
}

/// Appends a step; the last of an episode ends it.
fn push(to: &mut Replay, frame: &[u8], record: Option<&Record>, last: bool) -> Result<()> {
    let Some(record) = record else { return Ok(()) };
    let truncated = record.truncated || (last && !record.terminated);
    to.push(frame, Record { truncated, ..*record }).map_err(EpisodesError::from)?;
    Ok(())
}

fn check_size(path: &Path, found: usize, config: &TrainConfig) -> Result<()> {
    match config.agent.tokenizer.frame_size {
        needed if needed == found => Ok(()),
        needed => Err(FirstEpisodesError::FrameSize { path: path.into(), found, needed }),
    }
}

/// The file itself, or those in the folder by name.
fn archives(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.into()]);
    }
    let unreadable = |error| EpisodesError::from(failed("read", path)(error));
    let entries = std::fs::read_dir(path).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")));
    files.sort();
    Ok(files)
}
