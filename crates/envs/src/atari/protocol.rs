//! The settings of the Atari protocol.

use crate::Purpose;

/// Sticky actions of `v5` games.
const V5_STICKY: f32 = 0.25;

/// How a game is turned into episodes and steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// A game begins with 1 to this many frames without an action; 0 for none.
    pub most_noops: usize,
    /// Whether the loss of a life ends an episode.
    pub life_loss_ends: bool,
    /// Whether the episode after a lost life goes on with the same game.
    pub lives_continue: bool,
    /// Raw frames of a game, over all its lives and with the no-ops, after which it is cut off.
    pub time_limit: u32,
    /// Raw frames of a step, all with the same action.
    pub frame_skip: u32,
    /// Whether the emulator skips the frames itself: only the last of a step can be seen.
    pub emulator_skips: bool,
    /// Probability that a raw frame is played with the action of the one before it.
    pub sticky: f32,
    /// Whether only the sign of a step's reward counts.
    pub clip_rewards: bool,
}

impl Protocol {
    /// The paper's: `NoFrameskip-v4` and the wrappers around it.
    pub fn new(purpose: Purpose) -> Protocol {
        let training = purpose == Purpose::Train;
        Protocol {
            most_noops: if training { 30 } else { 1 },
            life_loss_ends: training,
            // An evaluated game follows from its seed alone.
            lives_continue: training,
            time_limit: if training { 20_000 } else { 108_000 },
            frame_skip: 4,
            emulator_skips: false,
            sticky: 0.0,
            clip_rewards: false,
        }
    }

    /// The same around a `v5` game, whose emulator skips frames and repeats actions itself.
    pub fn v5(self) -> Protocol {
        let sticky = if self.sticky > 0.0 { self.sticky } else { V5_STICKY };
        Protocol { emulator_skips: true, sticky, ..self }
    }

    /// How often a step's action is given to the emulator.
    pub fn acts(&self) -> usize {
        if self.emulator_skips { 1 } else { self.frame_skip as usize }
    }

    /// Raw frames that the emulator plays each time.
    pub fn frames_per_act(&self) -> u32 {
        if self.emulator_skips { self.frame_skip } else { 1 }
    }
}
