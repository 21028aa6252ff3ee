//! The files of a shard, which hold a fixed number of successive records.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::packed::{PACKED, PackedShard, Scratch};
use super::{Record, ReplayError, Result, fail};

/// What may be done with the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Another process may be writing them.
    Read,
    Write,
}

/// A record as it lies on disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stored {
    pub record: Record,
    /// The checksum that was saved with it.
    pub checksum: u32,
}

/// One of the files, which may be missing.
pub(super) struct Part {
    pub path: PathBuf,
    file: Option<File>,
}

impl Part {
    pub fn open(path: PathBuf, access: Access) -> Result<Part> {
        let write = access == Access::Write;
        match OpenOptions::new().read(true).write(write).create(write).truncate(false).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !write => Ok(Part { path, file: None }),
            opened => {
                let file = Some(opened.map_err(fail("open", &path))?);
                Ok(Part { path, file })
            }
        }
    }

    /// Bytes in it.
    pub fn len(&self) -> Result<u64> {
        let Some(file) = &self.file else { return Ok(0) };
        Ok(file.metadata().map_err(fail("read", &self.path))?.len())
    }

    /// Reads bytes of a record.
    pub fn read(&self, out: &mut [u8], offset: u64, record: usize) -> Result<()> {
        let cut_off = || ReplayError::CutOff { path: self.path.clone(), record };
        let file = self.file.as_ref().ok_or_else(cut_off)?;
        match file.read_exact_at(out, offset) {
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput) => {
                Err(cut_off())
            }
            read => read.map_err(fail("read", &self.path)),
        }
    }

    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let write = |file: &File| file.write_all_at(bytes, offset);
        self.file.as_ref().map_or(Ok(()), write).map_err(fail("write", &self.path))
    }

    /// Makes it no longer than this.
    pub fn cut(&self, len: u64) -> Result<()> {
        match &self.file {
            Some(file) if self.len()? > len => file.set_len(len).map_err(fail("cut back", &self.path)),
            _ => Ok(()),
        }
    }

    pub fn sync(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(fail("write", &self.path))
    }
}

pub(super) fn path(folder: &Path, shard: usize, kind: &str) -> PathBuf {
    folder.join(format!("{shard:06}.{kind}"))
}

/// Opens the two files of a shard.
pub(super) fn parts(folder: &Path, shard: usize, kinds: [&str; 2], access: Access) -> Result<[Part; 2]> {
    let [first, second] = kinds.map(|kind| Part::open(path(folder, shard, kind), access));
    Ok([first?, second?])
}

/// A shard in one of two forms.
pub(super) enum Shard {
    /// Of older programs; a run that has one fills it before it goes on with packed ones.
    Raw(RawShard),
    Packed(PackedShard),
}

/// The ends of all names of files.
pub(super) const KINDS: [&str; 4] = [PACKED[0], PACKED[1], RAW[0], RAW[1]];

impl Shard {
    /// `first`: number of its first record.
    pub fn open(
        folder: &Path,
        shard: usize,
        first: usize,
        frame_bytes: usize,
        access: Access,
    ) -> Result<Shard> {
        let raw = RAW.iter().any(|kind| path(folder, shard, kind).exists());
        Ok(match raw {
            true => Shard::Raw(RawShard::new(parts(folder, shard, RAW, access)?, first, frame_bytes)),
            false => {
                Shard::Packed(PackedShard::new(parts(folder, shard, PACKED, access)?, first, frame_bytes))
            }
        })
    }

    /// Writes the step in place `at` and returns its checksum.
    pub fn push(&mut self, at: usize, frame: &[u8], record: Record) -> Result<u32> {
        match self {
            Shard::Raw(shard) => shard.push(at, frame, record),
            Shard::Packed(shard) => shard.push(at, frame, record),
        }
    }

    /// Reads a step with its frame.
    pub fn read(&self, at: usize, frame: &mut [u8], scratch: &mut Scratch) -> Result<Stored> {
        match self {
            Shard::Raw(shard) => shard.read(at, frame),
            Shard::Packed(shard) => shard.read(at, frame, scratch),
        }
    }

    /// Reads a step without its frame, if that can be checked.
    pub fn record(&self, at: usize) -> Option<Result<Stored>> {
        match self {
            Shard::Raw(_) => None,
            Shard::Packed(shard) => Some(shard.record(at)),
        }
    }

    /// Forgets all but the first records, and goes on writing after them.
    pub fn cut(&mut self, records: usize) -> Result<()> {
        match self {
            Shard::Raw(shard) => shard.cut(records),
            Shard::Packed(shard) => shard.cut(records),
        }
    }

    pub fn sync(&self) -> Result<()> {
        match self {
            Shard::Raw(shard) => shard.sync(),
            Shard::Packed(shard) => shard.sync(),
        }
    }
}

const RECORD_BYTES: usize = 13;

/// Frames as they are, one after the other, in `.frames`. For each in `.steps`: action u32, reward f32, end u8, CRC-32 of the frame and of these.
pub(super) struct RawShard {
    frames: Part,
    steps: Part,
    frame_bytes: usize,
    /// Number of its first record.
    first: usize,
}

pub(super) const RAW: [&str; 2] = ["frames", "steps"];

impl RawShard {
    pub fn new([frames, steps]: [Part; 2], first: usize, frame_bytes: usize) -> RawShard {
        RawShard { frames, steps, frame_bytes, first }
    }

    pub fn push(&self, at: usize, frame: &[u8], record: Record) -> Result<u32> {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..9].copy_from_slice(&record.to_bytes());
        let checksum = checksum(frame, &bytes);
        bytes[9..].copy_from_slice(&checksum.to_le_bytes());
        self.frames.write(frame, (at * self.frame_bytes) as u64)?;
        self.steps.write(&bytes, (at * RECORD_BYTES) as u64)?;
        Ok(checksum)
    }

    /// Reads a step with its frame.
    pub fn read(&self, at: usize, frame: &mut [u8]) -> Result<Stored> {
        let record = self.first + at;
        let mut bytes = [0; RECORD_BYTES];
        self.steps.read(&mut bytes, (at * RECORD_BYTES) as u64, record)?;
        self.frames.read(frame, (at * self.frame_bytes) as u64, record)?;
        let checksum = checksum(frame, &bytes);
        if checksum.to_le_bytes() != bytes[9..] {
            // One checksum for both files: either may be the one.
            let mut path = self.frames.path.clone().into_os_string();
            path.push(" or .steps");
            return Err(ReplayError::Damaged { path: path.into(), record });
        }
        Ok(Stored { record: Record::from_bytes(&bytes), checksum })
    }

    /// Forgets all but the first records.
    pub fn cut(&self, records: usize) -> Result<()> {
        self.frames.cut((records * self.frame_bytes) as u64)?;
        self.steps.cut((records * RECORD_BYTES) as u64)
    }

    pub fn sync(&self) -> Result<()> {
        self.frames.sync()?;
        self.steps.sync()
    }
}

fn checksum(frame: &[u8], record: &[u8; RECORD_BYTES]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(frame);
    hasher.update(&record[..9]);
    hasher.finalize()
}
