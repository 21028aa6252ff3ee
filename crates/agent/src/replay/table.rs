//! The table of episodes: which records of the files belong together.

use serde::{Deserialize, Serialize};

/// Records that belong together: successive ones, or every n-th where n games were played side by side.
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
    /// From the number of a record to that of the next: how many games were played side by side, each writing a step in turn.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub stride: usize,
}

fn alone() -> usize {
    1
}

fn is_alone(stride: &usize) -> bool {
    *stride == alone()
}

impl Episode {
    /// Number of the record that would be its next.
    pub fn end(&self) -> usize {
        self.record(self.len)
    }

    /// Number of the record of a step, which counts from 0.
    pub fn record(&self, step: usize) -> usize {
        self.start + step * self.stride
    }

    /// Numbers of all its records.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let episode = *self;
        (0..self.len).map(move |step| episode.record(step))
    }

    /// Which step of it a record is.
    pub fn step_of(&self, record: usize) -> Option<usize> {
        let distance = record.checked_sub(self.start)?;
        let step = distance / self.stride;
        (distance.is_multiple_of(self.stride) && step < self.len).then_some(step)
    }

    /// Number of the record before one of its own, in the same episode.
    pub fn before(&self, record: usize) -> Option<usize> {
        record.checked_sub(self.stride).filter(|before| *before >= self.start)
    }

    /// Which of the games that were played side by side it belongs to.
    pub fn game(&self) -> usize {
        self.start % self.stride
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
    /// Oldest first. Only the last of each game may be unfinished.
    pub episodes: Vec<Episode>,
    /// Records ever written.
    pub records: usize,
}

/// One variant per way a table can be wrong. Episodes count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("episode {episode} of the replay has the stride {stride}, but {games} games were played")]
    Stride { episode: usize, stride: usize, games: usize },
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
    /// Refuses a table that no replay of so many games side by side can have. Forgotten episodes leave gaps.
    pub fn check(&self, games: usize) -> Result<(), TableError> {
        let records = self.records;
        // Where each game's last episode ended, and whether it is over.
        let mut before = vec![(0, true); games];
        let mut newest = 0;
        for (episode, e) in self.episodes.iter().enumerate() {
            if e.stride != games {
                return Err(TableError::Stride { episode, stride: e.stride, games });
            }
            let (end_before, ended_before) = before[e.game()];
            if !ended_before {
                return Err(TableError::Unfinished { episode: self.last_of(e.game(), episode) });
            }
            if e.start < end_before || e.start < newest {
                return Err(TableError::Overlap { episode, start: e.start });
            }
            let end = e.len.checked_mul(games).and_then(|records| e.start.checked_add(records));
            // The next round is where each game goes on.
            let end = match end {
                Some(end) if end <= records.saturating_add(e.game()) => end,
                _ => return Err(TableError::Beyond { episode, records }),
            };
            // The last may just have been begun.
            if e.len == 0 && (e.ended || episode + 1 != self.episodes.len()) {
                return Err(TableError::Empty { episode });
            }
            before[e.game()] = (end, e.ended);
            newest = e.start;
        }
        let open = before
            .iter()
            .enumerate()
            .find(|(game, (end, ended))| !ended && *end != records.saturating_add(*game));
        match open {
            Some((_, (end, _))) => Err(TableError::Gap { end: *end, records }),
            None => Ok(()),
        }
    }

    /// Number of a game's last episode among the first `episodes`.
    fn last_of(&self, game: usize, episodes: usize) -> usize {
        self.episodes[..episodes].iter().rposition(|e| e.game() == game).unwrap_or_default()
    }
}

#[cfg(test)]
impl Episode {
    /// Of a single game, with seed 0, from its beginning, without a checksum.
    pub(crate) fn plain(start: usize, len: usize, ended: bool) -> Episode {
        Episode { seed: 0, start, len, ended, continues: false, checksum: None, stride: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_no_replay_can_have_are_refused() {
        let table = |episodes: &[(usize, usize, bool)], records| Table {
            episodes: episodes.iter().map(|&(start, len, ended)| Episode::plain(start, len, ended)).collect(),
            records,
        };
        let check = |episodes: &[(usize, usize, bool)], records| table(episodes, records).check(1);
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

        // Two games in turns.
        let check = |episodes: &[(usize, usize, bool)], records| {
            let mut table = table(episodes, records);
            table.episodes.iter_mut().for_each(|e| e.stride = 2);
            table.check(2)
        };
        assert_eq!(check(&[(0, 2, true), (1, 4, false), (4, 2, false)], 8), Ok(()));
        assert_eq!(check(&[(1, 4, true), (4, 2, true)], 8), Ok(()));
        assert_eq!(
            check(&[(0, 2, true), (1, 4, true), (2, 3, true)], 8),
            Err(TableError::Overlap { episode: 2, start: 2 })
        );
        assert_eq!(
            check(&[(1, 4, true), (0, 4, true)], 8),
            Err(TableError::Overlap { episode: 1, start: 0 })
        );
        assert_eq!(check(&[(0, 5, true)], 8), Err(TableError::Beyond { episode: 0, records: 8 }));
        assert_eq!(check(&[(1, 5, true)], 8), Err(TableError::Beyond { episode: 0, records: 8 }));
        assert_eq!(check(&[(0, 4, true), (1, 3, false)], 8), Err(TableError::Gap { end: 7, records: 8 }));
        assert_eq!(
            check(&[(0, 2, false), (1, 4, false), (4, 2, false)], 8),
            Err(TableError::Unfinished { episode: 0 })
        );
        let alone = table(&[(0, 8, true)], 8).check(2);
        assert_eq!(alone, Err(TableError::Stride { episode: 0, stride: 1, games: 2 }));
    }
}
