//! A trained agent as a repository of the Hugging Face Hub: written by `iris export RUN --hub DIR`, read by every command that takes an agent.

use std::path::{Path, PathBuf};

use agent::animation::Format;
use agent::train::{Run, TrainConfig};
use agent::{Agent, CheckpointError, reference, write_atomically};
use anyhow::{Context, Result, bail};
use engine::Device;
use envs::{Game, Purpose};
use serde_json::{Value, json};

use crate::args::{DeviceArgs, DeviceName, DreamArgs, PlayerArgs, PrecisionName, RecordArgs};
use crate::output::{pasteable, say, warn};
use crate::{config, dream, eval, record};

const CARD: &str = "README.md";
const CONFIG: &str = "config.toml";
/// What the card of every agent of this program has.
const LIBRARY: &str = "library_name: iris";

/// The config that a published agent was trained with. `None` for a folder without one.
pub fn config_of(folder: &Path) -> Result<Option<TrainConfig>> {
    let path = folder.join(CONFIG);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let bad = || format!("{} is no config of a run", path.display());
    let config: TrainConfig = toml::from_str(&text).with_context(bad)?;
    config.validate().with_context(bad)?;
    Ok(Some(config))
}

pub fn export(run: &Path, folder: &Path) -> Result<()> {
    check_folder(run, folder)?;
    let (config, agent) = Run::newest_agent(&Device::cpu(None)?, run, warn)?;
    let game = config.game(None)?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    agent.publish(folder)?;
    write(folder, CONFIG, &config::document(&config)?)?;
    write(folder, "config.json", &format!("{:#}\n", description(&config, &game)))?;
    copy(run, folder)?;
    let results = last_evaluation(run)?.map(|returns| {
        let name = run.file_name().map_or_else(|| run.into(), PathBuf::from);
        eval::json(&game, &name, config.evaluation.temperature, config.seed, &returns)
    });
    match &results {
        Some(results) => write(folder, "results.json", &format!("{results}\n"))?,
        None => warn("the run was never evaluated: the card has no results".into()),
    }
    match reference::export(&agent, None, &folder.join("last.safetensors")) {
        // Agents with parts that the release does not have are published without it.
        Err(CheckpointError::NotReferences { .. }) => {}
        exported => exported?,
    }
    show(run, folder)?;
    // Last: a folder with a card is whole.
    write(folder, CARD, &card(&config, &game, results.as_ref(), folder))?;
    let name = pasteable(folder);
    say!("a repository for the Hub is in {name}. Publish it: hf upload USER/{} {name}", repository(&game));
    Ok(())
}

