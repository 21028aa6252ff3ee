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

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::Dreamt;
use crate::files::{FileError, failed};
use crate::npz::{Dtype, Npz, NpzReader};
use crate::replay::{Episode, Record, Replay, ReplayError};

/// Frames of the replay that are read together.
const AT_ONCE: usize = 256;
/// Side of the largest frame that is read.
const LARGEST_FRAME: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum EpisodesError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Env(#[from] envs::EnvError),
    #[error("cannot write {path}: an episode does not have its {steps} steps")]
    Incomplete { path: PathBuf, steps: usize },
    #[error("cannot read {path}: {reason}")]
    NotEpisodes { path: PathBuf, reason: String },
}

type Result<T, E = EpisodesError> = std::result::Result<T, E>;

/// Gets the frames of an episode, any number at a time.
pub(crate) type Frames<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Writes episodes of the replay, whose frames have `size` x `size` pixels, to a NumPy archive. `written` hears how many frames are.
pub fn export_episodes(
    replay: &Replay,
    episodes: &[Episode],
    size: usize,
    path: &Path,
    written: impl FnMut(usize),
) -> Result<()> {
    let lengths: Vec<usize> = episodes.iter().map(|episode| episode.len).collect();
    let mut part = vec![0; AT_ONCE * size * size * 3];
    let read = |number: usize, frames: &mut Frames| {
        let records: Vec<usize> = episodes[number].records().collect();
        for some in records.chunks(AT_ONCE) {
            let part = &mut part[..some.len() * size * size * 3];
            replay.frames(some, part)?;
            frames(part)?;
        }
        records.iter().map(|record| Ok(replay.record(*record)?)).collect()
    };
    write(path, size, &lengths, read, written)
}

/// Writes the episodes of several archives, each of which holds one, to a single archive. `written` hears how many frames are.
pub fn join_episodes(
    archives: &[PathBuf],
    size: usize,
    path: &Path,
    written: impl FnMut(usize),
) -> Result<()> {
    let length = |path: &PathBuf| Ok(open(path)?.shape("rewards", Dtype::F32)?.first().copied().unwrap_or(0));
    let lengths = archives.iter().map(length).collect::<Result<Vec<usize>>>()?;
    let read = |number: usize, frames: &mut Frames| read(&mut open(&archives[number])?, size, frames);
    write(path, size, &lengths, read, written)
}

/// Writes dreams, whose frames have `size` x `size` pixels, as episodes of a NumPy archive. A dream that does not end is cut off after its last step, not over.
pub fn export_dreams(dreams: &[&Dreamt], size: usize, path: &Path) -> Result<()> {
    let lengths: Vec<usize> = dreams.iter().map(|dream| dream.cells.len()).collect();
    let read = |number: usize, frames: &mut Frames| {
        let dream = dreams[number];
        let mut records = Vec::with_capacity(dream.cells.len());
        for (step, cell) in dream.cells.iter().enumerate() {
            frames(&cell.frame)?;
            records.push(Record {
                action: dream.actions[step] as u32,
                reward: dream.rewards[step],
                terminated: cell.end,
                truncated: !cell.end && step + 1 == dream.cells.len(),
            });
        }
        Ok(records)
    };
    write(path, size, &lengths, read, |_| {})
}

fn open(path: &Path) -> Result<NpzReader<BufReader<File>>> {
    let file = File::open(path).map_err(failed("read", path))?;
    Ok(NpzReader::new(BufReader::new(file), path)?)
}

/// Episodes of an archive. The frames stay on disk.
pub struct Archive {
    path: PathBuf,
    /// Frames have `size` x `size` pixels.
    size: usize,
    records: Vec<Record>,
    starts: Vec<usize>,
}

