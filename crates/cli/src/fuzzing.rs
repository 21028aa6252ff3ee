//! What the program reads itself, for `fuzz/`.

use std::path::Path;

use anyhow::Result;

/// The config that a file and overrides make of the smallest preset, as TOML.
pub fn config(file: Option<&Path>, overrides: &[String]) -> Result<String> {
    Ok(toml::to_string(&crate::config::combine("tiny", file, overrides)?)?)
}
