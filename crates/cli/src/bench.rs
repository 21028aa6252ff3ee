//! `iris bench`: the steps that training runs, at paper size.

mod scaling;

use std::time::Instant;

use agent::train::{
    ActorCriticObjective, Learner, Objective, TokenizerObjective, TrainConfig, WorldModelObjective,
};
use agent::{
    Acting, Agent, AgentConfig, Dreamer, ErrorWeights, Perceptual, Returns, Sees, Tokenizer, Trajectories,
    WorldModel,
};
use anyhow::{Result, bail};
use clap::ValueEnum;
use engine::{Adam, Buffer, Device, Key, Rng, Shape, StepId, Stepper};

use crate::args::{BenchArgs, BenchCase};
use crate::config;
use crate::output::say;

/// The paper's.
const LEARNING_RATE: f32 = 1e-4;

pub fn run(args: BenchArgs) -> Result<()> {
    let mut start = Some(Instant::now());
    let device = args.device.open()?;
    let (gpu, words) = (device.is_gpu(), args.device.describe(&device));
    if args.breakdown && !gpu {
        bail!("--breakdown needs a GPU: add --device cuda");
    }
    let repeats = args.repeats.unwrap_or(match (gpu, args.scaling) {
        (true, false) => 50,
        (true, true) => 20,
        (false, false) => 7,
        (false, true) => 3,
    });
    let which = if gpu { "median" } else { "best" };
    say!("iris {}, {words}, {which} of {repeats}", env!("CARGO_PKG_VERSION"));
    if args.scaling {
        return scaling::run(&device, repeats);
    }
    let preset = args.preset.as_deref().map(|name| config::combine(name, None, &[])).transpose()?;
    for reason in preset.as_ref().map_or_else(AgentConfig::default, |p| p.agent.clone()).slow_paths(&device) {
        say!("  slower than it could be: {reason}");
    }
    let cases = match (&preset, args.cases) {
        (Some(preset), _) => {
            let tokenizer = match preset.tokenizer.perceptual.as_str() {
                "none" => BenchCase::Tokenizer,
                // Weights cost nothing: a random network takes as long as a trained one.
                _ => BenchCase::TokenizerPerceptual,
            };
            vec![tokenizer, BenchCase::WorldModel, BenchCase::Behaviour]
        }
        (None, cases) if cases.is_empty() => BenchCase::value_variants().to_vec(),
        (None, cases) => cases,
    };
    for case in cases {
        forget_peak_memory();
        device.free_step_memory();
        let mut bench = Bench::new(&device, repeats, args.breakdown);
        if let Some(preset) = &preset {
            bench.take(preset);
        }
        let seconds = match case {
            BenchCase::Tokenizer => bench.tokenizer(None)?,
            BenchCase::TokenizerPerceptual => {
                let perceptual = Perceptual::random(&device, 0.0)?;
                bench.tokenizer(Some(perceptual))?
            }
            BenchCase::WorldModel => bench.world_model()?,
            BenchCase::ActorCritic => bench.actor_critic()?,
            BenchCase::Behaviour => bench.behaviour()?,
            BenchCase::Decode => bench.decode()?,
            BenchCase::Games => {
                games(repeats)?;
                continue;
            }
        };
        let name = case.to_possible_value().map_or(String::new(), |v| v.get_name().to_string());
        let memory = device.memory().map(|(_, peak)| peak).or_else(peak_memory);
        let memory = memory.map_or("       -".into(), |bytes| format!("{:5} MiB", bytes >> 20));
        let reference = reference(case).filter(|_| gpu && preset.is_none());
        let reference = reference.map_or(String::new(), |ms| format!("   reference release {ms} ms"));
        say!("{name:<22} {:8.3} ms   {memory}{reference}", 1e3 * seconds);
        if let (Some(first), Some(start), true) = (bench.first, start.take(), gpu) {
            say!("  the first step was over {:.1} s after the start", (first - start).as_secs_f64());
        }
    }
    Ok(())
}

/// Milliseconds of the authors' release on an H200, where somebody measured them.
fn reference(case: BenchCase) -> Option<f64> {
    match case {
        BenchCase::TokenizerPerceptual => Some(134.0),
        BenchCase::WorldModel => Some(121.0),
        BenchCase::Behaviour => Some(3100.0),
        BenchCase::Decode => Some(8.17),
        _ => None,
    }
}

/// Every game this program was built with.
fn games(repeats: usize) -> Result<()> {
    for game in envs::all_games().into_iter().filter(envs::Game::is_built) {
        let mut best: f64 = 0.0;
        for _ in 0..repeats {
            best = best.max(envs::steps_per_second(&game, 64, 1000)?);
        }
        say!("{:<22} {best:8.0} steps/s", game.name);
    }
    Ok(())
}

