//! The phases of an epoch, and the streams of random numbers they draw from.

use std::fmt;

use engine::Key;

/// What an epoch consists of, in this order. The names are those of the config's sections and of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Collection,
    Tokenizer,
    WorldModel,
    ActorCritic,
    Evaluation,
}

impl Phase {
    pub const ALL: [Phase; 5] =
        [Phase::Collection, Phase::Tokenizer, Phase::WorldModel, Phase::ActorCritic, Phase::Evaluation];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Collection => "collection",
            Phase::Tokenizer => "tokenizer",
            Phase::WorldModel => "world_model",
            Phase::ActorCritic => "actor_critic",
            Phase::Evaluation => "evaluation",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Who draws random numbers. Every epoch's numbers are a function of (seed, stream, epoch), so that a resumed run draws the same.
#[derive(Clone, Copy)]
pub(super) enum Stream {
    Collect = 1,
    Explore,
    Tokenizer,
    TokenizerBatches,
    WorldModel,
    WorldModelBatches,
    ActorCritic,
    ActorCriticBatches,
    Dream,
    Evaluate,
    Media,
}

impl Stream {
    /// The first of an epoch's numbers; epochs count from 0.
    pub fn key(self, seed: u64, epoch: usize) -> Key {
        Key { seed, stream: self as u32, step: (epoch as u64) << 32 }
    }
}
