//! What can go wrong in training.

use std::path::PathBuf;

use super::Phase;
use crate::replay::ReplayError;
use crate::{CheckpointError, PlayError};

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Env(#[from] envs::EnvError),
    #[error(transparent)]
    Replay(ReplayError),
    #[error("{0}; `iris train --forget-damaged --resume` goes on without the episodes that are damaged")]
    DamagedReplay(ReplayError),
    #[error(transparent)]
    Play(#[from] PlayError),
    #[error("tokenizer.perceptual: {0}")]
    Perceptual(CheckpointError),
    #[error(
        "tokenizer.perceptual: the agent in {path} has no perceptual network; use \"random\" or \"none\""
    )]
    NoPerceptual { path: PathBuf },
    #[error("{phase}, epoch {epoch}: {reason}")]
    Diverged { phase: Phase, epoch: usize, reason: engine::Error },
    #[error("cannot save the run: {0}")]
    Save(String),
    #[error("stopped")]
    Interrupted,
}

impl From<ReplayError> for TrainError {
    fn from(error: ReplayError) -> TrainError {
        match error {
            ReplayError::Io { .. } => TrainError::Replay(error),
            _ => TrainError::DamagedReplay(error),
        }
    }
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