/// Nothing but an earlier export is replaced.
fn check_folder(run: &Path, folder: &Path) -> Result<()> {
    if Agent::is_in(run) && !Run::is_in(run) {
        bail!("{} holds an agent without its run: only runs can be published", run.display());
    }
    let Ok(mut entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let ours = std::fs::read_to_string(folder.join(CARD)).is_ok_and(|card| card.contains(LIBRARY));
    match entries.next().is_some() && !ours {
        true => bail!("{} holds other files: choose another folder", folder.display()),
        false => Ok(()),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    Ok(write_atomically(&folder.join(name), text.as_bytes())?)
}

/// What other programs want to know: `config.json` is where the Hub looks for it.
fn description(config: &TrainConfig, game: &Game) -> Value {
    let names = game.make(Purpose::Evaluate, config.agent.tokenizer.frame_size).map(|env| env.action_names());
    json!({
        "library_name": "iris",
        "version": env!("CARGO_PKG_VERSION"),
        "env": config.env,
        "seed": config.seed,
        "epochs": config.epochs,
        "action_names": names.ok(),
        "agent": config.agent,
    })
}

/// Metrics as they are.
fn copy(run: &Path, folder: &Path) -> Result<()> {
    let events = Path::new("tensorboard").join("events.out.tfevents.0.iris");
    for file in [Path::new("metrics.jsonl"), &events] {
        let (from, to) = (run.join(file), folder.join(file));
        if !from.exists() {
            continue;
        }
        let copied =
            std::fs::create_dir_all(to.parent().unwrap_or(folder)).and_then(|()| std::fs::copy(&from, &to));
        copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// Returns of the games of the newest evaluation.
fn last_evaluation(run: &Path) -> Result<Option<Vec<f32>>> {
    let path = run.join("episodes.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let returns = |line: &str| -> Option<Vec<f32>> {
        let line: Value = serde_json::from_str(line).ok()?;
        let list = line.get("evaluation")?.get("returns")?.as_array()?;
        list.iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
    };
    Ok(text.lines().rev().find_map(returns).filter(|returns| !returns.is_empty()))
}

/// A game and a dream. The Hub shows `replay.mp4`.
fn show(run: &Path, folder: &Path) -> Result<()> {
    let device = || DeviceArgs { device: DeviceName::Cpu, precision: PrecisionName::F32, threads: None };
    let mut names = vec!["replay.gif"];
    if Format::Mp4.is_available() {
        names.push("replay.mp4");
    }
    for name in names {
        let player = PlayerArgs { run: run.into(), env: None, temperature: 0.5, seed: 0, device: device() };
        let out = folder.join(name);
        record::run(RecordArgs { player, out, fps: 15, header: false, steps: 1000, stills: Vec::new() })?;
    }
    dream::run(DreamArgs {
        run: run.into(),
        env: None,
        test: false,
        context: None,
        actions: "policy".into(),
        futures: DreamArgs::FUTURES,
        steps: None,
        from: None,
        temperature: 1.0,
        seed: 0,
        out: Some(folder.join("dream.gif")),
        device: device(),
    })
}

/// "iris-breakout": one repository per game is what leaderboards expect.
fn repository(game: &Game) -> String {
    format!("iris-{}", game.short_name().to_lowercase())
}

/// The name that leaderboards know a game by.
fn published_name(game: &Game) -> String {
    match game.title() {
        Some(title) if game.variant().is_none() => format!("{title}NoFrameskip-v4"),
        _ => game.name.clone(),
    }
}

/// The model card.
fn card(config: &TrainConfig, game: &Game, results: Option<&Value>, folder: &Path) -> String {
    let (name, env) = (repository(game), published_name(game));
    let returns: Vec<f64> = results
        .and_then(|results| results["returns"].as_array())
        .map(|list| list.iter().filter_map(Value::as_f64).collect())
        .unwrap_or_default();
    let mut front = format!(
        "---\n{LIBRARY}\nlicense: mit\npipeline_tag: reinforcement-learning\ntags:\n- deep-reinforcement-learning\n- reinforcement-learning\n- world-model\n- iris\n- {env}\n"
    );
    if game.title().is_some() {
        front += "- atari\n- atari-100k\n";
    }
    let mut table = String::new();
    if !returns.is_empty() {
        let mean = returns.iter().sum::<f64>() / returns.len() as f64;
        let spread = (returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / returns.len() as f64).sqrt();
        front += &format!(
            "model-index:\n- name: {name}\n  results:\n  - task:\n      type: reinforcement-learning\n      name: reinforcement-learning\n    dataset:\n      name: {env}\n      type: {env}\n    metrics:\n    - type: mean_reward\n      value: {mean:.2} +/- {spread:.2}\n      name: mean_reward\n      verified: false\n"
        );
        let progress = 100.0 * f64::from(game.progress(mean as f32));
        table = format!(
            "\n| | return |\n| --- | --- |\n| this agent, {} games at temperature {} | {mean:.2} +/- {spread:.2} (standard deviation) |\n| random play | {:.2} |\n| {} play | {:.2} |\n\nThat is {progress:.1}% of the way from random to {} play; one run, seed {}.\n",
            returns.len(),
            config.evaluation.temperature,
            game.random,
            game.yardstick,
            game.skilled,
            game.yardstick,
            config.seed
        );
    }
    let roms = match game.title() {
        Some(_) => "\nThe ROM of the game is not part of this repository, and has a licence of its own.\n",
        None => "",
    };
    let release = match folder.join("last.safetensors").is_file() {
        true => "\n| `last.safetensors` | the same networks with the names of the authors' PyTorch release |",
        false => "",
    };
    format!(
        "{front}---

# IRIS on {env}

A world-model agent ([Transformers are Sample-Efficient World Models](https://arxiv.org/abs/2209.00588)) trained with the program iris {version} for {epochs} epochs.

![A game](replay.gif)
{table}
## Use

```
hf download USER/{name} --local-dir {name}
iris eval {name}
iris dream {name}
iris record {name}
```

`iris train --config {name}/config.toml` trains it again.

| file | |
| --- | --- |
| `model.safetensors` | tokenizer, world model and actor-critic, f32, with their sizes in the metadata |{release}
| `config.toml`, `config.json` | every setting of the run; networks, game and actions for other programs |
| `results.json` | the return of every game of the last evaluation |
| `metrics.jsonl`, `tensorboard/` | metrics of every epoch |
| `replay.gif`, `dream.gif` | a game; futures that the world model imagines |
{roms}",
        version = env!("CARGO_PKG_VERSION"),
        epochs = config.epochs,
    )
}
