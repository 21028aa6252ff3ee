//! `iris train`: a run from its config to its end, with progress.

pub mod go_on;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use agent::train::{
    Damaged, Event, InitConfig, Observer, Phase, Resume, Run, TrainConfig, TrainError, Trainer, Warning,
    ends_in_background, train,
};
use anyhow::{Context, Result, bail};
use engine::Device;

use crate::args::TrainArgs;
use crate::output::{pasteable, program, say, tell, warn};
use crate::pace::Pace;
use crate::progress::{Lines, Progress};
use crate::signals::Stop;
use crate::trackio::Tracker;
use crate::words::{calendar, counted, duration};
use crate::{Ended, config, forecast, presets, studio};

pub fn run(args: TrainArgs) -> Result<Ended> {
    // First: whoever stops a run while it is being prepared gets the same answer.
    watched(args, Stop::listen()?, None)
}

/// How far a run is.
pub struct Moment {
    /// Finished epochs.
    pub epoch: usize,
    pub epochs: usize,
    pub phase: &'static str,
    /// Steps of the phase.
    pub done: usize,
    pub total: usize,
    /// Seconds of the run.
    pub left: Option<f64>,
}

/// Hears how far a run is.
type Listener<'a> = &'a mut dyn FnMut(Moment);

/// Trains a run until it is over or asked to stop. A listener hears how far it is.
pub fn watched(args: TrainArgs, stop: Stop, listener: Option<Listener>) -> Result<Ended> {
    let device = args.task.device.open()?.with_memory(args.task.memory.gpu_memory);
    if args.task.memory.gpu_memory.is_some() && !device.is_gpu() {
        tell!("note: --gpu-memory changes nothing on the CPU");
    }
    let port = studio::port_beside(&args)?;
    let begun = args.out.as_deref().filter(|folder| args.go_on && Run::is_in(folder));
    let (mut run, mut trainer) = match (&args.resume, begun) {
        (Some(folder), _) => resume(&args, &device, folder)?,
        (None, Some(folder)) => go_on::resume(&args, &device, folder)?,
        (None, None) => create(&args, &device)?,
    };
    let first = trainer.epoch;
    let (env, place) = (&trainer.config.env, args.task.device.describe(&device));
    tell!("{env} on {place}, in {}", run.folder().display());
    if let Some(variant) = trainer.game().variant() {
        tell!("{}: {variant}", trainer.config.env);
    }
    if first >= trainer.config.epochs {
        let folder = pasteable(run.folder());
        say!(
            "all {first} epochs of this run are over. To train it further: {} train --resume {folder} epochs={}",
            program(),
            2 * first
        );
        return Ok(Ended::Done);
    }
    let protocol = config::protocol_remark(&trainer.config.atari, trainer.game());
    let advised = presets::remark(&trainer.config, &args.task.device, device.is_gpu());
    remarks(&trainer.config)
        .iter()
        .chain(&protocol)
        .chain(&advised)
        .for_each(|remark| tell!("note: {remark}"));
    if first == 0 && !trainer.config.init.from.is_empty() {
        let InitConfig { from, parts, crc32 } = &trainer.config.init;
        tell!("starts from {from} ({parts}; CRC-32 {crc32})");
    }
    if first == 0 && !trainer.config.replay.from.is_empty() {
        let (steps, episodes) = (trainer.replay.steps(), trainer.replay.table().episodes.len());
        tell!(
            "begins with {} of {} from {}",
            counted(steps, "step"),
            counted(episodes, "episode"),
            trainer.config.replay.from
        );
    }
    for reason in trainer.config.agent.slow_paths(&device) {
        tell!("note: slower than it could be: {reason}");
    }
    let _page = port.map(|port| studio::beside(port, run.folder(), &device)).transpose()?;
    let mut watch = Watch::new(run.folder(), stop, &trainer);
    watch.listener = listener;
    if let Some(project) = &args.task.trackio.trackio {
        watch.tracker = Some(Tracker::new(project, run.folder(), &trainer.config)?);
    }
    watch.forecast(&device);
    match train(&mut run, &mut trainer, &mut watch) {
        Err(TrainError::Interrupted) => {
            let (folder, done) = (pasteable(run.folder()), watch.epoch);
            watch.bar = None;
            tell!(
                "stopped with {done} of {} epochs finished and saved. To continue: {} train --resume {folder}",
                trainer.config.epochs,
                program()
            );
            return Ok(Ended::Stopped);
        }
        ended => ended?,
    }
    watch.summary(&trainer, first);
    Ok(Ended::Done)
}

