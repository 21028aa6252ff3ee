//! From what was asked for to a list of agents: published ones, score files, and our own runs grouped into one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use crate::ReportError;
use crate::agents::{Agent, Kind, PAPER, published};
use crate::games::Games;
use crate::runs::{self, Run};
use crate::scores::{self, Evaluation, Scores};

/// What to report on.
#[derive(Clone, Debug)]
pub struct Request {
    /// Score files, outputs of `iris eval`, run folders, folders of run folders.
    pub inputs: Vec<PathBuf>,
    /// Published agents; the paper's if not given.
    pub agents: Option<Vec<String>>,
    /// Folders of run folders that are an agent each, with their names: runs of the same games and seeds with other settings.
    pub variants: Vec<(String, PathBuf)>,
    /// What the runs and evaluations together are called.
    pub name: String,
    /// More games: `{"Game": [random, human]}`.
    pub references: Option<PathBuf>,
    /// Games that come with the program, and what random and perfect play score.
    pub built_in: Vec<(String, [f64; 2])>,
}

/// Agents in the order they are shown, and what the reader should know about them.
pub struct Gathered {
    pub games: Games,
    pub agents: Vec<Agent>,
    pub notes: Vec<String>,
}

pub fn gather(request: &Request) -> Result<Gathered, ReportError> {
    let (mut games, published) = published()?;
    let mut notes = Vec::new();
    request.built_in.iter().for_each(|(game, scores)| games.add_built_in(game, *scores));
    if let Some(path) = &request.references {
        notes = games.add_file(path)?;
    }
    let mut own = own_agents(request, &games, &mut notes)?;
    let mut names = HashSet::new();
    if let Some(agent) = own.iter().find(|agent| !names.insert(agent.name.clone())) {
        return Err(ReportError::RepeatedAgent { name: agent.name.clone() });
    }
    let mut agents = selected(request, published, &own, &mut notes)?;
    agents.retain(|agent| {
        let shadowed = names.contains(&agent.name);
        if shadowed {
            notes.push(format!(
                "{}: yours is shown instead of the published one of the same name",
                agent.name
            ));
        }
        !shadowed
    });
    agents.append(&mut own);
    match agents.is_empty() {
        true => Err(ReportError::NoAgents),
        false => Ok(Gathered { games, agents, notes }),
    }
}

/// The published agents that were asked for; by default the paper's, unless none of our games is theirs.
fn selected(
    request: &Request,
    published: Vec<Agent>,
    own: &[Agent],
    notes: &mut Vec<String>,
) -> Result<Vec<Agent>, ReportError> {
    let published: Vec<Agent> = published.into_iter().filter(|agent| agent.kind != Kind::Reference).collect();
    let plain = |name: &str| name.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let Some(names) = &request.agents else {
        let shared =
            own.iter().any(|agent| agent.games.keys().any(|game| published[0].games.contains_key(game)));
        if !own.is_empty() && !shared {
            notes.push("the published agents are left out: they played none of these games".to_string());
            return Ok(Vec::new());
        }
        return Ok(published.into_iter().filter(|agent| PAPER.contains(&agent.name.as_str())).collect());
    };
    let known = || published.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut chosen: Vec<Agent> = Vec::new();
    for name in names {
        let matches: Vec<&Agent> = match plain(name).as_str() {
            // Aggregates over fewer games are of another benchmark.
            "all" => published.iter().filter(|agent| agent.games.len() == published[0].games.len()).collect(),
            "none" => continue,
            name => published.iter().filter(|agent| plain(&agent.name) == name).collect(),
        };
        if matches.is_empty() {
            return Err(ReportError::UnknownAgent { name: name.clone(), known: known() });
        }
        for agent in matches {
            if chosen.iter().all(|other| other.name != agent.name) {
                chosen.push(agent.clone());
            }
        }
    }
    Ok(chosen)
}

