//! The stratified bootstrap: every run of every game is replaced by a random run of the same game.

use std::ops::Range;

use crate::metrics::{Aggregates, Metric, aggregates, median};
use crate::resample::{Randomness, interval};

/// An agent's normalised scores, laid out for drawing.
pub struct Bootstrap {
    /// All runs, game by game.
    scores: Vec<f64>,
    /// Where each game's runs are among them.
    games: Vec<Range<usize>>,
    /// Runs in ascending order of their scores.
    order: Vec<usize>,
    /// The first run that each draw may choose, and how many there are.
    firsts: Vec<usize>,
    bounds: Vec<u32>,
}

impl Bootstrap {
    /// None where a game has a single run: resampling it would pretend to know its spread.
    pub fn new(games: &[&[f64]]) -> Option<Bootstrap> {
        if games.is_empty() || games.iter().any(|runs| runs.len() < 2) {
            return None;
        }
        let scores = games.concat();
        let mut end = 0;
        let mut range = |runs: &&[f64]| {
            let start = end;
            end += runs.len();
            start..end
        };
        let ranges: Vec<Range<usize>> = games.iter().map(&mut range).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        let (cells, bounds) = cells(games);
        let firsts = cells.iter().map(|&game| ranges[game as usize].start).collect();
        Some(Bootstrap { scores, games: ranges, order, firsts, bounds })
    }

    /// Intervals of the four aggregates, from the same draws.
    pub fn aggregates(
        &self,
        randomness: &Randomness,
        purpose: &str,
        replicates: usize,
    ) -> Aggregates<[f64; 2]> {
        let results = randomness.replicates(purpose, &self.bounds, replicates, |draws| self.resampled(draws));
        let of =
            |metric: Metric| interval(&mut results.iter().map(|result| result[metric]).collect::<Vec<f64>>());
        Aggregates {
            mean: of(Metric::Mean),
            median: of(Metric::Median),
            iqm: of(Metric::Iqm),
            optimality_gap: of(Metric::OptimalityGap),
        }
    }

    /// As `metrics::aggregates`, but counting how often each run was drawn instead of sorting the draws.
    fn resampled(&self, draws: &[u32]) -> Aggregates<f64> {
        let counts = self.counts(draws);
        let game_mean = |game: &Range<usize>| {
            let runs = self.scores[game.clone()].iter().zip(&counts[game.clone()]);
            runs.map(|(score, &count)| score * count as f64).sum::<f64>() / game.len() as f64
        };
        let mut means: Vec<f64> = self.games.iter().map(game_mean).collect();
        let total = draws.len();
        let (first, last) = (total / 4, total - total / 4);
        let (mut before, mut middle, mut clipped) = (0, 0.0, 0.0);
        for &run in &self.order {
            let (score, count) = (self.scores[run], counts[run] as usize);
            let after = before + count;
            let kept = after.min(last).saturating_sub(before.max(first));
            middle += score * kept as f64;
            clipped += score.min(1.0) * count as f64;
            before = after;
        }
        Aggregates {
            mean: means.iter().sum::<f64>() / means.len() as f64,
            median: median(&mut means),
            iqm: middle / (last - first) as f64,
            optimality_gap: 1.0 - clipped / total as f64,
        }
    }

    /// How often each run was drawn.
    fn counts(&self, draws: &[u32]) -> Vec<u32> {
        let mut counts = vec![0; self.scores.len()];
        for (&first, &run) in self.firsts.iter().zip(draws) {
            counts[first + run as usize] += 1;
        }
        counts
    }

    /// Intervals of the performance profile at each of the ascending thresholds.
    pub fn profile(
        &self,
        randomness: &Randomness,
        purpose: &str,
        replicates: usize,
        thresholds: &[f64],
    ) -> Vec<[f64; 2]> {
        // Runs from here on are above the threshold.
        let start = |tau: &f64| self.order.partition_point(|&run| self.scores[run] <= *tau);
        let starts: Vec<usize> = thresholds.iter().map(start).collect();
        let results = randomness.replicates(purpose, &self.bounds, replicates, |draws| {
            let counts = self.counts(draws);
            let mut above = draws.len() as u32;
            let mut from = 0;
            let share = |&start: &usize| {
                above -= self.order[from..start].iter().map(|&run| counts[run]).sum::<u32>();
                from = start;
                above as f64 / draws.len() as f64
            };
            starts.iter().map(share).collect::<Vec<f64>>()
        });
        (0..thresholds.len())
            .map(|i| interval(&mut results.iter().map(|result| result[i]).collect::<Vec<f64>>()))
            .collect()
    }
}

