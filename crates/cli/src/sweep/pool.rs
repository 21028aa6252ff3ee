//! `iris sweep run`: a pool of processes, each of which trains one run at a time. A process hears that it should stop by the end of its standard input, so that
//! it also stops when the pool is killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use super::cause::is_full_disk;
use super::places::{Place, places};
use super::plan::Sweep;
use super::screen::{Said, Screen};
use super::status::{State, progress};
use super::worker::{Ending, Heard, Worker};
use crate::args::SweepRunArgs;
use crate::output::{program, tell, warn};
use crate::signals::{STOPPED, Stop};
use crate::words::counted;
use crate::{Ended, in_words};

/// How often the pool looks for signals, and at runs that somebody else holds.
const TICK: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Deaths of a run without a new epoch after which it counts as failed.
const DEATHS: usize = 3;
/// Failures in a row, without an epoch of any run between them, after which the machine is to blame.
const FAILURES: usize = 3;
/// Through MPS a fault of one run ends others on the same GPU, and the daemon takes no new ones before all have ended. Whoever is still there after this time
/// was not hit.
const FALLOUT: Duration = Duration::from_secs(60);

pub fn run(args: &SweepRunArgs, roms: Option<&Path>) -> Result<Ended> {
    let stop = Stop::listen()?;
    let sweep = Sweep::load(&args.folder)?;
    if args.retry {
        sweep.runs.iter().for_each(|run| sweep.forget_failure(run.run));
    }
    let (places, _daemons) = places(args)?;
    let (sender, heard) = channel();
    let mut pool = Pool {
        sweep: &sweep,
        places,
        args,
        roms,
        sender,
        working: BTreeMap::new(),
        settled: BTreeMap::new(),
        held: BTreeMap::new(),
        deaths: BTreeMap::new(),
        faults: BTreeMap::new(),
        failures_in_a_row: 0,
        screen: Screen::new(),
        stopping: false,
        disk_is_full: None,
        waits: false,
    };
    match pool.work(&stop, &heard) {
        Err(error) if is_full_disk(&error) => pool.disk_is_full = Some(in_words(&error)),
        worked => worked?,
    }
    pool.conclude()
}

struct Pool<'a> {
    sweep: &'a Sweep,
    places: Vec<Place>,
    args: &'a SweepRunArgs,
    roms: Option<&'a Path>,
    sender: Sender<(usize, Heard)>,
    /// By run; each has one of the places.
    working: BTreeMap<usize, Worker>,
    /// Runs that are done or failed.
    settled: BTreeMap<usize, State>,
    /// Runs that somebody else trains, and when to look again.
    held: BTreeMap<usize, Instant>,
    /// Deaths of a run since its last new epoch, and the epoch.
    deaths: BTreeMap<usize, (usize, usize)>,
    /// When each GPU that is shared failed a run last, or a run on it died.
    faults: BTreeMap<String, Instant>,
    failures_in_a_row: usize,
    screen: Screen,
    stopping: bool,
    /// What could not be written, once something could not.
    disk_is_full: Option<String>,
    /// Whether it was said that the rest is held by others.
    waits: bool,
}

