//! What can go wrong before and during training.

use std::path::PathBuf;

use super::{InitError, Phase, RunError};
use crate::replay::ReplayError;
use crate::{CheckpointError, PlayError};

/// Why a trainer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Env(#[from] envs::EnvError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error("tokenizer.perceptual: {0}")]
    Perceptual(CheckpointError),
    #[error("tokenizer.perceptual: the agent in {path} has no perceptual network")]
    NoPerceptual { path: PathBuf },
}

/// Why training ended before its last epoch.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Env(#[from] envs::EnvError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Play(#[from] PlayError),
    #[error("{phase}, epoch {epoch}: {reason}")]
    Diverged { phase: Phase, epoch: usize, reason: engine::Error },
    #[error("cannot save the run: {0}")]
    Save(#[from] RunError),
    #[error("stopped")]
    Interrupted,
}

impl TrainError {
    /// Says in which phase a network diverged.
    pub(super) fn in_phase(self, phase: Phase, epoch: usize) -> TrainError {
        match self {
            TrainError::Engine(reason @ engine::Error::NotFinite { .. }) => {
                TrainError::Diverged { phase, epoch, reason }
            }
            other => other,
        }
    }
}
