//! `iris foresee`: how well a world model foresees its game.

use agent::{Foreseen, Foresight, Hits, NextFrame, Stretch};
use anyhow::{Result, bail};
use engine::Key;

use crate::args::{ForeseeArgs, PlayerArgs};
use crate::output::say;
use crate::progress::Progress;
use crate::source::Source;
use crate::words::counted;

/// Steps of a game that are played.
const PLAYED: usize = 1000;
/// Stretches that are dreamt from at a time.
const BATCH: usize = 16;

pub fn run(args: ForeseeArgs) -> Result<()> {
    let Source { device, agent, game, .. } = Source::load(&args.player)?;
    let window = agent.config.world_model.steps;
    let context = args.context.unwrap_or(Foresight::usual_context(&agent).max(2));
    let most = Foresight::most_steps(&agent, context);
    if most == 0 {
        bail!("the world model remembers {window} steps: give it fewer frames than --context {context}");
    }
    let steps = args.steps.unwrap_or(most);
    let PlayerArgs { run, temperature, seed, .. } = &args.player;

    let (mut found, mut used, mut batches) = (Foresight::default(), 0, 0);
    // A game that no stretch is of need not be played.
    let games = args.games.min(args.stretches);
    let progress = Progress::new("games", games);
    for number in 0..games {
        let seed = seed.wrapping_add(number as u64);
        let episodes = Stretch::play_episodes(&device, &agent, &game, *temperature, seed, PLAYED)?;
        let share = |number: usize| args.stretches * number / games;
        let starts = spread(&episodes, context, share(number + 1) - share(number));
        let stretches: Vec<Stretch> =
            starts.iter().map(|(episode, start)| episode.from(*start, context + steps, 0)).collect();
        used += stretches.len();
        for batch in stretches.chunks(BATCH) {
            let key = Key::new(args.player.seed, batches);
            found.add(&Foresight::measure(&device, &agent, batch, (context, steps), key)?);
            batches += 1;
        }
        progress.set(number + 1);
    }
    drop(progress);
    if used == 0 {
        bail!("no episode has {}: give fewer with --context", counted(context, "frame"));
    }
    if args.json {
        say!("{}", json(&game.name, &run.display().to_string(), *seed, context, used, &found));
        return Ok(());
    }
    say!(
        "{}, {} of {}: {} given, {} dreamt with the actions that were taken",
        game.name,
        if used == 1 { "1 stretch".into() } else { format!("{used} stretches") },
        counted(games, "game"),
        counted(context, "frame"),
        counted(steps, "step")
    );
    say!("{}", next_frame(&found.next));
    say!("{}", table(&found).trim_end());
    Ok(())
}

/// At most `count` starts, evenly spread over all steps of all episodes that have `context` steps from them on.
fn spread(episodes: &[Stretch], context: usize, count: usize) -> Vec<(&Stretch, usize)> {
    let starts = |episode: &Stretch| (episode.cells.len() + 1).saturating_sub(context);
    let all: Vec<(&Stretch, usize)> =
        episodes.iter().flat_map(|episode| (0..starts(episode)).map(move |start| (episode, start))).collect();
    let count = count.min(all.len());
    // Each in the middle of its part.
    (0..count).map(|i| all[(2 * i + 1) * all.len() / (2 * count)]).collect()
}

fn share(part: usize, whole: usize) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.1}%", 100.0 * part as f64 / whole as f64),
    }
}

fn next_frame(next: &NextFrame) -> String {
    let NextFrame { tokens, nats, right, changed, changed_right } = *next;
    format!(
        "tokens of the next frame: {:.3} nats; the likeliest is right for {} of {tokens}, and for {} of the {changed} that changed",
        nats / tokens.max(1) as f64,
        share(right, tokens),
        share(changed_right, changed)
    )
}

