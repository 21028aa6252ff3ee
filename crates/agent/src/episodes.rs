//! Episodes as NumPy arrays, one step after the other:
//!
//! ```text
//! observations     uint8   [T, H, W, 3]   the frame that the action was chosen from
//! actions          int32   [T]
//! rewards          float32 [T]            of the game, not clipped
//! terminations     bool    [T]            the game was over after this step
//! truncations      bool    [T]            a time limit ended the episode after this step
//! episode_starts   int64   [E]            index of each episode's first step
//! ```

use std::ops::Range;
use std::path::Path;

use crate::files::FileError;
use crate::npz::{Dtype, Npz};
use crate::replay::{Episode, Record, Replay, ReplayError};

/// Frames in memory at a time.
const AT_ONCE: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum EpisodesError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Episodes that can be read step by step.
pub(crate) trait Episodes {
    /// Steps of each episode.
    fn lengths(&self) -> Vec<usize>;

    fn record(&self, episode: usize, step: usize) -> Result<Record, ReplayError>;

    /// The frames of some steps, one after the other.
    fn frames(&self, episode: usize, steps: Range<usize>, out: &mut [u8]) -> Result<(), ReplayError>;
}

/// Episodes of a replay.
struct Recorded<'a> {
    replay: &'a Replay,
    episodes: &'a [Episode],
}

impl Episodes for Recorded<'_> {
    fn lengths(&self) -> Vec<usize> {
        self.episodes.iter().map(|episode| episode.len).collect()
    }

    fn record(&self, episode: usize, step: usize) -> Result<Record, ReplayError> {
        self.replay.record(self.episodes[episode].start + step)
    }

    fn frames(&self, episode: usize, steps: Range<usize>, out: &mut [u8]) -> Result<(), ReplayError> {
        let start = self.episodes[episode].start;
        let records: Vec<usize> = steps.map(|step| start + step).collect();
        self.replay.frames(&records, out)
    }
}

/// Writes episodes of the replay, whose frames have `size` x `size` pixels, to a NumPy archive. `written` hears how many frames are.
pub fn export_episodes(
    replay: &Replay,
    episodes: &[Episode],
    size: usize,
    path: &Path,
    written: impl FnMut(usize),
) -> Result<(), EpisodesError> {
    write(&Recorded { replay, episodes }, size, path, written)
}

pub(crate) fn write(
    episodes: &impl Episodes,
    size: usize,
    path: &Path,
    mut written: impl FnMut(usize),
) -> Result<(), EpisodesError> {
    let lengths = episodes.lengths();
    let total = lengths.iter().sum();
    let mut npz = Npz::create(path)?;
    npz.array("observations", Dtype::U8, &[total, size, size, 3])?;
    let mut frames = vec![0; AT_ONCE.min(total) * size * size * 3];
    let mut done = 0;
    for (episode, len) in lengths.iter().enumerate() {
        for first in (0..*len).step_by(AT_ONCE) {
            let steps = first..(first + AT_ONCE).min(*len);
            let frames = &mut frames[..steps.len() * size * size * 3];
            done += steps.len();
            episodes.frames(episode, steps, frames)?;
            npz.write(frames)?;
            written(done);
        }
    }
    let [mut actions, mut rewards, mut terminations, mut truncations] = [(); 4].map(|()| Vec::new());
    let mut starts = Vec::new();
    let mut start = 0i64;
    for (episode, len) in lengths.iter().enumerate() {
        starts.extend(start.to_le_bytes());
        start += *len as i64;
        for step in 0..*len {
            let Record { action, reward, terminated, truncated } = episodes.record(episode, step)?;
            actions.extend((action as i32).to_le_bytes());
            rewards.extend(reward.to_le_bytes());
            terminations.push(u8::from(terminated));
            truncations.push(u8::from(truncated));
        }
    }
    for (name, dtype, len, bytes) in [
        ("actions", Dtype::I32, total, actions),
        ("rewards", Dtype::F32, total, rewards),
        ("terminations", Dtype::Bool, total, terminations),
        ("truncations", Dtype::Bool, total, truncations),
        ("episode_starts", Dtype::I64, lengths.len(), starts),
    ] {
        npz.array(name, dtype, &[len])?;
        npz.write(&bytes)?;
    }
    Ok(npz.finish()?)
}
