//! All statistics of a report, in the shape that `report.json` has.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::ReportError;
use crate::agents::{Agent, Kind, Point};
use crate::bootstrap::{Bootstrap, curve, profile};
use crate::gains::Gains;
use crate::games::Games;
use crate::improvement::improvement;
use crate::input::Gathered;
use crate::metrics::{Aggregates, aggregates, mean, superhuman};
use crate::resample::{CONFIDENCE, Randomness, Rng, Watcher};
use crate::variants::VariantTable;

/// How the intervals are made.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Settings {
    /// Of the aggregates; profiles and curves use at most 2,000 of them, probabilities of improvement 1,000.
    pub replicates: usize,
    pub seed: u64,
    pub rng: Rng,
}

/// A number and its 95% interval, where there are runs enough for one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    /// The mean of finite scores that runs of one game reached; `purpose` keeps the draws of several estimates independent.
    pub fn of_mean(scores: &[f64], purpose: &str, settings: Settings) -> Result<Estimate, ReportError> {
        let randomness = Randomness::new(settings.rng, settings.seed, &|_, _, _| {})?;
        let interval = Bootstrap::new(&[scores])
            .map(|bootstrap| bootstrap.aggregates(&randomness, purpose, settings.replicates).mean);
        Ok(Estimate { value: mean(scores), interval })
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub settings: Settings,
    pub confidence: f64,
    pub games: Vec<GameReference>,
    pub agents: Vec<AgentReport>,
    /// The thresholds of every profile.
    pub taus: Vec<f64>,
    pub improvement: Option<Improvements>,
    /// Tables 7 and 8 of the paper, where they are asked for.
    pub variants: Vec<VariantTable>,
    pub notes: Vec<String>,
}

/// A game and the scores that normalise it, where they are known.
#[derive(Debug, Serialize)]
pub struct GameReference {
    pub game: String,
    pub random: Option<f64>,
    /// What a normalised score of 1 stands for: a human, or for built-in games a perfect player.
    pub skilled: Option<f64>,
    /// The same where it is a human.
    pub human: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct AgentReport {
    pub name: String,
    pub source: String,
    pub kind: Kind,
    /// One of the agents that come with the program.
    pub published: bool,
    /// Published as one mean per game: interquartile mean, optimality gap and profile are those of the means.
    pub means_only: bool,
    pub fewest_runs: usize,
    pub most_runs: usize,
    pub missing_games: Vec<String>,
    /// Games whose mean is a human's or better; games without a human score do not count.
    pub superhuman: usize,
    pub aggregates: Aggregates<Estimate>,
    pub profile: Vec<Estimate>,
    /// The interquartile mean over training.
    pub curve: Vec<CurvePoint>,
    pub games: BTreeMap<String, GameReport>,
}

#[derive(Debug, Serialize)]
pub struct GameReport {
    pub mean: f64,
    pub normalised_mean: f64,
    pub scores: Vec<f64>,
    pub normalised: Vec<f64>,
}

#[derive(Debug, Serialize)]
pub struct CurvePoint {
    pub steps: f64,
    pub iqm: Estimate,
}

/// How likely `subject` beats each of the others.
#[derive(Debug, Serialize)]
pub struct Improvements {
    pub subject: String,
    pub over: Vec<Improvement>,
}

#[derive(Debug, Serialize)]
pub struct Improvement {
    pub agent: String,
    /// Games that both played.
    pub games: usize,
    pub probability: Estimate,
    /// How much better the subject's aggregates are.
    pub gains: Gains,
}

const PROFILE_REPLICATES: usize = 2_000;
const IMPROVEMENT_REPLICATES: usize = 1_000;

/// 0 to 8 in 201 points.
fn taus() -> Vec<f64> {
    (0..=200).map(|i| i as f64 / 25.0).collect()
}

impl Report {
    pub fn new(gathered: Gathered, settings: Settings) -> Result<Report, ReportError> {
        Report::watched(gathered, settings, &|_, _, _| {})
    }

    /// The same, for someone who waits.
    pub fn watched(gathered: Gathered, settings: Settings, watcher: Watcher) -> Result<Report, ReportError> {
        if settings.replicates == 0 {
            return Err(ReportError::NoReplicates);
        }
        let randomness = Randomness::new(settings.rng, settings.seed, watcher)?;
        on_threads(|| Report::compute(gathered, settings, &randomness))
    }

