//! Arguments that clap does not know, and what was probably meant.

use agent::train::TrainConfig;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output::{program, tell};

/// Says what is wrong with the arguments, and exits. `--epochs 3` is meant as `epochs=3`.
pub fn refuse(error: clap::Error) -> ! {
    let typed: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(settings) = meant_settings(&error, &typed) {
        tell!("error: {settings}\n\nFor more information, try '{} config'.", program());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// What to write instead of an option that `train` and `config` do not have but the config does.
fn meant_settings(error: &clap::Error, typed: &[String]) -> Option<String> {
    let takes_settings = typed.iter().any(|word| word == "train" || word == "config");
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    if !takes_settings || error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let name = option.trim_start_matches('-').replace('-', "_");
    // The value is the next word or behind a sign of equality.
    let at = typed.iter().position(|word| word.split('=').next() == Some(option))?;
    let value = typed[at].split_once('=').map(|(_, value)| value);
    let next = typed.get(at + 1).map(String::as_str).filter(|word| !word.starts_with("--"));
    let value = value.or(next).unwrap_or("...");
    let keys: Vec<String> = TrainConfig::key_docs().into_keys().collect();
    let ending = format!(".{name}");
    let mut meant: Vec<&String> = keys.iter().filter(|key| **key == name).collect();
    if meant.is_empty() {
        meant = keys.iter().filter(|key| key.ends_with(&ending)).collect();
    }
    let meant: Vec<String> = meant.iter().map(|key| format!("{key}={value}")).collect();
    let (last, others) = meant.split_last()?;
    let meant = if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) };
    Some(format!("there is no option {option}; settings are given as key=value, without dashes: {meant}"))
}
