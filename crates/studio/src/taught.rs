//! Games that people played, written as episodes that a run can begin with: `taught/GAME/0001.npz` under the studio's folder, or beside it where it is a
//! run.

use std::path::{Path, PathBuf};

use agent::PlayedGame;
use agent::train::Run;
use envs::Game;
use serde_json::{Value, json};

use crate::problem::Problem;

const FOLDER: &str = "taught";
/// Frame sizes that a tokenizer can have; the largest keeps a mistyped one from filling the disk.
const SIZES: std::ops::RangeInclusive<usize> = 8..=256;

/// The folder of all games. Nothing is written into a run.
fn place(root: &Path) -> PathBuf {
    let parent = root.parent().filter(|_| Run::is_in(root));
    parent.unwrap_or(root).join(FOLDER)
}

/// Writes games to the next free files of their folder, and says how to train with them.
pub fn save(root: &Path, game: &Game, games: &[PlayedGame], size: usize) -> Result<Value, Problem> {
    if !SIZES.contains(&size) {
        let (least, most) = (SIZES.start(), SIZES.end());
        return Err(Problem::bad_request(format!(
            "frames have from {least} to {most} pixels a side, not {size}"
        )));
    }
    let played: Vec<&PlayedGame> = games.iter().filter(|game| !game.actions.is_empty()).collect();
    if played.is_empty() {
        return Err(Problem::bad_request("nothing was played yet"));
    }
    let folder = place(root).join(&game.name);
    std::fs::create_dir_all(&folder).map_err(Problem::internal)?;
    let (mut episodes, mut steps) = (0, 0);
    let mut number = 1;
    for played in played {
        let mut file = folder.join(format!("{number:04}.npz"));
        while file.exists() {
            number += 1;
            file = folder.join(format!("{number:04}.npz"));
        }
        let (more, further) = played.write(game, size, &file).map_err(Problem::internal)?;
        (episodes, steps) = (episodes + more, steps + further);
    }
    let shown = folder.display().to_string();
    let folder = if shown.contains(' ') { format!("'{shown}'") } else { shown };
    Ok(json!({
        "type": "saved",
        "folder": folder,
        "episodes": episodes,
        "steps": steps,
        "command": format!("iris train --env {} --replay {folder}", game.name),
    }))
}
