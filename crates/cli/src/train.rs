//! `iris train`: a run from its config to its end, with progress.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use agent::train::{Observer, TrainError, Trainer, train};
use agent::{Agent, Replay, Table};
use anyhow::Result;
use engine::Device;

use crate::args::TrainArgs;
use crate::config;

pub fn run(args: TrainArgs) -> Result<()> {
    let mut overrides = args.overrides.clone();
    overrides.extend(args.env.iter().map(|env| format!("env={env}")));
    overrides.extend(args.seed.iter().map(|seed| format!("seed={seed}")));
    let mut config = config::resolve(&args.preset, args.config.as_deref(), &overrides)?;
    let device = Device::cpu(args.threads)?;
    let game = envs::Game::find(&config.env)?;
    config.agent.actions = game.make().action_names().len();
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from("runs").join(&config.env).join(format!("seed{}", config.seed)));
    let frame_bytes = config.agent.tokenizer.frame_size * config.agent.tokenizer.frame_size * 3;
    let replay = Replay::open(&out.join("replay"), frame_bytes, config.replay.max_steps, Table::default())?;
    let agent = Agent::new(&device, &config.agent, config.seed)?;
    let mut trainer = Trainer::new(&device, config, agent, replay, 0)?;
    let mut watch =
        Watch { started: Instant::now(), phase: "", since: Instant::now(), seconds: HashMap::new() };
    train(&mut trainer, &mut watch)?;
    Ok(())
}

struct Watch {
    started: Instant,
    phase: &'static str,
    since: Instant,
    seconds: HashMap<&'static str, f64>,
}

impl Observer for Watch {
    fn progress(&mut self, phase: &'static str, _done: usize, _total: usize) -> bool {
        let now = Instant::now();
        *self.seconds.entry(phase).or_default() += (now - self.since).as_secs_f64();
        (self.phase, self.since) = (phase, now);
        true
    }

    fn epoch_done(&mut self, trainer: &mut Trainer, metrics: &[(String, f64)]) -> Result<(), TrainError> {
        let short: Vec<String> = metrics
            .iter()
            .filter(|(n, _)| !n.contains("total") && !n.contains("collection/ep"))
            .map(|(n, v)| format!("{}={v:.3}", n.rsplit('/').next().unwrap_or(n)))
            .collect();
        eprintln!(
            "epoch {:3} {:5.0}s {}",
            trainer.epoch,
            self.started.elapsed().as_secs_f64(),
            short.join(" ")
        );
        let mut phases: Vec<_> = self.seconds.iter().map(|(n, s)| format!("{n} {s:.1}")).collect();
        phases.sort();
        eprintln!("      {}", phases.join(", "));
        Ok(())
    }
}
