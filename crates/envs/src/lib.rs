//! Games behind one trait, in Gymnasium's terms, the built-in arcade, and Atari. Knows nothing of networks.

use std::path::PathBuf;

pub mod arcade;
pub mod atari;
mod game;
mod random;
mod resize;
mod speed;
mod vector;

pub use game::{Game, Make, Purpose, all_games, distance, register};
pub use random::Random;
pub use resize::{Resize, Resized};
pub use speed::steps_per_second;
pub use vector::VectorEnv;

/// A game. The same seed and the same actions give the same frames and rewards.
pub trait Env: Send {
    /// What the actions are called, in order; their number is the size of the action space.
    fn action_names(&self) -> &[&'static str];

    /// Height and width of a frame in pixels.
    fn frame_size(&self) -> (usize, usize);

    /// Starts an episode.
    fn reset(&mut self, seed: u64);

    /// Plays one step. An action the game does not have is an error and changes nothing.
    fn step(&mut self, action: usize) -> Result<Step, EnvError>;

    /// Draws the current state as RGB bytes, row by row.
    fn render(&self, frame: &mut [u8]);

    /// Whether the next reset goes on with the game as it is, after the loss of a life, and does not look at its seed.
    fn continues(&self) -> bool {
        false
    }

    /// Numbers about the current state that are not in the frame, such as the lives left.
    fn info(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Height, width and RGB bytes of the current state as a person would see it, where that is more than the frame.
    fn full_frame(&self) -> Option<(usize, usize, Vec<u8>)> {
        None
    }
}

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub reward: f32,
    /// The game is over.
    pub terminated: bool,
    /// The episode was cut off by a time limit.
    pub truncated: bool,
}

impl Step {
    pub fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EnvError {
    #[error("action {action} does not exist; this game has {count}, from 0 on")]
    NoSuchAction { action: usize, count: usize },

    #[error("no game is called `{name}`; `iris envs` lists them{}", suggestion.as_ref().map_or(String::new(), |s| format!(". Did you mean `{s}`?")))]
    NoSuchGame { name: String, suggestion: Option<String> },

    #[error(
        "this program was built without Atari, which {name} needs: run scripts/atari, then build with --features atari"
    )]
    AtariNotBuilt { name: String },

    #[error(
        "no ROM of {game}: there is no {file} in {}. scripts/atari brings it; or name its folder with --roms or ALE_ROM_PATH",
        listed(places)
    )]
    NoRom { game: String, file: String, places: Vec<PathBuf> },

    #[error("{} cannot be used: {reason}", path.display())]
    BadRom { path: PathBuf, reason: String },

    #[error("the Atari emulator: {reason}")]
    Emulator { reason: String },
}

fn listed(places: &[PathBuf]) -> String {
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
}
