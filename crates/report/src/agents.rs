//! Agents: their scores per game, and the published ones that are shipped with the program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ReportError;
use crate::games::{Games, Reference};

/// How an agent's numbers are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Agent,
    /// Looks ahead with a search at every decision.
    Search,
    /// Random play, or a human.
    Reference,
}

/// The runs of one game, in raw points and normalised.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Runs {
    pub scores: Vec<f64>,
    pub normalised: Vec<f64>,
}

/// An evaluation during training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub steps: f64,
    pub normalised: f64,
}

#[derive(Clone, Debug)]
pub struct Agent {
    pub name: String,
    pub source: String,
    pub kind: Kind,
    pub published: bool,
    pub games: BTreeMap<String, Runs>,
    /// Evaluations over training, per game and run; empty where only final scores are known.
    pub curves: BTreeMap<String, Vec<Vec<Point>>>,
}

impl Agent {
    /// The normalised scores of every game.
    pub fn normalised(&self) -> Vec<&[f64]> {
        self.games.values().map(|runs| runs.normalised.as_slice()).collect()
    }

    pub fn fewest_runs(&self) -> usize {
        self.games.values().map(|runs| runs.scores.len()).min().unwrap_or(0)
    }

    pub fn most_runs(&self) -> usize {
        self.games.values().map(|runs| runs.scores.len()).max().unwrap_or(0)
    }

    /// Published as one mean per game, without its runs.
    pub fn means_only(&self) -> bool {
        self.published && self.most_runs() == 1
    }
}

/// The columns of the paper's table.
pub const PAPER: [&str; 7] = ["MuZero", "EfficientZero", "SimPLe", "CURL", "DrQ", "SPR", "IRIS"];

/// `published.json`: scores[game][run], games in the order of the list; no runs where an agent did not play.
#[derive(Deserialize)]
struct File {
    games: Vec<String>,
    agents: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    source: String,
    kind: Kind,
    scores: Vec<Vec<f64>>,
}

/// The published agents, and the games with their references.
pub fn published() -> Result<(Games, Vec<Agent>), ReportError> {
    let file: File =
        serde_json::from_str(include_str!("../data/published.json")).map_err(ReportError::Published)?;
    let reference = |name: &str, game: usize| -> f64 {
        file.agents.iter().find(|entry| entry.name == name).map_or(f64::NAN, |entry| entry.scores[game][0])
    };
    let references: BTreeMap<String, Reference> = file
        .games
        .iter()
        .enumerate()
        .map(|(game, name)| {
            let reference = Reference { random: reference("Random", game), human: reference("Human", game) };
            (name.clone(), reference)
        })
        .collect();
    let agents = file
        .agents
        .into_iter()
        .map(|entry| {
            let played =
                file.games.iter().cloned().zip(entry.scores).filter(|(_, scores)| !scores.is_empty());
            let games = played.map(|(game, scores)| {
                let normalised = scores.iter().map(|&score| references[&game].normalise(score)).collect();
                (game, Runs { scores, normalised })
            });
            Agent {
                name: entry.name,
                source: entry.source,
                kind: entry.kind,
                published: true,
                games: games.collect(),
                curves: BTreeMap::new(),
            }
        })
        .collect();
    Ok((Games::new(references), agents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{aggregates, mean, superhuman};

    fn agent(name: &str) -> Agent {
        published().unwrap().1.into_iter().find(|agent| agent.name == name).unwrap()
    }

    #[test]
    fn published_agents_played_the_26_games() {
        let (_, agents) = published().unwrap();
        let runs: Vec<(&str, usize)> =
            agents.iter().map(|agent| (agent.name.as_str(), agent.fewest_runs())).collect();
        let expected = [
            ("Random", 1),
            ("Human", 1),
            ("MuZero", 1),
            ("EfficientZero", 1),
            ("SimPLe", 5),
            ("CURL", 100),
            ("DrQ", 100),
            ("SPR", 100),
            ("IRIS", 5),
            ("IRIS-64", 1),
            ("TWM", 5),
            ("STORM", 5),
            ("REM", 5),
            ("Delta-IRIS", 5),
            ("DIAMOND", 5),
            ("Simulus", 5),
        ];
        assert_eq!(runs, expected);
        assert!(agents.iter().all(|agent| agent.most_runs() == agent.fewest_runs()));
        let fewer: Vec<(&str, usize)> = agents
            .iter()
            .filter(|agent| agent.games.len() != 26)
            .map(|agent| (agent.name.as_str(), agent.games.len()))
            .collect();
        assert_eq!(fewer, [("IRIS-64", 3)]);
    }

    #[test]
    fn iris_is_as_published() {
        let iris = agent("IRIS");
        let result = aggregates(&iris.normalised());
        let close =
            |value: f64, expected: f64| assert!((value - expected).abs() < 5e-7, "{value} {expected}");
        close(result.mean, 1.045907);
        close(result.median, 0.288800);
        close(result.iqm, 0.501155);
        close(result.optimality_gap, 0.511664);
        assert_eq!(superhuman(&iris.normalised()), 10);
    }

    // The file has two readings per run; the final one is the paper's, the best one is not.
    #[test]
    fn curl_is_read_as_in_the_paper() {
        let curl = agent("CURL");
        let alien = mean(&curl.games["Alien"].scores);
        assert!((alien - 711.0).abs() < 0.05, "{alien}");
    }
}
