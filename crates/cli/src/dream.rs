//! `iris dream`: what a trained world model imagines.

use agent::animation::{Format, Pace, write_animation};
use agent::picture::{Picture, Row};
use agent::train::Run;
use agent::{Acting, Agent, Rollout, Scenes, Stretch, export_dreams};
use anyhow::{Context, Result, bail};
use engine::{Device, Key, Rng};
use envs::{Game, Purpose};

use crate::args::DreamArgs;
use crate::config::suggestion;
use crate::digest::fnv1a;
use crate::export_episodes::is_npz;
use crate::output::{say, tell, warn};
use crate::progress::Progress;
use crate::record::{make_folder_of, prepare};
use crate::source::Source;
use crate::words::counted;

/// Of the animation.
const PACE: Pace = Pace { seconds: 1, pictures: 4 };

/// Steps of an evaluation game that are played to start from, where none is asked for.
const PLAYED: usize = 1000;
/// The paper's temperature of evaluation.
const TEMPERATURE: f32 = 0.5;

/// What a dream starts from.
struct Start {
    device: Device,
    agent: Agent,
    game: Game,
    /// Number of its first step, in the replay or the game.
    from: usize,
    stretch: Stretch,
    burn_in: usize,
}

pub fn run(args: DreamArgs) -> Result<()> {
    let file = args.out.as_deref().filter(|out| (Format::of(out).is_some() || is_npz(out)) && !out.is_dir());
    match file {
        Some(file) if is_npz(file) => make_folder_of(file)?,
        Some(file) => prepare(file)?,
        None => {}
    }
    let played = args.test || args.env.is_some() || Agent::is_in(&args.run);
    let Start { device, agent, game, from, stretch, burn_in } =
        if played { from_game(&args)? } else { from_replay(&args)? };
    let context = args.context.unwrap_or(1);
    let (followed, recorded) = stretch.followed();
    if followed.len() < context {
        bail!(
            "--context {context} needs more frames than the {} from step {from} to the end of its episode: choose an earlier --from",
            followed.len()
        );
    }
    let steps = imagined(&args, &agent)?;
    let size = agent.config.tokenizer.frame_size;
    let env = game.make(Purpose::Train, size)?;
    let given = match args.actions.as_str() {
        "policy" => None,
        "recorded" => Some(recorded[context - 1..].to_vec()),
        names => Some(parse_actions(names, &env.action_names(), steps)?),
    };
    let (steps, acting) = match &given {
        Some(actions) => (actions.len(), Acting::Given(actions)),
        None => (steps, Acting::Policy { temperature: args.temperature }),
    };
    let steps = steps + context - 1;
    if !played {
        tell!("{} on {}", game.name, args.device.describe(&device));
    }
    let progress = Progress::new("dreaming", steps);
    let key = Key::new(args.seed, 0);
    let marked = (played || args.context.is_some()).then_some(context);
    let rollout = Rollout { device: &device, agent: &agent, burn_in, context: marked };
    let starts = vec![stretch.clone(); args.futures];
    let dreams = rollout.dreams(&starts, steps, acting, key, |done| progress.set(done))?;
    drop(progress);
    if let Some(file) = file.filter(|file| is_npz(file)) {
        export_dreams(&dreams.iter().collect::<Vec<_>>(), size, file)?;
        say!("{} of {}: {}", counted(dreams.len(), "dream"), counted(steps, "step"), file.display());
        return Ok(());
    }
    let mut rows = vec![Row::new("what followed", stretch.marked(marked.unwrap_or(0)))];
    rows.extend(dreams.into_iter().zip(1..).map(|(dream, i)| Row::new(format!("future {i}"), dream.cells)));
    let said: Vec<String> = rows.iter().map(|row| format!("{:<14} {}", row.caption, in_words(row))).collect();
    if marked.is_some() {
        rows.iter_mut()
            .skip(1)
            .for_each(|row| row.caption += &format!(", {} given (green)", counted(context, "frame")));
    }

    if let Some(file) = file {
        write_animation(Picture::animation(&rows, size), PACE, file)?;
        say!("{}\n{}", said.join("\n"), file.display());
        return Ok(());
    }
    let folder = args.out.clone().unwrap_or_else(|| args.run.join("dreams").join(name(&args, from, played)));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (strip, animation) = (folder.join("dream.png"), folder.join("dream.gif"));
    Picture::strip(&rows, size).write_png(&strip)?;
    write_animation(Picture::animation(&rows, size), PACE, &animation)?;
    say!("{}\n{}\n{}", said.join("\n"), strip.display(), animation.display());
    Ok(())
}

