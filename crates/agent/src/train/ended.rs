//! What a run is after the updates of an epoch. Evaluation, pictures and files are made from it, and feed nothing back into training.

use engine::{Device, Key};
use envs::Game;

use super::phase::Stream;
use super::{TokenizerObjective, TrainConfig};
use crate::{Agent, Replay};

pub(super) struct Ended<'a> {
    /// Finished epochs, this one included.
    pub epoch: usize,
    /// Names of the game's actions.
    pub actions: Vec<String>,
    pub config: &'a TrainConfig,
    pub device: &'a Device,
    pub agent: &'a Agent,
    pub replay: &'a Replay,
    pub game: &'a Game,
    /// For losses on held-out games, where these are wanted.
    pub tokenizer: Option<&'a mut TokenizerObjective>,
}

impl Ended<'_> {
    /// Number of the epoch that has just ended, from 0.
    pub fn number(&self) -> usize {
        self.epoch.saturating_sub(1)
    }

    /// The first numbers of a stream in epoch number `epoch`, from 0.
    pub fn key(&self, stream: Stream, epoch: usize) -> Key {
        stream.key(self.config.seed, epoch)
    }
}
