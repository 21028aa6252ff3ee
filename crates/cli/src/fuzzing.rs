//! What the program reads itself, for `fuzz/`.

use std::path::Path;

use anyhow::Result;

use crate::config::{actions_of, combine};
use crate::sweep::Plan;

/// The config that a file and overrides make of the smallest preset, as TOML.
pub fn config(file: Option<&Path>, overrides: &[String]) -> Result<String> {
    let mut config = combine("tiny", file, overrides)?;
    config.agent.actions = actions_of(&config.env)?;
    Ok(toml::to_string(&config)?)
}

/// The folders of the runs that a `sweep.toml` describes, and the plan as TOML.
pub fn sweep(text: &str) -> Result<(Vec<String>, String)> {
    let (plan, runs) = Plan::parse(text)?;
    Ok((runs.into_iter().map(|run| run.folder).collect(), toml::to_string(&plan)?))
}
