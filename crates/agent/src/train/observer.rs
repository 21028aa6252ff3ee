//! What happens in a run, for whoever watches it. The run saves itself whatever the observer does.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;

use super::Phase;

#[derive(Debug)]
pub enum Event {
    /// `done` of `total` steps of a phase are over. Epochs count from 1.
    Progress { epoch: usize, phase: Phase, done: usize, total: usize },
    /// An epoch is over, and is going to be saved. Where that happens in the background, the next one has begun.
    Epoch { epoch: usize, metrics: Vec<(String, f64)> },
    /// The epoch's metrics, pictures and checkpoint are on disk.
    Saved { epoch: usize },
    /// Something is not as it should be, and stops nobody.
    Warning(Warning),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The tokenizer has the same tokens for frames that differ; the picture shows them.
    SameTokens { picture: PathBuf },
    /// About the files of the run.
    Files(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Warning::SameTokens { picture } => {
                write!(f, "the tokenizer has the same tokens for every frame (see {})", picture.display())
            }
            Warning::Files(text) => f.write_str(text),
        }
    }
}

/// Watches a run, and may stop it.
pub trait Observer {
    /// `Break` stops the run: at once after a step, and after the end of an epoch as soon as it is saved.
    fn event(&mut self, event: Event) -> ControlFlow<()>;
}

/// Nobody watches.
impl Observer for () {
    fn event(&mut self, _: Event) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
