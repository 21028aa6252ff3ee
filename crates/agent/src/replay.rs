//! Everything the agent has seen, on disk: append-only segments of fixed-size records, read through the page cache. RAM holds only the table of
//! episodes.
//!
//! ```text
//! 000000.frames   8192 frames, one after the other
//! 000000.steps    for each: action u32, reward f32, end u8, CRC-32 of the frame and of these
//! 000001.frames   the next ones
//! ```
//!
//! A checkpoint stores the table. Records written after it do not count: a resumed run cuts the segments back to what the table knows and writes the
//! same ones again, so a crash at any moment loses nothing and leaves nothing half-written behind. Files are read with `pread`, not through a memory
//! map: both go through the page cache, but a map answers a file that was cut off with SIGBUS instead of an error.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
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
    /// Whether the last step ended the episode.
    pub ended: bool,
    /// Whether it goes on with the game of the episode before, with one life less.
    pub continues: bool,
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

const RECORD_BYTES: usize = 13;
/// Records of a segment.
const SEGMENT: usize = if cfg!(test) { 4 } else { 8192 };

impl Record {
    fn to_bytes(self, frame: &[u8]) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.action.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.reward.to_le_bytes());
        bytes[8] = u8::from(self.end);
        let checksum = checksum(frame, &bytes);
        bytes[9..].copy_from_slice(&checksum);
        bytes
    }
}

fn checksum(frame: &[u8], record: &[u8; RECORD_BYTES]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(frame);
    hasher.update(&record[..9]);
    hasher.finalize().to_le_bytes()
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
        "the replay's {path} holds {found} records, but the checkpoint counts on {expected}: the file was changed or cut off"
    )]
    CutOff { path: PathBuf, expected: usize, found: usize },

    #[error("the replay's {path} is damaged: record {record} does not have its checksum")]
    Damaged { path: PathBuf, record: usize },
}

type Result<T, E = ReplayError> = std::result::Result<T, E>;

/// What may be done with the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Another process may be writing them.
    Read,
    Write,
}

pub struct Replay {
    folder: PathBuf,
    segments: BTreeMap<usize, Files>,
    frame_bytes: usize,
    /// The oldest episodes are forgotten beyond this many steps.
    max_steps: usize,
    table: Table,
    /// Segments before this one are safe on disk.
    flushed: usize,
}

/// The two files of a segment.
struct Files {
    frames: File,
    steps: File,
}

impl Replay {
    /// Bytes that a step takes on disk.
    pub fn step_bytes(frame_bytes: usize) -> usize {
        frame_bytes + RECORD_BYTES
    }

    /// Opens the replay in `folder` as `table` describes it, to read it: nothing on disk is changed. An empty table is a new one.
    pub fn open(folder: &Path, frame_bytes: usize, max_steps: usize, table: Table) -> Result<Replay> {
        let mut replay = Replay {
            folder: folder.to_path_buf(),
            segments: BTreeMap::new(),
            frame_bytes,
            max_steps,
            flushed: table.records / SEGMENT,
            table,
        };
        replay.open_segments(Access::Read)?;
        Ok(replay)
    }

