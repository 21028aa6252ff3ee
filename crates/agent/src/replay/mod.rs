//! Everything the agent has seen, on disk: append-only shards of a fixed number of records, read through the page cache. RAM holds only the table of
//! episodes.
//!
//! ```text
//! 000000.frames, 000000.steps   8192 records
//! 000001.frames, 000001.steps   the next ones
//! ```
//!
//! A checkpoint stores the table. Records written after it do not count: a resumed run cuts the shards back to what the table knows and writes the
//! same ones again, so a crash at any moment loses nothing and leaves nothing half-written behind. Files are read with `pread`, not through a memory
//! map: both go through the page cache, but a map answers a file that was cut off with SIGBUS instead of an error.

mod shard;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::Rng;

use crate::files::{FileError, sync_folder};
use shard::{Access, RAW, RawShard, Stored};
pub use table::{Episode, Table, TableError};

/// What one step consists of beside its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub action: u32,
    pub reward: f32,
    pub end: bool,
}

/// Records of a shard.
const SHARD: usize = 8192;

impl Record {
    fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..4].copy_from_slice(&self.action.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.reward.to_le_bytes());
        bytes[8] = u8::from(self.end);
        bytes
    }

    /// From the first nine bytes.
    fn from_bytes<const N: usize>(bytes: &[u8; N]) -> Record {
        Record {
            action: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            reward: f32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            end: bytes[8] != 0,
        }
    }
}

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

impl Segment {
    /// The numbers of the real records.
    pub fn records(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.len
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("cannot {doing} the replay's {path}: {source}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },

    #[error(
        "the replay's {path} lacks record {record}, which the checkpoint counts on: the file is cut off or gone"
    )]
    CutOff { path: PathBuf, record: usize },

    #[error("the replay's {path} is damaged: record {record} does not have its checksum")]
    Damaged { path: PathBuf, record: usize },

    #[error("records {start} to {last} of {path} are not the ones that the checkpoint was saved with")]
    Foreign { path: PathBuf, start: usize, last: usize },
}

type Result<T, E = ReplayError> = std::result::Result<T, E>;

pub struct Replay {
    folder: PathBuf,
    shards: BTreeMap<usize, RawShard>,
    /// Records of a shard.
    shard_len: usize,
    frame_bytes: usize,
    /// The oldest episodes are forgotten beyond this many steps.
    max_steps: usize,
    table: Table,
    /// Shards before this one are safe on disk.
    flushed: usize,
    /// Files were created since the last flush.
    new_files: bool,
}

impl Replay {
    /// Bytes that a step takes on disk.
    pub fn step_bytes(frame_bytes: usize) -> usize {
        RawShard::step_bytes(frame_bytes)
    }

    /// Opens the replay in `folder` as `table` describes it, to read it: nothing on disk is changed. An empty table is a new one.
    pub fn open(folder: &Path, frame_bytes: usize, max_steps: usize, table: Table) -> Result<Replay> {
        Replay::with_shards(folder, frame_bytes, max_steps, table, SHARD)
    }

    fn with_shards(
        folder: &Path,
        frame_bytes: usize,
        max_steps: usize,
        table: Table,
        shard_len: usize,
    ) -> Result<Replay> {
        let mut replay = Replay {
            folder: folder.to_path_buf(),
            shards: BTreeMap::new(),
            shard_len,
            frame_bytes,
            max_steps,
            flushed: table.records / shard_len,
            table,
            new_files: false,
        };
        let first = replay.table.episodes.first().map_or(replay.table.records, |e| e.start) / shard_len;
        // Only what is on disk: the table may count on files that are gone, or be wrong.
        let files = if replay.table.records > 0 { replay.files_on_disk()? } else { Vec::new() };
        for (shard, _) in files {
            if shard >= first && replay.records_in(shard) > 0 && !replay.shards.contains_key(&shard) {
                let files = replay.open_shard(shard, Access::Read)?;
                replay.shards.insert(shard, files);
            }
        }
        Ok(replay)
    }