/// How much a step gets at once.
#[derive(Clone, Copy)]
struct Load {
    /// Of the tokenizer.
    frames: usize,
    /// Of the world model.
    sequences: usize,
    /// Of the policy, their length, and that of what was before.
    dreams: usize,
    horizon: usize,
    burn_in: usize,
}

impl Load {
    /// The paper's on a GPU; on a CPU a part of it, as steps of the whole would take minutes.
    fn of(device: &Device) -> Load {
        match device.is_gpu() {
            true => Load { frames: 256, sequences: 64, dreams: 64, horizon: 20, burn_in: 20 },
            false => Load { frames: 8, sequences: 2, dreams: 4, horizon: 20, burn_in: 20 },
        }
    }
}

struct Bench {
    device: Device,
    config: AgentConfig,
    load: Load,
    weights: ErrorWeights,
    returns: Returns,
    stepper: Stepper,
    repeats: usize,
    breakdown: bool,
    /// When the first step was over.
    first: Option<Instant>,
    rng: Rng,
}

impl Bench {
    fn new(device: &Device, repeats: usize, breakdown: bool) -> Bench {
        let key = Key::new(0, 0);
        Bench {
            device: device.clone(),
            config: AgentConfig { actions: 6, ..AgentConfig::default() },
            load: Load::of(device),
            weights: ErrorWeights::default(),
            returns: Returns::default(),
            stepper: Stepper::new(device, key),
            repeats: repeats.max(1),
            breakdown,
            first: None,
            rng: Rng::new(key),
        }
    }

    /// The networks and the work of a preset. Its game need not be there.
    fn take(&mut self, preset: &TrainConfig) {
        let actions = self.config.actions;
        self.config = AgentConfig { actions, ..preset.agent.clone() };
        self.load = Load {
            frames: preset.tokenizer.schedule.batch,
            sequences: preset.world_model.schedule.batch,
            dreams: preset.actor_critic.schedule.batch,
            horizon: preset.actor_critic.horizon,
            burn_in: preset.actor_critic.burn_in,
        };
        self.weights = (&preset.tokenizer).into();
        self.returns = preset.actor_critic.returns;
    }

    fn new_world_model(&self) -> Result<WorldModel> {
        let config = &self.config;
        Ok(WorldModel::new(&self.device, &config.world_model, &config.tokenizer, config.actions, 0)?)
    }

