//! How long a run will take, judged by the first steps of each of its phases.

use std::collections::BTreeMap;

use agent::train::{Schedule, TrainConfig};

/// A run that takes longer deserves a word.
const LONG: f64 = 7.0 * DAY;
const DAY: f64 = 86_400.0;

/// Seconds of a step of anything: no machine is faster.
const LEAST: f64 = 1e-4;

/// Steps after which their mean time is believed, or seconds of at least two of them.
const ENOUGH_STEPS: usize = 20;
const ENOUGH_SECONDS: f64 = 10.0;

/// What was measured of each phase in this process.
#[derive(Default)]
pub struct Pace {
    phases: BTreeMap<&'static str, Timed>,
    warned: bool,
}

#[derive(Clone, Copy, Default)]
struct Timed {
    steps: usize,
    seconds: f64,
}

impl Timed {
    fn per_step(self) -> Option<f64> {
        let enough = self.steps >= ENOUGH_STEPS || (self.steps >= 2 && self.seconds >= ENOUGH_SECONDS);
        enough.then(|| self.seconds / self.steps as f64)
    }
}

impl Pace {
    /// `steps` of a phase took so long.
    pub fn add(&mut self, phase: &'static str, steps: usize, seconds: f64) {
        let timed = self.phases.entry(phase).or_default();
        timed.steps += steps;
        timed.seconds += seconds;
    }

    /// What to say, once, about a run that will take very long; `epoch` epochs are finished.
    pub fn warning(&mut self, config: &TrainConfig, epoch: usize) -> Option<String> {
        if self.warned {
            return None;
        }
        let warning = self.judge(config, epoch);
        self.warned = warning.is_some();
        warning
    }

    fn judge(&self, config: &TrainConfig, epoch: usize) -> Option<String> {
        let pace = |phase| self.phases.get(phase).and_then(|timed| timed.per_step());
        let parts = PHASES.map(|(phase, thing)| {
            let seconds = pace(phase);
            (thing, steps_left(config, phase, epoch), seconds.unwrap_or(LEAST), seconds.is_some())
        });
        let seconds = |(_, steps, seconds, _): &(&str, f64, f64, bool)| steps * seconds;
        let total: f64 = parts.iter().map(seconds).sum();
        let longest = parts.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)))?;
        if total <= LONG {
            return None;
        }
        let (thing, steps, each, measured) = *longest;
        Some(match measured {
            true => format!(
                "this run takes about {} more: {steps:.0} {thing}s are to come, and one takes {}; a GPU, a smaller preset or smaller numbers (`iris config`) take less",
                in_words(total),
                seconds_in_words(each)
            ),
            false => format!(
                "this run takes {} or more on any machine: {steps:.0} {thing}s are to come; `iris config` shows which numbers ask for them",
                in_words(total)
            ),
        })
    }
}

/// Phases as the trainer calls them, and what they consist of.
const PHASES: [(&str, &str); 5] = [
    ("collection", "step"),
    ("tokenizer", "tokenizer update"),
    ("world_model", "world model update"),
    ("actor_critic", "actor-critic update"),
    ("evaluation", "evaluation game"),
];

/// Steps of a phase that are to come after `epoch` finished epochs. Those of the epoch that is being made count.
fn steps_left(config: &TrainConfig, phase: &str, epoch: usize) -> f64 {
    let epochs = config.epochs;
    match phase {
        "collection" => {
            let left = config.collection.epochs.min(epochs).saturating_sub(epoch);
            left as f64 * config.collection.steps as f64
        }
        "tokenizer" => updates_left(&config.tokenizer.schedule, epoch, epochs),
        "world_model" => updates_left(&config.world_model.schedule, epoch, epochs),
        "actor_critic" => updates_left(&config.actor_critic.schedule, epoch, epochs),
        _ => {
            let evaluation = &config.evaluation;
            let until = |epoch: usize| epoch.checked_div(evaluation.every).unwrap_or(0);
            let last = usize::from(epochs > 0 && epochs.is_multiple_of(evaluation.every));
            let before_last = until(epochs).saturating_sub(until(epoch)).saturating_sub(last);
            before_last as f64 * evaluation.episodes as f64 + evaluation.final_episodes as f64
        }
    }
}