    /// Makes it one that can be written: files are cut back to what the table knows.
    pub fn begin_writing(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.folder).map_err(fail("create", &self.folder))?;
        self.cut_back()?;
        self.open_segments(Access::Write)
    }

    fn open_segments(&mut self, access: Access) -> Result<()> {
        let first = self.table.episodes.first().map_or(self.table.records, |e| e.start) / SEGMENT;
        for segment in first..self.table.records.div_ceil(SEGMENT) {
            // One that is missing has no records; `damaged_episodes` says so.
            if access == Access::Write || ["frames", "steps"].iter().all(|k| self.path(segment, k).exists()) {
                let files = self.open_segment(segment, access)?;
                self.segments.insert(segment, files);
            }
        }
        Ok(())
    }

    /// Removes and shortens what was written after the table.
    fn cut_back(&self) -> Result<()> {
        for (segment, path) in self.files_on_disk()? {
            let bytes =
                if path.extension().is_some_and(|e| e == "frames") { self.frame_bytes } else { RECORD_BYTES };
            let wanted = (self.records_in(segment) * bytes) as u64;
            let found = path.metadata().map_err(fail("read", &path))?.len();
            match wanted {
                0 => std::fs::remove_file(&path).map_err(fail("remove", &path))?,
                _ if found > wanted => {
                    let file = OpenOptions::new().write(true).open(&path);
                    file.and_then(|file| file.set_len(wanted)).map_err(fail("cut back", &path))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All files of segments in the folder.
    fn files_on_disk(&self) -> Result<Vec<(usize, PathBuf)>> {
        let entries = std::fs::read_dir(&self.folder).map_err(fail("list", &self.folder))?;
        let number = |path: &Path| -> Option<usize> {
            let known = path.extension().is_some_and(|e| e == "frames" || e == "steps");
            path.file_stem()?.to_str()?.parse().ok().filter(|_| known)
        };
        Ok(entries.flatten().filter_map(|e| Some((number(&e.path())?, e.path()))).collect())
    }

    fn path(&self, segment: usize, kind: &str) -> PathBuf {
        self.folder.join(format!("{segment:06}.{kind}"))
    }

    fn open_segment(&self, segment: usize, access: Access) -> Result<Files> {
        let open = |kind| {
            let path = self.path(segment, kind);
            let write = access == Access::Write;
            let file = OpenOptions::new().read(true).write(write).create(write).truncate(false).open(&path);
            file.map_err(fail("open", &path))
        };
        Ok(Files { frames: open("frames")?, steps: open("steps")? })
    }

    /// Both files of a segment with the bytes of a record and the path.
    fn parts<'a>(&self, files: &'a Files, segment: usize) -> [(&'a File, usize, PathBuf); 2] {
        [
            (&files.frames, self.frame_bytes, self.path(segment, "frames")),
            (&files.steps, RECORD_BYTES, self.path(segment, "steps")),
        ]
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
            && game.iter().zip(ends).all(|(episode, end)| episode.start + episode.len == end);
        if whole { game } else { &[] }
    }

    /// `continues`: the game of the last episode goes on.
    pub fn begin_episode(&mut self, seed: u64, continues: bool) {
        self.table.episodes.push(Episode {
            seed,
            start: self.table.records,
            len: 0,
            ended: false,
            continues,
        });
    }

    /// Appends a step to the open episode.
    pub fn push(&mut self, frame: &[u8], record: Record) -> Result<()> {
        debug_assert_eq!(frame.len(), self.frame_bytes);
        let (segment, at) = (self.table.records / SEGMENT, self.table.records % SEGMENT);
        if !self.segments.contains_key(&segment) {
            let files = self.open_segment(segment, Access::Write)?;
            self.segments.insert(segment, files);
        }
        let files = &self.segments[&segment];
        let bytes = record.to_bytes(frame);
        let frames_path = self.path(segment, "frames");
        files
            .frames
            .write_all_at(frame, (at * self.frame_bytes) as u64)
            .map_err(fail("write", &frames_path))?;
        files.steps.write_all_at(&bytes, (at * RECORD_BYTES) as u64).map_err(fail("write", &frames_path))?;
        self.table.records += 1;
        if let Some(episode) = self.table.episodes.last_mut() {
            episode.len += 1;
            episode.ended = record.end;
        }
        // The game being played is kept whole: a resumed run plays it again.
        while self.newest_game() > 0 && self.steps() - self.table.episodes[0].len >= self.max_steps {
            self.table.episodes.remove(0);
        }
        Ok(())
    }

    /// Makes sure everything is on disk.
    pub fn flush(&mut self) -> Result<()> {
        for (segment, files) in self.segments.range(self.flushed..) {
            for (file, _, path) in self.parts(files, *segment) {
                file.sync_data().map_err(fail("write", &path))?;
            }
        }
        self.flushed = self.table.records / SEGMENT;
        Ok(())
    }

    /// Deletes segments whose records are all older than `record`.
    pub fn discard_before(&mut self, record: usize) -> Result<()> {
        let first = record / SEGMENT;
        self.segments.retain(|segment, _| *segment >= first);
        for (_, path) in self.files_on_disk()?.into_iter().filter(|(segment, _)| *segment < first) {
            std::fs::remove_file(&path).map_err(fail("remove", &path))?;
        }
        Ok(())
    }

    /// Reads every record and compares its checksum. The result says what is wrong with which episode.
    pub fn damaged_episodes(&self) -> Result<Vec<(usize, ReplayError)>> {
        let mut lengths = BTreeMap::new();
        for (segment, files) in &self.segments {
            for (file, bytes, path) in self.parts(files, *segment) {
                let found = file.metadata().map_err(fail("read", &path))?.len() as usize / bytes;
                let shorter = lengths.entry(*segment).or_insert((found, path.clone()));
                *shorter = if found < shorter.0 { (found, path) } else { shorter.clone() };
            }
        }
        let mut frame = vec![0; self.frame_bytes];
        let mut check = |record: usize| -> Result<Option<ReplayError>> {
            let segment = record / SEGMENT;
            let paths = ["frames", "steps"].map(|kind| self.path(segment, kind));
            let [frames, _] = &paths;
            let missing = (0, paths.iter().find(|path| !path.exists()).unwrap_or(frames).clone());
            let (found, path) = lengths.get(&segment).unwrap_or(&missing);
            if *found <= record % SEGMENT {
                let expected = self.records_in(segment);
                return Ok(Some(ReplayError::CutOff { path: path.clone(), expected, found: *found }));
            }
            match self.frame(record, &mut frame) {
                Err(damage @ ReplayError::Damaged { .. }) => Ok(Some(damage)),
                read => read.map(|()| None),
            }
        };
        let mut damaged = Vec::new();
        for (number, episode) in self.table.episodes.iter().enumerate() {
            for record in episode.start..episode.start + episode.len {
                if let Some(error) = check(record)? {
                    damaged.push((number, error));
                    break;
                }
            }
        }
        Ok(damaged)
    }

    /// Forgets episodes, given by their numbers in the table. A game that loses one of its lives is not played on.
    pub fn forget(&mut self, episodes: &[usize]) {
        let mut number = 0;
        self.table.episodes.retain(|_| {
            number += 1;
            !episodes.contains(&(number - 1))
        });
        if self.whole_newest_game().is_empty() {
            self.table.episodes.iter_mut().for_each(|e| e.ended = true);
        }
    }

    /// Records that the table counts on in a segment.
    fn records_in(&self, segment: usize) -> usize {
        self.table.records.saturating_sub(segment * SEGMENT).min(SEGMENT)
    }

    fn files(&self, record: usize) -> Result<&Files> {
        self.segments.get(&(record / SEGMENT)).ok_or_else(|| {
            let path = self.path(record / SEGMENT, "frames");
            ReplayError::CutOff { path, expected: self.records_in(record / SEGMENT), found: 0 }
        })
    }

    /// Reads the frame of a record, if it is still what was written.
    pub fn frame(&self, record: usize, out: &mut [u8]) -> Result<()> {
        self.read(record, "frames", &self.files(record)?.frames, out)?;
        let bytes = self.read_record(record)?;
        match checksum(out, &bytes) == bytes[9..] {
            true => Ok(()),
            false => Err(ReplayError::Damaged { path: self.path(record / SEGMENT, "frames"), record }),
        }
    }

    /// The bytes of a record in one of its segment's files.
    fn read(&self, record: usize, kind: &str, file: &File, out: &mut [u8]) -> Result<()> {
        let (segment, bytes) = (record / SEGMENT, out.len());
        let path = self.path(segment, kind);
        match file.read_exact_at(out, (record % SEGMENT * bytes) as u64) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let found = file.metadata().map_err(fail("read", &path))?.len() as usize / bytes;
                Err(ReplayError::CutOff { path, expected: self.records_in(segment), found })
            }
            read => read.map_err(fail("read", &path)),
        }
    }

    fn read_record(&self, record: usize) -> Result<[u8; RECORD_BYTES]> {
        let mut bytes = [0; RECORD_BYTES];
        self.read(record, "steps", &self.files(record)?.steps, &mut bytes)?;
        Ok(bytes)
    }

    pub fn record(&self, record: usize) -> Result<Record> {
        let bytes = self.read_record(record)?;
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
        let mut replay = Replay::open(&folder.0, 4, max_steps, table)?;
        replay.begin_writing()?;
        Ok(replay)
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
        let damaged = Replay::open(&folder.0, 4, 1000, table.clone()).unwrap().damaged_episodes().unwrap();
        assert!(matches!(damaged[..], [(1, ReplayError::CutOff { found: 0, .. }), _]), "{damaged:?}");
        assert!(!newest.exists());
        // So is one that lost its end.
        std::fs::write(&newest, [0; 7]).unwrap();
        let damaged = open(&folder, 1000, table).unwrap().damaged_episodes().unwrap();
        assert!(
            matches!(
                damaged[..],
                [
                    (1, ReplayError::Damaged { record: 4, .. }),
                    (2, ReplayError::CutOff { expected: 2, found: 1, .. })
                ]
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
        let reader = Replay::open(&folder.0, 4, 1000, table.clone()).unwrap();
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
