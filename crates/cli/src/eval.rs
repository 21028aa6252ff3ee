//! `iris eval`: whole games with a trained agent.

use agent::{Player, evaluation_seed};
use anyhow::Result;
use engine::Key;

use crate::args::EvalArgs;
use crate::output::{say, tell};
use crate::progress::Progress;
use crate::source::Source;

pub fn run(args: EvalArgs) -> Result<()> {
    let Source { device, agent, game } = Source::load(&args.player)?;
    let mut player = Player::new(&device, &agent, args.episodes.min(32))?;
    let key = Key::new(evaluation_seed(args.player.seed), 1);
    let progress = Progress::new("games", args.episodes);
    let mut said = 0;
    let returns = player.evaluate(&agent, &game, args.episodes, args.player.temperature, key, |done| {
        progress.set(done);
        if !progress.is_shown() && done > said && (done == args.episodes || done - said >= 10) {
            tell!("{done} of {} games", args.episodes);
            said = done;
        }
        true
    })?;
    drop(progress);
    let count = returns.len() as f32;
    let mean = returns.iter().sum::<f32>() / count;
    // One game says nothing about their spread.
    let spread = returns.iter().map(|r| (r - mean).powi(2)).sum::<f32>() / (count - 1.0);
    let standard_error = (returns.len() > 1).then(|| (spread / count).sqrt());
    let result = serde_json::json!({
        "env": game.name,
        "run": args.player.run.display().to_string(),
        "episodes": args.episodes,
        "temperature": args.player.temperature,
        "seed": args.player.seed,
        "mean": mean,
        "standard_error": standard_error,
        "progress": game.progress(mean),
        "returns": returns,
    });
    say!("{result}");
    Ok(())
}
