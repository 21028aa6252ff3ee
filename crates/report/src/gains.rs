//! Relative gains: how much better an agent's aggregates are than a baseline's.

use serde::Serialize;

use crate::agents::Agent;
use crate::metrics::{Aggregates, Metric, aggregates, superhuman};
use crate::report::is_human;
use crate::table::per_run;

/// 0.7 is 70% better; for the optimality gap, the share of it that is closed. None where the baseline has nothing to be relative to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gains {
    pub aggregates: Aggregates<Option<f64>>,
    /// Games at human level or above.
    pub superhuman: Option<f64>,
}

impl Gains {
    /// Over the games that both played.
    pub fn new(subject: &Agent, baseline: &Agent) -> Gains {
        let common = |agent: &Agent, other: &Agent, humans: bool| -> Vec<Vec<f64>> {
            let shared = agent.games.iter().filter(|(game, _)| other.games.contains_key(*game));
            let shared = shared.filter(|(game, _)| !humans || is_human(game));
            shared.map(|(_, runs)| runs.normalised.clone()).collect()
        };
        let of = |agent, other| aggregates(&slices(&common(agent, other, false)));
        let (ours, theirs) = (of(subject, baseline), of(baseline, subject));
        let means_only = subject.means_only() || baseline.means_only();
        let gain = |metric: Metric| match metric {
            _ if means_only && per_run(metric) => None,
            _ if metric.lower_is_better() => relative(theirs[metric] - ours[metric], theirs[metric]),
            _ => relative(ours[metric] - theirs[metric], theirs[metric]),
        };
        let above = |agent, other| superhuman(&slices(&common(agent, other, true))) as f64;
        let (ours, theirs) = (above(subject, baseline), above(baseline, subject));
        Gains {
            aggregates: Aggregates {
                mean: gain(Metric::Mean),
                median: gain(Metric::Median),
                iqm: gain(Metric::Iqm),
                optimality_gap: gain(Metric::OptimalityGap),
            },
            superhuman: relative(ours - theirs, theirs),
        }
    }
}

fn slices(games: &[Vec<f64>]) -> Vec<&[f64]> {
    games.iter().map(Vec::as_slice).collect()
}

fn relative(change: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| change / base)
}
