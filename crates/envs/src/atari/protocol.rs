//! The settings of the Atari protocol.

use crate::Purpose;

/// How a game is turned into episodes and steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// A game begins with 1 to this many frames without an action.
    pub most_noops: usize,
    /// Whether the loss of a life ends an episode. The next one then goes on with the same game.
    pub life_loss_ends: bool,
    /// Raw frames of a game, over all its lives and with the no-ops, after which it is cut off.
    pub time_limit: u32,
    /// How often a step's action is given to the emulator.
    pub acts: usize,
    /// Raw frames that the emulator plays each time; only the last of them can be seen.
    pub frame_skip: u32,
    /// Probability that a raw frame is played with the action of the one before it.
    pub sticky: f32,
}

impl Protocol {
    /// The paper's: `NoFrameskip-v4` and the wrappers around it.
    pub fn new(purpose: Purpose) -> Protocol {
        let (most_noops, life_loss_ends, time_limit) = match purpose {
            Purpose::Train => (30, true, 20_000),
            Purpose::Evaluate => (1, false, 108_000),
        };
        Protocol { most_noops, life_loss_ends, time_limit, acts: 4, frame_skip: 1, sticky: 0.0 }
    }

    /// The same around a `v5` game, whose emulator skips frames and repeats actions itself.
    pub fn v5(purpose: Purpose) -> Protocol {
        Protocol { acts: 1, frame_skip: 4, sticky: 0.25, ..Protocol::new(purpose) }
    }
}
