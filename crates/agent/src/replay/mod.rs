//! Everything the agent has seen, on disk: append-only shards of a fixed number of records, read through the page cache. RAM holds only the table of
//! episodes.
//!
//! ```text
//! 000000.index, 000000.data   8192 records and their frames, compressed
//! 000001.index, 000001.data   the next ones
//! ```
//!
//! Games that are played side by side write their steps in turn, so that game g of n has the records g, g + n, g + 2n, ...
//!
//! A checkpoint stores the table. Records written after it do not count: a resumed run cuts the shards back to what the table knows and writes the
//! same ones again, so a crash at any moment loses nothing and leaves nothing half-written behind. Files are read with `pread`, not through a memory
//! map: both go through the page cache, but a map answers a file that was cut off with SIGBUS instead of an error.

pub(crate) mod codec;
pub(crate) mod packed;
mod sample;
mod shard;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::files::{FileError, sync_folder};
use packed::{PACKED, PackedShard, Scratch};
pub use sample::{Sampling, Segment};
use shard::{Access, KINDS, Shard, Stored};
pub use table::{Episode, Table, TableError};

/// One step without its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub action: u32,
    pub reward: f32,
    /// The game was over after this step. Older programs did not keep the two ends apart: theirs are all read as this one.
    pub terminated: bool,
    /// A time limit cut the episode off after this step.
    pub truncated: bool,
}

/// Records of a shard.
const SHARD: usize = 8192;

/// Bits of the ninth byte. Older programs wrote 1 for an end of either kind, and read any bit as an end.
const TERMINATED: u8 = 1;
const TRUNCATED: u8 = 2;

impl Record {
    /// What an action in a game brought.
    pub fn new(action: u32, step: envs::Step) -> Record {
        let envs::Step { reward, terminated, truncated } = step;
        Record { action, reward, terminated, truncated }
    }

    /// Whether the episode ended with this step, for either reason.
    pub fn ended(&self) -> bool {
        self.terminated || self.truncated
    }

    fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..4].copy_from_slice(&self.action.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.reward.to_le_bytes());
        bytes[8] = (TERMINATED * u8::from(self.terminated)) | (TRUNCATED * u8::from(self.truncated));
        bytes
    }

    /// From the first nine bytes.
    fn from_bytes<const N: usize>(bytes: &[u8; N]) -> Record {
        Record {
            action: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            reward: f32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            terminated: bytes[8] & TERMINATED != 0,
            truncated: bytes[8] & TRUNCATED != 0,
        }
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
    shards: BTreeMap<usize, Shard>,
    /// Records of a shard.
    shard_len: usize,
    frame_bytes: usize,
    /// The oldest episodes are forgotten beyond this many steps.
    max_steps: usize,
    /// Games that are played side by side.
    games: usize,
    sampling: Sampling,
    table: Table,
    /// Shards before this one are safe on disk.
    flushed: usize,
    /// Files were created since the last flush.
    new_files: bool,
    scratch: Mutex<Scratch>,
}

impl Replay {
    /// Bytes that a step takes on disk at most; compressed they are far fewer.
    pub fn step_bytes(frame_bytes: usize) -> usize {
        PackedShard::step_bytes(frame_bytes)
    }

    /// Opens the replay of `games` games side by side in `folder` as `table` describes it, to read it: nothing on disk is changed. An empty table is a new
    /// one.
    pub fn open(
        folder: &Path,
        frame_bytes: usize,
        max_steps: usize,
        games: usize,
        table: Table,
    ) -> Result<Replay> {
        Replay::with_shards(folder, frame_bytes, max_steps, games, table, SHARD)
    }

