//! `iris record`: one game as an animation.

use std::path::Path;

use agent::picture::{Animation, Cell, Picture};
use agent::{Eye, Player, episode_seed, evaluation_seed};
use anyhow::{Context, Result, bail};
use engine::Key;
use envs::Purpose;

use crate::args::RecordArgs;
use crate::output::say;
use crate::progress::Progress;
use crate::source::Source;

pub fn run(args: RecordArgs) -> Result<()> {
    // Before the game, not after it.
    make_room(&args.out)?;
    let Source { device, agent, game, .. } = Source::load(&args.player)?;
    let size = agent.config.tokenizer.frame_size;
    let mut env = game.make(Purpose::Evaluate, size)?;
    let mut player = Player::with_values(&device, &agent, 1)?;
    // The game that `iris eval` begins with.
    let seed = evaluation_seed(args.player.seed);
    player.set_key(Key::new(seed, 1));
    let mut eye = Eye::new(&device, &agent)?;
    env.reset(episode_seed(seed, 0))?;
    let mut frame = vec![0; size * size * 3];
    let mut animation = Animation::new(&args.out, delay(args.fps));
    let names = env.action_names();
    let (mut steps, mut total) = (0, 0.0);
    let progress = Progress::new("steps", args.steps);
    loop {
        env.render(&mut frame);
        let seen = eye.look(&agent, &frame)?.0;
        let action = player.act(&agent, &frame, args.player.temperature)?[0] as usize;
        let shown = env.full_frame().unwrap_or((size, size, frame.clone()));
        let outcome = env.step(action)?;
        total += outcome.reward;
        let cell = Cell { frame: seen, reward: outcome.reward, end: outcome.done(), given: false };
        let header = match args.header {
            true => {
                let value = player.values()?.first().copied().unwrap_or_default();
                header(steps, &names[action], outcome.reward, value, total).to_vec()
            }
            false => Vec::new(),
        };
        animation.add(&Picture::panels(&header, (shown.0, shown.1, &shown.2), &frame, &cell, size))?;
        steps += 1;
        progress.set(steps);
        if outcome.done() || steps == args.steps {
            break;
        }
    }
    drop(progress);
    animation.write()?;
    say!("{steps} steps of {}, return {total}\n{}", game.name, args.out.display());
    Ok(())
}

/// Hundredths of a second per step, the unit of GIFs.
fn delay(fps: u16) -> u16 {
    (100 + fps / 2) / fps
}

/// What happened in a step: two lines, which fit above small games too.
fn header(step: usize, action: &str, reward: f32, value: f32, total: f32) -> [String; 2] {
    [format!("{step}: {action}, reward {reward}"), format!("value {value:.2}, return {total}")]
}

/// Makes the folder of a file that is to be written, which must not promise another format.
fn make_room(file: &Path) -> Result<()> {
    if let Some(kind) = file.extension()
        && !kind.eq_ignore_ascii_case("gif")
    {
        bail!("recordings are GIFs: name a file that ends in .gif, not {}", file.display());
    }
    if file.is_dir() {
        bail!("{} is a folder: name a file in it", file.display());
    }
    match file.parent() {
        Some(folder) if folder != Path::new("") => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_and_the_pace_are_what_was_asked_for() {
        assert_eq!(
            header(7, "left", -1.0, 0.456, 3.0),
            ["7: left, reward -1", "value 0.46, return 3"].map(String::from)
        );
        assert_eq!([1, 10, 15, 30, 50].map(delay), [100, 10, 7, 3, 2]);
    }
}