fn updates_left(schedule: &Schedule, epoch: usize, epochs: usize) -> f64 {
    let start = schedule.start_after;
    let left = epochs.saturating_sub(epoch.max(start)) as f64 * schedule.updates as f64;
    match epoch <= start && start < epochs {
        true => left + schedule.updates_in(start) as f64 - schedule.updates as f64,
        false => left,
    }
}

/// A long time, in the largest unit that it is a few of.
fn in_words(seconds: f64) -> String {
    let days = seconds / DAY;
    match days {
        ..60.0 => format!("{days:.0} days"),
        60.0..730.0 => format!("{:.0} months", days / 30.4),
        _ => format!("{:.0} years", days / 365.25),
    }
}

fn seconds_in_words(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} µs", 1e6 * seconds),
        1e-3..1.0 => format!("{:.0} ms", 1e3 * seconds),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, epoch by epoch.
    fn counted(config: &TrainConfig, phase: &str, epoch: usize) -> f64 {
        let sum = |steps: &dyn Fn(usize) -> usize| (epoch..config.epochs).map(steps).sum::<usize>() as f64;
        match phase {
            "collection" => sum(&|e| if e < config.collection.epochs { config.collection.steps } else { 0 }),
            "tokenizer" => sum(&|e| config.tokenizer.schedule.updates_in(e)),
            "world_model" => sum(&|e| config.world_model.schedule.updates_in(e)),
            "actor_critic" => sum(&|e| config.actor_critic.schedule.updates_in(e)),
            _ => sum(&|e| match e + 1 {
                next if next == config.epochs => config.evaluation.final_episodes,
                next if next.is_multiple_of(config.evaluation.every) => config.evaluation.episodes,
                _ => 0,
            }),
        }
    }

    #[test]
    fn what_is_left_is_the_sum_over_the_epochs() {
        let mut config = TrainConfig { epochs: 60, ..TrainConfig::default() };
        config.collection.epochs = 50;
        config.tokenizer.schedule.first_updates = 777;
        for every in [0, 1, 7, 60, 100] {
            config.evaluation.every = every;
            for epoch in 0..60 {
                for (phase, _) in PHASES {
                    let (got, expected) = (steps_left(&config, phase, epoch), counted(&config, phase, epoch));
                    assert_eq!(got, expected, "{phase} after {epoch} epochs, evaluation every {every}");
                }
            }
        }
    }

    #[test]
    fn a_long_run_is_announced_once_with_its_time() {
        let config = TrainConfig::default();
        let mut pace = Pace::default();
        assert_eq!(pace.warning(&config, 0), None);
        // 0.2 s for an update of each network: 350,000 of them take 19 hours.
        for phase in ["tokenizer", "world_model", "actor_critic"] {
            pace.add(phase, 20, 4.0);
        }
        assert_eq!(pace.warning(&config, 0), None);
        // Two updates are enough where they take long: 119,000 of 10 s.
        let mut pace = Pace::default();
        pace.add("tokenizer", 1, 10.0);
        assert_eq!(pace.warning(&config, 5), None);
        pace.add("tokenizer", 1, 10.0);
        let warning = pace.warning(&config, 5).unwrap();
        assert!(
            warning.starts_with(
                "this run takes about 14 days more: 119000 tokenizer updates are to come, and one takes 10.0 s;"
            ),
            "{warning}"
        );
        assert_eq!(pace.warning(&config, 5), None);
    }

    #[test]
    fn a_run_that_no_machine_can_finish_is_announced_before_it_begins() {
        let mut config = TrainConfig { epochs: 10_050, ..TrainConfig::default() };
        config.actor_critic.schedule.updates = 10_000_000;
        let warning = Pace::default().warning(&config, 0).unwrap();
        let expected = "this run takes 4 months or more on any machine: 100000000000 actor-critic updates";
        assert!(warning.starts_with(expected), "{warning}");
    }
}
