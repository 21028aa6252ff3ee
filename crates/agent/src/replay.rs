//! Everything the agent has seen, on disk: two append-only files of fixed-size records, read through the page cache. RAM holds only the table of
//! episodes.
//!
//! A checkpoint stores that table. Records written after it do not count: a resumed run cuts the files back to what the table knows and writes the
//! same ones again, so a crash at any moment loses nothing and leaves nothing half-written behind.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use engine::Rng;
use serde::{Deserialize, Serialize};

/// A stretch of records that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// The seed the game was reset with.
    pub seed: u64,
    /// Number of the first record.
    pub start: usize,
    pub len: usize,
    /// Whether the last step ended the game.
    pub ended: bool,
}

/// The table of episodes: all that a checkpoint needs to know about the replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Oldest first. Only the last may be unfinished.
    pub episodes: Vec<Episode>,
    /// Records ever written.
    pub records: usize,
}

/// What one step consists of beside its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub action: u32,
    pub reward: f32,
    pub end: bool,
}

const RECORD_BYTES: usize = 9;

/// Successive steps of one episode. What is missing to the length asked for is padding, before or after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the first real record.
    pub first: usize,
    /// Padded steps before it.
    pub pad_before: usize,
    /// Real steps.
    pub len: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("cannot {doing} the replay in {path}: {source}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },

    #[error(
        "the replay in {path} holds {found} records, but the checkpoint counts on {expected}: the files were changed or cut off"
    )]
    CutOff { path: PathBuf, expected: usize, found: usize },
}

pub struct Replay {
    folder: PathBuf,
    frames: File,
    steps: File,
    frame_bytes: usize,
    /// The oldest episodes are forgotten beyond this many steps.
    max_steps: usize,
    table: Table,
}

impl Replay {
    /// Opens the replay in `folder` as `table` describes it; an empty table starts anew.
    pub fn open(
        folder: &Path,
        frame_bytes: usize,
        max_steps: usize,
        table: Table,
    ) -> Result<Replay, ReplayError> {
        let fail = |doing| move |source| ReplayError::Io { doing, path: folder.to_path_buf(), source };
        std::fs::create_dir_all(folder).map_err(fail("create"))?;
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let (frames, steps) =
            (open("frames.bin").map_err(fail("open"))?, open("steps.bin").map_err(fail("open"))?);
        for (file, bytes) in [(&frames, frame_bytes), (&steps, RECORD_BYTES)] {
            let (len, wanted) =
                (file.metadata().map_err(fail("read"))?.len(), (table.records * bytes) as u64);
            let found = len as usize / bytes;
            if found < table.records {
                let (path, expected) = (folder.to_path_buf(), table.records);
                return Err(ReplayError::CutOff { path, expected, found });
            }
            if len != wanted {
                file.set_len(wanted).map_err(fail("cut back"))?;
            }
        }
        Ok(Replay { folder: folder.to_path_buf(), frames, steps, frame_bytes, max_steps, table })
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Steps that can be sampled.
    pub fn steps(&self) -> usize {
        self.table.episodes.iter().map(|e| e.len).sum()
    }

    /// The episode that is still being played.
    pub fn open_episode(&self) -> Option<Episode> {
        self.table.episodes.last().copied().filter(|e| !e.ended)
    }

    pub fn begin_episode(&mut self, seed: u64) {
        self.table.episodes.push(Episode { seed, start: self.table.records, len: 0, ended: false });
    }

    /// Appends a step to the open episode.
    pub fn push(&mut self, frame: &[u8], record: Record) -> Result<(), ReplayError> {
        debug_assert_eq!(frame.len(), self.frame_bytes);
        let at = self.table.records;
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&record.action.to_le_bytes());
        bytes[4..8].copy_from_slice(&record.reward.to_le_bytes());
        bytes[8] = u8::from(record.end);
        let written = self
            .frames
            .write_all_at(frame, (at * self.frame_bytes) as u64)
            .and_then(|()| self.steps.write_all_at(&bytes, (at * RECORD_BYTES) as u64));
        written.map_err(|source| ReplayError::Io { doing: "write", path: self.folder.clone(), source })?;
        self.table.records += 1;
        if let Some(episode) = self.table.episodes.last_mut() {
            episode.len += 1;
            episode.ended = record.end;
        }
        while self.table.episodes.len() > 1 && self.steps() - self.table.episodes[0].len >= self.max_steps {
            self.table.episodes.remove(0);
        }
        Ok(())
    }

    /// Makes sure everything is on disk.
    pub fn flush(&mut self) -> Result<(), ReplayError> {
        let flushed =
            self.frames.flush().and_then(|()| self.frames.sync_data()).and_then(|()| self.steps.sync_data());
        flushed.map_err(|source| ReplayError::Io { doing: "write", path: self.folder.clone(), source })
    }

    /// Reads the frame of a record.
    pub fn frame(&self, record: usize, out: &mut [u8]) -> Result<(), ReplayError> {
        let read = self.frames.read_exact_at(out, (record * self.frame_bytes) as u64);
        read.map_err(|source| ReplayError::Io { doing: "read", path: self.folder.clone(), source })
    }

