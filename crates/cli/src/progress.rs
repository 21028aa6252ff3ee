//! How far something long has come: a bar on a terminal, a line now and then elsewhere.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::output::{is_unicode, tell};
use crate::words::{duration, rate};

/// Seconds between two lines where there is no terminal: a log shows that something is going on.
const LINE_EVERY: f64 = 30.0;

/// A bar while standard error is a terminal, a line every 30 seconds otherwise.
pub struct Progress {
    phase: String,
    total: usize,
    bar: Option<ProgressBar>,
    started: Instant,
    /// What was done when the clock started: the first to be reported may have begun long before.
    first: Cell<Option<usize>>,
    lines: Cell<Lines>,
    /// What else there is to say, such as the time left of the whole run.
    note: RefCell<String>,
}

impl Progress {
    pub fn new(phase: impl Into<String>, total: usize) -> Progress {
        Progress::after(phase, total, Lines::default())
    }

    /// The next phase of something whose last line was said a while ago.
    pub fn after(phase: impl Into<String>, total: usize, lines: Lines) -> Progress {
        let phase = phase.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64).with_message(phase.clone());
            match style() {
                Some(style) => bar.with_style(style),
                None => bar,
            }
        });
        let (started, lines) = (Instant::now(), Cell::new(lines));
        Progress { phase, total, bar, started, first: Cell::new(None), lines, note: RefCell::default() }
    }

    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// Says this beside the rest.
    pub fn note(&self, note: String) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(if note.is_empty() { note } else { format!("  {note}") });
        } else {
            *self.note.borrow_mut() = note;
        }
    }

    pub fn set(&self, done: usize) {
        let first = self.first.get().unwrap_or(done);
        match &self.bar {
            Some(bar) => {
                bar.set_position(done as u64);
                if self.first.get().is_none() {
                    bar.reset_eta();
                }
            }
            None => {
                let mut lines = self.lines.get();
                if lines.is_due(Instant::now()) {
                    let seconds = self.started.elapsed().as_secs_f64();
                    let note = self.note.borrow();
                    tell!("{}", line(&self.phase, [first, done, self.total], seconds, &note));
                }
                self.lines.set(lines);
            }
        }
        self.first.set(Some(first));
    }

    /// When the last line was said, for the phase after this one.
    pub fn lines(&self) -> Lines {
        self.lines.get()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// When lines are due.
#[derive(Clone, Copy)]
pub struct Lines {
    last: Instant,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { last: Instant::now() }
    }
}

impl Lines {
    /// Whether it is time for a line, which then counts as said.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.last).as_secs_f64() >= LINE_EVERY;
        if due {
            self.last = now;
        }
        due
    }
}

/// "tokenizer 120/500, 4.2/s, 1 min 30 s left".
fn line(phase: &str, [first, done, total]: [usize; 3], seconds: f64, note: &str) -> String {
    let mut line = format!("{phase} {done}/{total}");
    // Before one is done there is nothing to judge by.
    if done > first && seconds > 0.0 {
        let per_second = (done - first) as f64 / seconds;
        let left = total.saturating_sub(done) as f64 / per_second;
        line += &format!(", {}, {} left", rate(per_second), duration(left));
    }
    if !note.is_empty() {
        line += &format!("; {note}");
    }
    line
}

fn style() -> Option<ProgressStyle> {
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        let per_second = state.per_sec();
        if state.pos() > 0 && per_second > 0.0 {
            let _ = write!(out, "  {}  {} left", rate(per_second), duration(state.eta().as_secs_f64()));
        }
    };
    let style = ProgressStyle::with_template("{msg:12} {bar:30} {pos}/{len}{rate}{prefix}").ok()?;
    let style = style.with_key("rate", rate);
    Some(if is_unicode() { style } else { style.progress_chars("#>-") })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_says_what_is_known() {
        assert_eq!(line("evaluation", [0, 0, 256], 40.0, ""), "evaluation 0/256");
        assert_eq!(line("tokenizer", [1, 121, 500], 60.0, ""), "tokenizer 121/500, 2.0/s, 3 min 10 s left");
        let note = "about 2 h of the run left";
        assert_eq!(line("games", [0, 5, 5], 50.0, note), format!("games 5/5, 10 s each, 0 s left; {note}"));
    }

    #[test]
    fn a_line_is_due_every_30_seconds() {
        let start = Instant::now();
        let mut lines = Lines { last: start };
        let due: Vec<u64> = (0..100).filter(|s| lines.is_due(start + Duration::from_secs(*s))).collect();
        assert_eq!(due, [30, 60, 90]);
    }
}
