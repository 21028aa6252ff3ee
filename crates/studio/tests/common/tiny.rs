//! Runs that take a fraction of a second: they play, are evaluated at their end, and learn nothing.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::ops::ControlFlow;
use std::path::Path;

use agent::Agent;
use agent::fuzzing::tiny_agent;
use agent::testing::tiny_run;
use agent::train::{Damaged, Event, Observer, Resume, Run, TrainConfig, TrainError, Trainer, train};
use engine::Device;

/// Epochs of a whole run.
pub const EPOCHS: usize = 4;

pub fn device() -> Device {
    Device::cpu(Some(1)).unwrap()
}

pub fn tiny() -> Agent {
    tiny_agent(&device()).unwrap()
}

/// Four epochs in which ten steps are played, with an evaluation every other epoch.
pub fn config(seed: u64) -> TrainConfig {
    let mut config = TrainConfig { seed, ..tiny_run(&device()).unwrap() };
    (config.evaluation.every, config.evaluation.episodes, config.evaluation.final_episodes) = (2, 1, 2);
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
