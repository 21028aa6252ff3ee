//! Algorithm 1 of the paper: collect, learn the world, learn to act inside it.

mod atari;
mod beside;
mod cache;
mod collection;
mod config;
mod ended;
mod error;
mod evaluation;
mod first_episodes;
mod held_out;
mod init;
mod kept;
mod learner;
mod learning;
mod media;
mod objectives;
mod observer;
mod phase;
mod played;
mod run;
mod tensorboard;
mod timing;

use std::ops::ControlFlow;
use std::path::Path;

use engine::{Adam, Device, Key};
use envs::{Game, Purpose, VectorEnv};

pub use atari::{AtariConfig, AtariProtocol};
pub use beside::ends_in_background;
pub use config::{
    ActorCriticTraining, CollectionConfig, EvaluationConfig, ReplayConfig, Schedule, TokenizerTraining,
    TrainConfig, WorldModelTraining,
};
pub use error::{SetupError, TrainError};
pub use first_episodes::FirstEpisodesError;
pub use init::{InitConfig, InitError};
pub use kept::{EpisodeKind, KeptEpisode, kept_episodes};
pub use learner::{Learner, Losses, Objective};
pub use objectives::{ActorCriticObjective, TokenizerObjective, WorldModelObjective};
pub use observer::{Event, Observer, Warning};
pub use phase::Phase;
pub use run::{Damaged, Glance, Resume, Run, RunError, StateError};
pub(crate) use run::{optimisers, state};

use crate::replay::{Episode, Replay};
use crate::{Agent, Dreamer, Perceptual, Player};
use beside::Beside;
use cache::{Cache, Capacity};
use ended::Ended;
use held_out::HeldOut;
use phase::Stream;
use timing::Clock;

type Result<T, E = TrainError> = std::result::Result<T, E>;

/// What an epoch measures, by name.
#[derive(Default)]
struct Metrics(Vec<(String, f64)>);

impl Metrics {
    fn add(&mut self, name: &str, value: f32) {
        self.0.push((name.into(), f64::from(value)));
    }
}

/// The epoch that is being made: who watches it, and what it has brought so far.
struct Epoch<'a> {
    observer: &'a mut dyn Observer,
    made: Made,
}

/// What an epoch leaves behind beside the trainer's new state.
struct Made {
    /// Its number, from 1.
    epoch: usize,
    metrics: Metrics,
    /// What was played, by phase.
    played: serde_json::Map<String, serde_json::Value>,
    /// Episodes that ended, with their returns.
    collected: Vec<(f32, Episode)>,
    evaluated: Vec<(f32, HeldOut)>,
    clock: Clock,
}

impl Made {
    /// Nothing yet.
    fn new(epoch: usize) -> Made {
        let (metrics, played, clock) = (Metrics::default(), Default::default(), Clock::start());
        Made { epoch, metrics, played, collected: Vec::new(), evaluated: Vec::new(), clock }
    }
}

impl Epoch<'_> {
    fn progress(&mut self, phase: Phase, done: usize, total: usize) -> Result<()> {
        match self.observer.event(Event::Progress { epoch: self.made.epoch, phase, done, total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(TrainError::Interrupted),
        }
    }
}

/// A run: the networks, what they have seen, and the games being played.
pub struct Trainer {
    pub config: TrainConfig,
    pub agent: Agent,
    pub replay: Replay,
    /// Epochs whose updates are made.
    pub epoch: usize,
    device: Device,
    game: Game,
    /// Games that are played side by side.
    envs: VectorEnv,
    player: Player,
    dreamer: Dreamer,
    cache: Cache,
    tokenizer: Learner<TokenizerObjective>,
    world_model: Learner<WorldModelObjective>,
    actor_critic: Learner<ActorCriticObjective>,
}

/// Trains until all epochs are over, and saves the run after each: on a GPU beside the next one.
pub fn train(run: &mut Run, trainer: &mut Trainer, observer: &mut dyn Observer) -> Result<()> {
    let beside = if ends_in_background(&trainer.device) { Beside::new(trainer)? } else { None };
    match beside {
        Some(mut beside) => beside::train(run, trainer, &mut beside, observer),
        None => train_alone(run, trainer, observer),
    }
}

/// Each epoch ends before the next one begins.
fn train_alone(run: &mut Run, trainer: &mut Trainer, observer: &mut dyn Observer) -> Result<()> {
    while trainer.epoch < trainer.config.epochs {
        let made = trainer.make_epoch(observer)?;
        trainer.replay.flush().map_err(RunError::from)?;
        let stopped = run.finish(trainer.ended(), made, observer)?.is_break();
        run.discard(&mut trainer.replay)?;
        if stopped && trainer.epoch < trainer.config.epochs {
            return Err(TrainError::Interrupted);
        }
    }
    Ok(())
}

