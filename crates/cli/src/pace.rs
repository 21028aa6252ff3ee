//! How long a run will take: by a forecast before it begins, then by its own steps.

use std::collections::BTreeMap;

use agent::train::{Phase, Schedule, TrainConfig};

use crate::words::duration;

/// A run that takes longer deserves a word before it begins.
const LONG: f64 = 86_400.0;

/// Seconds of a step of anything: no machine is faster.
const LEAST: f64 = 1e-4;

/// Steps after which their mean time is believed, or seconds of at least two of them.
const ENOUGH_STEPS: usize = 20;
const ENOUGH_SECONDS: f64 = 10.0;

/// Seconds of a step of each phase.
pub type Forecast = BTreeMap<Phase, f64>;

/// What is known about the time that steps take.
#[derive(Default)]
pub struct Pace {
    forecast: Forecast,
    /// What was measured in this process.
    measured: BTreeMap<Phase, Timed>,
    /// Steps that the current epoch has behind it.
    done: BTreeMap<Phase, usize>,
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
    pub fn new(forecast: Forecast) -> Pace {
        Pace { forecast, ..Pace::default() }
    }

    /// `steps` of a phase took so long.
    pub fn add(&mut self, phase: Phase, steps: usize, seconds: f64) {
        let timed = self.measured.entry(phase).or_default();
        timed.steps += steps;
        timed.seconds += seconds;
    }

    /// The current epoch has so many steps of a phase behind it.
    pub fn set_done(&mut self, phase: Phase, steps: usize) {
        self.done.insert(phase, steps);
    }

    pub fn begin_epoch(&mut self) {
        self.done.clear();
    }

    /// Seconds of a step: measured if there were enough, forecast otherwise.
    fn per_step(&self, phase: Phase) -> Option<f64> {
        let measured = self.measured.get(&phase).and_then(|timed| timed.per_step());
        measured.or_else(|| self.forecast.get(&phase).copied())
    }

    /// Steps of a phase that are to come; `epoch` epochs are finished.
    fn to_come(&self, config: &TrainConfig, phase: Phase, epoch: usize) -> f64 {
        let done = self.done.get(&phase).copied().unwrap_or_default();
        (steps_left(config, phase, epoch) - done as f64).max(0.0)
    }

    /// Seconds of the run that are left, if something is known about every phase that is to come.
    pub fn left(&self, config: &TrainConfig, epoch: usize) -> Option<f64> {
        let seconds = |phase| match self.to_come(config, phase, epoch) {
            0.0 => Some(0.0),
            steps => Some(steps * self.per_step(phase)?),
        };
        Phase::ALL.into_iter().map(seconds).sum()
    }

    /// What to say, once, about a run that will take very long.
    pub fn warning(&mut self, config: &TrainConfig, epoch: usize, on_gpu: bool) -> Option<String> {
        if self.warned {
            return None;
        }
        let warning = self.judge(config, epoch, on_gpu);
        self.warned = warning.is_some();
        warning
    }

    fn judge(&self, config: &TrainConfig, epoch: usize, on_gpu: bool) -> Option<String> {
        let parts = Phase::ALL.map(|phase| {
            let seconds = self.per_step(phase);
            (phase, self.to_come(config, phase, epoch), seconds.unwrap_or(LEAST), seconds.is_some())
        });
        let seconds = |(_, steps, seconds, _): &(Phase, f64, f64, bool)| steps * seconds;
        let total: f64 = parts.iter().map(seconds).sum();
        let (phase, steps, each, known) = *parts.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)))?;
        if total <= LONG {
            return None;
        }
        let thing = thing(phase);
        Some(match known {
            true => format!(
                "this run takes about {} on this device: {steps:.0} {thing}s are to come, {} each. Quicker: {}, or fewer epochs (epochs=...)",
                duration(total),
                seconds_in_words(each),
                quicker(&config.env, on_gpu)
            ),
            false => format!(
                "this run takes {} or more on any machine: {steps:.0} {thing}s are to come. Fewer epochs or updates take less (epochs=..., {}.schedule.updates=...)",
                duration(total),
                phase.name()
            ),
        })
    }
}

/// What trains the same game in less time.
fn quicker(env: &str, on_gpu: bool) -> &'static str {
    match (env.starts_with("atari/") || env.starts_with("ALE/"), on_gpu) {
        (true, true) => "--preset atari-fast, which took 17 minutes on an H200 beside another run",
        (true, false) => {
            "a GPU (--device cuda) with --preset atari-fast; here --preset atari-small shows what an agent sees"
        }
        (false, true) => "a smaller preset (--preset tiny-fast)",
        (false, false) => "a GPU (--device cuda), a smaller preset (--preset tiny-fast)",
    }
}

/// What a phase consists of.
fn thing(phase: Phase) -> &'static str {
    match phase {
        Phase::Collection => "step",
        Phase::Tokenizer => "tokenizer update",
        Phase::WorldModel => "world model update",
        Phase::ActorCritic => "actor-critic update",
        Phase::Evaluation => "evaluation game",
    }
}

