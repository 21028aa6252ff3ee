//! Score files, and what `iris eval` prints.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::ReportError;
use crate::agents::{Agent, Kind, Runs};
use crate::games::Games;

/// What a JSON file turned out to be.
pub enum Scores {
    /// `{"Game": [score per run, ...]}`, with remarks about it.
    Agent(Agent, Vec<String>),
    /// One evaluation after the other.
    Evaluations(Vec<Evaluation>),
}

/// One run's score, as `iris eval` prints it.
#[derive(Debug, PartialEq)]
pub struct Evaluation {
    pub game: String,
    pub score: f64,
    pub normalised: f64,
    /// Folder of the run it is of, as it was named then.
    pub run: Option<String>,
    /// Tells evaluations apart: the same file given twice is one run, not two.
    pub fingerprint: String,
}

/// All JSON values of a file, one after the other.
pub fn read(path: &Path) -> Result<Vec<Value>, ReportError> {
    let text = read_text(path)?;
    let values: Result<Vec<Value>, serde_json::Error> =
        serde_json::Deserializer::from_str(&text).into_iter().collect();
    values.map_err(|source| {
        // Python writes them, JSON does not know them.
        let words = text.split(|c: char| !c.is_ascii_alphabetic());
        match words.into_iter().any(|word| word == "NaN" || word == "Infinity") {
            true => ReportError::NotFinite { path: path.to_path_buf() },
            false => ReportError::NotJson { path: path.to_path_buf(), source },
        }
    })
}

fn read_text(path: &Path) -> Result<String, ReportError> {
    std::fs::read_to_string(path).map_err(|source| ReportError::Read { path: path.to_path_buf(), source })
}

/// Reads a file of either kind.
pub fn load(path: &Path, games: &Games) -> Result<Scores, ReportError> {
    let values = read(path)?;
    let is_evaluation = |value: &Value| value.get("env").is_some_and(Value::is_string);
    if values.iter().any(is_evaluation) {
        let evaluations: Result<_, _> = values.iter().map(|value| evaluation(path, value, games)).collect();
        return Ok(Scores::Evaluations(evaluations?));
    }
    match values.len() {
        0 => Err(ReportError::NoScores { path: path.to_path_buf() }),
        1 => score_file(path, games).map(|(agent, notes)| Scores::Agent(agent, notes)),
        count => Err(format_error(path, format!("it holds {count} JSON values"))),
    }
}

fn format_error(path: &Path, why: impl Into<String>) -> ReportError {
    ReportError::Format { path: path.to_path_buf(), why: why.into() }
}

fn evaluation(path: &Path, value: &Value, games: &Games) -> Result<Evaluation, ReportError> {
    let Some(env) = value.get("env").and_then(Value::as_str) else {
        return Err(format_error(path, "an evaluation has no \"env\""));
    };
    let game = games.played(env);
    let Some(score) = value.get("mean").and_then(Value::as_f64) else {
        return Err(format_error(path, format!("the evaluation of {env} has no number \"mean\"")));
    };
    let progress = value.get("progress").and_then(Value::as_f64);
    let normalised = games.get(&game).map(|reference| reference.normalise(score)).or(progress);
    match normalised {
        Some(normalised) => {
            let run = value.get("run").and_then(Value::as_str).map(str::to_string);
            Ok(Evaluation { game, score, normalised, run, fingerprint: value.to_string() })
        }
        None => Err(ReportError::UnknownGames { path: path.to_path_buf(), games: game }),
    }
}

/// One agent, called after its file.
fn score_file(path: &Path, games: &Games) -> Result<(Agent, Vec<String>), ReportError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let Entries(entries) = serde_json::from_str(&read_text(path)?)
        .map_err(|_| format_error(path, "it is not an object from games to scores"))?;
    let mut agent = Agent {
        source: path.display().to_string(),
        kind: Kind::Agent,
        published: false,
        games: BTreeMap::new(),
        curves: BTreeMap::new(),
        name,
    };
    let (mut notes, mut unknown) = (Vec::new(), Vec::new());
    for (spelling, value) in entries {
        let game = games.canonical(&spelling);
        let Value::Array(list) = value else {
            return Err(format_error(path, format!("{spelling} has no list of scores")));
        };
        let mut scores = Vec::with_capacity(list.len());
        for (run, value) in list.iter().enumerate() {
            let Some(score) = value.as_f64() else {
                let found = value.to_string();
                return Err(ReportError::NotAScore { path: path.to_path_buf(), game, run: run + 1, found });
            };
            scores.push(score);
        }
        if scores.is_empty() {
            notes.push(format!("{}: the list of {game} is empty; the game counts as missing", agent.name));
            continue;
        }
        let Some(reference) = games.get_any(&game) else {
            unknown.push(game);
            continue;
        };
        let normalised = scores.iter().map(|&score| reference.normalise(score)).collect();
        if agent.games.insert(game.clone(), Runs { scores, normalised }).is_some() {
            return Err(ReportError::RepeatedGame { path: path.to_path_buf(), game });
        }
    }
    if !unknown.is_empty() {
        return Err(ReportError::UnknownGames { path: path.to_path_buf(), games: unknown.join(", ") });
    }
    match agent.games.is_empty() {
        true => Err(ReportError::NoScores { path: path.to_path_buf() }),
        false => Ok((agent, notes)),
    }
}

/// An object's entries in order, with repeated keys, which a map would lose.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}