/// Continues a run; `epochs=30` makes it longer.
fn resume(args: &TrainArgs, device: &Device, folder: &Path) -> Result<(Run, Trainer)> {
    let damaged = if args.forget_damaged { Damaged::Forget } else { Damaged::Refuse };
    let epochs = raised_epochs(&args.config.overrides)?;
    let (run, trainer) = Run::resume(device, folder, Resume { damaged, epochs }, warn)?;
    go_on::check_config_file(&run, &trainer, epochs.is_some())?;
    Ok((run, trainer))
}

/// What `epochs` is changed to. A run that is continued keeps everything else.
fn raised_epochs(overrides: &[String]) -> Result<Option<usize>> {
    let mut epochs = None;
    for text in overrides {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        if key.trim() != "epochs" {
            bail!(
                "`{text}` cannot be changed: a run is continued with its own config, of which only `epochs` can be raised. A new run takes other settings"
            );
        }
        let Ok(value) = value.trim().parse() else {
            bail!("`{text}`: write a whole number, such as epochs=30");
        };
        epochs = Some(value);
    }
    Ok(epochs)
}

fn create(args: &TrainArgs, device: &Device) -> Result<(Run, Trainer)> {
    let mut config = asked_for(args)?;
    config.init.resolve(device, warn)?;
    let text = config::document(&config)?;
    if let Some(folder) = &args.out {
        return Ok(Run::create(device, config, &text, folder, warn)?);
    }
    let folder = RemovedIfEmpty(new_folder(&config)?);
    Ok(Run::create(device, config, &text, &folder.0, warn)?)
}

/// The config that the arguments describe.
fn asked_for(args: &TrainArgs) -> Result<TrainConfig> {
    let mut config = config::resolve(&args.config)?;
    presets::check(&args.config, &config)?;
    if let Some(source) = &args.init {
        config.init = InitConfig { from: source.clone(), crc32: String::new(), ..config.init };
    }
    if let Some(parts) = &args.init_parts {
        config.init.parts = parts.clone();
    }
    if let Some(source) = &args.replay {
        config.replay.from.clone_from(source);
    }
    config.validate()?;
    if args.init_parts.is_some() && config.init.from.is_empty() {
        bail!("--init-parts says what to take from another agent: add --init AGENT_OR_RUN");
    }
    Ok(config)
}

/// The folder of a run that may never begin.
struct RemovedIfEmpty(PathBuf);

impl Drop for RemovedIfEmpty {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A folder of its own for a run, also when several begin in one second.
fn new_folder(config: &TrainConfig) -> Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let parent = PathBuf::from("runs").join(&config.env);
    let cannot = || format!("cannot create a folder in {}", parent.display());
    std::fs::create_dir_all(&parent).with_context(cannot)?;
    let name = format!("{}-seed{}", calendar(now), config.seed);
    for number in 1.. {
        let folder = parent.join(if number == 1 { name.clone() } else { format!("{name}-{number}") });
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.with_context(cannot).map(|()| folder),
        }
    }
    unreachable!("there are numbers enough")
}

/// What a user may not expect of a config.
fn remarks(config: &TrainConfig) -> Vec<String> {
    let mut remarks = Vec::new();
    let (epochs, collected) = (config.epochs, config.collection.epochs);
    if collected < epochs {
        remarks.push(format!(
            "epochs 1 to {collected} play and learn, epochs {} to {epochs} only learn (collection.epochs)",
            collected + 1
        ));
    }
    for (network, schedule) in config.schedules() {
        let start = schedule.start_after;
        if start >= epochs {
            remarks.push(format!(
                "the {network} does not learn in {epochs} epochs: {network}.schedule.start_after is {start}"
            ));
        }
    }
    if config.tokenizer.perceptual == "random" {
        remarks.push(format!(
            "the perceptual network is random, that of the paper was trained on photographs: `{} import-perceptual` makes it (docs/training.md)",
            program()
        ));
    }
    let tokenizer = &config.agent.tokenizer;
    let sides: Vec<usize> = (0..tokenizer.resolutions).map(|level| tokenizer.frame_size >> level).collect();
    for size in tokenizer.attention_sizes.iter().filter(|size| !sides.contains(size)) {
        remarks.push(format!(
            "agent.tokenizer.attention_sizes holds {size}, which changes nothing: the tokenizer's images have sides {sides:?}"
        ));
    }
    remarks
}

