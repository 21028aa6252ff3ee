//! What to do about errors: the libraries state facts, and this program knows its own options.

use std::error::Error;

use agent::train::{InitError, RunError, SetupError, TrainError};
use agent::{CheckpointError, PlayError, ReplayError, SceneError};
use envs::EnvError;
use report::ReportError;
use studio::StudioError;

use crate::output::program;

/// Advice on an error that ends a command.
pub fn on(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(on_cause)
}

/// A message with advice as a sentence after it.
pub fn with(message: String, advice: Option<String>) -> String {
    match advice {
        Some(advice) if message.ends_with('?') => format!("{message} {advice}"),
        Some(advice) => format!("{message}. {advice}"),
        None => message,
    }
}

fn on_cause(cause: &(dyn Error + 'static)) -> Option<String> {
    fn advice<E: Error + 'static>(
        cause: &(dyn Error + 'static),
        on: fn(&E) -> Option<String>,
    ) -> Option<String> {
        cause.downcast_ref().and_then(on)
    }
    advice(cause, on_training)
        .or_else(|| advice(cause, on_run))
        .or_else(|| advice(cause, on_setup))
        .or_else(|| advice(cause, on_play))
        .or_else(|| advice(cause, on_scene))
        .or_else(|| advice(cause, on_game))
        .or_else(|| advice(cause, on_replay))
        .or_else(|| advice(cause, on_checkpoint))
        .or_else(|| advice(cause, on_init))
        .or_else(|| advice(cause, on_report))
        .or_else(|| advice(cause, on_studio))
}

fn on_studio(error: &StudioError) -> Option<String> {
    match error {
        StudioError::NoFolder { .. } => {
            Some(format!("Name a folder with runs; `{} train` makes one under `runs`", program()))
        }
        StudioError::PortTaken { .. } => {
            Some("Another studio may be running there. Choose another port with --port, or any that is free with --port 0".into())
        }
        _ => None,
    }
}

fn on_report(error: &ReportError) -> Option<String> {
    match error {
        ReportError::UnknownGames { .. } => {
            Some("Give them with --references FILE, {\"Game\": [random, human]}".into())
        }
        ReportError::RepeatedAgent { .. } => Some("Rename a file, or name the runs with --name".into()),
        ReportError::NotFinite { .. } => Some("Leave those runs out".into()),
        ReportError::NotAScore { .. } => Some("Leave it out".into()),
        ReportError::Changed { .. } => Some("Put it back from a copy, or leave the run out".into()),
        _ => None,
    }
}

fn on_training(error: &TrainError) -> Option<String> {
    match error {
        TrainError::Env(error) => on_game(error),
        TrainError::Play(error) => on_play(error),
        TrainError::Replay(error) => on_replay(error),
        TrainError::Save(error) => on_run(error),
        _ => None,
    }
}

fn on_setup(error: &SetupError) -> Option<String> {
    match error {
        SetupError::Env(error) => on_game(error),
        SetupError::Replay(error) => on_replay(error),
        SetupError::Init(error) => on_init(error),
        SetupError::Perceptual(error) => on_checkpoint(error),
        SetupError::NoPerceptual { .. } => Some("Use \"random\" or \"none\"".into()),
        _ => None,
    }
}

fn on_play(error: &PlayError) -> Option<String> {
    match error {
        PlayError::Env(error) => on_game(error),
        _ => None,
    }
}

fn on_scene(error: &SceneError) -> Option<String> {
    match error {
        SceneError::Replay(error) => on_replay(error),
        _ => None,
    }
}

fn on_replay(error: &ReplayError) -> Option<String> {
    match error {
        ReplayError::Io { .. } => None,
        _ => Some(format!(
            "`{} train --forget-damaged --resume` goes on without the episodes that are damaged",
            program()
        )),
    }
}

fn on_checkpoint(error: &CheckpointError) -> Option<String> {
    Some(match error {
        CheckpointError::TooNew { .. } => "Use a newer version of this program".into(),
        CheckpointError::ExtraWeights { .. } => "Are the files in the order VGG16, LPIPS?".into(),
        CheckpointError::NotCausal { .. } => "Train it with `attention: causal`".into(),
        _ => return None,
    })
}

fn on_init(error: &InitError) -> Option<String> {
    Some(match error {
        InitError::Source(error) => return on_run(error),
        InitError::WrongShape { path, network, .. } | InitError::Missing { path, network, .. } => {
            format!("Use the sizes of {}, or leave the {network} out of init.parts", path.display())
        }
        InitError::OtherKey { found, .. } => format!("Set it to {found}"),
        InitError::OtherParameters { .. } => "Leave init.crc32 out to start from them as they are now".into(),
        InitError::Engine(_) => return None,
    })
}

fn on_run(error: &RunError) -> Option<String> {
    Some(match error {
        RunError::Setup(error) => return on_setup(error),
        RunError::Checkpoint(error) => return on_checkpoint(error),
        RunError::Replay(reason) | RunError::DamagedReplay { reason } => return on_replay(reason),
        RunError::NothingLeft { .. } => format!("`{} eval` still plays with the agent", program()),
        RunError::NoSuchRun { .. } | RunError::NotARun { .. } => {
            format!("Name the folder of a run, which `{} train` prints when it starts", program())
        }
        RunError::GoingOn { .. } => "Wait for it, or stop it with Ctrl-C".into(),
        RunError::Exists { .. } => "Continue it with --resume, or choose another folder".into(),
        RunError::Leftovers { .. } => "Choose another folder, or delete it".into(),
        RunError::HoldsAnAgent { .. } => "Choose another folder for the run".into(),
        RunError::NothingToResume { .. } => "Put one back from a copy, or begin a new run".into(),
        _ => return None,
    })
}

/// Advice on an error of a GPU.
pub fn on_gpu(error: &engine::Error) -> Option<String> {
    match error {
        engine::Error::NoGpu { .. } if !cfg!(feature = "cuda") => Some("Build with --features cuda".into()),
        _ => None,
    }
}

/// Advice on an error of a game.
pub fn on_game(error: &EnvError) -> Option<String> {
    Some(match error {
        EnvError::NoSuchGame { .. } => format!("`{} envs` lists the games", program()),
        EnvError::AtariNotBuilt { .. } => "Run scripts/atari, then build with --features atari".into(),
        EnvError::NoRom { .. } => {
            "Run scripts/atari to get it, or name its folder with --roms or ALE_ROM_PATH".into()
        }
        _ => return None,
    })
}
