//! Runs that take a fraction of a second: they play, are evaluated at their end, and learn nothing.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::ops::ControlFlow;
use std::path::Path;

use agent::fuzzing::tiny_agent;
use agent::train::{Damaged, Event, Observer, Resume, Run, TrainConfig, TrainError, Trainer, train};
use agent::{Agent, AgentConfig};
use engine::Device;

/// Epochs of a whole run.
pub const EPOCHS: usize = 4;

pub fn device() -> Device {
    Device::cpu(Some(1)).unwrap()
}

pub fn tiny() -> Agent {
    tiny_agent(&device()).unwrap()
}

/// Four epochs in which ten steps are played.
pub fn config(seed: u64) -> TrainConfig {
    let agent = AgentConfig { actions: 3, ..tiny().config };
    let mut config = TrainConfig { epochs: EPOCHS, seed, agent, ..TrainConfig::default() };
    (config.collection.steps, config.collection.random_epochs) = (10, 9);
    for schedule in
        [&mut config.tokenizer.schedule, &mut config.world_model.schedule, &mut config.actor_critic.schedule]
    {
        (schedule.start_after, schedule.batch) = (9, 1);
    }
    config.tokenizer.perceptual = "none".into();
    (config.actor_critic.horizon, config.actor_critic.burn_in) = (2, 1);
    (config.evaluation.every, config.evaluation.final_episodes) = (2, 2);
    config.evaluation.episodes = 1;
    config.validate().unwrap();
    config
}

/// A new run, which goes on until it is dropped.
pub fn begin(folder: &Path, config: TrainConfig) -> (Run, Trainer) {
    Run::create(&device(), config, "", folder, |text| panic!("{text}")).unwrap()
}

/// A run that is over.
pub fn whole(folder: &Path, config: TrainConfig) {
    let (mut run, mut trainer) = begin(folder, config);
    train(&mut run, &mut trainer, &mut ()).unwrap();
}

/// Trains until so many epochs are finished.
pub fn until((run, trainer): &mut (Run, Trainer), epoch: usize) {
    match train(run, trainer, &mut StopAfter(epoch)) {
        Ok(()) | Err(TrainError::Interrupted) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Continues a run that was stopped.
pub fn resume(folder: &Path) -> (Run, Trainer) {
    let options = Resume { damaged: Damaged::Refuse, epochs: None };
    Run::resume(&device(), folder, options, |text| panic!("{text}")).unwrap()
}

struct StopAfter(usize);

impl Observer for StopAfter {
    fn event(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Saved { epoch } if epoch >= self.0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}
