//! The numbers that sum up an agent, over normalised scores (0 is random play, 1 a human).

use std::ops::Index;

use serde::Serialize;

/// The four aggregates of "Deep RL at the Edge of the Statistical Precipice".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    Mean,
    Median,
    Iqm,
    OptimalityGap,
}

impl Metric {
    pub const ALL: [Metric; 4] = [Metric::Mean, Metric::Median, Metric::Iqm, Metric::OptimalityGap];

    pub fn label(self) -> &'static str {
        match self {
            Metric::Mean => "Mean",
            Metric::Median => "Median",
            Metric::Iqm => "IQM",
            Metric::OptimalityGap => "Optimality gap",
        }
    }

    pub fn lower_is_better(self) -> bool {
        self == Metric::OptimalityGap
    }
}

/// One number per metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Aggregates<T> {
    pub mean: T,
    pub median: T,
    pub iqm: T,
    pub optimality_gap: T,
}

impl<T> Index<Metric> for Aggregates<T> {
    type Output = T;

    fn index(&self, metric: Metric) -> &T {
        match metric {
            Metric::Mean => &self.mean,
            Metric::Median => &self.median,
            Metric::Iqm => &self.iqm,
            Metric::OptimalityGap => &self.optimality_gap,
        }
    }
}

/// Mean and median over the games' means; interquartile mean and optimality gap over all runs.
pub fn aggregates(games: &[&[f64]]) -> Aggregates<f64> {
    let mut means: Vec<f64> = games.iter().map(|runs| mean(runs)).collect();
    let mut runs: Vec<f64> = games.iter().flat_map(|runs| runs.iter().copied()).collect();
    runs.sort_unstable_by(f64::total_cmp);
    let cut = runs.len() / 4;
    Aggregates {
        mean: mean(&means),
        median: median(&mut means),
        iqm: mean(&runs[cut..runs.len() - cut]),
        optimality_gap: 1.0 - runs.iter().map(|score| score.min(1.0)).sum::<f64>() / runs.len() as f64,
    }
}

/// Games whose mean is a human's or better.
pub fn superhuman(games: &[&[f64]]) -> usize {
    games.iter().filter(|runs| mean(runs) >= 1.0).count()
}

/// With the rounding errors of the sum carried along: the paper's table has means that end exactly between two printed digits.
pub fn mean(values: &[f64]) -> f64 {
    let (mut sum, mut error) = (0.0, 0.0);
    for &value in values {
        let next: f64 = sum + value;
        error += if sum.abs() >= value.abs() { (sum - next) + value } else { (value - next) + sum };
        sum = next;
    }
    (sum + error) / values.len() as f64
}

/// Sorts the values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len().is_multiple_of(2) {
        true => (values[middle - 1] + values[middle]) / 2.0,
        false => values[middle],
    }
}

/// The value below which `share` of the sorted values lie, with linear interpolation as in `np.percentile`.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let position = (sorted.len() - 1) as f64 * share;
    let low = sorted[position.floor() as usize];
    let high = sorted[position.ceil() as usize];
    low + (high - low) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_of_two_games() {
        let result = aggregates(&[&[0.0, 1.0, 2.0, 3.0], &[0.5, 0.5, 0.5, 0.5]]);
        assert_eq!(result.mean, 1.0);
        assert_eq!(result.median, 1.0);
        // Sorted 0, .5, .5, .5, .5, 1, 2, 3: two go at each end.
        assert_eq!(result.iqm, 0.625);
        // Clipped 0, .5, .5, .5, .5, 1, 1, 1.
        assert_eq!(result.optimality_gap, 0.375);
    }

    #[test]
    fn fewer_than_four_scores_lose_none() {
        assert_eq!(aggregates(&[&[1.0, 5.0, 0.0]]).iqm, 2.0);
    }

    #[test]
    fn exactly_human_is_superhuman() {
        assert_eq!(superhuman(&[&[1.0], &[0.5, 1.4], &[2.0]]), 2);
    }

    #[test]
    fn means_do_not_drift() {
        assert_eq!(mean(&[0.1; 10]), 0.1);
        assert_eq!(mean(&[1e16, 1.0, -1e16, 1.0]), 0.5);
    }

    #[test]
    fn median_of_odd_and_even() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    // np.percentile([1, 2, 4, 8], [0, 2.5, 50, 97.5, 100])
    #[test]
    fn percentiles_interpolate() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        let expected = [(0.0, 1.0), (0.025, 1.075), (0.5, 3.0), (0.975, 7.7), (1.0, 8.0)];
        for (share, value) in expected {
            assert!((percentile(&sorted, share) - value).abs() < 1e-12, "{share}");
        }
        assert_eq!(percentile(&[7.0], 0.975), 7.0);
    }
}
