//! Shards of compressed frames.
//!
//! ```text
//! 000000.data    frames, one after the other, each in as few bytes as it takes: see `codec`
//! 000000.index   for each: action u32, reward f32, end u8 (1: terminated, 2: truncated), base u8, offset u64, length u32, CRC-32 of the frame, CRC-32 of its number and these
//! ```
//!
//! A frame is packed relative to the record `base` before it, or by itself where `base` is 0: as every eighth is, so that reading one takes at most
//! two. A record has a checksum of its own: actions and rewards are read without frames.

use super::codec;
use super::shard::{Part, Stored};
use super::{Record, ReplayError, Result};

pub(super) const PACKED: [&str; 2] = ["index", "data"];
pub(crate) const ENTRY_BYTES: usize = 30;
/// Every so many frames one is packed by itself. More make larger files where much moves, fewer where little does.
const GROUP: usize = 8;

pub(super) struct PackedShard {
    index: Part,
    data: Part,
    frame_bytes: usize,
    /// Number of its first record.
    first: usize,
    /// Where the next frame goes.
    offset: u64,
    /// Newest frame that was packed by itself, with its place in the shard.
    key: Option<(usize, Vec<u8>)>,
}

/// A record as the index has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub record: Record,
    pub base: usize,
    pub offset: u64,
    pub len: usize,
    frame_checksum: u32,
    pub checksum: u32,
}

impl Entry {
    /// The bytes of record number `record`.
    fn to_bytes(self, record: usize) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..9].copy_from_slice(&self.record.to_bytes());
        bytes[9] = self.base as u8;
        bytes[10..18].copy_from_slice(&self.offset.to_le_bytes());
        bytes[18..22].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes[22..26].copy_from_slice(&self.frame_checksum.to_le_bytes());
        let checksum = Entry::checksum_of(&bytes, record);
        bytes[26..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn checksum_of(bytes: &[u8; ENTRY_BYTES], record: usize) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&(record as u64).to_le_bytes());
        hasher.update(&bytes[..26]);
        hasher.finalize()
    }

    /// What [`to_bytes`](Entry::to_bytes) wrote, if it has its checksum.
    fn from_bytes(bytes: &[u8; ENTRY_BYTES], record: usize) -> Option<Entry> {
        let [.., a, b, c, d] = *bytes;
        let checksum = u32::from_le_bytes([a, b, c, d]);
        (checksum == Entry::checksum_of(bytes, record)).then(|| Entry::of(bytes))
    }

    fn of(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Entry {
            record: Record::from_bytes(bytes),
            base: usize::from(bytes[9]),
            offset: u64::from(word(10)) | u64::from(word(14)) << 32,
            len: word(18) as usize,
            frame_checksum: word(22),
            checksum: word(26),
        }
    }

    /// Fills `frame` from its packed bytes, if it is what was written.
    fn unpack(&self, packed: &[u8], key: Option<&[u8]>, frame: &mut [u8]) -> Result<(), codec::NoFrame> {
        codec::unpack(packed, key, frame)?;
        match crc32fast::hash(frame) == self.frame_checksum {
            true => Ok(()),
            false => Err(codec::NoFrame),
        }
    }
}

/// Room for reading frames. Successive ones share a key.
#[derive(Default)]
pub(super) struct Scratch {
    packed: Vec<u8>,
    key: Vec<u8>,
    /// Number of the record whose frame `key` is.
    key_of: Option<usize>,
}

impl PackedShard {
    /// Bytes of a step at most.
    pub fn step_bytes(frame_bytes: usize) -> usize {
        frame_bytes + ENTRY_BYTES
    }

    pub fn new([index, data]: [Part; 2], first: usize, frame_bytes: usize) -> PackedShard {
        PackedShard { index, data, frame_bytes, first, offset: 0, key: None }
    }

    /// Forgets all but the first records, and goes on writing after them.
    pub fn cut(&mut self, records: usize) -> Result<()> {
        self.index.cut((records * ENTRY_BYTES) as u64)?;
        // What lies after a record that cannot be read stays: its episode is forgotten, others may need their bytes.
        self.offset = match records.checked_sub(1).map(|last| self.entry(last)) {
            None => 0,
            Some(Ok(last)) => last.offset.saturating_add(last.len as u64),
            Some(Err(_)) => self.data.len()?,
        };
        self.data.cut(self.offset)?;
        let at = records / GROUP * GROUP;
        let mut frame = vec![0; self.frame_bytes];
        let key = (at < records).then(|| self.read(at, &mut frame, &mut Scratch::default()));
        // A key that cannot be read is not one: frames are packed by themselves up to the next.
        self.key = matches!(key, Some(Ok(_))).then_some((at, frame));
        Ok(())
    }