impl Trainer {
    /// One epoch of the paper's Algorithm 1, up to its end.
    fn make_epoch(&mut self, observer: &mut dyn Observer) -> Result<Made> {
        let number = self.epoch + 1;
        let mut epoch = Epoch { observer, made: Made::new(number) };
        if self.epoch < self.config.collection.epochs {
            self.collect(&mut epoch)?;
            epoch.made.clock.lap(Phase::Collection, self.config.collection.steps);
        }
        self.learn_tokenizer(&mut epoch).map_err(|e| e.in_phase(Phase::Tokenizer, number))?;
        epoch.made.clock.lap(Phase::Tokenizer, self.config.tokenizer.schedule.updates_in(self.epoch));
        self.learn_world_model(&mut epoch).map_err(|e| e.in_phase(Phase::WorldModel, number))?;
        epoch.made.clock.lap(Phase::WorldModel, self.config.world_model.schedule.updates_in(self.epoch));
        self.learn_actor_critic(&mut epoch).map_err(|e| e.in_phase(Phase::ActorCritic, number))?;
        epoch.made.clock.lap(Phase::ActorCritic, self.config.actor_critic.schedule.updates_in(self.epoch));
        self.epoch = number;
        Ok(epoch.made)
    }

    /// The run after the updates of an epoch.
    fn ended(&mut self) -> Ended<'_> {
        Ended {
            epoch: self.epoch,
            actions: self.action_names(),
            config: &self.config,
            device: &self.device,
            agent: &self.agent,
            replay: &self.replay,
            game: &self.game,
            tokenizer: Some(&mut self.tokenizer.objective),
        }
    }

    /// A run with these networks and this replay, after `epoch` epochs. Games that were being played are played again up to where they were.
    pub fn new(
        device: &Device,
        config: TrainConfig,
        agent: Agent,
        replay: Replay,
        epoch: usize,
    ) -> Result<Trainer, SetupError> {
        let game = config.game(None)?;
        let mut envs = Vec::with_capacity(config.collection.envs);
        for place in 0..config.collection.envs {
            let mut env = game.make(Purpose::Train, config.agent.tokenizer.frame_size)?;
            collection::replay_newest_game(env.as_mut(), &replay, place)?;
            envs.push(env);
        }
        let (t, w, p) = (&config.tokenizer, &config.world_model, &config.actor_critic);
        let key = Key::new(config.seed, 0);
        let dreamer = Dreamer::new(device, &agent, p.schedule.batch, p.horizon, p.burn_in, key)?;
        let perceptual = perceptual(device, t)?;
        let tokenizer =
            TokenizerObjective::new(device, &config.agent.tokenizer, t.schedule.batch, perceptual, t.into())?;
        let world_model = WorldModelObjective::new(device, &config.agent, w.schedule.batch)?;
        let actor_critic = ActorCriticObjective::new(dreamer.trajectories().clone(), p.returns);
        Ok(Trainer {
            player: Player::new(device, &agent, envs.len())?,
            cache: Cache::new(device, &agent, Capacity::new(device, &config))?,
            tokenizer: learner(device, tokenizer, &t.schedule, 0.0)?,
            world_model: learner(device, world_model, &w.schedule, w.weight_decay)?,
            actor_critic: learner(device, actor_critic, &p.schedule, 0.0)?,
            dreamer,
            device: device.clone(),
            config,
            agent,
            replay,
            epoch,
            game,
            envs: VectorEnv::new(envs),
        })
    }

    pub fn game(&self) -> &Game {
        &self.game
    }

    /// The first of this epoch's numbers of a stream.
    fn key(&self, stream: Stream) -> Key {
        stream.key(self.config.seed, self.epoch)
    }
}

fn learner<O: Objective>(
    device: &Device,
    objective: O,
    schedule: &Schedule,
    weight_decay: f32,
) -> engine::Result<Learner<O>> {
    let adam = Adam { max_grad_norm: schedule.max_grad_norm, weight_decay, ..Adam::default() };
    Learner::new(device, objective, adam, schedule.learning_rate)
}

/// The network of the perceptual loss: none, a random one, or one from a folder.
fn perceptual(device: &Device, config: &TokenizerTraining) -> Result<Option<Perceptual>, SetupError> {
    let dropout = config.perceptual_dropout;
    match config.perceptual.as_str() {
        "none" => Ok(None),
        "random" => Ok(Some(Perceptual::random(device, dropout)?)),
        folder => {
            let loaded =
                Perceptual::load(device, Path::new(folder), dropout).map_err(SetupError::Perceptual)?;
            Ok(Some(loaded.ok_or_else(|| SetupError::NoPerceptual { path: folder.into() })?))
        }
    }
}