    fn compute(gathered: Gathered, settings: Settings, randomness: &Randomness) -> Report {
        let Gathered { games, agents, mut notes } = gathered;
        let played: BTreeSet<&String> = agents.iter().flat_map(|agent| agent.games.keys()).collect();
        let taus = taus();
        let reports = agents
            .iter()
            .map(|agent| AgentReport::new(agent, &played, &taus, &settings, randomness, &mut notes))
            .collect();
        let improvement = improvements(&agents, &settings, randomness, &mut notes);
        let games = played.iter().map(|game| reference(game, &games)).collect();
        Report {
            settings,
            confidence: CONFIDENCE,
            games,
            agents: reports,
            taus,
            improvement,
            variants: Vec::new(),
            notes,
        }
    }

    /// Whether scores are measured against humans throughout.
    pub fn human_normalised(&self) -> bool {
        self.games.iter().all(|game| game.human.is_some())
    }

    /// Whether any score is measured against humans.
    pub fn has_humans(&self) -> bool {
        self.games.iter().any(|game| game.human.is_some())
    }

    /// Whether an agent is the user's own among published ones.
    pub fn is_apart(&self, agent: &AgentReport) -> bool {
        !agent.published && self.agents.iter().any(|other| other.published)
    }

    pub fn has_curves(&self) -> bool {
        self.agents.iter().any(|agent| agent.curve.len() > 1)
    }
}

/// Runs `work` with a thread per core, or on this one where the system does not let others start. (The global pool of rayon would panic.)
fn on_threads<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, ReportError> {
    let threads = || rayon::ThreadPoolBuilder::new();
    let pool = threads().build().or_else(|_| threads().num_threads(1).use_current_thread().build());
    Ok(pool.map_err(|error| ReportError::Threads(error.to_string()))?.install(work))
}

fn reference(game: &str, games: &Games) -> GameReference {
    let reference = games.get_any(game);
    let skilled = reference.map(|reference| reference.human);
    GameReference {
        game: game.to_string(),
        random: reference.map(|reference| reference.random),
        skilled,
        human: skilled.filter(|_| is_human(game)),
    }
}

/// Whether the references of a game are human: those of `arcade/catch` and of users' games are not.
pub fn is_human(game: &str) -> bool {
    !game.contains('/')
}

impl AgentReport {
    fn new(
        agent: &Agent,
        played: &BTreeSet<&String>,
        taus: &[f64],
        settings: &Settings,
        randomness: &Randomness,
        notes: &mut Vec<String>,
    ) -> AgentReport {
        let name = &agent.name;
        let games = agent.normalised();
        let against_humans: Vec<&[f64]> = agent
            .games
            .iter()
            .filter(|(game, _)| is_human(game))
            .map(|(_, runs)| runs.normalised.as_slice())
            .collect();
        let bootstrap = Bootstrap::new(&games);
        let values = aggregates(&games);
        let intervals = bootstrap.as_ref().map(|bootstrap| {
            bootstrap.aggregates(randomness, &format!("{name}/aggregates"), settings.replicates)
        });
        let estimate = |value: f64, of: fn(&Aggregates<[f64; 2]>) -> [f64; 2]| Estimate {
            value,
            interval: intervals.as_ref().map(of),
        };
        let replicates = settings.replicates.min(PROFILE_REPLICATES);
        let bands = bootstrap
            .as_ref()
            .map(|bootstrap| bootstrap.profile(randomness, &format!("{name}/profile"), replicates, taus));
        let profile = profile(&games, taus).into_iter().enumerate();
        let missing: Vec<String> = played
            .iter()
            .filter(|game| !agent.games.contains_key(**game))
            .map(|game| game.to_string())
            .collect();
        remarks(agent, &missing, played.len(), notes);
        AgentReport {
            name: name.clone(),
            source: agent.source.clone(),
            kind: agent.kind,
            means_only: agent.means_only(),
            fewest_runs: agent.fewest_runs(),
            most_runs: agent.most_runs(),
            missing_games: missing,
            published: agent.published,
            superhuman: superhuman(&against_humans),
            aggregates: Aggregates {
                mean: estimate(values.mean, |intervals| intervals.mean),
                median: estimate(values.median, |intervals| intervals.median),
                iqm: estimate(values.iqm, |intervals| intervals.iqm),
                optimality_gap: estimate(values.optimality_gap, |intervals| intervals.optimality_gap),
            },
            profile: profile
                .map(|(i, value)| Estimate { value, interval: bands.as_ref().map(|bands| bands[i]) })
                .collect(),
            curve: training_curve(agent, randomness, replicates),
            games: agent.games.iter().map(|(game, runs)| (game.clone(), GameReport::new(runs))).collect(),
        }
    }
}

impl GameReport {
    fn new(runs: &crate::agents::Runs) -> GameReport {
        GameReport {
            mean: mean(&runs.scores),
            normalised_mean: mean(&runs.normalised),
            scores: runs.scores.clone(),
            normalised: runs.normalised.clone(),
        }
    }
}

/// What a reader must know to read the numbers right.
fn remarks(agent: &Agent, missing: &[String], played: usize, notes: &mut Vec<String>) {
    let name = &agent.name;
    if !missing.is_empty() {
        let has: Vec<&str> = agent.games.keys().map(String::as_str).collect();
        let (word, games) = match missing.len() > has.len() {
            true => ("it has", has.join(", ")),
            false => ("missing are", missing.join(", ")),
        };
        notes.push(format!(
            "{name}: {} of {played} games, so its aggregates do not compare with the others'; {word} {games}",
            has.len()
        ));
    }
    let (fewest, most) = (agent.fewest_runs(), agent.most_runs());
    if agent.means_only() {
        notes.push(format!(
            "{name}: published as means, so no intervals; IQM and optimality gap are those of the means"
        ));
    } else if fewest < 2 {
        let single: Vec<&str> = agent
            .games
            .iter()
            .filter(|(_, runs)| runs.scores.len() < 2)
            .map(|(game, _)| game.as_str())
            .collect();
        let games =
            if single.len() == agent.games.len() { "every game".to_string() } else { single.join(", ") };
        notes.push(format!(
            "{name}: too few runs for an interval; one run of {games}, two are the least, five are usual"
        ));
    } else if fewest < 3 {
        notes.push(format!("{name}: only two runs of some game; its intervals are likely too narrow"));
    }
    if most != fewest {
        notes.push(format!(
            "{name}: {fewest} to {most} runs per game; games with more weigh more in IQM, gap and profile"
        ));
    }
}

/// The evaluations of all runs at the steps where every run has one behind it and none has ended.
fn training_curve(agent: &Agent, randomness: &Randomness, replicates: usize) -> Vec<CurvePoint> {
    let runs = || agent.curves.values().flatten();
    let first = runs().map(|points| points[0].steps).fold(0.0, f64::max);
    let last = runs().map(|points| points[points.len() - 1].steps).fold(f64::INFINITY, f64::min);
    let mut steps: Vec<f64> =
        runs().flatten().map(|point| point.steps).filter(|steps| (first..=last).contains(steps)).collect();
    steps.sort_unstable_by(f64::total_cmp);
    steps.dedup();
    let columns: Vec<Vec<Vec<f64>>> = agent
        .curves
        .values()
        .map(|runs| steps.iter().map(|&steps| runs.iter().map(|run| latest(run, steps)).collect()).collect())
        .collect();
    let estimates = curve(&columns, randomness, &format!("{}/curve", agent.name), replicates);
    let point =
        |(&steps, (value, interval)): (&f64, _)| CurvePoint { steps, iqm: Estimate { value, interval } };
    steps.iter().zip(estimates).map(point).collect()
}

/// The newest evaluation at some step.
fn latest(points: &[Point], steps: f64) -> f64 {
    points[points.partition_point(|point| point.steps <= steps).max(1) - 1].normalised
}

/// Our own agent against the others, or else IRIS, or else the last.
fn improvements(
    agents: &[Agent],
    settings: &Settings,
    randomness: &Randomness,
    notes: &mut Vec<String>,
) -> Option<Improvements> {
    let own = agents.iter().find(|agent| !agent.published);
    let subject = own.or(agents.iter().find(|agent| agent.name == "IRIS")).or(agents.last())?;
    let mut over = Vec::new();
    for agent in agents.iter().filter(|agent| agent.name != subject.name) {
        let (x, y): (Vec<&[f64]>, Vec<&[f64]>) = subject
            .games
            .iter()
            .filter_map(|(game, runs)| {
                Some((runs.normalised.as_slice(), agent.games.get(game)?.normalised.as_slice()))
            })
            .unzip();
        if x.is_empty() {
            notes.push(format!("{} and {} have no game in common", subject.name, agent.name));
            continue;
        }
        let purpose = format!("{}/improves on/{}", subject.name, agent.name);
        let replicates = settings.replicates.min(IMPROVEMENT_REPLICATES);
        let (value, interval) = improvement(&x, &y, randomness, &purpose, replicates);
        let probability = Estimate { value, interval };
        let gains = Gains::new(subject, agent);
        over.push(Improvement { agent: agent.name.clone(), games: x.len(), probability, gains });
    }
    (!over.is_empty()).then(|| Improvements { subject: subject.name.clone(), over })
}