/// The game of every draw and how many runs it chooses from, run by run; games with fewer runs drop out of the later rounds.
pub fn cells(games: &[&[f64]]) -> (Vec<u32>, Vec<u32>) {
    let most = games.iter().map(|runs| runs.len()).max().unwrap_or(0);
    (0..most)
        .flat_map(|run| games.iter().enumerate().filter(move |(_, runs)| run < runs.len()))
        .map(|(game, runs)| (game as u32, runs.len() as u32))
        .unzip()
}

/// Share of runs strictly above each threshold.
pub fn profile(games: &[&[f64]], thresholds: &[f64]) -> Vec<f64> {
    let runs: Vec<f64> = games.iter().flat_map(|runs| runs.iter().copied()).collect();
    let above = |tau: &f64| runs.iter().filter(|score| *score > tau).count() as f64 / runs.len() as f64;
    thresholds.iter().map(above).collect()
}

/// The interquartile mean of every column of a training curve, `columns[game][point]` holding its runs, with its interval.
pub fn curve(
    columns: &[Vec<Vec<f64>>],
    randomness: &Randomness,
    purpose: &str,
    replicates: usize,
) -> Vec<(f64, Option<[f64; 2]>)> {
    let points = columns.first().map_or(0, Vec::len);
    let at = |point: usize| -> Vec<&[f64]> { columns.iter().map(|game| game[point].as_slice()).collect() };
    (0..points)
        .map(|point| {
            let games = at(point);
            let interval = Bootstrap::new(&games).map(|bootstrap| {
                bootstrap.aggregates(randomness, &format!("{purpose}/{point}"), replicates).iqm
            });
            (aggregates(&games).iqm, interval)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resample::Rng;

    fn randomness() -> Randomness<'static> {
        Randomness::new(Rng::Numpy, 0, &|_, _, _| {}).unwrap()
    }

    // Counting and sorting agree on what was drawn.
    #[test]
    fn resampled_is_aggregates_of_the_draws() {
        let games: [&[f64]; 3] = [&[0.1, 0.9, 0.9], &[2.0, -0.5], &[0.3, 1.5, 0.2]];
        let bootstrap = Bootstrap::new(&games).unwrap();
        assert_eq!(bootstrap.firsts, [0, 3, 5, 0, 3, 5, 0, 5]);
        assert_eq!(bootstrap.bounds, [3, 2, 3, 3, 2, 3, 3, 3]);
        let result = bootstrap.resampled(&[1, 1, 0, 1, 1, 1, 0, 1]);
        let expected = aggregates(&[&[0.9, 0.9, 0.1], &[-0.5, -0.5], &[0.3, 1.5, 1.5]]);
        for metric in Metric::ALL {
            assert!((result[metric] - expected[metric]).abs() < 1e-12, "{metric:?}");
        }
    }

    #[test]
    fn a_game_with_one_run_has_no_interval() {
        assert!(Bootstrap::new(&[&[1.0, 2.0], &[1.0]]).is_none());
        assert!(Bootstrap::new(&[]).is_none());
    }

    #[test]
    fn runs_that_agree_leave_no_doubt() {
        let games: [&[f64]; 2] = [&[0.5, 0.5], &[2.0, 2.0]];
        let intervals = Bootstrap::new(&games).unwrap().aggregates(&randomness(), "", 50);
        assert_eq!(intervals.mean, [1.25, 1.25]);
        assert_eq!(intervals.optimality_gap, [0.25, 0.25]);
    }

    #[test]
    fn profiles_are_strict_and_bracketed() {
        let games: [&[f64]; 2] = [&[0.0, 1.0], &[1.0, 2.0]];
        let thresholds = [0.0, 0.5, 1.0, 2.0];
        assert_eq!(profile(&games, &thresholds), [0.75, 0.75, 0.25, 0.0]);
        let bands = Bootstrap::new(&games).unwrap().profile(&randomness(), "", 400, &thresholds);
        assert_eq!(bands, [[0.5, 1.0], [0.5, 1.0], [0.0, 0.5], [0.0, 0.0]]);
    }

    #[test]
    fn curves_have_a_value_per_point() {
        let columns = vec![vec![vec![0.0, 0.2], vec![0.5, 0.7]], vec![vec![0.1, 0.1], vec![0.9, 0.9]]];
        let curve = curve(&columns, &randomness(), "", 50);
        assert_eq!(curve.len(), 2);
        assert!((curve[0].0 - 0.1).abs() < 1e-12);
        assert!(curve[1].1.is_some_and(|[low, high]| low <= 0.8 && high >= 0.8));
    }
}