impl Pool<'_> {
    fn work(&mut self, stop: &Stop, heard: &Receiver<(usize, Heard)>) -> Result<()> {
        loop {
            if (stop.is_asked_for() || self.disk_is_full.is_some()) && !self.stopping {
                self.stopping = true;
                self.working.values_mut().for_each(Worker::ask_to_stop);
            }
            let more = self.is_taking() && self.fill()?;
            if self.working.is_empty() && !more {
                return Ok(());
            }
            match heard.recv_timeout(TICK) {
                Ok((run, Heard::Line(line))) => self.hear(run, &line),
                Ok((run, Heard::End)) => self.ended(run)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Whether the pool still starts runs.
    fn is_taking(&self) -> bool {
        !self.stopping && self.failures_in_a_row < FAILURES
    }

    /// Starts runs on the free places. Whether there may be more to start, now or later.
    fn fill(&mut self) -> Result<bool> {
        while self.working.len() < self.places.len() {
            let Some(run) = self.next()? else { break };
            let Some(place) = self.free_place() else { break };
            let threads = self.args.task.device.threads.unwrap_or_else(|| threads_each(self.places.len()));
            let epoch = progress(self.sweep, &self.sweep.runs[run])?.epoch;
            let at = (place, &self.places[place]);
            let worker =
                Worker::start(self.sweep, run, at, threads, &self.args.task, self.roms, epoch, &self.sender)?;
            self.screen.begin(run, &self.sweep.runs[run].title(&self.sweep.plan));
            self.working.insert(run, worker);
            self.waits = false;
        }
        self.summarise();
        let held = !self.held.is_empty();
        if held && self.working.is_empty() && !self.waits {
            self.waits = true;
            let runs = counted(self.held.len(), "run");
            self.screen
                .say(&format!("waiting for {runs} that other processes train; Ctrl-C leaves them to these"));
        }
        Ok(held || self.working.len() == self.places.len())
    }

    /// A place that no run has, on a GPU that is not recovering from a fault.
    fn free_place(&self) -> Option<usize> {
        let taken: Vec<usize> = self.working.values().map(|worker| worker.place).collect();
        (0..self.places.len()).find(|place| !taken.contains(place) && !self.recovers(*place))
    }

    fn recovers(&self, place: usize) -> bool {
        let Some(gpu) = &self.places[place].gpu else { return false };
        let others =
            self.working.values().filter(|worker| self.places[worker.place].gpu.as_ref() == Some(gpu));
        let started: Vec<Instant> = others.map(|worker| worker.started).collect();
        is_recovering(self.faults.get(gpu).copied(), &started, Instant::now())
    }

    /// The next run that nobody holds.
    fn next(&mut self) -> Result<Option<usize>> {
        for run in &self.sweep.runs {
            let number = run.run;
            let later = self.held.get(&number).is_some_and(|when| *when > Instant::now());
            if later || self.settled.contains_key(&number) || self.working.contains_key(&number) {
                continue;
            }
            self.held.remove(&number);
            match progress(self.sweep, run)?.state {
                State::Waiting => return Ok(Some(number)),
                State::Running => _ = self.held.insert(number, Instant::now() + LOOK_AGAIN),
                state => _ = self.settled.insert(number, state),
            }
        }
        Ok(None)
    }

    fn hear(&mut self, run: usize, line: &str) {
        let (Some(worker), Ok(line)) = (self.working.get_mut(&run), serde_json::from_str::<Value>(line))
        else {
            return;
        };
        if let Some(reason) = line.get("failed").and_then(Value::as_str) {
            worker.failed = Some(reason.into());
            let is = |key: &str| line.get(key).and_then(Value::as_bool).unwrap_or(false);
            (worker.disk_is_full, worker.gpu_failed) = (is("disk_is_full"), is("gpu_failed"));
        } else if line.get("held").is_some() {
            worker.held = true;
        } else if let Some(said) = Said::parse(&line) {
            if said.epoch > worker.epoch {
                (worker.epoch, worker.progressed) = (said.epoch, true);
                self.failures_in_a_row = 0;
            }
            self.screen.said(run, said);
        }
    }

    /// A process is over.
    fn ended(&mut self, run: usize) -> Result<()> {
        let Some(mut worker) = self.working.remove(&run) else { return Ok(()) };
        let place = &self.places[worker.place];
        let shared = place.gpu.clone().filter(|_| place.is_shared());
        let ending = worker.ending(self.sweep, run)?;
        if worker.progressed {
            self.deaths.remove(&run);
        }
        match ending {
            Ending::Done => {
                self.failures_in_a_row = 0;
                self.settled.insert(run, State::Done);
                self.sweep.forget_failure(run);
                self.screen.end(run, "is done");
            }
            Ending::Held => {
                self.held.insert(run, Instant::now() + LOOK_AGAIN);
                self.screen.end(run, "is trained by another process");
            }
            Ending::Stopped if self.stopping => self.screen.end(run, "is stopped"),
            Ending::Stopped => self.died(run, "was stopped by somebody")?,
            Ending::Died(how) => {
                let others = self.fault(shared).unwrap_or_default();
                self.died(run, &format!("{how}{others}"))?;
            }
            Ending::DiskIsFull(reason) => {
                self.screen.end(run, "is stopped: the disk is full");
                self.disk_is_full.get_or_insert(reason);
            }
            Ending::GpuFailed(reason) => match self.fault(shared) {
                Some(others) => self.died(run, &format!("{reason}{others}"))?,
                None => self.fail(run, &reason),
            },
            Ending::Failed(reason) => self.fail(run, &reason),
        }
        Ok(())
    }

    /// A run has lost a GPU that it may have shared: the others there may go down with it. Says who they are.
    fn fault(&mut self, shared: Option<String>) -> Option<String> {
        let gpu = shared?;
        let beside: Vec<String> = self.beside(&gpu).iter().map(ToString::to_string).collect();
        let others = match beside.is_empty() {
            true => format!(", on GPU {gpu}, which runs share through MPS"),
            false => format!(", on GPU {gpu}, which it shares through MPS with run {}", beside.join(", ")),
        };
        self.faults.insert(gpu, Instant::now());
        Some(others)
    }

    /// Runs that are trained on a GPU now.
    fn beside(&self, gpu: &str) -> Vec<usize> {
        let there = |worker: &Worker| self.places[worker.place].gpu.as_deref() == Some(gpu);
        self.working.iter().filter(|(_, worker)| there(worker)).map(|(run, _)| *run).collect()
    }

    /// A run ended without its own fault, as far as is known: it is tried again, but not forever.
    fn died(&mut self, run: usize, how: &str) -> Result<()> {
        let epoch = progress(self.sweep, &self.sweep.runs[run])?.epoch;
        let (deaths, last) = self.deaths.get(&run).copied().unwrap_or((0, epoch));
        let deaths = if epoch > last { 1 } else { deaths + 1 };
        self.deaths.insert(run, (deaths, epoch));
        match deaths < DEATHS {
            true => self.screen.end(run, &format!("{how}; it is tried again")),
            false => self.fail(run, &format!("{how}, {deaths} times without finishing an epoch")),
        }
        Ok(())
    }

    fn fail(&mut self, run: usize, reason: &str) {
        if let Err(problem) = self.sweep.record_failure(run, reason) {
            warn(format!("the failure of run {run} is not recorded: {problem}"));
        }
        self.failures_in_a_row += 1;
        self.settled.insert(run, State::Failed(reason.into()));
        self.screen.end(run, &format!("failed: {reason}"));
    }

    fn count(&self, which: fn(&State) -> bool) -> usize {
        self.settled.values().filter(|state| which(state)).count()
    }

    fn summarise(&self) {
        let (done, failed) = (self.count(|s| *s == State::Done), self.count(|s| *s != State::Done));
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let all = counted(self.sweep.runs.len(), "run");
        self.screen.summary(format!("{done} of {all} done{failed}"));
    }

    fn conclude(self) -> Result<Ended> {
        let all = self.sweep.runs.len();
        let (done, failed) = (self.count(|s| *s == State::Done), self.count(|s| *s != State::Done));
        let (program, folder) = (program(), self.sweep.folder.display());
        drop(self.screen);
        if let Some(reason) = &self.disk_is_full {
            bail!(
                "the disk of {folder} is full ({reason}): the pool stopped with {done} of {} done, and what was finished is saved. Free some space; the same command goes on",
                counted(all, "run")
            );
        }
        if self.stopping {
            tell!("stopped with {done} of {} done. The same command goes on", counted(all, "run"));
            return Ok(Ended::Stopped);
        }
        if self.failures_in_a_row >= FAILURES && done + failed < all {
            bail!(
                "{FAILURES} runs failed one after the other, so the pool stopped with {done} of {all} done: something seems to be wrong with this machine. `{program} sweep status {folder}` has the reasons; once it is put right, `{program} sweep run {folder} --retry` goes on"
            );
        }
        match failed {
            0 if all == 1 => tell!("the run is done. Next: {program} report {folder}"),
            0 => tell!("all {all} runs are done. Next: {program} report {folder}"),
            _ => bail!(
                "{failed} of {} failed, {done} done. `{program} sweep status {folder}` has the reasons, `{program} sweep run {folder} --retry` tries again",
                counted(all, "run")
            ),
        }
        Ok(Ended::Done)
    }
}

/// Threads of each of several processes: results do not depend on them.
fn threads_each(processes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / processes).max(1)
}

/// Whether runs that were on a GPU at its last fault are still there, and may yet go down with it.
fn is_recovering(last_fault: Option<Instant>, started: &[Instant], now: Instant) -> bool {
    let Some(fault) = last_fault else { return false };
    now.saturating_duration_since(fault) < FALLOUT && started.iter().any(|start| *start < fault)
}

/// What the exit status of a process of the pool means, apart from what it said.
pub fn exit_means(code: Option<i32>) -> Option<Ending> {
    match code {
        Some(0) => Some(Ending::Done),
        Some(code) if code == i32::from(STOPPED) => Some(Ending::Stopped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_recovers_until_all_that_saw_the_fault_have_ended() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!is_recovering(None, &[start], after(5)));
        assert!(is_recovering(Some(after(10)), &[after(11), start], after(12)));
        // All have ended, or began later.
        assert!(!is_recovering(Some(after(10)), &[], after(12)));
        assert!(!is_recovering(Some(after(10)), &[after(11)], after(12)));
        // Whoever is still there was not hit.
        assert!(!is_recovering(Some(after(10)), &[start], after(71)));
    }
}
