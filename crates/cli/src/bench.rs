//! `iris bench`: paper-size steps through the public API.

use std::time::Instant;

use agent::{ActorCritic, AgentConfig, Perceptual, Returns, Tokenizer, WorldModel, WorldModelBatch};
use anyhow::Result;
use clap::ValueEnum;
use engine::{Adam, Buffer, Device, Key, Lstm, Rng, Shape, Stepper};

use crate::args::{BenchArgs, BenchCase};

pub fn run(args: BenchArgs) -> Result<()> {
    let device = Device::cpu(args.threads)?;
    println!("iris {}, {} threads, best of {}", env!("CARGO_PKG_VERSION"), device.threads(), args.repeats);
    let cases = if args.cases.is_empty() { BenchCase::value_variants().to_vec() } else { args.cases };
    for case in cases {
        forget_peak_memory();
        let mut bench = Bench::new(&device, args.repeats);
        let best = match case {
            BenchCase::Tokenizer => bench.tokenizer(None)?,
            BenchCase::TokenizerPerceptual => {
                let perceptual = Perceptual::random(&device, 0.0)?;
                bench.tokenizer(Some(&perceptual))?
            }
            BenchCase::WorldModel => bench.world_model()?,
            BenchCase::ActorCritic => bench.actor_critic()?,
            BenchCase::Decode => bench.decode()?,
            BenchCase::Games => {
                games(args.repeats)?;
                continue;
            }
        };
        let name = case.to_possible_value().map_or(String::new(), |v| v.get_name().to_string());
        let memory = peak_memory().map_or("       -".into(), |bytes| format!("{:5} MiB", bytes >> 20));
        println!("{name:<22} {:8.1} ms   {memory}", 1e3 * best);
    }
    Ok(())
}

/// Every game this program was built with.
fn games(repeats: usize) -> Result<()> {
    for game in envs::all_games() {
        let mut best: f64 = 0.0;
        for _ in 0..repeats {
            best = best.max(envs::steps_per_second(game, 64, 1000)?);
        }
        println!("{:<22} {best:8.0} steps/s", game.name);
    }
    Ok(())
}

struct Bench {
    device: Device,
    config: AgentConfig,
    stepper: Stepper,
    repeats: usize,
    rng: Rng,
}

impl Bench {
    fn new(device: &Device, repeats: usize) -> Bench {
        let key = Key::new(0, 0);
        Bench {
            device: device.clone(),
            config: AgentConfig { actions: 6, ..AgentConfig::default() },
            stepper: Stepper::new(device, key),
            repeats: repeats.max(1),
            rng: Rng::new(key),
        }
    }

    fn new_world_model(&self) -> Result<WorldModel> {
        let config = &self.config;
        Ok(WorldModel::new(&self.device, &config.world_model, &config.tokenizer, config.actions, 0)?)
    }

    /// Seconds of the fastest run after one that warms up.
    fn best(&mut self, mut step: impl FnMut(&mut Bench) -> Result<()>) -> Result<f64> {
        step(self)?;
        let mut best = f64::INFINITY;
        for _ in 0..self.repeats {
            let start = Instant::now();
            step(self)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    fn integers(&mut self, name: &str, shape: impl Into<Shape>, below: u32) -> Result<Buffer> {
        let buffer = self.device.buffer::<i32>(name, shape);
        let values: Vec<i32> = (0..buffer.shape().len()).map(|_| self.rng.below(below) as i32).collect();
        buffer.write(&values)?;
        Ok(buffer)
    }

    fn numbers(&mut self, name: &str, shape: impl Into<Shape>) -> Result<Buffer> {
        let buffer = self.device.buffer::<f32>(name, shape);
        let values: Vec<f32> = (0..buffer.shape().len()).map(|_| self.rng.uniform()).collect();
        buffer.write(&values)?;
        Ok(buffer)
    }

    fn tokenizer(&mut self, perceptual: Option<&Perceptual>) -> Result<f64> {
        let frames = self.numbers("frames", [8, 64, 64, 3])?;
        let tokenizer = Tokenizer::new(&self.device, &self.config.tokenizer, 0)?;
        self.best(|bench| {
            Ok(bench.stepper.run(|tape| -> engine::Result<()> {
                let x = tape.buffer(&frames)?;
                let x = tape.affine(x, 2.0, -1.0)?;
                let losses = tokenizer.loss(tape, x, perceptual, 0.0)?;
                tape.backward(losses.total)?;
                tape.adam(&tokenizer.network.params, &Adam::default())?;
                Ok(())
            })?)
        })
    }

    fn world_model(&mut self) -> Result<f64> {
        let tokens = self.integers("tokens", [2, 20, 16], 512)?;
        let actions = self.integers("actions", [2, 20], 6)?;
        let rewards = self.integers("rewards", [2, 20], 3)?;
        let ends = self.integers("ends", [2, 20], 2)?;
        let mask = self.integers("mask", [2, 20], 1)?;
        mask.write(&[1i32; 40])?;
        let adam = Adam { weight_decay: 0.01, ..Adam::default() };
        let model = self.new_world_model()?;
        self.best(|bench| {
            Ok(bench.stepper.run(|tape| -> engine::Result<()> {
                let batch = WorldModelBatch {
                    tokens: tape.buffer(&tokens)?,
                    actions: tape.buffer(&actions)?,
                    rewards: tape.buffer(&rewards)?,
                    ends: tape.buffer(&ends)?,
                    mask: tape.buffer(&mask)?,
                };
                let losses = model.loss(tape, &batch, true)?;
                tape.backward(losses.total)?;
                tape.adam(&model.network.params, &adam)?;
                Ok(())
            })?)
        })
    }

    fn actor_critic(&mut self) -> Result<f64> {
        let frames = self.numbers("frames", [4, 20, 64, 64, 3])?;
        let actions = self.integers("actions", [4, 20], 6)?;
        let rewards = self.numbers("rewards", [4, 20])?;
        let ends = self.integers("ends", [4, 20], 1)?;
        let state = self.numbers("state", [4, 512])?;
        let returns = Returns::default();
        let config = &self.config;
        let policy =
            ActorCritic::new(&self.device, &config.actor_critic, &config.tokenizer, config.actions, 0)?;
        self.best(|bench| {
            Ok(bench.stepper.run(|tape| -> engine::Result<()> {
                let frames = tape.buffer(&frames)?;
                let state = Lstm { hidden: tape.buffer(&state)?, cell: tape.buffer(&state)? };
                let output = policy.follow(tape, frames, state)?;
                let (actions, rewards, ends) =
                    (tape.buffer(&actions)?, tape.buffer(&rewards)?, tape.buffer(&ends)?);
                let losses = policy.loss(tape, output, actions, rewards, ends, &returns)?;
                tape.backward(losses.total)?;
                tape.adam(&policy.network.params, &Adam::default())?;
                Ok(())
            })?)
        })
    }

    fn decode(&mut self) -> Result<f64> {
        let tokens = self.integers("tokens", [8, 1], 512)?;
        let model = self.new_world_model()?;
        let mut memory = model.memory(&self.device, 8);
        self.best(|bench| {
            memory.clear();
            for _ in 0..340 {
                bench.stepper.infer(|tape| -> engine::Result<()> {
                    let token = tape.buffer(&tokens)?;
                    let hidden = model.see_tokens(tape, &mut memory, token)?;
                    let logits = model.next_token(tape, hidden)?;
                    let next = tape.sample(logits, 1.0)?;
                    tape.store(&tokens, 0, next)
                })?;
            }
            Ok(())
        })
    }
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
