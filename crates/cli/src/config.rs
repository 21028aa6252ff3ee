//! From presets, a file and overrides to a resolved, validated config.

use std::path::Path;

use agent::WorldModelConfig;
use agent::train::{AtariConfig, TrainConfig};
use anyhow::{Context, Result, anyhow, bail};
use envs::Game;
use toml::{Table, Value};

use crate::advice;
use crate::args::ConfigArgs;
use crate::output::{say, tell};
use crate::presets;

/// Key of a preset under which settings for single games stand.
const GAMES: &str = "games";

/// One key for the three dropout rates of the world model.
const DROPOUT: &str = "agent.world_model.dropout";

/// Parts of a key at most: tables within tables are walked and dropped by recursion.
const DEEPEST_KEY: usize = 16;

/// `iris config`: the settings as a file that `--config` takes.
pub fn print(args: &ConfigArgs) -> Result<()> {
    let mut config = requested(args)?;
    let text = match actions_of(&config.env) {
        Ok(actions) => {
            config.agent.actions = actions;
            document(&config)?
        }
        // A game that cannot be played here has a config all the same.
        Err(error) => {
            let reason = advice::with(error.to_string(), advice::on(&error));
            tell!("note: agent.actions is left out, as only the game knows it: {reason}");
            let line = format!("\nactions = {}\n", config.agent.actions);
            document(&config)?.replacen(&line, "\n# actions\n", 1)
        }
    };
    say!("{}", text.trim_end());
    Ok(())
}

/// What a user may not expect of a game that is played with other numbers of the Atari protocol.
pub fn protocol_remark(config: &AtariConfig, game: &Game) -> Option<String> {
    let [usual, chosen] = [&AtariConfig::default(), config].map(|c| toml::to_string(c).unwrap_or_default());
    let (mut section, mut changed) = ("", Vec::new());
    for (usual, chosen) in usual.lines().zip(chosen.lines()) {
        if let Some(name) = chosen.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if usual != chosen {
            changed.push(format!("atari.{section}.{}", chosen.replacen(" = ", "=", 1)));
        }
    }
    match (changed.join(", "), game.title()) {
        (changed, _) if changed.is_empty() => None,
        (changed, Some(_)) => Some(format!("the Atari protocol is not the paper's: {changed}")),
        (changed, None) => Some(format!("{} is not an Atari game and ignores {changed}", game.name)),
    }
}

/// The config as TOML, with what every key means.
pub fn document(config: &TrainConfig) -> Result<String> {
    let docs = TrainConfig::key_docs();
    let mut section = String::new();
    let mut text = String::new();
    for line in toml::to_string(config)?.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = format!("{name}.");
        }
        let key = line.split_once(" = ").map(|(key, _)| format!("{section}{key}"));
        if let Some(doc) = key.and_then(|key| docs.get(&key)) {
            text += &format!("# {doc}\n");
        }
        text += &format!("{line}\n");
    }
    Ok(text)
}

/// What the arguments ask for, checked, with the game's number of actions.
pub fn resolve(args: &ConfigArgs) -> Result<TrainConfig> {
    let mut config = requested(args)?;
    config.agent.actions = actions_of(&config.env)?;
    Ok(config)
}

/// The same without the number of actions.
fn requested(args: &ConfigArgs) -> Result<TrainConfig> {
    let mut overrides = args.overrides.clone();
    overrides.extend(args.env.iter().map(|env| format!("env={env}")));
    overrides.extend(args.seed.iter().map(|seed| format!("seed={seed}")));
    combine(&args.preset, args.config.as_deref(), &overrides)
}

pub fn actions_of(env: &str) -> Result<usize> {
    let game = Game::find(env)?;
    Ok((game.make)(envs::Purpose::Train)?.action_names().len())
}

/// A preset, then a file, then `key.sub=value` overrides, each on top of what came before.
pub fn combine(preset: &str, file: Option<&Path>, overrides: &[String]) -> Result<TrainConfig> {
    let (known, accepted) = known_keys()?;
    let mut chosen: Table = presets::find(preset)?.parse().with_context(|| format!("preset {preset}"))?;
    let games = chosen.remove(GAMES);
    expand_dropout(&mut chosen);
    // Key by key: a part of a schedule that is left out is the paper's for that network, not that of any schedule.
    let mut table = known.as_table().cloned().unwrap_or_default();
    merge(&mut table, chosen);
    let mut changes = Table::new();
    if let Some(path) = file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        changes = text.parse().with_context(|| format!("{} is not valid TOML", path.display()))?;
        let found_in = || format!("in {}", path.display());
        check_keys(&changes, &accepted, "").with_context(found_in)?;
        expand_dropout(&mut changes);
        // A file says what it says about its own game; the one that is played may be another.
        check_actions(&changes, changes.get("env").and_then(Value::as_str)).with_context(found_in)?;
    }
    let single = parse_overrides(overrides, &accepted)?;
    merge(&mut changes, single.clone());
    // What the preset says about the game comes before what the user says about anything.
    let env = changes.get("env").or(table.get("env")).and_then(Value::as_str).unwrap_or_default();
    let game = Game::find(env)?;
    check_actions(&single, Some(env))?;
    if let Some(Value::Table(game)) = games.as_ref().and_then(|games| games.get(game.original_name())) {
        merge(&mut table, game.clone());
    }
    merge(&mut table, changes);
    // One spelling: `Breakout` and `atari/Breakout` are the same run.
    table.insert("env".into(), Value::String(game.name));
    let config: TrainConfig =
        Value::Table(table).try_into().map_err(|e: toml::de::Error| anyhow!("{}", e.message()))?;
    config.validate()?;
    Ok(config)
}

