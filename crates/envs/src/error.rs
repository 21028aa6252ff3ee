//! What can go wrong with a game. Messages state facts; programs add advice in terms of their own options.

use std::error::Error;
use std::path::PathBuf;

/// An error of a game, or of looking for one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// An action outside the action space.
    #[error("action {action} does not exist; this game has {count}, from 0 on")]
    NoSuchAction {
        /// The index that was asked for.
        action: usize,
        /// Size of the action space.
        count: usize,
    },

    /// No game has this name.
    #[error("no game is called `{name}`{}", suggestion.as_ref().map_or(String::new(), |s| format!(". Did you mean `{s}`?")))]
    NoSuchGame {
        /// The name that was looked for.
        name: String,
        /// A similar name, if there is one.
        suggestion: Option<String>,
    },

    /// A short name that several games share.
    #[error("`{name}` may be {}: give the whole name", alternatives(games))]
    AmbiguousGame {
        /// The name that was looked for.
        name: String,
        /// Full names of the games that it fits.
        games: Vec<String>,
    },

    /// An Atari game in a build without the feature `atari`.
    #[error("{name} needs the Atari emulator, which this program was built without")]
    AtariNotBuilt {
        /// The game.
        name: String,
    },

    /// The ROM of an Atari game is in none of the places where ROMs are looked for.
    #[error("no ROM of {game}: there is no {file} in {}", listed(places))]
    NoRom {
        /// The game.
        game: String,
        /// File name of its ROM.
        file: String,
        /// Folders that were searched, in this order.
        places: Vec<PathBuf>,
    },

    /// A ROM that cannot be read or is not the right one.
    #[error("{} cannot be used: {reason}", path.display())]
    BadRom {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The Atari emulator failed.
    #[error("the Atari emulator: {reason}")]
    Emulator {
        /// The emulator's words.
        reason: String,
    },

    /// Any error of a game outside this crate: see [`EnvError::other`].
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl EnvError {
    /// Wraps the error of a game, or a text: `simulator.start().map_err(EnvError::other)?` or `EnvError::other("no such level")`.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> EnvError {
        EnvError::Other(error.into())
    }
}

fn alternatives(games: &[String]) -> String {
    let quoted: Vec<String> = games.iter().map(|game| format!("`{game}`")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

fn listed(places: &[PathBuf]) -> String {
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_other_games_keep_their_words_and_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("the simulator is gone")]
        struct Gone(#[source] std::io::Error);

        let error = EnvError::other(Gone(std::io::Error::other("connection reset")));
        assert_eq!(error.to_string(), "the simulator is gone");
        assert_eq!(error.source().unwrap().to_string(), "connection reset");
        let EnvError::Other(inner) = &error else { panic!("{error:?}") };
        assert!(inner.downcast_ref::<Gone>().is_some());
        assert_eq!(EnvError::other("no such level").to_string(), "no such level");
    }
}