    pub fn push(&mut self, at: usize, frame: &[u8], record: Record) -> Result<u32> {
        if at.is_multiple_of(GROUP) {
            self.key = Some((at, frame.to_vec()));
        }
        let key = self.key.as_ref().filter(|(key, _)| *key < at && at - *key < GROUP);
        let packed = codec::pack(frame, key.map(|(_, frame)| frame.as_slice()));
        let entry = Entry {
            record,
            base: key.map_or(0, |(key, _)| at - key),
            offset: self.offset,
            len: packed.len(),
            frame_checksum: crc32fast::hash(frame),
            checksum: 0,
        };
        let bytes = entry.to_bytes(self.first + at);
        self.data.write(&packed, self.offset)?;
        self.index.write(&bytes, (at * ENTRY_BYTES) as u64)?;
        self.offset += packed.len() as u64;
        Ok(Entry::of(&bytes).checksum)
    }

    fn entry(&self, at: usize) -> Result<Entry> {
        let mut bytes = [0; ENTRY_BYTES];
        self.index.read(&mut bytes, (at * ENTRY_BYTES) as u64, self.first + at)?;
        let entry = Entry::from_bytes(&bytes, self.first + at);
        entry.ok_or_else(|| self.damaged(&self.index, at))
    }

    fn damaged(&self, part: &Part, at: usize) -> ReplayError {
        ReplayError::Damaged { path: part.path.clone(), record: self.first + at }
    }

    pub fn record(&self, at: usize) -> Result<Stored> {
        let Entry { record, checksum, .. } = self.entry(at)?;
        Ok(Stored { record, checksum })
    }

    /// Reads a step with its frame.
    pub fn read(&self, at: usize, frame: &mut [u8], scratch: &mut Scratch) -> Result<Stored> {
        let entry = self.entry(at)?;
        let Scratch { packed, key, key_of } = scratch;
        let key = match entry.base {
            0 => None,
            base => {
                let base = at.checked_sub(base).ok_or_else(|| self.damaged(&self.index, at))?;
                if *key_of != Some(self.first + base) {
                    *key_of = None;
                    key.resize(self.frame_bytes, 0);
                    let of_key = self.entry(base)?;
                    if of_key.base != 0 {
                        return Err(self.damaged(&self.index, base));
                    }
                    self.unpack(base, &of_key, None, packed, key)?;
                    *key_of = Some(self.first + base);
                }
                Some(key.as_slice())
            }
        };
        self.unpack(at, &entry, key, packed, frame)?;
        Ok(Stored { record: entry.record, checksum: entry.checksum })
    }

    fn unpack(
        &self,
        at: usize,
        entry: &Entry,
        key: Option<&[u8]>,
        packed: &mut Vec<u8>,
        frame: &mut [u8],
    ) -> Result<()> {
        if entry.len > self.frame_bytes {
            return Err(self.damaged(&self.index, at));
        }
        packed.resize(entry.len, 0);
        self.data.read(packed, entry.offset, self.first + at)?;
        entry.unpack(packed, key, frame).map_err(|_| self.damaged(&self.data, at))
    }

    pub fn sync(&self) -> Result<()> {
        self.data.sync()?;
        self.index.sync()
    }
}

/// Reads all frames of a shard from memory, with the checksums of its index corrected, so that a fuzzer gets behind them.
pub(crate) fn fuzz(index: &[u8], data: &[u8], frame_bytes: usize) {
    let entries: Vec<Entry> = index.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::of).collect();
    let packed = |entry: &Entry| {
        let start = usize::try_from(entry.offset).ok().filter(|_| entry.len <= frame_bytes)?;
        data.get(start..start.checked_add(entry.len)?)
    };
    let (mut key, mut frame) = (vec![0; frame_bytes], vec![0; frame_bytes]);
    for (at, entry) in entries.iter().enumerate() {
        let base = at.checked_sub(entry.base).map(|base| &entries[base]).filter(|_| entry.base > 0);
        let whole = base.and_then(packed).is_some_and(|bytes| codec::unpack(bytes, None, &mut key).is_ok());
        if let Some(bytes) = packed(entry) {
            let _ = entry.unpack(bytes, whole.then_some(key.as_slice()), &mut frame);
        }
    }
}