    /// Makes it one that can be written: files are cut back to what the table knows.
    pub fn begin_writing(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.folder).map_err(fail("create", &self.folder))?;
        for (shard, path) in self.files_on_disk()? {
            if self.records_in(shard) == 0 {
                std::fs::remove_file(&path).map_err(fail("remove", &path))?;
            }
        }
        let newest = self.table.records / self.shard_len;
        let (records, there) = (self.records_in(newest), self.shards.contains_key(&newest));
        if there {
            let files = self.open_shard(newest, Access::Write)?;
            files.cut(records)?;
            self.shards.insert(newest, files);
        }
        Ok(())
    }

    /// All files of shards in the folder.
    fn files_on_disk(&self) -> Result<Vec<(usize, PathBuf)>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fail("list", &self.folder))?,
        };
        let number = |path: &Path| -> Option<usize> {
            let number = path.file_stem()?.to_str()?.parse().ok()?;
            RAW.iter().any(|kind| shard::path(&self.folder, number, kind) == path).then_some(number)
        };
        Ok(entries.flatten().filter_map(|e| Some((number(&e.path())?, e.path()))).collect())
    }

    fn open_shard(&self, shard: usize, access: Access) -> Result<RawShard> {
        RawShard::open(&self.folder, shard, shard * self.shard_len, self.frame_bytes, access)
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

    /// Number of the episode in which the newest game began.
    fn newest_game(&self) -> usize {
        self.table.episodes.iter().rposition(|e| !e.continues).unwrap_or(0)
    }

    /// The episodes of the game that was played last, from its fresh start to the newest step; none if some of them are forgotten.
    pub fn whole_newest_game(&self) -> &[Episode] {
        let game = &self.table.episodes[self.newest_game()..];
        let ends = game.iter().skip(1).map(|e| e.start).chain([self.table.records]);
        let whole = game.first().is_some_and(|e| !e.continues)
            && game.iter().zip(ends).all(|(episode, end)| episode.end() == end);
        if whole { game } else { &[] }
    }

    /// `continues`: the game of the last episode goes on.
    pub fn begin_episode(&mut self, seed: u64, continues: bool) {
        let start = self.table.records;
        let (len, ended, checksum) = (0, false, Some(0));
        self.table.episodes.push(Episode { seed, start, len, ended, continues, checksum });
    }

    /// Appends a step to the open episode.
    pub fn push(&mut self, frame: &[u8], record: Record) -> Result<()> {
        debug_assert_eq!(frame.len(), self.frame_bytes);
        let (shard, at) = (self.table.records / self.shard_len, self.table.records % self.shard_len);
        if !self.shards.contains_key(&shard) {
            let files = self.open_shard(shard, Access::Write)?;
            self.shards.insert(shard, files);
            self.new_files = true;
        }
        let checksum = self.shards[&shard].push(at, frame, record)?;
        self.table.records += 1;
        if let Some(episode) = self.table.episodes.last_mut() {
            episode.push(record.end, checksum);
        }
        // The game being played is kept whole: a resumed run plays it again.
        while self.newest_game() > 0 && self.steps() - self.table.episodes[0].len >= self.max_steps {
            self.table.episodes.remove(0);
        }
        Ok(())
    }

    /// Makes sure everything is on disk.
    pub fn flush(&mut self) -> Result<()> {
        for (_, shard) in self.shards.range(self.flushed..) {
            shard.sync()?;
        }
        if self.new_files {
            sync_folder(&self.folder).map_err(|FileError { doing, path, source }| ReplayError::Io {
                doing,
                path,
                source,
            })?;
        }
        self.flushed = self.table.records / self.shard_len;
        self.new_files = false;
        Ok(())
    }

    /// Whether [`discard_before`](Replay::discard_before) would delete anything.
    pub fn holds_shards_before(&self, record: usize) -> Result<bool> {
        Ok(self.files_on_disk()?.iter().any(|(shard, _)| *shard < record / self.shard_len))
    }

    /// Deletes shards whose records are all older than `record`.
    pub fn discard_before(&mut self, record: usize) -> Result<()> {
        let first = record / self.shard_len;
        self.shards.retain(|shard, _| *shard >= first);
        for (_, path) in self.files_on_disk()?.into_iter().filter(|(shard, _)| *shard < first) {
            std::fs::remove_file(&path).map_err(fail("remove", &path))?;
        }
        Ok(())
    }

    /// Reads every step and compares its checksums. The result says what is wrong with which episode.
    pub fn damaged_episodes(&self) -> Result<Vec<(usize, ReplayError)>> {
        let mut frame = vec![0; self.frame_bytes];
        let mut damaged = Vec::new();
        for number in 0..self.table.episodes.len() {
            match self.check_episode(number, &mut frame) {
                Ok(()) => {}
                Err(error @ ReplayError::Io { .. }) => return Err(error),
                Err(error) => damaged.push((number, error)),
            }
        }
        Ok(damaged)
    }

    fn check_episode(&self, number: usize, frame: &mut [u8]) -> Result<()> {
        let episode = &self.table.episodes[number];
        let mut checksum = 0;
        let mut ended = false;
        let mut ends_within = false;
        for record in episode.start..episode.end() {
            let stored = self.shard(record)?.read(record % self.shard_len, frame)?;
            checksum = table::chain(checksum, stored.checksum);
            ends_within |= ended;
            ended = stored.record.end;
        }
        // A game that was not played on after a step was forgotten has an episode that ends without an end.
        let next = self.table.episodes.get(number + 1).map_or(self.table.records, |next| next.start);
        let fits = ended == episode.ended || episode.len == 0 || (episode.ended && episode.end() == next);
        match !ends_within && fits && episode.checksum.is_none_or(|expected| expected == checksum) {
            true => Ok(()),
            false => Err(ReplayError::Foreign {
                path: self.folder.clone(),
                start: episode.start,
                last: episode.end() - 1,
            }),
        }
    }

    /// Forgets episodes, given by their numbers in the table. A game that loses one of its lives is not played on.
    pub fn forget(&mut self, episodes: &[usize]) {
        let mut number = 0;
        self.table.episodes.retain(|_| {
            number += 1;
            !episodes.contains(&(number - 1))
        });
        if self.whole_newest_game().is_empty() {
            self.table.episodes.retain(|e| e.len > 0);
            self.table.episodes.iter_mut().for_each(|e| e.ended = true);
        }
    }

    /// Records that the table counts on in a shard.
    fn records_in(&self, shard: usize) -> usize {
        self.table.records.saturating_sub(shard.saturating_mul(self.shard_len)).min(self.shard_len)
    }

    fn shard(&self, record: usize) -> Result<&RawShard> {
        let number = record / self.shard_len;
        self.shards.get(&number).ok_or_else(|| {
            let path = shard::path(&self.folder, number, RAW[0]);
            ReplayError::CutOff { path, record }
        })
    }

    /// Reads the frame of a record, if it is still what was written.
    pub fn frame(&self, record: usize, out: &mut [u8]) -> Result<()> {
        self.shard(record)?.read(record % self.shard_len, out).map(|_| ())
    }

    pub fn record(&self, record: usize) -> Result<Record> {
        let Stored { record, .. } =
            self.shard(record)?.read(record % self.shard_len, &mut vec![0; self.frame_bytes])?;
        Ok(record)
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

fn fail(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ReplayError {
    let path = path.to_path_buf();
    move |source| ReplayError::Io { doing, path, source }
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

    fn open(folder: &Scratch, max_steps: usize, table: Table) -> Result<Replay> {
        let mut replay = Replay::with_shards(&folder.0, 4, max_steps, table, 4)?;
        replay.begin_writing()?;
        Ok(replay)
    }

    fn read(folder: &Scratch, table: &Table) -> Replay {
        Replay::with_shards(&folder.0, 4, 1000, table.clone(), 4).unwrap()
    }

    fn fill(replay: &mut Replay, lengths: &[usize]) {
        for (i, &len) in lengths.iter().enumerate() {
            replay.begin_episode(i as u64, false);
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
        let mut replay = open(&folder, 1000, Table::default()).unwrap();
        fill(&mut replay, &[3, 2]);
        replay.begin_episode(9, false);
        replay.push(&[7; 4], Record { action: 1, reward: -1.0, end: false }).unwrap();
        let table = replay.table().clone();
        assert_eq!(replay.open_episode().unwrap().seed, 9);
        // Written after the checkpoint, then a crash.
        replay.push(&[8; 4], Record { action: 2, reward: 0.0, end: true }).unwrap();
        drop(replay);
        let replay = open(&folder, 1000, table.clone()).unwrap();
        assert_eq!(replay.table(), &table);
        let mut frame = [0; 4];
        replay.frame(5, &mut frame).unwrap();
        assert_eq!(
            (frame, replay.record(5).unwrap()),
            ([7; 4], Record { action: 1, reward: -1.0, end: false })
        );
        assert!(replay.frame(6, &mut frame).is_err() && replay.frame(9, &mut frame).is_err());
        // Six records in segments of four.
        let newest = folder.0.join("000001.frames");
        assert_eq!(std::fs::metadata(&newest).unwrap().len(), 8);
        assert!(replay.damaged_episodes().unwrap().is_empty());
        drop(replay);
        // A changed byte is noticed, and its episode can be forgotten.
        std::fs::write(&newest, [4, 4, 4, 4, 7, 7, 7, 6]).unwrap();
        let mut replay = open(&folder, 1000, table.clone()).unwrap();
        let damaged = replay.damaged_episodes().unwrap();
        assert!(matches!(damaged[..], [(2, ReplayError::Damaged { record: 5, .. })]), "{damaged:?}");
        assert!(matches!(replay.frame(5, &mut frame), Err(ReplayError::Damaged { record: 5, .. })));
        replay.frame(4, &mut frame).unwrap();
        replay.forget(&[2]);
        assert_eq!((replay.steps(), replay.open_episode()), (5, None));
        drop(replay);
        // So is a file that is gone, which a reader leaves so.
        std::fs::remove_file(&newest).unwrap();
        let damaged = read(&folder, &table).damaged_episodes().unwrap();
        assert!(matches!(damaged[..], [(1, ReplayError::CutOff { record: 4, .. }), _]), "{damaged:?}");
        assert!(!newest.exists());
        // So is one that lost its end.
        std::fs::write(&newest, [0; 7]).unwrap();
        let damaged = open(&folder, 1000, table).unwrap().damaged_episodes().unwrap();
        assert!(
            matches!(
                damaged[..],
                [(1, ReplayError::Damaged { record: 4, .. }), (2, ReplayError::CutOff { record: 5, .. })]
            ),
            "{damaged:?}"
        );
    }

    #[test]
    fn a_reader_leaves_alone_what_is_being_written() {
        let folder = Scratch::new("reader");
        let mut replay = open(&folder, 1000, Table::default()).unwrap();
        fill(&mut replay, &[3]);
        let table = replay.table().clone();
        fill(&mut replay, &[6]);
        let reader = read(&folder, &table);
        assert_eq!(reader.table(), &table);
        let mut frame = [0; 4];
        replay.frame(8, &mut frame).unwrap();
        assert_eq!(frame, [8; 4]);
    }

    #[test]
    fn a_game_that_lost_a_life_is_not_played_on() {
        let folder = Scratch::new("lives");
        let mut replay = open(&folder, 1000, Table::default()).unwrap();
        fill(&mut replay, &[2, 1]);
        for end in [true, true, false] {
            replay.begin_episode(0, true);
            replay.push(&[0; 4], Record { action: 0, reward: 0.0, end }).unwrap();
        }
        let starts =
            |replay: &Replay| -> Vec<usize> { replay.whole_newest_game().iter().map(|e| e.start).collect() };
        assert_eq!((starts(&replay), replay.open_episode().is_some()), (vec![2, 3, 4, 5], true));
        let table = replay.table().clone();
        // Its first life, one in the middle, the newest, another game's.
        for (forgotten, whole) in [(1, false), (3, false), (4, false), (0, true)] {
            let mut replay = open(&folder, 1000, table.clone()).unwrap();
            replay.forget(&[forgotten]);
            assert_eq!((!starts(&replay).is_empty(), replay.open_episode().is_some()), (whole, whole));
        }
    }

    #[test]
    fn the_oldest_episodes_go_first() {
        let folder = Scratch::new("evict");
        let mut replay = open(&folder, 6, Table::default()).unwrap();
        fill(&mut replay, &[4, 3, 3, 2]);
        assert_eq!(replay.table().episodes.iter().map(|e| e.start).collect::<Vec<_>>(), [4, 7, 10]);
        assert_eq!(replay.steps(), 8);
        // Their bytes go when the caller says that no checkpoint needs them.
        replay.discard_before(replay.table().episodes[0].start).unwrap();
        assert!(!folder.0.join("000000.frames").exists() && !folder.0.join("000000.steps").exists());
        let table = replay.table().clone();
        drop(replay);
        let mut replay = open(&folder, 6, table).unwrap();
        let mut frame = [0; 4];
        replay.frame(4, &mut frame).unwrap();
        assert_eq!(frame, [4; 4]);
        // The lives of the game being played stay together.
        for _ in 0..3 {
            replay.begin_episode(0, true);
            (0..5).for_each(|i| {
                let record = Record { action: 0, reward: 0.0, end: i == 4 };
                replay.push(&[0; 4], record).unwrap();
            });
        }
        assert_eq!(replay.table().episodes.iter().map(|e| e.start).collect::<Vec<_>>(), [10, 12, 17, 22]);
    }

    #[test]
    fn segments_stay_inside_their_episode() {
        let folder = Scratch::new("segments");
        let mut replay = open(&folder, 1000, Table::default()).unwrap();
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
