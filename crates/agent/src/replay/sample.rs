//! Which steps are drawn from the replay.

use engine::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Episode, Replay};

/// What is drawn first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sampling {
    /// An episode, then one of its steps: steps of short episodes are drawn more often. As in the paper.
    #[default]
    Episodes,
    /// A step, all alike.
    Steps,
    /// In seven of ten cases a step of the newest quarter, else a step of all.
    Recent,
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
    /// From the number of a record to that of the next.
    pub stride: usize,
    /// Number of the record before the first real one, in the same episode.
    pub before: Option<usize>,
}

impl Segment {
    /// The number of a real record, which counts from 0.
    pub fn record(&self, step: usize) -> usize {
        self.first + step * self.stride
    }

    /// The numbers of the real records.
    pub fn records(&self) -> impl Iterator<Item = usize> + use<> {
        let segment = *self;
        (0..self.len).map(move |step| segment.record(step))
    }
}

impl Replay {
    /// A record, as [`Sampling`] says.
    pub fn sample_step(&self, rng: &mut Rng) -> usize {
        let (episode, step) = self.sample(rng);
        episode.record(step)
    }

    fn sample(&self, rng: &mut Rng) -> (Episode, usize) {
        let steps = self.steps();
        let oldest = match self.sampling {
            Sampling::Steps => 0,
            Sampling::Recent if rng.below(10) < 7 => steps - steps.div_ceil(4),
            Sampling::Recent => 0,
            Sampling::Episodes => {
                // Only the last episode can be empty, just after its reset.
                let count = self.table.episodes.iter().filter(|e| e.len > 0).count();
                let episode = self.table.episodes[rng.below(count as u32) as usize];
                return (episode, rng.below(episode.len as u32) as usize);
            }
        };
        let mut left = oldest + rng.below((steps - oldest) as u32) as usize;
        let mut episodes = self.table.episodes.iter();
        let found = episodes.find(|episode| match left.checked_sub(episode.len) {
            Some(after) => {
                left = after;
                false
            }
            None => true,
        });
        (found.copied().unwrap_or(self.table.episodes[0]), left)
    }

    /// `len` steps that start at a uniformly chosen one, padded after the episode's end.
    pub fn sample_starting(&self, rng: &mut Rng, len: usize) -> Segment {
        let (episode, first) = self.sample(rng);
        let (stride, len) = (episode.stride, len.min(episode.len - first));
        let first = episode.record(first);
        Segment { first, pad_before: 0, len, stride, before: episode.before(first) }
    }

    /// `len` steps that end at a uniformly chosen step, padded before the episode's beginning.
    pub fn sample_ending(&self, rng: &mut Rng, len: usize) -> Segment {
        let (episode, last) = self.sample(rng);
        let real = len.min(last + 1);
        let (first, stride) = (episode.record(last + 1 - real), episode.stride);
        Segment { first, pad_before: len - real, len: real, stride, before: episode.before(first) }
    }
}

#[cfg(test)]
mod tests {
    use engine::Key;

    use super::*;
    use crate::testing::Scratch;
    use crate::{Record, Table};

    #[test]
    fn steps_are_drawn_alike_where_asked() {
        let scratch = Scratch::new("sampling");
        let mut replay = Replay::open(&scratch.0, 4, 1000, 1, Table::default()).unwrap();
        replay.begin_writing().unwrap();
        for len in [3, 10] {
            replay.begin_episode(len, false);
            for step in 1..=len {
                let record = Record { action: 0, reward: 0.0, terminated: step == len, truncated: false };
                replay.push(&[0; 4], record).unwrap();
            }
        }
        // An episode that has just begun has no step to draw.
        replay.begin_episode(13, false);
        let replay = replay.sampling(Sampling::Steps);
        let mut rng = Rng::new(Key::new(0, 0));
        let mut seen = [0; 13];
        for _ in 0..13_000 {
            seen[replay.sample_step(&mut rng)] += 1;
            let ending = replay.sample_ending(&mut rng, 4);
            let start = if ending.first < 3 { 0 } else { 3 };
            assert_eq!(ending.before, (ending.first > start).then(|| ending.first - 1));
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        // The newest four of 13 share seven tenths, and all share the rest: 2,575 and 300 of 13,000 each.
        let replay = replay.sampling(Sampling::Recent);
        let mut seen = [0; 13];
        (0..13_000).for_each(|_| seen[replay.sample_step(&mut rng)] += 1);
        assert!(seen[..9].iter().all(|count| (220..380).contains(count)), "{seen:?}");
        assert!(seen[9..].iter().all(|count| (2375..2775).contains(count)), "{seen:?}");
    }
}
