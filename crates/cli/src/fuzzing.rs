//! What the program reads itself, for `fuzz/`.

use std::path::Path;

use anyhow::Result;

use crate::config::{actions_of, combine};

/// The config that a file and overrides make of the smallest preset, as TOML.
pub fn config(file: Option<&Path>, overrides: &[String]) -> Result<String> {
    let mut config = combine("tiny", file, overrides)?;
    config.agent.actions = actions_of(&config.env)?;
    Ok(toml::to_string(&config)?)
}