/// Steps of a phase that are to come after `epoch` finished epochs. Those of the epoch that is being made count.
pub fn steps_left(config: &TrainConfig, phase: Phase, epoch: usize) -> f64 {
    let epochs = config.epochs;
    match phase {
        Phase::Collection => {
            let left = config.collection.epochs.min(epochs).saturating_sub(epoch);
            left as f64 * config.collection.steps as f64
        }
        Phase::Tokenizer => updates_left(&config.tokenizer.schedule, epoch, epochs),
        Phase::WorldModel => updates_left(&config.world_model.schedule, epoch, epochs),
        Phase::ActorCritic => updates_left(&config.actor_critic.schedule, epoch, epochs),
        Phase::Evaluation => {
            let evaluation = &config.evaluation;
            let until = |epoch: usize| epoch.checked_div(evaluation.every).unwrap_or(0);
            // The last epoch has an evaluation of its own, unless it is left out.
            let own = evaluation.final_episodes > 0;
            let last = usize::from(own && epochs > 0 && epochs.is_multiple_of(evaluation.every));
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

fn seconds_in_words(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} us", 1e6 * seconds),
        1e-3..1.0 => format!("{:.0} ms", 1e3 * seconds),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, epoch by epoch.
    fn counted(config: &TrainConfig, phase: Phase, epoch: usize) -> f64 {
        let sum = |steps: &dyn Fn(usize) -> usize| (epoch..config.epochs).map(steps).sum::<usize>() as f64;
        match phase {
            Phase::Collection => {
                sum(&|e| if e < config.collection.epochs { config.collection.steps } else { 0 })
            }
            Phase::Tokenizer => sum(&|e| config.tokenizer.schedule.updates_in(e)),
            Phase::WorldModel => sum(&|e| config.world_model.schedule.updates_in(e)),
            Phase::ActorCritic => sum(&|e| config.actor_critic.schedule.updates_in(e)),
            Phase::Evaluation => sum(&|e| config.evaluation.episodes_after(e + 1, config.epochs)),
        }
    }

    #[test]
    fn what_is_left_is_the_sum_over_the_epochs() {
        let mut config = TrainConfig { epochs: 60, ..TrainConfig::default() };
        config.collection.epochs = 50;
        config.tokenizer.schedule.first_updates = 777;
        for (every, last) in [(0, 100), (1, 100), (7, 100), (60, 100), (100, 100), (0, 0), (7, 0), (60, 0)] {
            (config.evaluation.every, config.evaluation.final_episodes) = (every, last);
            for epoch in 0..60 {
                for phase in Phase::ALL {
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
        assert_eq!(pace.warning(&config, 0, false), None);
        // 0.2 s for an update of each network: 344,000 of them take 19 hours.
        for phase in [Phase::Tokenizer, Phase::WorldModel, Phase::ActorCritic] {
            pace.add(phase, 20, 4.0);
        }
        assert_eq!(pace.warning(&config, 0, false), None);
        // Two updates are enough where they take long: 119,000 of 10 s.
        let mut pace = Pace::default();
        pace.add(Phase::Tokenizer, 1, 10.0);
        assert_eq!(pace.warning(&config, 5, false), None);
        pace.add(Phase::Tokenizer, 1, 10.0);
        let warning = pace.warning(&config, 5, false).unwrap();
        assert!(
            warning.starts_with(
                "this run takes about 13 days on this device: 119000 tokenizer updates are to come, 10.0 s each. Quicker: a GPU"
            ),
            "{warning}"
        );
        assert_eq!(pace.warning(&config, 5, false), None);
        // A forecast does as well, and who has a GPU is not told to get one.
        let mut pace = Pace::new(Forecast::from([(Phase::Tokenizer, 10.0)]));
        let warning = pace.warning(&config, 5, true).unwrap();
        assert!(
            warning.contains("10.0 s each. Quicker: a smaller preset (--preset tiny-fast), or"),
            "{warning}"
        );
        for (env, on_gpu, preset) in [
            ("atari/Pong", true, "atari-fast"),
            ("ALE/Pong-v5", false, "atari-small"),
            ("mine", false, "tiny-fast"),
        ] {
            let said = quicker(env, on_gpu);
            assert!(said.contains(preset) && said.contains("GPU") != on_gpu, "{env}: {said}");
        }
    }

    #[test]
    fn a_run_that_no_machine_can_finish_is_announced_before_it_begins() {
        let mut config = TrainConfig { epochs: 10_050, ..TrainConfig::default() };
        config.actor_critic.schedule.updates = 10_000_000;
        let warning = Pace::default().warning(&config, 0, false).unwrap();
        let expected = "this run takes 4 months or more on any machine: 100000000000 actor-critic updates";
        assert!(warning.starts_with(expected), "{warning}");
    }

    #[test]
    fn the_time_left_goes_down_with_what_is_done() {
        let mut config = TrainConfig { epochs: 2, ..TrainConfig::default() };
        config.collection.steps = 100;
        config.evaluation.final_episodes = 10;
        for schedule in [&mut config.tokenizer.schedule, &mut config.world_model.schedule] {
            (schedule.start_after, schedule.updates) = (0, 50);
        }
        // The actor-critic starts after the last epoch: nothing needs to be known about it.
        let known = [(Phase::Collection, 0.01), (Phase::Tokenizer, 1.0), (Phase::WorldModel, 2.0)];
        let mut pace = Pace::new(Forecast::from(known));
        assert_eq!(pace.left(&config, 0), None);
        pace.forecast.insert(Phase::Evaluation, 3.0);
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?} {expected}");
        };
        near(pace.left(&config, 0), 2.0 + 100.0 + 200.0 + 30.0);
        pace.set_done(Phase::Collection, 100);
        pace.set_done(Phase::Tokenizer, 20);
        near(pace.left(&config, 0), 1.0 + 80.0 + 200.0 + 30.0);
        // What is measured counts more than what was forecast.
        pace.add(Phase::Tokenizer, 20, 40.0);
        near(pace.left(&config, 0), 1.0 + 160.0 + 200.0 + 30.0);
        pace.begin_epoch();
        near(pace.left(&config, 1), 1.0 + 100.0 + 100.0 + 30.0);
    }
}
