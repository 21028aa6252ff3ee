//! `iris dream`: what a trained world model imagines.

use agent::picture::{Picture, Row, write_gif};
use agent::train::Run;
use agent::{Acting, Scenes};
use anyhow::{Context, Result, bail};
use engine::{Key, Rng};
use envs::{Game, Purpose};

use crate::args::DreamArgs;
use crate::config::suggestion;
use crate::output::{say, tell, warn};
use crate::progress::Progress;

/// Hundredths of a second per step of the animation.
const DELAY: u16 = 25;

pub fn run(args: DreamArgs) -> Result<()> {
    let device = args.device.open()?;
    let (config, agent, replay) = Run::look(&device, &args.run, warn)?;
    let steps = args.steps.unwrap_or(config.agent.world_model.steps);
    let scenes =
        Scenes { device: &device, agent: &agent, replay: &replay, burn_in: config.actor_critic.burn_in };
    let from = start(&args, &scenes, steps)?;
    let size = config.agent.tokenizer.frame_size;
    let env = Game::find(&config.env)?.make(Purpose::Train, size)?;
    let given = match args.actions.as_str() {
        "policy" => None,
        "recorded" => Some(scenes.recorded_actions(from, steps)?),
        names => Some(parse_actions(names, &env.action_names(), steps)?),
    };
    let (steps, acting) = match &given {
        Some(actions) => (actions.len(), Acting::Given(actions)),
        None => (steps, Acting::Policy { temperature: args.temperature }),
    };
    tell!("{} on {}", config.env, args.device.describe(&device));
    let progress = Progress::new("dreaming", steps);
    let key = Key::new(args.seed, 0);
    let dreams = scenes.dreams(&vec![from; args.futures], steps, acting, key, |done| progress.set(done))?;
    drop(progress);
    let mut rows = vec![Row::new("what followed", scenes.recorded(from, steps)?)];
    rows.extend(dreams.into_iter().zip(1..).map(|(cells, i)| Row::new(format!("future {i}"), cells)));

    let folder = args.out.clone().unwrap_or_else(|| args.run.join("dreams").join(name(&args, from)));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (strip, animation) = (folder.join("dream.png"), folder.join("dream.gif"));
    Picture::strip(&rows, size).write_png(&strip)?;
    write_gif(Picture::animation(&rows, size), DELAY, &animation)?;
    for row in &rows {
        say!("{:<14} {}", row.caption, in_words(row));
    }
    say!("{}\n{}", strip.display(), animation.display());
    Ok(())
}

/// What a dream's folder is called: another name for everything that was asked for differently.
fn name(args: &DreamArgs, from: usize) -> String {
    let mut name = format!("from{from}-seed{}", args.seed);
    match args.actions.as_str() {
        "policy" if args.temperature == 1.0 => {}
        "policy" => name += &format!("-temperature{}", args.temperature),
        actions => {
            let actions = actions.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "-");
            // Names of files end somewhere; FNV-1a stands for a long one.
            let hash = actions.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
            name += &if actions.len() <= 60 { format!("-{actions}") } else { format!("-actions{hash:016x}") };
        }
    }
    if args.futures != DreamArgs::FUTURES {
        name += &format!("-futures{}", args.futures);
    }
    name + &args.steps.map_or(String::new(), |steps| format!("-steps{steps}"))
}

/// The step to start from: the one asked for, or one chosen by the seed that has a future to compare with.
fn start(args: &DreamArgs, scenes: &Scenes, steps: usize) -> Result<usize> {
    let replay = scenes.replay;
    if replay.steps() == 0 {
        bail!("{} has seen nothing yet: wait for its first epoch", args.run.display());
    }
    let Some(from) = args.from else {
        return Ok(scenes.choose_start(&mut Rng::new(Key::new(args.seed, 1)), steps));
    };
    let episodes = &replay.table().episodes;
    if !episodes.iter().any(|e| (e.start..e.start + e.len).contains(&from)) {
        let first = episodes.first().map_or(0, |e| e.start);
        bail!("--from {from} is not in the replay; it holds steps {first} to {}", replay.table().records - 1);
    }
    Ok(from)
}

fn parse_actions(text: &str, names: &[String], steps: usize) -> Result<Vec<usize>> {
    let mut actions = Vec::with_capacity(steps);
    for word in text.split(',').map(str::trim) {
        match names.iter().position(|name| name.eq_ignore_ascii_case(word)) {
            Some(action) => actions.push(action),
            None => bail!(
                "no action is called `{word}`; this game has {}{}",
                names.join(", "),
                suggestion(word, names.iter().map(String::as_str))
            ),
        }
    }
    let last = actions.last().copied().unwrap_or_default();
    actions.resize(steps, last);
    Ok(actions)
}

fn in_words(Row { cells, .. }: &Row) -> String {
    let count = |wanted: fn(f32) -> bool| cells.iter().filter(|cell| wanted(cell.reward)).count();
    let end = if cells.last().is_some_and(|cell| cell.end) { ", then the end" } else { "" };
    format!("{} steps, {} rewards, {} penalties{end}", cells.len(), count(|r| r > 0.0), count(|r| r < 0.0))
}
