//! Games behind one trait, in Gymnasium's terms: the contract, the built-in arcade, and Atari. Knows nothing of networks.
//!
//! A game of your own implements [`Env`] and is added with [`register`]; [`Game::find`] then knows it like the built-in ones:
//!
//! ```
//! use std::sync::Arc;
//!
//! use envs::{Env, EnvError, Game, Purpose, Step};
//!
//! /// Press the button as often as possible in ten steps.
//! struct Button {
//!     steps: usize,
//! }
//!
//! impl Env for Button {
//!     fn action_names(&self) -> Vec<String> {
//!         vec!["wait".into(), "press".into()]
//!     }
//!
//!     fn frame_size(&self) -> (usize, usize) {
//!         (8, 8)
//!     }
//!
//!     fn reset(&mut self, _seed: u64) -> Result<(), EnvError> {
//!         self.steps = 0;
//!         Ok(())
//!     }
//!
//!     fn step(&mut self, action: usize) -> Result<Step, EnvError> {
//!         self.steps += 1;
//!         Ok(Step { reward: action as f32, terminated: false, truncated: self.steps == 10 })
//!     }
//!
//!     fn render(&self, frame: &mut [u8]) {
//!         frame.fill(self.steps as u8 * 25);
//!     }
//! }
//!
//! envs::register(Game {
//!     name: "my/button".into(),
//!     rules: "Press the button. +1 per press; ten steps.".into(),
//!     random: 5.0,
//!     skilled: 10.0,
//!     yardstick: "perfect".into(),
//!     make: Arc::new(|_| Ok(Box::new(Button { steps: 0 }))),
//! });
//! // Frames are resized to what the caller wants.
//! let mut env = Game::find("my/button")?.make(Purpose::Train, 32)?;
//! env.reset(0)?;
//! assert_eq!(env.step(1)?.reward, 1.0);
//! # Ok::<(), EnvError>(())
//! ```
#![warn(missing_docs)]

pub mod arcade;
pub mod atari;
mod error;
mod game;
mod random;
mod resize;
mod speed;
mod vector;

pub use error::EnvError;
pub use game::{Game, Make, Purpose, all_games, nearest, register};
pub use random::Random;
pub use resize::{Resize, Resized};
pub use speed::steps_per_second;
pub use vector::VectorEnv;

/// A game that is played in episodes.
///
/// The caller resets it, then alternates [`render`](Env::render) and [`step`](Env::step) until a step says that the episode is over, and resets it
/// again. The same seed and the same actions must give the same frames and rewards: a resumed run replays the actions of the game it was in.
pub trait Env: Send {
    /// Names of the actions, in order; their number is the size of the action space. Both stay the same for the life of the environment.
    fn action_names(&self) -> Vec<String>;

    /// Height and width of a frame in pixels. They stay the same, too, once the first episode has begun.
    fn frame_size(&self) -> (usize, usize);

    /// Asks for frames of this height and width, before the first reset. Whether the game draws them so itself; the frames of one that does not are
    /// resized.
    fn set_frame_size(&mut self, _size: (usize, usize)) -> bool {
        false
    }

    /// Starts an episode. All randomness of the episode follows from the seed.
    ///
    /// # Errors
    /// Whatever keeps the game from starting, such as a lost connection: see [`EnvError::other`]. The run stops with this error; nothing of
    /// its finished epochs is lost.
    fn reset(&mut self, seed: u64) -> Result<(), EnvError>;

    /// Plays one step.
    ///
    /// # Errors
    /// [`EnvError::NoSuchAction`] for an action that the game does not have, which changes nothing; otherwise as for [`reset`](Env::reset).
    fn step(&mut self, action: usize) -> Result<Step, EnvError>;

    /// Draws the current state as RGB bytes, row by row: height x width x 3 of them, as [`frame_size`](Env::frame_size) says.
    fn render(&self, frame: &mut [u8]);

    /// Whether the next reset continues the game in progress, as after the loss of a life in Atari, and ignores its seed.
    fn continues(&self) -> bool {
        false
    }

    /// Named numbers about the current state that the frame does not show, such as the lives left.
    fn info(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    /// Height, width and RGB bytes of the current state as a person sees it, where that is more than the frame.
    fn full_frame(&self) -> Option<(usize, usize, Vec<u8>)> {
        None
    }
}

/// Outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Points made in this step.
    pub reward: f32,
    /// The game reached a state that ends it: won, lost, or a life lost where that ends an episode. No reward can follow.
    pub terminated: bool,
    /// A time limit cut the episode off. The game itself could have gone on.
    pub truncated: bool,
}

impl Step {
    /// Whether the episode is over, for either reason.
    pub fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}
