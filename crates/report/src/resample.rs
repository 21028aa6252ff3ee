//! Seeded draws of runs, with replacement: the part of the bootstrap that is random.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use serde::Serialize;

use crate::ReportError;
use crate::metrics::percentile;
use crate::mt19937::Mt19937;

/// Where random numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// A stream per replicate; any number of threads gives the same result.
    Fast,
    /// numpy's global generator, seeded anew for every agent and every quantity.
    Numpy,
}

impl FromStr for Rng {
    type Err = String;

    fn from_str(name: &str) -> Result<Rng, String> {
        match name {
            "fast" => Ok(Rng::Fast),
            "numpy" => Ok(Rng::Numpy),
            _ => Err("there are fast and numpy".to_string()),
        }
    }
}

/// Hears of what is being resampled: which quantity, how many of its replicates are done, and of how many. Called from any thread.
pub type Watcher<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// A generator and its seed.
#[derive(Clone, Copy)]
pub struct Randomness<'a> {
    rng: Rng,
    seed: u64,
    watcher: Watcher<'a>,
}

/// Replicates drawn before they are handed to the threads, where draws must come one after the other; fewer where each has many draws.
const BATCH: usize = 512;
const BATCH_DRAWS: usize = 1 << 22;
/// Replicates after which the watcher hears of them.
const STRIDE: usize = 64;

impl<'a> Randomness<'a> {
    pub fn new(rng: Rng, seed: u64, watcher: Watcher<'a>) -> Result<Randomness<'a>, ReportError> {
        match rng == Rng::Numpy && seed > u32::MAX as u64 {
            true => Err(ReportError::NumpySeed { seed }),
            false => Ok(Randomness { rng, seed, watcher }),
        }
    }

    /// Calls `statistic` on `replicates` rows of draws, the i-th of a row below `bounds[i]`. `purpose` keeps quantities independent.
    pub fn replicates<T: Send>(
        &self,
        purpose: &str,
        bounds: &[u32],
        replicates: usize,
        statistic: impl Fn(&[u32]) -> T + Sync,
    ) -> Vec<T> {
        let done = AtomicUsize::new(0);
        let statistic = |draws: &[u32]| {
            let result = statistic(draws);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(STRIDE) || done == replicates {
                (self.watcher)(purpose, done, replicates);
            }
            result
        };
        match self.rng {
            Rng::Fast => {
                let stream = purpose.bytes().fold(mix(self.seed), |hash, byte| mix(hash ^ byte as u64));
                let draw = |row: &mut Vec<u32>, replicate: usize| {
                    let start = mix(stream ^ mix(replicate as u64));
                    row.clear();
                    row.extend(bounds.iter().enumerate().map(|(i, &bound)| {
                        let word = mix(start.wrapping_add((i as u64).wrapping_mul(GOLDEN)));
                        ((word as u128 * bound as u128) >> 64) as u32
                    }));
                    statistic(row)
                };
                (0..replicates).into_par_iter().map_init(Vec::new, draw).collect()
            }
            Rng::Numpy => {
                let mut generator = Mt19937::new(self.seed as u32);
                let mut results = Vec::with_capacity(replicates);
                let batch = (BATCH_DRAWS / bounds.len().max(1)).clamp(1, BATCH);
                while results.len() < replicates {
                    let rows = batch.min(replicates - results.len());
                    let draws: Vec<u32> =
                        (0..rows).flat_map(|_| bounds).map(|&bound| generator.choice(bound)).collect();
                    results.par_extend(draws.par_chunks(bounds.len()).map(&statistic));
                }
                results
            }
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(GOLDEN);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Share of the replicates that an interval holds.
pub const CONFIDENCE: f64 = 0.95;

/// The percentile interval of some replicates; sorts them.
pub fn interval(values: &mut [f64]) -> [f64; 2] {
    values.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    [percentile(values, tail), percentile(values, 1.0 - tail)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rng: Rng, seed: u64, purpose: &str) -> Vec<Vec<u32>> {
        let randomness = Randomness::new(rng, seed, &|_, _, _| {}).unwrap();
        randomness.replicates(purpose, &[5, 1, 100], 1300, |row| row.to_vec())
    }

    #[test]
    fn the_watcher_hears_of_every_stride_and_of_the_end() {
        for rng in [Rng::Fast, Rng::Numpy] {
            let heard = std::sync::Mutex::new(Vec::new());
            let watcher =
                |what: &str, done, total| heard.lock().unwrap().push((what.to_string(), done, total));
            let randomness = Randomness::new(rng, 0, &watcher).unwrap();
            randomness.replicates("mine/profile", &[3], 150, |_| ());
            let mut heard = heard.into_inner().unwrap();
            heard.sort();
            let expected = [64, 128, 150].map(|done| ("mine/profile".to_string(), done, 150));
            assert_eq!(heard, expected, "{rng:?}");
        }
    }

    #[test]
    fn seeds_and_purposes_decide() {
        assert_eq!(rows(Rng::Fast, 3, "a"), rows(Rng::Fast, 3, "a"));
        assert_ne!(rows(Rng::Fast, 3, "a"), rows(Rng::Fast, 4, "a"));
        assert_ne!(rows(Rng::Fast, 3, "a"), rows(Rng::Fast, 3, "b"));
    }

    #[test]
    fn draws_are_below_their_bounds_and_even() {
        for rng in [Rng::Fast, Rng::Numpy] {
            let mut counts = [0; 5];
            for row in rows(rng, 0, "counts") {
                assert!(row[0] < 5 && row[1] == 0 && row[2] < 100);
                counts[row[0] as usize] += 1;
            }
            // 260 expected; the standard deviation is 14.4.
            assert!(counts.iter().all(|&count| (200..320).contains(&count)), "{rng:?} {counts:?}");
        }
    }

    // One stream, in order, however it is cut into batches.
    #[test]
    fn numpy_rows_follow_each_other() {
        let mut generator = Mt19937::new(9);
        for row in rows(Rng::Numpy, 9, "") {
            assert_eq!(row, [generator.choice(5), generator.choice(1), generator.choice(100)]);
        }
    }

    #[test]
    fn numpy_has_no_seed_beyond_32_bits() {
        assert!(Randomness::new(Rng::Numpy, 1 << 32, &|_, _, _| {}).is_err());
        assert!(Randomness::new(Rng::Fast, 1 << 32, &|_, _, _| {}).is_ok());
    }
}