/// The keys of a config, and those that can be given, with default values.
fn known_keys() -> Result<(Value, Value)> {
    let known = Value::try_from(TrainConfig::default())?;
    let mut accepted = known.clone();
    merge(accepted.as_table_mut().unwrap_or(&mut Table::new()), nested(DROPOUT, Value::Float(0.0)));
    Ok((known, accepted))
}

/// `key.sub=value` overrides as one table.
fn parse_overrides(overrides: &[String], accepted: &Value) -> Result<Table> {
    let mut table = Table::new();
    for text in overrides {
        let Some((key, value)) = text.split_once('=') else {
            bail!("`{text}` is not an override: write key.sub=value");
        };
        let parts = key.split('.').count();
        if parts > DEEPEST_KEY {
            bail!("an override has a key of {parts} parts; no key has more than {DEEPEST_KEY}");
        }
        let mut change = nested(key.trim(), parse_value(value.trim()));
        check_keys(&change, accepted, "")?;
        expand_dropout(&mut change);
        merge(&mut table, change);
    }
    Ok(table)
}

/// A config with overrides on top.
pub fn changed(config: &TrainConfig, overrides: &[String]) -> Result<TrainConfig> {
    let mut table = Table::try_from(config)?;
    merge(&mut table, parse_overrides(overrides, &known_keys()?.1)?);
    Value::Table(table).try_into().map_err(|e: toml::de::Error| anyhow!("{}", e.message()))
}

/// Replaces the world model's `dropout` by the three keys it stands for, where they are not given themselves.
fn expand_dropout(changes: &mut Table) {
    let world_model = changes.get_mut("agent").and_then(|agent| agent.get_mut("world_model"));
    let Some(world_model) = world_model.and_then(Value::as_table_mut) else { return };
    let Some(rate) = world_model.remove("dropout") else { return };
    for key in WorldModelConfig::DROPOUT {
        world_model.entry(key).or_insert_with(|| rate.clone());
    }
}

/// The number of actions is the game's: another one would be ignored.
fn check_actions(changes: &Table, env: Option<&str>) -> Result<()> {
    let asked = changes.get("agent").and_then(|agent| agent.get("actions")).and_then(Value::as_integer);
    let (Some(asked), Some(env)) = (asked, env) else { return Ok(()) };
    // Whether the game can be played at all is for others to say.
    let Ok(actions) = actions_of(env) else { return Ok(()) };
    if actions as i64 != asked {
        bail!("agent.actions is {asked}, but {env} has {actions}: leave it out, it follows from the game");
    }
    Ok(())
}

/// TOML if it is some, text otherwise, so that `env=arcade/pong` needs no quotes.
fn parse_value(text: &str) -> Value {
    format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or(Value::String(text.into()))
}

/// `a.b.c` and a value as nested tables.
fn nested(key: &str, value: Value) -> Table {
    let mut parts = key.rsplit('.');
    let last = parts.next().unwrap_or(key).to_string();
    let mut table = Table::from_iter([(last, value)]);
    for part in parts {
        table = Table::from_iter([(part.to_string(), Value::Table(table))]);
    }
    table
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(value)) => merge(below, value),
            (_, value) => _ = into.insert(key, value),
        }
    }
}

