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

/// Hundredths of a second per step: fifteen steps of four frames each are a second of Atari.
const DELAY: u16 = 7;

pub fn run(args: RecordArgs) -> Result<()> {
    // Before the game, not after it.
    make_room(&args.out)?;
    let Source { device, agent, game, .. } = Source::load(&args.player)?;
    let size = agent.config.tokenizer.frame_size;
    let mut env = game.make(Purpose::Evaluate, size)?;
    let mut player = Player::new(&device, &agent, 1)?;
    // The game that `iris eval` begins with.
    let seed = evaluation_seed(args.player.seed);
    player.set_key(Key::new(seed, 1));
    let mut eye = Eye::new(&device, &agent)?;
    env.reset(episode_seed(seed, 0))?;
    let mut frame = vec![0; size * size * 3];
    let mut animation = Animation::new(&args.out, DELAY);
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
        animation.add(&Picture::beside((shown.0, shown.1, &shown.2), &cell, size))?;
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
