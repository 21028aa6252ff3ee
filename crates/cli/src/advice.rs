//! What to do about errors: the libraries state facts, and this program knows its own options.

use agent::PlayError;
use agent::train::{RunError, TrainError};
use envs::EnvError;

use crate::output::program;

/// Advice on an error that ends a command.
pub fn on(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| env_error(cause)).and_then(on_game)
}

/// A message with advice as a sentence after it.
pub fn with(message: String, advice: Option<String>) -> String {
    match advice {
        Some(advice) if message.ends_with('?') => format!("{message} {advice}"),
        Some(advice) => format!("{message}. {advice}"),
        None => message,
    }
}

/// The error of a game inside one of the libraries' errors.
fn env_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a EnvError> {
    let in_training = |error: &'a TrainError| match error {
        TrainError::Env(error) | TrainError::Play(PlayError::Env(error)) => Some(error),
        _ => None,
    };
    if let Some(RunError::Train(error)) = cause.downcast_ref() {
        return in_training(error);
    }
    if let Some(PlayError::Env(error)) = cause.downcast_ref() {
        return Some(error);
    }
    cause.downcast_ref().or_else(|| cause.downcast_ref().and_then(in_training))
}

/// Advice on an error of a game.
pub fn on_game(error: &EnvError) -> Option<String> {
    Some(match error {
        EnvError::NoSuchGame { .. } => format!("`{} envs` lists the games", program()),
        EnvError::AtariNotBuilt { .. } => "Run scripts/atari, then build with --features atari".into(),
        EnvError::NoRom { .. } => {
            "Run scripts/atari to get it, or name its folder with --roms or ALE_ROM_PATH".into()
        }
        _ => return None,
    })
}
