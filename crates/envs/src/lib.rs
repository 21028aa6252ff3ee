//! Games behind one trait, in Gymnasium's terms, and the built-in arcade. Knows nothing of networks.

pub mod arcade;
mod game;
mod random;
mod resize;
mod vector;

pub use game::{Game, Make, Purpose, all_games, distance, register};
pub use random::Random;
pub use resize::{Resize, Resized};
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
}
