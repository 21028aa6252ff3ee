//! What the tests of this crate and of the crates above it share. Nothing here is part of the interface.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::Device;

use crate::fuzzing::tiny_agent;
use crate::train::TrainConfig;
use crate::{AgentConfig, Error, Result};

/// An empty folder of one test, removed at its end, also when the test fails.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("iris-{name}-{}-{number}", std::process::id()));
        // Of a killed process with the same id.
        let _ = std::fs::remove_dir_all(&path);
        // The first write into a folder that cannot be made fails with its path.
        let _ = std::fs::create_dir_all(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Four epochs of ten steps each, which learn nothing and take a fraction of a second.
pub fn tiny_run(device: &Device) -> Result<TrainConfig> {
    let agent = AgentConfig { actions: 3, ..tiny_agent(device)?.config };
    let mut config = TrainConfig { epochs: 4, agent, ..TrainConfig::default() };
    (config.collection.steps, config.collection.random_epochs) = (10, 9);
    for schedule in
        [&mut config.tokenizer.schedule, &mut config.world_model.schedule, &mut config.actor_critic.schedule]
    {
        (schedule.start_after, schedule.batch) = (9, 1);
    }
    config.tokenizer.perceptual = "none".into();
    (config.actor_critic.horizon, config.actor_critic.burn_in) = (2, 1);
    (config.evaluation.every, config.evaluation.final_episodes) = (0, 1);
    config.validate().map_err(|error| Error::BadConfig { reason: error.to_string() })?;
    Ok(config)
}
