//! Errors of the report.

use std::path::PathBuf;

use thiserror::Error;

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not JSON: {source}")]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("{path} holds NaN or Infinity, which are no scores")]
    NotFinite { path: PathBuf },
    #[error(
        "{path} is neither scores, {{\"Game\": [score per run, ...]}}, nor the output of `iris eval`: {why}"
    )]
    Format { path: PathBuf, why: String },
    #[error("{path}: run {run} of {game} is {found}, not a score")]
    NotAScore { path: PathBuf, game: String, run: usize, found: String },
    #[error("{path} names {game} twice")]
    RepeatedGame { path: PathBuf, game: String },
    #[error("{path}: no random and human score for {games}")]
    UnknownGames { path: PathBuf, games: String },
    #[error("{path} holds no scores")]
    NoScores { path: PathBuf },
    #[error("no run (a folder with metrics.jsonl) in {path}")]
    NoRuns { path: PathBuf },
    #[error("{path}, line {line}: {why}")]
    Metrics { path: PathBuf, line: usize, why: String },
    #[error("{path} is not what the run wrote: it is damaged, was edited or lost lines")]
    Changed { path: PathBuf },
    #[error("{path}: {why}")]
    Config { path: PathBuf, why: String },
    #[error(
        "{path}: {game} must be [random, human], two different numbers; a human (or perfect) player scores more"
    )]
    Reference { path: PathBuf, game: String },
    #[error("two agents are called {name}")]
    RepeatedAgent { name: String },
    #[error("no published agent is called {name}; there are {known}, all and none")]
    UnknownAgent { name: String, known: String },
    #[error("nothing to report: no agent was given or selected")]
    NoAgents,
    #[error("numpy's seeds end at 4294967295, not {seed}")]
    NumpySeed { seed: u64 },
    #[error("cannot start threads for the bootstrap: {0}")]
    Threads(String),
    #[error("at least one replicate is needed")]
    NoReplicates,
    #[error("the published scores shipped with the program are damaged: {0}")]
    Published(serde_json::Error),
    #[error("cannot encode a picture: {0}")]
    Png(#[from] png::EncodingError),
    #[error("cannot write the report as JSON: {0}")]
    Json(serde_json::Error),
}
