//! The progress of all runs of a pool: a bar per run on a terminal, lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::output::{is_unicode, tell};
use crate::progress::Lines;
use crate::words::duration;

/// What a run says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// Finished epochs.
    pub epoch: usize,
    epochs: usize,
    phase: String,
    done: usize,
    total: usize,
    /// Seconds of the run.
    left: Option<f64>,
}

impl Said {
    pub fn parse(line: &Value) -> Option<Said> {
        let number = |key: &str| line.get(key)?.as_u64().map(|n| n as usize);
        Some(Said {
            epoch: number("epoch")?,
            epochs: number("epochs")?,
            phase: line.get("phase")?.as_str()?.to_string(),
            done: number("done")?,
            total: number("total")?,
            left: line.get("left").and_then(Value::as_f64),
        })
    }

    /// "epoch 3/600, tokenizer 120/200, 4 h left".
    fn in_words(&self) -> String {
        let Said { epoch, epochs, phase, done, total, left } = self;
        let left = left.map_or(String::new(), |left| format!(", {} left", duration(left)));
        // The epoch that is being made, not those that are finished.
        format!("epoch {}/{epochs}, {phase} {done}/{total}{left}", (epoch + 1).min(*epochs))
    }

    /// Thousandths of the run that are over.
    fn thousandths(&self) -> u64 {
        let part = self.done as f64 / self.total.max(1) as f64;
        // Phases of an epoch are not told apart: a bar only shows whole epochs and a bit of the next.
        let epochs = self.epoch as f64 + 0.5 * part.min(1.0);
        (1000.0 * epochs / self.epochs.max(1) as f64) as u64
    }
}

pub struct Screen {
    bars: Option<Bars>,
    /// What the runs said last, by their numbers.
    running: BTreeMap<usize, (String, Option<Said>)>,
    lines: Lines,
}

struct Bars {
    all: MultiProgress,
    of: BTreeMap<usize, ProgressBar>,
    summary: ProgressBar,
}

impl Screen {
    pub fn new() -> Screen {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let summary = all.add(ProgressBar::new(0));
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                summary.set_style(style);
            }
            Bars { all, of: BTreeMap::new(), summary }
        });
        Screen { bars, running: BTreeMap::new(), lines: Lines::default() }
    }

    /// Says a line above the bars.
    pub fn say(&self, line: &str) {
        match &self.bars {
            Some(bars) => _ = bars.all.println(line),
            None => tell!("{line}"),
        }
    }

    pub fn begin(&mut self, run: usize, title: &str) {
        self.running.insert(run, (title.into(), None));
        match &mut self.bars {
            Some(bars) => {
                let bar = ProgressBar::new(1000).with_message(format!("{run} {title}"));
                if let Some(style) = style() {
                    bar.set_style(style);
                }
                bars.of.insert(run, bars.all.insert_before(&bars.summary, bar));
            }
            None => tell!("run {run} ({title}) begins or goes on"),
        }
    }

    pub fn said(&mut self, run: usize, said: Said) {
        if let Some(bar) = self.bars.as_ref().and_then(|bars| bars.of.get(&run)) {
            bar.set_position(said.thousandths());
            bar.set_prefix(said.in_words());
        }
        if let Some((_, last)) = self.running.get_mut(&run) {
            *last = Some(said);
        }
        if self.bars.is_none() && self.lines.is_due(Instant::now()) {
            for (run, (title, said)) in &self.running {
                let said = said.as_ref().map_or("being prepared".into(), Said::in_words);
                tell!("run {run} ({title}): {said}");
            }
        }
    }

    pub fn end(&mut self, run: usize, how: &str) {
        let title = self.running.remove(&run).map_or(String::new(), |(title, _)| title);
        if let Some(bar) = self.bars.as_mut().and_then(|bars| bars.of.remove(&run)) {
            bar.finish_and_clear();
        }
        self.say(&format!("run {run} ({title}) {how}"));
    }

    /// How far the sweep is.
    pub fn summary(&self, line: String) {
        if let Some(bars) = &self.bars {
            bars.summary.set_message(line);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            bars.of.values().for_each(ProgressBar::finish_and_clear);
            bars.summary.finish_and_clear();
        }
    }
}

fn style() -> Option<ProgressStyle> {
    let style = ProgressStyle::with_template("{msg:36!} {bar:24} {prefix}").ok()?;
    Some(if is_unicode() { style } else { style.progress_chars("#>-") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_how_far_it_is() {
        let line = serde_json::json!({"epoch": 2, "epochs": 4, "phase": "tokenizer", "done": 5, "total": 10, "left": 90.0});
        let said = Said::parse(&line).unwrap();
        assert_eq!(said.in_words(), "epoch 3/4, tokenizer 5/10, 1 min 30 s left");
        assert_eq!(said.thousandths(), 562);
        assert_eq!(Said::parse(&serde_json::json!({"epoch": 2})), None);
        assert_eq!(Said::parse(&serde_json::json!(7)), None);
    }
}
