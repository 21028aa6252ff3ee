//! `iris record`: one game as an animation, or steps of it as stills.

use std::path::Path;

use agent::animation::{Animation, Format, Pace};
use agent::picture::{Cell, Picture, Still};
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
    prepare(&args.out)?;
    if !args.stills.is_empty() && Format::of(&args.out) != Some(Format::Apng) {
        bail!("stills are written as a PNG: add --out FILE.png");
    }
    let wanted: Vec<usize> = args.stills.iter().map(|&step| step as usize).collect();
    let most = wanted.iter().max().map_or(args.steps, |last| last + 1);
    let Source { device, agent, game, .. } = Source::load(&args.player)?;
    let size = agent.config.tokenizer.frame_size;
    let mut env = game.make(Purpose::Evaluate, size)?;
    let mut player = Player::with_thoughts(&device, &agent, 1)?;
    // The game that `iris eval` begins with.
    let seed = evaluation_seed(args.player.seed);
    player.set_key(Key::new(seed, 1));
    let mut eye = Eye::new(&device, &agent)?;
    env.reset(episode_seed(seed, 0))?;
    let mut frame = vec![0; size * size * 3];
    let mut animation = Animation::new(&args.out, Pace { seconds: 1, pictures: args.fps });
    let names = env.action_names();
    let (mut steps, mut total) = (0, 0.0);
    let mut stills = Vec::new();
    let progress = Progress::new("steps", most);
    loop {
        env.render(&mut frame);
        let action = player.act(&agent, &frame, args.player.temperature)?[0] as usize;
        let shown = env.full_frame().unwrap_or((size, size, frame.clone()));
        let before = total;
        let outcome = env.step(action)?;
        total += outcome.reward;
        if wanted.contains(&steps) {
            let captions = [format!("step {steps}"), format!("return {before}")];
            stills.push(Still { captions, height: shown.0, width: shown.1, pixels: shown.2 });
        } else if wanted.is_empty() {
            let seen = eye.look(&agent, &frame)?.0;
            let cell = Cell { frame: seen, reward: outcome.reward, end: outcome.done(), given: false };
            let header = match args.header {
                true => {
                    let value = player.thoughts()?.first().map_or(0.0, |thought| thought.value);
                    header(steps, &names[action], outcome.reward, value, total).to_vec()
                }
                false => Vec::new(),
            };
            animation.add(&Picture::panels(&header, (shown.0, shown.1, &shown.2), &frame, &cell, size))?;
        }
        steps += 1;
        progress.set(steps);
        if outcome.done() || steps == most {
            break;
        }
    }
    drop(progress);
    if let Some(missing) = wanted.iter().find(|step| **step >= steps) {
        bail!(
            "the game was over after {steps} steps, before step {missing}: ask for earlier stills, or try another --seed"
        );
    }
    match wanted.is_empty() {
        true => animation.write()?,
        false => Picture::stills(&stills).write_png(&args.out)?,
    }
    say!("{steps} steps of {}, return {total}\n{}", game.name, args.out.display());
    Ok(())
}

/// What happened in a step: two lines, which fit above small games too.
fn header(step: usize, action: &str, reward: f32, value: f32, total: f32) -> [String; 2] {
    [format!("{step}: {action}, reward {reward}"), format!("value {value:.2}, return {total}")]
}

/// Before an animation is made: refuses what cannot be written, and makes the folder of the file.
pub fn prepare(file: &Path) -> Result<()> {
    if file.is_dir() {
        bail!("{} is a folder: name a file in it", file.display());
    }
    let format = match (Format::of(file), file.extension()) {
        (Some(format), _) => format,
        (None, None) => Format::Gif,
        (None, Some(_)) => bail!(
            "animations are GIF, APNG or MP4: name a file that ends in .gif, .png or .mp4, not {}",
            file.display()
        ),
    };
    if !format.is_available() {
        bail!(
            "{} needs the program ffmpeg, which does not run: install it, or name a file that ends in .gif or .png",
            file.display()
        );
    }
    make_folder_of(file)
}

/// Makes the folder of a file that is to be written.
pub fn make_folder_of(file: &Path) -> Result<()> {
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
    fn the_header_says_what_happened() {
        assert_eq!(
            header(7, "left", -1.0, 0.456, 3.0),
            ["7: left, reward -1", "value 0.46, return 3"].map(String::from)
        );
    }
}
