//! The table of episodes: which records of the files belong together.

use serde::{Deserialize, Serialize};

/// A stretch of records that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// CRC-32 over the checksums of its records: the files hold the steps that were played. Episodes of older programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<u32>,
}

impl Episode {
    /// Number of the record after its last.
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// Appends a step whose record has this checksum.
    pub(super) fn push(&mut self, end: bool, checksum: u32) {
        self.len += 1;
        self.ended = end;
        self.checksum = self.checksum.map(|before| chain(before, checksum));
    }
}

/// The checksum of an episode after one more record.
pub(super) fn chain(before: u32, record: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(&record.to_le_bytes());
    hasher.finalize()
}

/// The table of episodes: all that a checkpoint needs to know about the replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Oldest first. Only the last may be unfinished.
    pub episodes: Vec<Episode>,
    /// Records ever written.
    pub records: usize,
}

/// One variant per way a table can be wrong. Episodes count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("episode {episode} of the replay starts at step {start}, inside the one before")]
    Overlap { episode: usize, start: usize },
    #[error("episode {episode} of the replay goes beyond the {records} recorded steps")]
    Beyond { episode: usize, records: usize },
    #[error("episode {episode} of the replay has no steps")]
    Empty { episode: usize },
    #[error("episode {episode} of the replay is unfinished, but not the last")]
    Unfinished { episode: usize },
    #[error("no episode of the replay is known, but {records} steps were recorded")]
    NoEpisodes { records: usize },
    #[error("the unfinished episode of the replay ends at step {end}, but {records} were recorded")]
    Gap { end: usize, records: usize },
}

impl Table {
    /// Refuses a table that no replay can have. Forgotten episodes leave gaps.
    pub fn check(&self) -> Result<(), TableError> {
        let records = self.records;
        let mut before = 0;
        for (episode, e) in self.episodes.iter().enumerate() {
            let last = episode + 1 == self.episodes.len();
            if e.start < before {
                return Err(TableError::Overlap { episode, start: e.start });
            }
            before = match e.start.checked_add(e.len) {
                Some(end) if end <= records => end,
                _ => return Err(TableError::Beyond { episode, records }),
            };
            // The last may just have been begun.
            if e.len == 0 && (e.ended || !last) {
                return Err(TableError::Empty { episode });
            }
            if !e.ended && !last {
                return Err(TableError::Unfinished { episode });
            }
            if !e.ended && before != records {
                return Err(TableError::Gap { end: before, records });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_no_replay_can_have_are_refused() {
        let table = |episodes: &[(usize, usize, bool)], records| Table {
            episodes: episodes
                .iter()
                .map(|&(start, len, ended)| Episode {
                    seed: 0,
                    start,
                    len,
                    ended,
                    continues: false,
                    checksum: None,
                })
                .collect(),
            records,
        };
        let check = |episodes: &[(usize, usize, bool)], records| table(episodes, records).check();
        // Evicted before 3, forgotten from 5 to 8 and at the end.
        assert_eq!(check(&[(3, 2, true), (8, 4, true)], 20), Ok(()));
        assert_eq!(check(&[(3, 2, true), (5, 4, false)], 9), Ok(()));
        assert_eq!(check(&[(3, 2, true), (5, 0, false)], 5), Ok(()));
        assert_eq!(check(&[], 7), Ok(()));
        assert_eq!(
            check(&[(3, 2, true), (4, 4, true)], 9),
            Err(TableError::Overlap { episode: 1, start: 4 })
        );
        assert_eq!(
            check(&[(8, 2, true), (3, 4, true)], 19),
            Err(TableError::Overlap { episode: 1, start: 3 })
        );
        assert_eq!(check(&[(3, 7, true)], 9), Err(TableError::Beyond { episode: 0, records: 9 }));
        assert_eq!(check(&[(3, usize::MAX, true)], 9), Err(TableError::Beyond { episode: 0, records: 9 }));
        assert_eq!(check(&[(0, 0, true)], 9), Err(TableError::Empty { episode: 0 }));
        assert_eq!(check(&[(0, 0, false), (0, 9, true)], 9), Err(TableError::Empty { episode: 0 }));
        assert_eq!(check(&[(0, 3, false), (3, 6, true)], 9), Err(TableError::Unfinished { episode: 0 }));
        assert_eq!(check(&[(0, 3, false)], 9), Err(TableError::Gap { end: 3, records: 9 }));
    }
}
