//! `iris foresee`: how well a world model foresees its game.

use agent::{Foreseen, Foresight, NextFrame, Stretch};
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
    let context = args.context;
    if context >= window {
        bail!("the world model remembers {window} steps: --context is at most {}", window.saturating_sub(1));
    }
    let steps = args.steps.unwrap_or(window - context);
    let before = agent.config.world_model.context;
    let PlayerArgs { run, temperature, seed, .. } = &args.player;

    let mut stretches = Vec::new();
    let progress = Progress::new("games", args.games);
    for number in 0..args.games {
        let seed = seed.wrapping_add(number as u64);
        let played = Stretch::play(&device, &agent, &game, *temperature, seed, PLAYED)?;
        let wanted = args.stretches.div_ceil(args.games);
        let starts = spread(played.cells.len(), context + steps, wanted);
        stretches.extend(starts.map(|start| played.from(start, context + steps, before)));
        progress.set(number + 1);
    }
    drop(progress);
    stretches.truncate(args.stretches);
    if stretches.is_empty() {
        bail!("no game has the {} steps that --context and --steps ask for: ask for fewer", context + steps);
    }
    let mut found = Foresight::default();
    let progress = Progress::new("dreaming", stretches.len());
    for (number, batch) in stretches.chunks(BATCH).enumerate() {
        let key = Key::new(*seed, number as u32);
        found.add(&Foresight::measure(&device, &agent, batch, context, key)?);
        progress.set(stretches.len().min((number + 1) * BATCH));
    }
    drop(progress);
    if args.json {
        say!("{}", json(&game.name, &run.display().to_string(), *seed, context, &found));
        return Ok(());
    }
    say!(
        "{}, {} of {}: {} given, {} dreamt with the actions that were taken",
        game.name,
        match stretches.len() {
            1 => "1 stretch".into(),
            count => format!("{count} stretches"),
        },
        counted(args.games, "game"),
        counted(context, "frame"),
        counted(steps, "step")
    );
    say!("{}", next_frame(&found.next));
    say!("{}", table(&found).trim_end());
    Ok(())
}

/// At most `count` starts of stretches of `steps` steps, evenly spread over a game of `length`.
fn spread(length: usize, steps: usize, count: usize) -> impl Iterator<Item = usize> {
    let places = (length + 1).saturating_sub(steps);
    let count = count.min(places);
    (0..count).map(move |i| i * (places - 1) / count.saturating_sub(1).max(1))
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
        "next frame, knowing all before it: {:.3} nats per token; the likeliest is right for {} of {tokens} tokens, for {} of the {changed} that changed",
        nats / tokens.max(1) as f64,
        share(right, tokens),
        share(changed_right, changed)
    )
}

fn table(found: &Foresight) -> String {
    let head = ["step", "dreams", "ends", "rewards", "foreseen", "dreamt", "true", "error", "still", "kept"];
    let row = |name: String, step: &Foreseen| {
        let Foreseen { dreams, ended, rewards, dreamt, both, error, still, kept } = *step;
        let mean = |sum: f64| match dreams {
            0 => "-".into(),
            _ => format!("{:.5}", sum / dreams as f64),
        };
        let (recall, precision) = (share(both, rewards), share(both, dreamt));
        let [dreams, ended, rewards, dreamt] = [dreams, ended, rewards, dreamt].map(|n| n.to_string());
        [name, dreams, ended, rewards, recall, dreamt, precision, mean(error), mean(still), mean(kept)]
    };
    let mut rows = vec![head.map(String::from)];
    rows.extend((1..).zip(&found.steps).map(|(number, step): (usize, _)| row(number.to_string(), step)));
    rows.push(row("all".into(), &found.total()));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 10]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

fn json(game: &str, run: &str, seed: u64, context: usize, found: &Foresight) -> serde_json::Value {
    let step = |step: &Foreseen| {
        let mean = |sum: f64| (step.dreams > 0).then(|| sum / step.dreams as f64);
        serde_json::json!({
            "dreams": step.dreams,
            "ends": step.ended,
            "rewards": step.rewards,
            "dreamt_rewards": step.dreamt,
            "reward_recall": step.recall(),
            "reward_precision": step.precision(),
            "error": mean(step.error),
            "still_error": mean(step.still),
            "kept_error": mean(step.kept),
        })
    };
    let NextFrame { tokens, nats, right, changed, changed_right } = found.next;
    serde_json::json!({
        "env": game,
        "run": run,
        "seed": seed,
        "context": context,
        "next_frame": {
            "tokens": tokens,
            "cross_entropy": nats / tokens.max(1) as f64,
            "right": right,
            "changed": changed,
            "changed_right": changed_right,
        },
        "steps": found.steps.iter().map(step).collect::<Vec<_>>(),
        "all": step(&found.total()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_spread_over_a_game() {
        let starts = |length, steps, count| spread(length, steps, count).collect::<Vec<_>>();
        assert_eq!(starts(10, 4, 3), [0, 3, 6]);
        assert_eq!(starts(10, 10, 3), [0]);
        assert_eq!(starts(10, 4, 100), [0, 1, 2, 3, 4, 5, 6]);
        assert!(starts(10, 11, 3).is_empty());
    }

    #[test]
    fn the_table_is_for_people() {
        let step = Foreseen {
            dreams: 4,
            ended: 1,
            rewards: 2,
            dreamt: 3,
            both: 1,
            error: 0.04,
            still: 0.08,
            kept: 0.01,
        };
        let found = Foresight { steps: vec![step, Foreseen::default()], next: NextFrame::default() };
        let text = table(&found);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = ["1", "4", "1", "2", "50.0%", "3", "33.3%", "0.01000", "0.02000", "0.00250"];
        assert_eq!(words[1], expected);
        assert_eq!(words[2], ["2", "0", "0", "0", "-", "0", "-", "-", "-", "-"]);
        assert_eq!((words[3][0], &words[3][1..]), ("all", &words[1][1..]));
    }
}
