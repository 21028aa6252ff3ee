//! What is to blame for a run that failed: the run, or the machine under it.

use std::error::Error as Cause;
use std::io::ErrorKind;

use agent::train::{RunError, SetupError, TrainError};
use agent::{CheckpointError, PlayError};
use engine::Error;

/// Whether an error says that a disk is full, or that its owner may write no more.
pub fn is_full_disk(error: &anyhow::Error) -> bool {
    let full =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    error.chain().any(|cause| cause.downcast_ref().is_some_and(full))
}

/// Whether a GPU, its driver or its MPS daemon failed: where a GPU is shared, another process may be to blame.
pub fn is_of_the_gpu(error: &anyhow::Error) -> bool {
    error.chain().filter_map(engine_error).any(|error| matches!(error, Error::Gpu { .. }))
}

/// The engine's error in one of the libraries' errors, which pass it on without a link of its own.
fn engine_error<'a>(cause: &'a (dyn Cause + 'static)) -> Option<&'a Error> {
    let of_play =
        |error: &'a PlayError| if let PlayError::Engine(error) = error { Some(error) } else { None };
    let of_run = |error: &'a RunError| match error {
        RunError::Checkpoint(CheckpointError::Engine(error)) | RunError::Setup(SetupError::Engine(error)) => {
            Some(error)
        }
        _ => None,
    };
    let of_training = |error: &'a TrainError| match error {
        TrainError::Engine(error) => Some(error),
        TrainError::Play(error) => of_play(error),
        TrainError::Save(error) => of_run(error),
        _ => None,
    };
    cause
        .downcast_ref()
        .or_else(|| cause.downcast_ref().and_then(of_training))
        .or_else(|| cause.downcast_ref().and_then(of_run))
        .or_else(|| cause.downcast_ref().and_then(of_play))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_its_cause_wherever_it_comes_from() {
        let gpu = || Error::Gpu { what: "waiting for the GPU", reason: "an illegal address".into() };
        for error in [
            anyhow::Error::from(gpu()).context("no device"),
            TrainError::Engine(gpu()).into(),
            TrainError::Play(PlayError::Engine(gpu())).into(),
            TrainError::Save(RunError::Checkpoint(CheckpointError::Engine(gpu()))).into(),
            RunError::Setup(SetupError::Engine(gpu())).into(),
        ] {
            assert!(is_of_the_gpu(&error) && !is_full_disk(&error), "{error:?}");
        }
        let none = anyhow::Error::from(Error::NoGpu { reason: "no driver".into() });
        assert!(!is_of_the_gpu(&none));
        let full = agent::FileError {
            doing: "write",
            path: "metrics.jsonl".into(),
            source: std::io::Error::from(ErrorKind::StorageFull),
        };
        let full = anyhow::Error::from(TrainError::Save(RunError::File(full)));
        assert!(is_full_disk(&full) && !is_of_the_gpu(&full));
    }
}
