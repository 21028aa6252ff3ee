//! The stratified bootstrap: every run of every game is replaced by a random run of the same game.

use crate::metrics::{Aggregates, Metric, aggregates, median};
use crate::resample::{Randomness, interval};

/// An agent's normalised scores, laid out for drawing.
pub struct Bootstrap<'a> {
    games: Vec<&'a [f64]>,
    /// The game of every draw: run by run, and game by game within a run, as numpy fills `(runs, games)`.
    cells: Vec<u32>,
    /// How many runs each draw chooses from.
    bounds: Vec<u32>,
    /// The place of each run among all sorted runs, per game.
    ranks: Vec<Vec<u32>>,
    sorted: Vec<f64>,
}

impl<'a> Bootstrap<'a> {
    /// None where a game has a single run: resampling it would pretend to know its spread.
    pub fn new(games: &[&'a [f64]]) -> Option<Bootstrap<'a>> {
        if games.is_empty() || games.iter().any(|runs| runs.len() < 2) {
            return None;
        }
        let (cells, bounds) = cells(games);
        let mut order: Vec<(usize, usize)> = games
            .iter()
            .enumerate()
            .flat_map(|(game, runs)| (0..runs.len()).map(move |run| (game, run)))
            .collect();
        order.sort_by(|a, b| games[a.0][a.1].total_cmp(&games[b.0][b.1]));
        let mut ranks: Vec<Vec<u32>> = games.iter().map(|runs| vec![0; runs.len()]).collect();
        for (rank, &(game, run)) in order.iter().enumerate() {
            ranks[game][run] = rank as u32;
        }
        let sorted = order.iter().map(|&(game, run)| games[game][run]).collect();
        Some(Bootstrap { games: games.to_vec(), cells, bounds, ranks, sorted })
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
        let mut sums = vec![0.0; self.games.len()];
        let mut clipped = 0.0;
        for (&game, &run) in self.cells.iter().zip(draws) {
            let score = self.games[game as usize][run as usize];
            sums[game as usize] += score;
            clipped += score.min(1.0);
        }
        for (sum, runs) in sums.iter_mut().zip(&self.games) {
            *sum /= runs.len() as f64;
        }
        let counts = self.counts(draws);
        let total = draws.len();
        let (first, last) = (total / 4, total - total / 4);
        let (mut before, mut middle) = (0, 0.0);
        for (&score, &count) in self.sorted.iter().zip(&counts) {
            let after = before + count as usize;
            let kept = after.min(last).saturating_sub(before.max(first));
            middle += score * kept as f64;
            before = after;
        }
        Aggregates {
            mean: sums.iter().sum::<f64>() / sums.len() as f64,
            median: median(&mut sums),
            iqm: middle / (last - first) as f64,
            optimality_gap: 1.0 - clipped / total as f64,
        }
    }

    /// How often each run was drawn, in the order of the sorted runs.
    fn counts(&self, draws: &[u32]) -> Vec<u32> {
        let mut counts = vec![0; self.sorted.len()];
        for (&game, &run) in self.cells.iter().zip(draws) {
            counts[self.ranks[game as usize][run as usize] as usize] += 1;
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
        let starts: Vec<usize> =
            thresholds.iter().map(|tau| self.sorted.partition_point(|score| score <= tau)).collect();
        let results = randomness.replicates(purpose, &self.bounds, replicates, |draws| {
            let counts = self.counts(draws);
            let mut above = draws.len() as u32;
            let mut from = 0;
            let share = |&start: &usize| {
                above -= counts[from..start].iter().sum::<u32>();
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

    fn randomness() -> Randomness {
        Randomness::new(Rng::Numpy, 0).unwrap()
    }

    // Counting and sorting agree on what was drawn.
    #[test]
    fn resampled_is_aggregates_of_the_draws() {
        let games: [&[f64]; 3] = [&[0.1, 0.9, 0.9], &[2.0, -0.5], &[0.3, 1.5, 0.2]];
        let bootstrap = Bootstrap::new(&games).unwrap();
        assert_eq!(bootstrap.cells, [0, 1, 2, 0, 1, 2, 0, 2]);
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
