//! The readers of scores without what every report begins with, for `fuzz/`.

use std::path::Path;
use std::sync::LazyLock;

use crate::agents::published;
use crate::games::Games;
use crate::input::{Gathered, Request, own_agents};
use crate::{Report, ReportError, Settings};

static GAMES: LazyLock<Option<Games>> = LazyLock::new(|| published().ok().map(|(games, _)| games));

fn games() -> Result<Games, ReportError> {
    GAMES.clone().ok_or(ReportError::NoAgents)
}

/// The report on a score file, an output of `iris eval` or a run folder, and on nothing else.
pub fn scores(path: &Path, settings: Settings) -> Result<Report, ReportError> {
    let (games, mut notes) = (games()?, Vec::new());
    let (inputs, name) = (vec![path.to_path_buf()], "ours".to_string());
    let request =
        Request { inputs, agents: None, name, references: None, variants: Vec::new(), built_in: Vec::new() };
    let agents = own_agents(&request, &games, &mut notes)?;
    Report::new(Gathered { games, agents, notes }, settings)
}

/// What a score is worth by a file of references.
pub fn references(path: &Path, game: &str, score: f64) -> Result<Option<f64>, ReportError> {
    let mut games = games()?;
    games.add_file(path)?;
    Ok(games.get(&games.canonical(game)).map(|reference| reference.normalise(score)))
}
