//! Probability of improvement: how likely a run of X beats a run of Y on a random game (Mann-Whitney, a tie counts one half).

use crate::bootstrap::cells;
use crate::resample::{Randomness, interval};

/// The wins of X over Y on one game, doubled so that a tie is a whole number.
struct Duel {
    wins: Vec<u8>,
    runs_x: usize,
    runs_y: usize,
}

impl Duel {
    fn new(x: &[f64], y: &[f64]) -> Duel {
        let doubled = |x: f64, y: f64| if x > y { 2 } else { (x == y) as u8 };
        let wins = x.iter().flat_map(|&x| y.iter().map(move |&y| doubled(x, y))).collect();
        Duel { wins, runs_x: x.len(), runs_y: y.len() }
    }

    /// U / (runs of X * runs of Y) for the chosen runs.
    fn probability(&self, x: &[u32], y: &[u32]) -> f64 {
        let rows = x.iter().map(|&x| &self.wins[x as usize * self.runs_y..][..self.runs_y]);
        let doubled: u64 = rows.map(|row| y.iter().map(|&y| row[y as usize] as u64).sum::<u64>()).sum();
        doubled as f64 / (2 * self.runs_x * self.runs_y) as f64
    }
}

/// The probability over games that both played, `x[game]` and `y[game]` holding their runs, and its interval where every game has two runs
/// of both.
pub fn improvement(
    x: &[&[f64]],
    y: &[&[f64]],
    randomness: &Randomness,
    purpose: &str,
    replicates: usize,
) -> (f64, Option<[f64; 2]>) {
    let duels: Vec<Duel> = x.iter().zip(y).map(|(x, y)| Duel::new(x, y)).collect();
    let mean = |probabilities: &mut dyn Iterator<Item = f64>| probabilities.sum::<f64>() / duels.len() as f64;
    let whole = |runs: usize| (0..runs as u32).collect::<Vec<u32>>();
    let estimate =
        mean(&mut duels.iter().map(|duel| duel.probability(&whole(duel.runs_x), &whole(duel.runs_y))));
    if x.iter().chain(y).any(|runs| runs.len() < 2) {
        return (estimate, None);
    }
    // All draws of X come before those of Y.
    let ((cells_x, mut bounds), (cells_y, bounds_y)) = (cells(x), cells(y));
    bounds.extend(&bounds_y);
    let mut results = randomness.replicates(purpose, &bounds, replicates, |draws| {
        let (draws_x, draws_y) = draws.split_at(cells_x.len());
        let x = by_game(duels.len(), &cells_x, draws_x);
        let y = by_game(duels.len(), &cells_y, draws_y);
        mean(&mut duels.iter().zip(x.iter().zip(&y)).map(|(duel, (x, y))| duel.probability(x, y)))
    });
    (estimate, Some(interval(&mut results)))
}

fn by_game(games: usize, cells: &[u32], draws: &[u32]) -> Vec<Vec<u32>> {
    let mut chosen = vec![Vec::new(); games];
    for (&game, &run) in cells.iter().zip(draws) {
        chosen[game as usize].push(run);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resample::Rng;

    fn probability(x: &[&[f64]], y: &[&[f64]]) -> (f64, Option<[f64; 2]>) {
        improvement(x, y, &Randomness::new(Rng::Fast, 0, &|_, _, _| {}).unwrap(), "", 100)
    }

    #[test]
    fn small_cases() {
        assert_eq!(probability(&[&[2.0]], &[&[1.0]]).0, 1.0);
        assert_eq!(probability(&[&[1.0]], &[&[2.0]]).0, 0.0);
        assert_eq!(probability(&[&[1.0]], &[&[1.0]]).0, 0.5);
        // 3 beats both, 1 ties with one and loses to the other: 2.5 of 4.
        assert_eq!(probability(&[&[3.0, 1.0]], &[&[1.0, 2.0]]).0, 0.625);
        // scipy.stats.mannwhitneyu([1, 4, 4], [4, 2], alternative="greater").statistic / 6
        assert_eq!(probability(&[&[1.0, 4.0, 4.0]], &[&[4.0, 2.0]]).0, 0.5);
    }

    #[test]
    fn games_count_equally() {
        assert_eq!(probability(&[&[2.0, 2.0, 2.0], &[0.0, 0.0]], &[&[1.0, 1.0], &[1.0, 1.0]]).0, 0.5);
    }

    #[test]
    fn one_run_gives_no_interval() {
        assert_eq!(probability(&[&[2.0]], &[&[1.0, 3.0]]).1, None);
        assert_eq!(probability(&[&[2.0, 2.5]], &[&[1.0, 1.5]]).1, Some([1.0, 1.0]));
    }
}