/// Shows progress, and stops the run when the user asks for it.
struct Watch<'a> {
    listener: Option<Listener<'a>>,
    tracker: Option<Tracker>,
    folder: PathBuf,
    started: Instant,
    stop: Stop,
    config: TrainConfig,
    /// Saved epochs.
    epoch: usize,
    /// The epoch that is being made. The one before may not be saved yet.
    making: usize,
    bar: Option<Progress>,
    since: Instant,
    /// What is being done, and how much of it is over.
    doing: Option<(Phase, usize)>,
    pace: Pace,
    on_gpu: bool,
    /// When the last line was printed.
    lines: Lines,
    seconds: HashMap<&'static str, f64>,
    last: Vec<(String, f64)>,
}

impl Watch<'_> {
    fn new(folder: &Path, stop: Stop, trainer: &Trainer) -> Self {
        let now = Instant::now();
        Watch {
            listener: None,
            tracker: None,
            folder: folder.into(),
            started: now,
            stop,
            config: trainer.config.clone(),
            epoch: trainer.epoch,
            making: trainer.epoch + 1,
            bar: None,
            since: now,
            doing: None,
            pace: Pace::default(),
            on_gpu: false,
            lines: Lines::default(),
            seconds: HashMap::new(),
            last: Vec::new(),
        }
    }

    /// The time since the last call was spent on this.
    fn count(&mut self, phase: &'static str) -> f64 {
        let now = Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        *self.seconds.entry(phase).or_default() += seconds;
        self.since = now;
        seconds
    }

    /// `done` steps of a phase are over, the newest in this time.
    fn time(&mut self, phase: Phase, done: usize, seconds: f64) {
        // What comes first in an epoch prepares the rest.
        if let Some((doing, before)) = self.doing.replace((phase, done))
            && (doing == phase && before > 0 && done >= before)
        {
            self.pace.add(phase, done - before, seconds);
        }
        self.pace.set_done(phase, done);
    }

    /// Says how long the run will take on this device, before it begins.
    fn forecast(&mut self, device: &Device) {
        self.on_gpu = device.is_gpu();
        // Whatever goes wrong here goes wrong again in the run, which says so.
        if let Ok(Some(mut forecast)) = forecast::forecast(device, &self.config, self.epoch) {
            if ends_in_background(device) {
                forecast.insert(Phase::Evaluation, 0.0);
            }
            self.pace = Pace::new(forecast);
        }
        let epochs = self.config.epochs - self.epoch;
        if let (false, Some(seconds)) = (self.warn_of_a_long_run(), self.pace.left(&self.config, self.epoch))
        {
            let take = if epochs == 1 { "takes" } else { "take" };
            tell!("{} {take} about {} on this device", counted(epochs, "epoch"), duration(seconds));
        }
        self.since = Instant::now();
    }

    fn warn_of_a_long_run(&mut self) -> bool {
        let warning = self.pace.warning(&self.config, self.making - 1, self.on_gpu);
        let warned = warning.is_some();
        warning.into_iter().for_each(warn);
        warned
    }

    fn metric(&self, name: &str) -> Option<f64> {
        self.last.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    fn summary(&self, trainer: &Trainer, first: usize) {
        let (game, epochs) = (trainer.game(), trainer.epoch - first);
        say!(
            "{epochs} epochs in {:.0} s, {} steps of {}",
            self.started.elapsed().as_secs_f64(),
            trainer.replay.table().records,
            game.name
        );
        if let (Some(score), Some(progress)) =
            (self.metric("evaluation/return"), self.metric("evaluation/progress"))
        {
            say!(
                "final evaluation: return {score:.2} (random {:.2}, {} {:.2}): {:.1}% of the way",
                game.random,
                game.yardstick,
                game.skilled,
                100.0 * progress
            );
        }
        let mut phases: Vec<_> = self.seconds.iter().collect();
        phases.sort_by(|a, b| b.1.total_cmp(a.1));
        let phases: Vec<String> =
            phases.iter().map(|(phase, seconds)| format!("{phase} {seconds:.0} s")).collect();
        say!("time: {}", phases.join(", "));
        let folder = pasteable(&self.folder);
        let pictures = self.folder.join("media").join(format!("{:06}", trainer.epoch));
        if pictures.exists() {
            say!("pictures: {}", pictures.display());
        }
        let program = program();
        say!("next: {program} dream {folder}     (what the world model imagines)");
        say!("      {program} eval {folder}      (100 whole games)");
    }

    fn begin(&mut self, epoch: usize) {
        if epoch > self.making {
            (self.making, self.doing) = (epoch, None);
            self.pace.begin_epoch();
        }
    }

    fn progress(&mut self, epoch: usize, phase: Phase, done: usize, total: usize) {
        self.begin(epoch);
        let seconds = self.count(phase.name());
        self.time(phase, done, seconds);
        self.warn_of_a_long_run();
        if self.bar.as_ref().is_none_or(|bar| bar.phase() != phase.name()) {
            self.bar = Some(Progress::after(phase.name(), total, self.lines));
        }
        let left = self.pace.left(&self.config, self.making - 1);
        if let Some(listener) = &mut self.listener {
            let (epoch, epochs, phase) = (self.making - 1, self.config.epochs, phase.name());
            listener(Moment { epoch, epochs, phase, done, total, left });
        }
        if let Some(bar) = &self.bar {
            bar.note(left.map_or(String::new(), |left| format!("run: {} left", duration(left))));
            bar.set(done);
            self.lines = bar.lines();
        }
        if done == total {
            self.bar = None;
        }
    }

    fn saved(&mut self, epoch: usize) {
        if let Some(tracker) = &mut self.tracker {
            tracker.log(epoch, &self.last);
        }
        if self.making == epoch {
            self.count("pictures and checkpoints");
        }
        self.epoch = epoch;
        self.begin(epoch + 1);
        let (epochs, seconds) = (self.config.epochs, self.started.elapsed().as_secs_f64());
        let mut line = format!("epoch {epoch}/{epochs}  {seconds:.0} s");
        let shown = [
            ("tokenizer/train/total_loss", "tokenizer"),
            ("world_model/train/total_loss", "world model"),
            ("actor_critic/train/imagined_reward_per_step", "dreamt reward"),
            ("evaluation/return", "return"),
        ];
        for (name, short) in shown {
            if let Some(value) = self.metric(name) {
                line += &format!("  {short} {value:.3}");
            }
        }
        if let Some(left) = self.pace.left(&self.config, self.making - 1).filter(|left| *left >= 1.0) {
            line += &format!("  ({} left)", duration(left));
        }
        tell!("{line}");
        self.lines = Lines::default();
    }
}

impl Observer for Watch<'_> {
    fn event(&mut self, event: Event) -> ControlFlow<()> {
        // Before anything is printed: who answers a line with a signal finds the next step under way.
        let stop = self.stop.is_asked_for();
        if !matches!(event, Event::Progress { .. }) {
            // A line that is printed does not mix with the bar of the next epoch.
            self.bar = None;
        }
        match event {
            Event::Progress { epoch, phase, done, total } => self.progress(epoch, phase, done, total),
            Event::Epoch { epoch, metrics } => {
                if self.making == epoch {
                    self.since = Instant::now();
                }
                self.last = metrics;
            }
            Event::Saved { epoch } => self.saved(epoch),
            Event::Warning(warning @ Warning::SameTokens { .. }) => warn(format!(
                "{warning}; if that does not change, tokenizer.squared_weight=100 may help (docs/training.md)"
            )),
            Event::Warning(warning) => warn(warning.to_string()),
        }
        match stop {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