    pub fn record(&self, record: usize) -> Result<Record, ReplayError> {
        let mut bytes = [0; RECORD_BYTES];
        let read = self.steps.read_exact_at(&mut bytes, (record * RECORD_BYTES) as u64);
        read.map_err(|source| ReplayError::Io { doing: "read", path: self.folder.clone(), source })?;
        Ok(Record {
            action: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            reward: f32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            end: bytes[8] != 0,
        })
    }

    /// A record, uniform over episodes and then over the steps of one.
    pub fn sample_step(&self, rng: &mut Rng) -> usize {
        let (episode, step) = self.sample(rng);
        episode.start + step
    }

    fn sample(&self, rng: &mut Rng) -> (Episode, usize) {
        // Only the last episode can be empty, just after its reset.
        let count = self.table.episodes.iter().filter(|e| e.len > 0).count();
        let episode = self.table.episodes[rng.below(count as u32) as usize];
        (episode, rng.below(episode.len as u32) as usize)
    }

    /// `len` steps that start at a uniformly chosen one, padded after the episode's end.
    pub fn sample_starting(&self, rng: &mut Rng, len: usize) -> Segment {
        let (episode, first) = self.sample(rng);
        Segment { first: episode.start + first, pad_before: 0, len: len.min(episode.len - first) }
    }

    /// `len` steps that end at a uniformly chosen step, padded before the episode's beginning.
    pub fn sample_ending(&self, rng: &mut Rng, len: usize) -> Segment {
        let (episode, last) = self.sample(rng);
        let real = len.min(last + 1);
        Segment { first: episode.start + last + 1 - real, pad_before: len - real, len: real }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Key;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("iris-replay-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn fill(replay: &mut Replay, lengths: &[usize]) {
        for (i, &len) in lengths.iter().enumerate() {
            replay.begin_episode(i as u64);
            for step in 0..len {
                let number = replay.table().records as u8;
                let record = Record { action: u32::from(number), reward: 0.5, end: step + 1 == len };
                replay.push(&[number; 4], record).unwrap();
            }
        }
    }

    #[test]
    fn steps_come_back_and_survive_reopening() {
        let folder = Scratch::new("reopen");
        let mut replay = Replay::open(&folder.0, 4, 1000, Table::default()).unwrap();
        fill(&mut replay, &[3, 2]);
        replay.begin_episode(9);
        replay.push(&[7; 4], Record { action: 1, reward: -1.0, end: false }).unwrap();
        let table = replay.table().clone();
        assert_eq!(replay.open_episode().unwrap().seed, 9);
        // Written after the checkpoint, then a crash.
        replay.push(&[8; 4], Record { action: 2, reward: 0.0, end: true }).unwrap();
        drop(replay);
        let replay = Replay::open(&folder.0, 4, 1000, table.clone()).unwrap();
        assert_eq!(replay.table(), &table);
        let mut frame = [0; 4];
        replay.frame(5, &mut frame).unwrap();
        assert_eq!(
            (frame, replay.record(5).unwrap()),
            ([7; 4], Record { action: 1, reward: -1.0, end: false })
        );
        assert!(replay.frame(6, &mut frame).is_err());
        assert_eq!(std::fs::metadata(folder.0.join("frames.bin")).unwrap().len(), 24);
        // A file that lost its end is noticed.
        drop(replay);
        std::fs::write(folder.0.join("frames.bin"), [0; 23]).unwrap();
        let error = Replay::open(&folder.0, 4, 1000, table).map(|_| ()).unwrap_err();
        assert!(matches!(error, ReplayError::CutOff { expected: 6, found: 5, .. }));
    }

    #[test]
    fn the_oldest_episodes_go_first() {
        let folder = Scratch::new("evict");
        let mut replay = Replay::open(&folder.0, 4, 6, Table::default()).unwrap();
        fill(&mut replay, &[4, 3, 3, 2]);
        assert_eq!(replay.table().episodes.iter().map(|e| e.start).collect::<Vec<_>>(), [4, 7, 10]);
        assert_eq!(replay.steps(), 8);
    }

    #[test]
    fn segments_stay_inside_their_episode() {
        let folder = Scratch::new("segments");
        let mut replay = Replay::open(&folder.0, 4, 1000, Table::default()).unwrap();
        fill(&mut replay, &[3, 10]);
        let mut rng = Rng::new(Key::new(0, 0));
        let mut seen = [0; 13];
        for _ in 0..5000 {
            let ending = replay.sample_ending(&mut rng, 5);
            assert_eq!(ending.pad_before + ending.len, 5);
            let segment = replay.sample_starting(&mut rng, 5);
            assert!(segment.len >= 1 && segment.pad_before + segment.len <= 5);
            for s in [ending, segment] {
                let episode = if s.first < 3 { 0..3 } else { 3..13 };
                assert!(episode.contains(&s.first) && s.first + s.len <= episode.end);
            }
            seen[replay.sample_step(&mut rng)] += 1;
        }
        // Episodes are equally likely, so steps of the short one are more so.
        let short: usize = seen[..3].iter().sum();
        assert!((2300..2700).contains(&short), "{seen:?}");
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
    }
}
