//! How far something long has come: a bar with rate and time left on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar while standard error is a terminal, nothing otherwise.
pub struct Progress {
    phase: String,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(phase: impl Into<String>, total: usize) -> Progress {
        let phase = phase.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:12} {bar:30} {pos}/{len}  {per_sec}  {eta} left");
            let bar = ProgressBar::new(total as u64).with_message(phase.clone());
            style.map_or(bar.clone(), |style| bar.with_style(style))
        });
        Progress { phase, bar }
    }

    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// Whether there is a bar to look at.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    pub fn set(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