/// An agent per score file, and one of all runs and evaluations.
pub fn own_agents(
    request: &Request,
    games: &Games,
    notes: &mut Vec<String>,
) -> Result<Vec<Agent>, ReportError> {
    let (mut agents, mut found, mut evaluations) = (Vec::new(), Vec::<Run>::new(), Vec::<Evaluation>::new());
    let mut unreadable = None;
    for path in &request.inputs {
        let folder = match path.file_name().is_some_and(|name| name == "metrics.jsonl") {
            true => path.parent().unwrap_or(path),
            false => path,
        };
        if folder.is_dir() {
            found.extend(load_runs(folder, games, notes, &mut unreadable)?);
            continue;
        }
        match scores::load(path, games)? {
            Scores::Agent(agent, more) => {
                agents.push(agent);
                notes.extend(more);
            }
            Scores::Evaluations(more) => evaluations.extend(more),
        }
    }
    let given = !found.is_empty() || !evaluations.is_empty();
    if given {
        let runs = newest(found, notes);
        agents.insert(0, grouped(&request.name, runs, evaluations, notes));
    }
    for (name, folder) in &request.variants {
        // Those that were not begun yet have no folder, or no run in it.
        let runs = match load_runs(folder, games, notes, &mut unreadable) {
            Err(ReportError::NoRuns { .. } | ReportError::Read { .. }) => Vec::new(),
            loaded => loaded?,
        };
        match runs.is_empty() {
            true => notes.push(format!("{name}: no run was evaluated yet, left out")),
            false => agents.push(grouped(name, newest(runs, notes), Vec::new(), notes)),
        }
    }
    match (request.inputs.iter().chain(request.variants.iter().map(|(_, folder)| folder)).next(), unreadable)
    {
        (Some(_), Some(error)) if agents.is_empty() => Err(error),
        (Some(path), None) if agents.is_empty() => Err(ReportError::NoScores { path: path.clone() }),
        _ => Ok(agents),
    }
}

/// The runs of a folder that were evaluated.
fn load_runs(
    folder: &Path,
    games: &Games,
    notes: &mut Vec<String>,
    unreadable: &mut Option<ReportError>,
) -> Result<Vec<Run>, ReportError> {
    let mut found = Vec::new();
    for folder in runs::find(folder)? {
        match runs::load(&folder, games) {
            Ok(Some(run)) => found.push(run),
            Ok(None) => notes.push(format!("{}: never evaluated, left out", folder.display())),
            // The other runs are as good as before.
            Err(error) => {
                notes.push(format!("{error}; the run is left out"));
                unreadable.get_or_insert(error);
            }
        }
    }
    Ok(found)
}

/// One run per game and seed: a repeated one is the same experiment, so only the newest counts.
fn newest(mut runs: Vec<Run>, notes: &mut Vec<String>) -> Vec<Run> {
    runs.sort_by(|a, b| {
        (&a.game, a.seed).cmp(&(&b.game, b.seed)).then(b.modified.cmp(&a.modified)).then(a.path.cmp(&b.path))
    });
    let mut kept: Vec<Run> = Vec::new();
    for run in runs {
        match kept.last().filter(|last| last.game == run.game && last.seed == run.seed) {
            // The same folder, named twice.
            Some(last) if last.path == run.path => {}
            Some(last) => notes.push(format!(
                "{}: {} with seed {} again; {} is newer and counts instead",
                run.path.display(),
                run.game,
                run.seed,
                last.path.display()
            )),
            None => kept.push(run),
        }
    }
    kept
}

fn grouped(name: &str, runs: Vec<Run>, evaluations: Vec<Evaluation>, notes: &mut Vec<String>) -> Agent {
    let mut agent = Agent {
        name: name.to_string(),
        source: String::new(),
        kind: Kind::Agent,
        published: false,
        games: BTreeMap::new(),
        curves: BTreeMap::new(),
    };
    let counted = |count: usize, what: &str| (count > 0).then(|| format!("{count} {what}"));
    let mut seen = HashSet::new();
    let mut distinct = 0;
    let mut folders: HashSet<(&str, &str)> =
        runs.iter().filter_map(|run| Some((run.game.as_str(), run.path.to_str()?))).collect();
    for evaluation in &evaluations {
        if !seen.insert(&evaluation.fingerprint) {
            notes.push(format!("the same evaluation of {} was given twice and counts once", evaluation.game));
            continue;
        }
        distinct += 1;
        if let Some(run) = &evaluation.run
            && !folders.insert((&evaluation.game, run))
        {
            notes.push(format!(
                "an evaluation of {} in {run}, of which there is a score already: if both are of the same run, give one of them",
                evaluation.game
            ));
        }
        let entry = agent.games.entry(evaluation.game.clone()).or_default();
        entry.scores.push(evaluation.score);
        entry.normalised.push(evaluation.normalised);
    }
    let sources = [counted(runs.len(), "runs"), counted(distinct, "evaluations")];
    agent.source = sources.into_iter().flatten().collect::<Vec<_>>().join(", ");
    for run in runs {
        if let Some((done, planned)) = run.unfinished {
            let path = run.path.display();
            notes.push(format!("{path}: epoch {done} of {planned}; its score is that of an unfinished run"));
        }
        let entry = agent.games.entry(run.game.clone()).or_default();
        entry.scores.push(run.score);
        entry.normalised.push(run.normalised);
        if !run.points.is_empty() {
            agent.curves.entry(run.game).or_default().push(run.points);
        }
    }
    agent
}