/// Steps to imagine: what was asked for, or what the world model remembers beside the context.
fn imagined(args: &DreamArgs, agent: &Agent) -> Result<usize> {
    let (window, context) = (agent.config.world_model.steps, args.context.unwrap_or(1));
    // The frame that follows the context must fit, too.
    let most = window.saturating_sub(1).max(1);
    if context > most {
        bail!("the world model remembers {window} steps: --context is at most {most}");
    }
    Ok(args.steps.unwrap_or(window + 1 - context))
}

/// Given a context, the policy sees nothing else.
fn burn_in(args: &DreamArgs, trained: usize) -> usize {
    if args.context.is_some() { 0 } else { trained }
}

fn from_replay(args: &DreamArgs) -> Result<Start> {
    let device = args.device.open()?;
    let (config, agent, replay) = Run::look(&device, &args.run, warn)?;
    let burn_in = burn_in(args, config.actor_critic.burn_in);
    let steps = imagined(args, &agent)? + args.context.unwrap_or(1) - 1;
    let scenes = Scenes { device: &device, agent: &agent, replay: &replay, burn_in };
    let from = start(args, &scenes, steps)?;
    let stretch = scenes.stretch(from, steps)?;
    let game = config.game(None)?;
    Ok(Start { device, agent, game, from, stretch, burn_in })
}

fn from_game(args: &DreamArgs) -> Result<Start> {
    let Source { device, agent, game, burn_in: trained } =
        Source::open(&args.run, args.env.as_deref(), &args.device)?;
    let steps = imagined(args, &agent)? + args.context.unwrap_or(1) - 1;
    let burn_in = burn_in(args, trained);
    let most = args.from.map_or(PLAYED.max(steps), |from| from.saturating_add(steps));
    let played = Stretch::play(&device, &agent, &game, TEMPERATURE, args.seed, most)?;
    let length = played.cells.len();
    let from = match args.from {
        Some(from) if from < length => from,
        Some(from) => bail!("--from {from} is after the end of the game, which lasted {length} steps"),
        // Any with a future of that length, if there is one.
        None => {
            let starts = u32::try_from((length + 1).saturating_sub(steps).max(1))?;
            Rng::new(Key::new(args.seed, 1)).below(starts) as usize
        }
    };
    let stretch = played.from(from, steps, burn_in);
    Ok(Start { device, agent, game, from, stretch, burn_in })
}

/// What a dream's folder is called: another name for everything that was asked for differently.
fn name(args: &DreamArgs, from: usize, played: bool) -> String {
    let game = args.env.as_deref().map_or(String::new(), |env| format!("{}-", in_a_name(env)));
    let mut name = format!("{}{game}from{from}-seed{}", if played { "test-" } else { "" }, args.seed);
    name += &args.context.map_or(String::new(), |context| format!("-context{context}"));
    match args.actions.as_str() {
        "policy" if args.temperature == 1.0 => {}
        "policy" => name += &format!("-temperature{}", args.temperature),
        actions => {
            let actions = in_a_name(actions);
            // Names of files end somewhere; FNV-1a stands for a long one.
            let hash = fnv1a(actions.as_bytes());
            name += &if actions.len() <= 60 { format!("-{actions}") } else { format!("-actions{hash:016x}") };
        }
    }
    if args.futures != DreamArgs::FUTURES {
        name += &format!("-futures{}", args.futures);
    }
    name + &args.steps.map_or(String::new(), |steps| format!("-steps{steps}"))
}

fn in_a_name(text: &str) -> String {
    text.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "-")
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
    if !episodes.iter().any(|e| e.step_of(from).is_some()) {
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