/// Every key must exist; a wrong one is answered with the nearest.
fn check_keys(table: &Table, known: &Value, path: &str) -> Result<()> {
    for (key, value) in table {
        let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some(below) = known.get(key) else {
            let names = known.as_table().into_iter().flat_map(|t| t.keys()).map(String::as_str);
            bail!("no key is called `{here}`{}", suggestion(key, names));
        };
        match (value, below) {
            (Value::Table(value), Value::Table(_)) => check_keys(value, below, &here)?,
            (Value::Table(_), _) => bail!("`{here}` is a single value, not a table"),
            (_, Value::Table(_)) => bail!("`{here}` is a table; set one of its keys"),
            // Whole numbers are fine where fractions are expected.
            (Value::Integer(_), Value::Float(_)) => {}
            (Value::Integer(number), _) if *number < 0 => {
                bail!("`{here}` is {number}, but must be at least 0")
            }
            (Value::Array(items), Value::Array(_)) => {
                let fits = |item: &Value| item.as_integer().is_some_and(|number| number >= 0);
                if let Some(item) = items.iter().find(|item| !fits(item)) {
                    bail!("`{here}` holds {item}, but takes whole numbers from 0 on");
                }
            }
            (Value::String(text), Value::Integer(_) | Value::Float(_)) if text.is_empty() => {
                bail!("`{here}` has no value, but must be {} {}", article(below), below.type_str());
            }
            (Value::String(text), Value::Integer(_) | Value::Float(_)) if is_large(text) => {
                bail!("`{here}` is {text}, which is more than any number here may be");
            }
            (Value::String(text), Value::Integer(_) | Value::Float(_)) if text.parse::<f64>().is_ok() => {
                bail!("`{here}` is {text:?}, which is text: a number has no quotes");
            }
            _ if value.type_str() != below.type_str() => {
                bail!(
                    "`{here}` must be {} {}, not {} {}",
                    article(below),
                    below.type_str(),
                    article(value),
                    value.type_str()
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// Digits that are too many for a whole number: TOML ends at 64 bits.
fn is_large(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_err()
}

fn article(value: &Value) -> &'static str {
    if matches!(value, Value::Integer(_) | Value::Array(_)) { "an" } else { "a" }
}

/// "Did you mean", if one of the names is near the word.
pub fn suggestion<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    envs::nearest(word, names).map_or(String::new(), |name| format!(". Did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One key of a schedule used to take the others of that network's schedule along to those of any.
    #[test]
    fn what_is_not_changed_stays_the_papers() {
        let overrides = [
            "env=arcade/catch",
            "tokenizer.schedule.updates=7",
            "world_model.schedule.learning_rate=0.5",
            "actor_critic.schedule.batch=3",
        ];
        let config = combine("atari-100k", None, &overrides.map(String::from)).unwrap();
        let mut expected = TrainConfig { env: "arcade/catch".into(), ..TrainConfig::default() };
        expected.tokenizer.schedule.updates = 7;
        expected.world_model.schedule.learning_rate = 0.5;
        expected.actor_critic.schedule.batch = 3;
        assert_eq!(config, expected);
        assert_eq!((config.tokenizer.schedule.batch, config.actor_critic.schedule.start_after), (256, 50));
    }

    #[test]
    fn another_protocol_is_remarked() {
        let remark = |env: &str, overrides: &[&str]| {
            let overrides: Vec<String> =
                [format!("env={env}")].into_iter().chain(overrides.iter().map(|s| s.to_string())).collect();
            let config = combine("atari-100k", None, &overrides).unwrap();
            protocol_remark(&config.atari, &config.game(None).unwrap())
        };
        assert_eq!((remark("Pong", &[]), remark("arcade/catch", &[])), (None, None));
        let changed = ["atari.training.sticky=0.1", "atari.evaluation.noops=30"];
        assert_eq!(
            remark("Pong", &changed).unwrap(),
            "the Atari protocol is not the paper's: atari.training.sticky=0.1, atari.evaluation.noops=30"
        );
        assert_eq!(
            remark("arcade/catch", &changed[1..]).unwrap(),
            "arcade/catch is not an Atari game and ignores atari.evaluation.noops=30"
        );
        let error = combine("tiny", None, &["atari.training.frame_skip=0".into()]).unwrap_err().to_string();
        assert_eq!(error, "atari.training.frame_skip is 0, but must be at least 1");
    }

    /// `dropout` is one key of a file or an override, and three of the config.
    #[test]
    fn dropout_sets_three_keys() {
        let rates = |preset: &str, overrides: &[&str]| {
            let overrides: Vec<String> =
                ["env=arcade/catch"].iter().chain(overrides).map(|s| s.to_string()).collect();
            combine(preset, None, &overrides).map(|config| config.agent.world_model.dropout())
        };
        assert_eq!(rates("tiny", &[]).unwrap(), [0.0; 3]);
        assert_eq!(rates("atari-100k", &["agent.world_model.dropout=0.2"]).unwrap(), [0.2; 3]);
        let own = ["agent.world_model.dropout=0.2", "agent.world_model.attention_dropout=0"];
        assert_eq!(rates("tiny", &own).unwrap(), [0.2, 0.0, 0.2]);
        let error = rates("tiny", &["agent.world_model.dropout=a"]).unwrap_err().to_string();
        assert!(error.contains("`agent.world_model.dropout` must be a float"), "{error}");
    }
}