impl Archive {
    pub fn open(path: &Path) -> Result<Archive> {
        let bad = |reason: String| EpisodesError::NotEpisodes { path: path.into(), reason };
        let mut archive = open(path)?;
        let shape = archive.shape("observations", Dtype::U8)?;
        let size = match shape[..] {
            [_, height, width, 3] if height == width && (1..=LARGEST_FRAME).contains(&height) => height,
            _ => return Err(bad(format!("observations have shape {shape:?}, not [T, H, H, 3]"))),
        };
        let records = records(&mut archive, shape[0])?;
        if let Some(step) = records.iter().position(|record| !record.reward.is_finite()) {
            return Err(bad(format!("the reward of step {step} is {}", records[step].reward)));
        }
        let count = archive.shape("episode_starts", Dtype::I64)?.first().copied().unwrap_or(0);
        let mut bytes = Vec::new();
        archive.read("episode_starts", Dtype::I64, &[count], |part| -> Result<()> {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        let starts: Vec<usize> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|start| usize::try_from(i64::from_le_bytes(*start)).unwrap_or(usize::MAX))
            .collect();
        let rising = starts.windows(2).all(|pair| pair[0] < pair[1]);
        let whole = starts.first().is_none_or(|first| *first == 0) && starts.is_empty() == records.is_empty();
        if !rising || !whole || starts.last().is_some_and(|last| *last >= records.len()) {
            return Err(bad(format!(
                "episode_starts {starts:?} do not divide {} steps into episodes",
                records.len()
            )));
        }
        Ok(Archive { path: path.into(), size, records, starts })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Side of a frame in pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The steps of all episodes, one after the other.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Which steps belong together.
    pub fn episodes(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.starts.iter().skip(1).copied().chain([self.records.len()]);
        self.starts.iter().copied().zip(ends).map(|(start, end)| start..end)
    }

    /// Hands out the frames of some steps, one by one. Those before them are decompressed and skipped.
    pub fn frames<E: From<EpisodesError>>(
        &self,
        wanted: Range<usize>,
        mut frame: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.size * self.size * 3;
        let shape = [self.records.len(), self.size, self.size, 3];
        let (mut number, mut partial) = (0, Vec::with_capacity(bytes));
        let read = open(&self.path)?.read("observations", Dtype::U8, &shape, |mut part| {
            while !part.is_empty() {
                let (now, rest) = part.split_at(part.len().min(bytes - partial.len()));
                partial.extend_from_slice(now);
                part = rest;
                if partial.len() == bytes {
                    if wanted.contains(&number) {
                        frame(&partial).map_err(Stopped::By)?;
                    }
                    (number, partial) = (number + 1, Vec::with_capacity(bytes));
                    if number >= wanted.end {
                        return Err(Stopped::Done);
                    }
                }
            }
            Ok(())
        });
        match read {
            Ok(()) | Err(Stopped::Done) => Ok(()),
            Err(Stopped::By(error)) => Err(error),
            Err(Stopped::File(error)) => Err(EpisodesError::from(error).into()),
        }
    }
}

/// Why reading ended early.
enum Stopped<E> {
    Done,
    By(E),
    File(FileError),
}

impl<E> From<FileError> for Stopped<E> {
    fn from(error: FileError) -> Stopped<E> {
        Stopped::File(error)
    }
}

/// Hands out the frames of an archive, which have `size` x `size` pixels, and returns its records.
pub(crate) fn read<R: Read + Seek>(
    archive: &mut NpzReader<R>,
    size: usize,
    frames: &mut Frames,
) -> Result<Vec<Record>> {
    let len = archive.shape("rewards", Dtype::F32)?.first().copied().unwrap_or(0);
    archive.read("observations", Dtype::U8, &[len, size, size, 3], |part| frames(part))?;
    records(archive, len)
}

fn records<R: Read + Seek>(archive: &mut NpzReader<R>, len: usize) -> Result<Vec<Record>> {
    let mut bytes = |name: &str, dtype: Dtype| -> Result<Vec<u8>> {
        let mut all = Vec::new();
        archive.read(name, dtype, &[len], |part| -> Result<()> {
            all.extend_from_slice(part);
            Ok(())
        })?;
        Ok(all)
    };
    let (actions, rewards) = (bytes("actions", Dtype::I32)?, bytes("rewards", Dtype::F32)?);
    let (terminations, truncations) =
        (bytes("terminations", Dtype::Bool)?, bytes("truncations", Dtype::Bool)?);
    let steps = actions.as_chunks::<4>().0.iter().zip(rewards.as_chunks::<4>().0);
    let ends = terminations.iter().zip(&truncations);
    Ok(steps
        .zip(ends)
        .map(|((action, reward), (terminated, truncated))| Record {
            action: u32::from_le_bytes(*action),
            reward: f32::from_le_bytes(*reward),
            terminated: *terminated != 0,
            truncated: *truncated != 0,
        })
        .collect())
}

/// Writes episodes of these lengths to an archive. `read` is asked for one after the other: it hands out the frames and returns the records.
pub(crate) fn write(
    path: &Path,
    size: usize,
    lengths: &[usize],
    mut read: impl FnMut(usize, &mut Frames) -> Result<Vec<Record>>,
    mut written: impl FnMut(usize),
) -> Result<()> {
    let (total, frame) = (lengths.iter().sum(), size * size * 3);
    let mut npz = Npz::create(path)?;
    npz.array("observations", Dtype::U8, &[total, size, size, 3])?;
    let [mut actions, mut rewards, mut terminations, mut truncations] = [(); 4].map(|()| Vec::new());
    let (mut starts, mut start) = (Vec::new(), 0);
    for (episode, len) in lengths.iter().enumerate() {
        let mut bytes = 0;
        let records = read(episode, &mut |frames| {
            bytes += frames.len();
            npz.write(frames)?;
            written(start + bytes / frame);
            Ok(())
        })?;
        if bytes != len * frame || records.len() != *len {
            return Err(EpisodesError::Incomplete { path: path.into(), steps: *len });
        }
        starts.extend((start as i64).to_le_bytes());
        start += len;
        for Record { action, reward, terminated, truncated } in records {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn archives_that_cannot_be_learnt_from_are_refused() {
        let scratch = Scratch::new("archive");
        let path = scratch.0.join("episodes.npz");
        let archive = |shape: &[usize], rewards: [f32; 3], starts: &[i64]| {
            let mut npz = Npz::create(&path).unwrap();
            let rewards: Vec<u8> = rewards.iter().flat_map(|reward| reward.to_le_bytes()).collect();
            let starts_bytes: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
            for (name, dtype, shape, bytes) in [
                ("observations", Dtype::U8, shape, vec![0; 12]),
                ("actions", Dtype::I32, &[3], vec![0; 12]),
                ("rewards", Dtype::F32, &[3], rewards),
                ("terminations", Dtype::Bool, &[3], vec![0; 3]),
                ("truncations", Dtype::Bool, &[3], vec![0; 3]),
                ("episode_starts", Dtype::I64, &[starts.len()], starts_bytes),
            ] {
                npz.array(name, dtype, shape).unwrap();
                npz.write(&bytes).unwrap();
            }
            npz.finish().unwrap();
            Archive::open(&path).map(|archive| archive.episodes().collect::<Vec<_>>())
        };
        let frames = [3, 1, 1, 3];
        assert_eq!(archive(&frames, [1.0; 3], &[0, 2]).unwrap(), [0..2, 2..3]);
        for (shape, rewards, starts, expected) in [
            ([3, 1, 2, 3], [1.0; 3], &[0][..], "observations have shape [3, 1, 2, 3], not [T, H, H, 3]"),
            ([3, 5000, 5000, 3], [1.0; 3], &[0], "observations have shape"),
            (frames, [1.0, f32::NAN, 1.0], &[0], "the reward of step 1 is NaN"),
            (frames, [1.0; 3], &[], "do not divide 3 steps"),
            (frames, [1.0; 3], &[1], "do not divide 3 steps"),
            (frames, [1.0; 3], &[0, 3], "do not divide 3 steps"),
            (frames, [1.0; 3], &[0, -1], "do not divide 3 steps"),
        ] {
            let error = archive(&shape, rewards, starts).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