    /// Seconds of the fastest run on the CPU, of the median run on a GPU, after those that warm up and are recorded.
    fn time(&mut self, mut step: impl FnMut(&mut Bench) -> Result<()>) -> Result<f64> {
        let warm_up = if self.device.is_gpu() { 3 } else { 1 };
        let mut seconds = Vec::with_capacity(self.repeats);
        for run in 0..warm_up + self.repeats {
            let start = Instant::now();
            step(self)?;
            self.device.synchronise()?;
            self.first.get_or_insert_with(Instant::now);
            if run >= warm_up {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        if self.breakdown && self.device.is_gpu() {
            let device = self.device.clone();
            print_breakdown(&device.trace(|| step(self))?);
        }
        seconds.sort_by(f64::total_cmp);
        Ok(if self.device.is_gpu() { seconds[seconds.len() / 2] } else { seconds[0] })
    }

    fn integers(&mut self, name: &str, shape: impl Into<Shape>, below: u32) -> Result<Buffer> {
        let buffer = self.device.buffer::<i32>(name, shape)?;
        self.random_integers(&buffer, below)?;
        Ok(buffer)
    }

    fn random_numbers(&mut self, buffer: &Buffer) -> Result<()> {
        let values: Vec<f32> = (0..buffer.shape().len()).map(|_| self.rng.uniform()).collect();
        Ok(buffer.write(&values)?)
    }

    fn random_integers(&mut self, buffer: &Buffer, below: u32) -> Result<()> {
        let values: Vec<i32> = (0..buffer.shape().len()).map(|_| self.rng.below(below) as i32).collect();
        Ok(buffer.write(&values)?)
    }

    /// Updates as training makes them.
    fn updates<O: Objective>(&mut self, objective: O, adam: Adam, model: &O::Model) -> Result<f64> {
        let mut learner = Learner::new(&self.device, objective, adam, LEARNING_RATE)?;
        self.time(|_| Ok(learner.update(model)?))
    }

    fn tokenizer(&mut self, perceptual: Option<Perceptual>) -> Result<f64> {
        let config = &self.config.tokenizer;
        let tokenizer = Tokenizer::new(&self.device, config, 0)?;
        let objective =
            TokenizerObjective::new(&self.device, config, self.load.frames, perceptual, self.weights)?;
        let bytes: Vec<u8> = (0..objective.frames.shape().len()).map(|_| self.rng.below(256) as u8).collect();
        objective.frames.write(&bytes)?;
        self.updates(objective, Adam::default(), &tokenizer)
    }

    fn world_model(&mut self) -> Result<f64> {
        let objective = WorldModelObjective::new(&self.device, &self.config, self.load.sequences)?;
        self.random_integers(&objective.tokens, self.config.tokenizer.vocabulary as u32)?;
        self.random_integers(&objective.actions, self.config.actions as u32)?;
        self.random_integers(&objective.rewards, 3)?;
        self.random_integers(&objective.ends, 2)?;
        objective.mask.write(&vec![1i32; objective.mask.shape().len()])?;
        let adam = Adam { weight_decay: 0.01, ..Adam::default() };
        let model = self.new_world_model()?;
        self.updates(objective, adam, &model)
    }

    fn actor_critic(&mut self) -> Result<f64> {
        let Load { dreams, horizon, .. } = self.load;
        let agent = Agent::new(&self.device, &self.config, 0)?;
        let dreamt = Trajectories::new(&self.device, &agent, dreams, horizon)?;
        dreamt.frames.iter().try_for_each(|frames| self.random_numbers(frames))?;
        self.random_integers(&dreamt.tokens, 512)?;
        self.random_integers(&dreamt.actions, 6)?;
        self.random_numbers(&dreamt.rewards)?;
        [&dreamt.hidden, &dreamt.cell].into_iter().try_for_each(|state| self.random_numbers(state))?;
        self.updates(ActorCriticObjective::new(dreamt, self.returns), Adam::default(), &agent)
    }

    fn behaviour(&mut self) -> Result<f64> {
        let Load { dreams, horizon, burn_in, .. } = self.load;
        let agent = Agent::new(&self.device, &self.config, 0)?;
        let mut dreamer = Dreamer::new(&self.device, &agent, dreams, horizon, burn_in, Key::new(0, 1))?;
        let (start, vocabulary) = (dreamer.start(), self.config.tokenizer.vocabulary as u32);
        match self.config.actor_critic.sees {
            Sees::Frames => self.random_numbers(&start.before)?,
            Sees::Codes => self.random_integers(&start.before, vocabulary)?,
        }
        start.mask.write(&vec![1i32; dreams * burn_in])?;
        self.random_integers(&start.tokens, vocabulary)?;
        if let Some(context) = &start.context {
            self.random_integers(&context.tokens, vocabulary)?;
            self.random_integers(&context.actions, self.config.actions as u32)?;
        }
        let objective = ActorCriticObjective::new(dreamer.trajectories().clone(), self.returns);
        let mut learner = Learner::new(&self.device, objective, Adam::default(), LEARNING_RATE)?;
        self.time(|_| {
            dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
            Ok(learner.update(&agent)?)
        })
    }

    /// Frames of 17 tokens, as in a dream, the first of which is given: a GPU captures each once.
    fn decode(&mut self) -> Result<f64> {
        const TOKENS: usize = 17;
        let batch = if self.device.is_gpu() { 64 } else { 8 };
        let first = self.integers("first tokens", [batch, 1], 512)?;
        let next = self.integers("tokens", [batch, TOKENS - 1], 512)?;
        let model = self.new_world_model()?;
        let memory = model.memory(&self.device, batch)?;
        let seconds = self.time(|bench| {
            for frame in 0..20 {
                let id = StepId::new("decode", &frame);
                bench.stepper.infer_captured(id, |tape| -> engine::Result<()> {
                    let (token, at) = (tape.buffer(&first)?, frame * TOKENS);
                    let thought = model.see_tokens(tape, &memory, at, token)?;
                    model.imagine_tokens(tape, &memory, at + 1, thought, &next)
                })?;
            }
            Ok(())
        })?;
        Ok(if self.device.is_gpu() { seconds / (20 * TOKENS) as f64 } else { seconds })
    }
}

/// Sums by name, the largest first.
fn print_breakdown(times: &[(String, f64)]) {
    let mut sums: Vec<(&str, f64, usize)> = Vec::new();
    for (name, seconds) in times {
        match sums.iter_mut().find(|(n, ..)| n == name) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + seconds, *count + 1),
            None => sums.push((name, *seconds, 1)),
        }
    }
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, seconds, count) in &sums {
        say!("  {:9.3} ms {count:6} x  {name}", 1e3 * seconds);
    }
    say!("  {:9.3} ms {:6} x  in all", 1e3 * sums.iter().map(|s| s.1).sum::<f64>(), times.len());
}

/// Starts the kernel's count of peak memory anew (Linux only).
fn forget_peak_memory() {
    // Fails where the file does not exist; then the peak is simply not reported or reported for all cases together.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most memory the process held since then, in bytes (Linux only).
fn peak_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}