    fn with_shards(
        folder: &Path,
        frame_bytes: usize,
        max_steps: usize,
        games: usize,
        table: Table,
        shard_len: usize,
    ) -> Result<Replay> {
        let mut replay = Replay {
            folder: folder.to_path_buf(),
            shards: BTreeMap::new(),
            shard_len,
            frame_bytes,
            max_steps,
            games,
            sampling: Sampling::default(),
            flushed: table.records / shard_len,
            table,
            new_files: false,
            scratch: Mutex::default(),
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

    /// The same replay, drawn from in another way.
    pub fn sampling(self, sampling: Sampling) -> Replay {
        Replay { sampling, ..self }
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
            let mut shard = self.open_shard(newest, Access::Write)?;
            shard.cut(records)?;
            self.shards.insert(newest, shard);
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
            KINDS.iter().any(|kind| shard::path(&self.folder, number, kind) == path).then_some(number)
        };
        Ok(entries.flatten().filter_map(|e| Some((number(&e.path())?, e.path()))).collect())
    }

    fn open_shard(&self, shard: usize, access: Access) -> Result<Shard> {
        Shard::open(&self.folder, shard, shard * self.shard_len, self.frame_bytes, access)
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Steps that can be sampled.
    pub fn steps(&self) -> usize {
        self.table.episodes.iter().map(|e| e.len).sum()
    }

    /// Games that are played side by side.
    pub fn games(&self) -> usize {
        self.games
    }

    /// The newest episode of one of the games.
    pub fn newest_episode(&self, game: usize) -> Option<Episode> {
        self.table.episodes.iter().rfind(|e| e.game() == game).copied()
    }

    /// The episode of one of the games that is still being played.
    pub fn open_episode(&self, game: usize) -> Option<Episode> {
        self.newest_episode(game).filter(|e| !e.ended)
    }

    /// Number of the episode in which one of the games began that are played now.
    fn newest_start(&self, game: usize) -> usize {
        self.table.episodes.iter().rposition(|e| e.game() == game && !e.continues).unwrap_or(0)
    }

    /// Number of the record that one of the games writes next.
    fn next_record(&self, game: usize) -> usize {
        let ahead = (game + self.games - self.table.records % self.games) % self.games;
        self.table.records.saturating_add(ahead)
    }

    /// The episodes of one of the games as it is played now, from its fresh start to the newest step; none if some of them are forgotten.
    pub fn whole_newest_game(&self, game: usize) -> Vec<Episode> {
        let episodes = self.table.episodes.iter().skip(self.newest_start(game));
        let lives: Vec<Episode> = episodes.filter(|e| e.game() == game).copied().collect();
        let ends = lives.iter().skip(1).map(|e| e.start).chain([self.next_record(game)]);
        let whole = lives.first().is_some_and(|e| !e.continues)
            && lives.iter().zip(ends).all(|(episode, end)| episode.end() == end);
        if whole { lives } else { Vec::new() }
    }

    /// Begins an episode of the game that writes the next record. `continues`: the game of its last episode goes on.
    pub fn begin_episode(&mut self, seed: u64, continues: bool) {
        let (start, stride) = (self.table.records, self.games);
        let (len, ended, checksum) = (0, false, Some(0));
        self.table.episodes.push(Episode { seed, start, len, ended, continues, checksum, stride });
    }

    /// Appends a step to the open episode of the game whose turn it is.
    pub fn push(&mut self, frame: &[u8], record: Record) -> Result<()> {
        debug_assert_eq!(frame.len(), self.frame_bytes);
        let (shard, at) = (self.table.records / self.shard_len, self.table.records % self.shard_len);
        let files = match self.shards.remove(&shard) {
            Some(files) => files,
            None => {
                self.new_files = true;
                self.open_shard(shard, Access::Write)?
            }
        };
        let checksum = self.shards.entry(shard).or_insert(files).push(at, frame, record)?;
        let game = self.table.records % self.games;
        self.table.records += 1;
        if let Some(episode) = self.table.episodes.iter_mut().rfind(|e| e.game() == game) {
            episode.push(record.ended(), checksum);
        }
        while let Some(oldest) = self.oldest_to_forget() {
            if self.steps() - self.table.episodes[oldest].len < self.max_steps {
                break;
            }
            self.table.episodes.remove(oldest);
        }
        Ok(())
    }

    /// Number of the oldest episode that may be forgotten. Games being played are kept whole: a resumed run plays them again.
    fn oldest_to_forget(&self) -> Option<usize> {
        let starts: Vec<usize> = (0..self.games).map(|game| self.newest_start(game)).collect();
        let kept = |(number, e): (usize, &Episode)| number >= starts[e.game()];
        self.table.episodes.iter().enumerate().position(|episode| !kept(episode))
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
        self.damaged(|record| self.read(record, &mut frame).map(Some))
    }

    /// The same without the frames, which is much quicker. Nothing can be said about episodes in shards of older programs.
    pub fn damaged_records(&self) -> Result<Vec<(usize, ReplayError)>> {
        self.damaged(|record| self.shard(record)?.record(record % self.shard_len).transpose())
    }

    fn damaged(
        &self,
        mut read: impl FnMut(usize) -> Result<Option<Stored>>,
    ) -> Result<Vec<(usize, ReplayError)>> {
        let mut damaged = Vec::new();
        for number in 0..self.table.episodes.len() {
            match self.check_episode(number, &mut read) {
                Ok(()) => {}
                Err(error @ ReplayError::Io { .. }) => return Err(error),
                Err(error) => damaged.push((number, error)),
            }
        }
        Ok(damaged)
    }

    fn check_episode(
        &self,
        number: usize,
        read: &mut impl FnMut(usize) -> Result<Option<Stored>>,
    ) -> Result<()> {
        let episode = &self.table.episodes[number];
        let mut checksum = 0;
        let mut ended = false;
        let mut ends_within = false;
        for record in episode.records() {
            let Some(stored) = read(record)? else { return Ok(()) };
            checksum = table::chain(checksum, stored.checksum);
            ends_within |= ended;
            ended = stored.record.ended();
        }
        // A game that was not played on after a step was forgotten has an episode that ends without an end.
        let game = episode.game();
        let next = self.table.episodes[number + 1..].iter().find(|e| e.game() == game);
        let next = next.map_or_else(|| self.next_record(game), |next| next.start);
        let fits = ended == episode.ended || episode.len == 0 || (episode.ended && episode.end() == next);
        match !ends_within && fits && episode.checksum.is_none_or(|expected| expected == checksum) {
            true => Ok(()),
            false => Err(ReplayError::Foreign {
                path: self.folder.clone(),
                start: episode.start,
                last: episode.records().next_back().unwrap_or(episode.start),
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
        for game in 0..self.games {
            if self.whole_newest_game(game).is_empty() {
                self.table.episodes.retain(|e| e.game() != game || e.len > 0);
                let episodes = self.table.episodes.iter_mut();
                episodes.filter(|e| e.game() == game).for_each(|e| e.ended = true);
            }
        }
    }

    /// Records that the table counts on in a shard.
    fn records_in(&self, shard: usize) -> usize {
        self.table.records.saturating_sub(shard.saturating_mul(self.shard_len)).min(self.shard_len)
    }

    fn shard(&self, record: usize) -> Result<&Shard> {
        let number = record / self.shard_len;
        self.shards.get(&number).ok_or_else(|| {
            let path = shard::path(&self.folder, number, PACKED[0]);
            ReplayError::CutOff { path, record }
        })
    }

    fn read(&self, record: usize, frame: &mut [u8]) -> Result<Stored> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.shard(record)?.read(record % self.shard_len, frame, &mut scratch)
    }

    /// Reads the frame of a record, if it is still what was written.
    pub fn frame(&self, record: usize, out: &mut [u8]) -> Result<()> {
        self.read(record, out).map(|_| ())
    }

    /// Reads the frames of records one after the other into `out`, spread over rayon's threads: decompression takes longer than the disk.
    pub fn frames(&self, records: &[usize], out: &mut [u8]) -> Result<()> {
        let frames = records.par_iter().zip(out.par_chunks_exact_mut(self.frame_bytes));
        frames.try_for_each_init(Scratch::default, |scratch, (&record, frame)| {
            self.shard(record)?.read(record % self.shard_len, frame, scratch).map(|_| ())
        })
    }

    /// Reads what a step consists of beside its frame, if it is still what was written.
    pub fn record(&self, record: usize) -> Result<Record> {
        let stored = match self.shard(record)?.record(record % self.shard_len) {
            Some(stored) => stored?,
            // One checksum for both.
            None => self.read(record, &mut vec![0; self.frame_bytes])?,
        };
        Ok(stored.record)
    }
}

fn fail(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ReplayError {
    let path = path.to_path_buf();
    move |source| ReplayError::Io { doing, path, source }
}

#[cfg(test)]
mod tests;
