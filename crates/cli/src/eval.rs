//! `iris eval`: how well an agent plays.

use std::fmt::Write;
use std::path::Path;

use agent::{Player, evaluation_seed};
use anyhow::Result;
use engine::Key;
use envs::Game;

use crate::args::{EvalArgs, PlayerArgs};
use crate::output::say;
use crate::progress::Progress;
use crate::source::Source;
use crate::words::counted;

pub fn run(args: EvalArgs) -> Result<()> {
    let Source { device, agent, game, .. } = Source::load(&args.player)?;
    let mut player = Player::new(&device, &agent, args.episodes.min(32))?;
    let key = Key::new(evaluation_seed(args.player.seed), 1);
    let progress = Progress::new("games", args.episodes);
    let returns = player.evaluate(&agent, &game, args.episodes, args.player.temperature, key, |done| {
        progress.set(done);
        true
    })?;
    drop(progress);
    match args.json {
        true => {
            let PlayerArgs { run, temperature, seed, .. } = &args.player;
            say!("{}", json(&game, run, *temperature, *seed, &returns));
        }
        false => {
            let (temperature, seed) = (args.player.temperature, args.player.seed);
            let games = counted(returns.len(), "game");
            say!("{}, {games} at temperature {temperature}, seed {seed}", game.name);
            say!("{}", table(&game, &returns).trim_end());
        }
    }
    Ok(())
}

fn mean(returns: &[f32]) -> f32 {
    returns.iter().sum::<f32>() / returns.len() as f32
}

/// Of the mean. One game says nothing about the spread.
fn standard_error(returns: &[f32]) -> Option<f32> {
    let (count, mean) = (returns.len() as f32, mean(returns));
    let spread = returns.iter().map(|r| (r - mean).powi(2)).sum::<f32>() / (count - 1.0);
    (returns.len() > 1).then(|| (spread / count).sqrt())
}

/// What `iris report` reads.
pub fn json(game: &Game, run: &Path, temperature: f32, seed: u64, returns: &[f32]) -> serde_json::Value {
    let mean = mean(returns);
    serde_json::json!({
        "env": game.name,
        "run": run.display().to_string(),
        "episodes": returns.len(),
        "temperature": temperature,
        "seed": seed,
        "mean": mean,
        "standard_error": standard_error(returns),
        "progress": game.progress(mean),
        "returns": returns,
    })
}

/// The returns beside those of random and skilled play.
fn table(game: &Game, returns: &[f32]) -> String {
    let mut sorted = returns.to_vec();
    sorted.sort_by(f32::total_cmp);
    let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    let mean = mean(returns);
    let error =
        standard_error(returns).map_or(String::new(), |error| format!("  +- {error:.2} (standard error)"));
    let mut out = String::new();
    let mut row = |name: &str, value: f32, note: &str| {
        let _ = writeln!(out, "  {name:<14} {value:>10.2}{note}");
    };
    row("mean return", mean, &error);
    if sorted.len() > 1 {
        row("median", median, "");
        row("lowest", sorted[0], "");
        row("highest", sorted[sorted.len() - 1], "");
    }
    row("random play", game.random, "");
    row(&format!("{} play", game.yardstick), game.skilled, "");
    let percent = 100.0 * game.progress(mean);
    let _ = writeln!(out, "{percent:.1}% of the way from random to {} play", game.yardstick);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_for_people() {
        let catch = Game::find("arcade/catch").unwrap();
        let text = table(&catch, &[5.0, 3.0, 5.0, 1.0]);
        let expected = [
            "  mean return          3.50  +- 0.96 (standard error)",
            "  median               4.00",
            "  lowest               1.00",
            "  highest              5.00",
            "  random play         -2.55",
            "  perfect play         5.00",
            "80.1% of the way from random to perfect play",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert!(table(&catch, &[5.0]).starts_with("  mean return          5.00\n  random play"));
    }
}