fn table(found: &Foresight) -> String {
    let hits = |Hits { came, dreamt, both }: Hits| {
        [came.to_string(), share(both, came), dreamt.to_string(), share(both, dreamt)]
    };
    let row = |name: String, step: &Foreseen| {
        let mean = |sum: f64| match step.frames {
            0 => "-".into(),
            frames => format!("{:.5}", sum / frames as f64),
        };
        let mut row = vec![name, step.dreams.to_string()];
        row.extend(hits(step.rewards).into_iter().chain(hits(step.ends)));
        row.extend([step.error, step.still, step.kept].map(mean));
        row
    };
    let head = "step dreams rewards foreseen dreamt true ends foreseen dreamt true error still kept";
    let mut rows: Vec<Vec<String>> = vec![head.split(' ').map(String::from).collect()];
    rows.extend((1..).zip(&found.steps).map(|(number, step): (usize, _)| row(number.to_string(), step)));
    rows.push(row("all".into(), &found.total()));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

fn json(
    game: &str,
    run: &str,
    seed: u64,
    context: usize,
    stretches: usize,
    found: &Foresight,
) -> serde_json::Value {
    let hits = |hits: Hits| {
        serde_json::json!({
            "came": hits.came,
            "dreamt": hits.dreamt,
            "both": hits.both,
            "recall": hits.recall(),
            "precision": hits.precision(),
        })
    };
    let step = |step: &Foreseen| {
        let mean = |sum: f64| (step.frames > 0).then(|| sum / step.frames as f64);
        serde_json::json!({
            "dreams": step.dreams,
            "rewards": hits(step.rewards),
            "ends": hits(step.ends),
            "error": mean(step.error),
            "still_error": mean(step.still),
            "kept_error": mean(step.kept),
        })
    };
    let NextFrame { tokens, nats, right, changed, changed_right } = found.next;
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    serde_json::json!({
        "env": game,
        "run": run,
        "seed": seed,
        "context": context,
        "stretches": stretches,
        "next_frame": {
            "tokens": tokens,
            "cross_entropy": nats / tokens.max(1) as f64,
            "accuracy": share(right, tokens),
            "changed": changed,
            "changed_accuracy": share(changed_right, changed),
        },
        "steps": found.steps.iter().map(step).collect::<Vec<_>>(),
        "all": step(&found.total()),
    })
}

#[cfg(test)]
mod tests {
    use agent::picture::Cell;

    use super::*;

    #[test]
    fn stretches_are_spread_over_all_episodes() {
        let episode = |steps: usize| Stretch { cells: vec![Cell::default(); steps], ..Stretch::default() };
        let episodes = [episode(6), episode(1), episode(4)];
        // Five, none and three places for two frames.
        let starts = |context, count| -> Vec<(usize, usize)> {
            spread(&episodes, context, count).iter().map(|(e, start)| (e.cells.len(), *start)).collect()
        };
        assert_eq!(starts(2, 4), [(6, 1), (6, 3), (4, 0), (4, 2)]);
        assert_eq!(starts(2, 1), [(6, 4)]);
        assert_eq!(starts(2, 100).len(), 8);
        assert_eq!(starts(7, 3), []);
    }

    #[test]
    fn the_table_is_for_people() {
        let step = Foreseen {
            dreams: 4,
            rewards: Hits { came: 2, dreamt: 3, both: 1 },
            ends: Hits { came: 0, dreamt: 2, both: 0 },
            frames: 4,
            error: 0.04,
            still: 0.08,
            kept: 0.01,
        };
        let found = Foresight { steps: vec![step, Foreseen::default()], next: NextFrame::default() };
        let text = table(&found);
        let words: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(words[1], "1 4 2 50.0% 3 33.3% 0 - 2 0.0% 0.01000 0.02000 0.00250");
        assert_eq!(words[2], "2 0 0 - 0 - 0 - 0 - - - -");
        assert_eq!(words[3][3..], words[1][1..]);
    }
}
