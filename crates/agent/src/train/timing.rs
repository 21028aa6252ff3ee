//! Where the time of an epoch goes. Times differ from run to run, so they have a file of their own and `metrics.jsonl` stays reproducible.

use std::time::Instant;

use super::Phase;

/// A stopwatch with a lap per phase.
pub(super) struct Clock {
    started: Instant,
    lap: Instant,
    measured: Vec<(String, f64)>,
    waited: f64,
    /// Of the epoch, where the next one begins before this one is saved.
    seconds: Option<f64>,
}

impl Clock {
    pub fn start() -> Clock {
        let now = Instant::now();
        Clock { started: now, lap: now, measured: Vec::new(), waited: 0.0, seconds: None }
    }

    /// A phase is over that consisted of this many steps or updates; none if it was left out.
    pub fn lap(&mut self, phase: Phase, count: usize) {
        let seconds = self.next_lap();
        if count > 0 {
            let unit = match phase {
                Phase::Collection | Phase::Evaluation => "steps",
                Phase::Tokenizer | Phase::WorldModel | Phase::ActorCritic => "updates",
            };
            self.measured.push((format!("{phase}/seconds"), seconds));
            // A clock may be coarser than a phase is long.
            let rate = count as f64 / seconds.max(1e-9);
            self.measured.push((format!("{phase}/{unit}_per_second"), rate));
        }
    }

    /// The end of the epoch before is over: this one waited for it since its last phase.
    pub fn waited(&mut self) {
        self.waited = self.next_lap();
    }

    /// The next epoch begins; what is left of this one happens beside it.
    pub fn pass_on(&mut self) {
        self.seconds = Some(self.started.elapsed().as_secs_f64());
        self.next_lap();
    }

    /// The epoch is saved: everything that was measured, by name.
    pub fn saved(mut self) -> Vec<(String, f64)> {
        let seconds = self.next_lap();
        self.measured.push(("saving/seconds".into(), seconds));
        self.measured.push(("waiting/seconds".into(), self.waited));
        let whole = self.seconds.unwrap_or_else(|| self.started.elapsed().as_secs_f64());
        self.measured.push(("seconds".into(), whole));
        self.measured
    }

    fn next_lap(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.lap, now)).as_secs_f64()
    }
}
