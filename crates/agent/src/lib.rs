//! The paper: "Transformers are Sample-Efficient World Models" (ICLR 2023).
//!
//! Three networks and the dream they share. [`Tokenizer`] turns frames into tokens and back, [`WorldModel`] predicts the next tokens,
//! rewards and ends, [`ActorCritic`] acts on reconstructed frames, and a [`Dreamer`] lets it act inside the world model.

mod actor_critic;
pub mod animation;
mod by_hand;
mod checkpoint;
mod config;
mod dream;
mod episodes;
mod expectation;
mod files;
mod font;
mod foresight;
#[doc(hidden)]
pub mod fuzzing;
mod gallery;
mod imagine;
mod layers;
pub mod npz;
mod perceptual;
mod perceptual_file;
pub mod picture;
mod player;
pub mod reference;
mod replay;
mod rewards;
mod rollout;
mod scenes;
#[doc(hidden)]
pub mod testing;
mod tokenizer;
pub mod train;
mod world_model;

pub use actor_critic::{ActorCritic, ActorCriticLosses, Policy, ReturnScale, Returns, Seen, Sight};
pub use by_hand::PlayedGame;
pub use checkpoint::CheckpointError;
pub use config::{
    ActorCriticConfig, AgentConfig, ConfigError, Draws, Sees, TokenizerConfig, TokenizerKind, ValueModel,
    WorldModelConfig, WorldModelKind,
};
pub use dream::{Asked, Attention, Dream, Frame, Logits, Moment, Snapshot};
pub use episodes::{Archive, EpisodesError, export_dreams, export_episodes, join_episodes};
pub use expectation::{Expectation, Read};
pub use files::{FileError, write_atomically};
pub use foresight::{Foreseen, Foresight, Hits, NextFrame};
pub use imagine::{Acting, Action, Context, Dreamer, Start, Trajectories};
pub use layers::Network;
pub use perceptual::Perceptual;
pub use player::{PlayError, Player, PlayerState, Thought, episode_seed, evaluation_seed};
pub use replay::{Episode, Record, Replay, ReplayError, Sampling, Segment, Table, TableError};
pub use rewards::RewardModel;
pub use rollout::{Dreamt, Rollout, Stretch};
pub use scenes::{Eye, SceneError, Scenes};
pub use tokenizer::{ErrorWeights, Quantised, Tokenizer, TokenizerLosses};
pub use world_model::{Memory, WorldModel, WorldModelBatch, WorldModelLosses, WorldModelOutput};

pub use engine::{Error, Result};

use engine::{Device, Tape, Tensor};

/// The three networks.
pub struct Agent {
    pub config: AgentConfig,
    pub tokenizer: Tokenizer,
    pub world_model: WorldModel,
    pub actor_critic: ActorCritic,
}

impl Agent {
    /// Fresh networks, initialised from `seed`.
    pub fn new(device: &Device, config: &AgentConfig, seed: u64) -> Result<Agent> {
        Agent::within(device, config, seed, usize::MAX)
    }

    /// [`new`](Agent::new) with at most `limit` parameters per network, for configs that come from a file of that size.
    pub(crate) fn within(device: &Device, config: &AgentConfig, seed: u64, limit: usize) -> Result<Agent> {
        config.validate().map_err(|e| Error::BadConfig { reason: e.to_string() })?;
        let (tokenizer, actions) = (&config.tokenizer, config.actions);
        Ok(Agent {
            config: config.clone(),
            tokenizer: Tokenizer::within(device, tokenizer, seed, limit)?,
            world_model: WorldModel::within(device, &config.world_model, tokenizer, actions, seed, limit)?,
            actor_critic: ActorCritic::within(device, &config.actor_critic, tokenizer, actions, seed, limit)?,
        })
    }

    /// What the policy looks at where these are the tokens, i32 [B, K]: frames [B, H, W, 3] in [0, 1] or codes [B, h, w, E].
    pub fn view(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        match self.config.actor_critic.sees {
            Sees::Frames => self.tokenizer.render(tape, tokens),
            Sees::Codes => self.tokenizer.codes(tape, tokens),
        }
    }

    /// The same over time: tokens i32 [B, T, K] -> [B, T, ..].
    pub fn view_over_time(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let &[batch, time, k] = tokens.dims() else {
            return Err(Error::BadShape { op: "view", shape: tokens.shape(), rule: "tokens are [B, T, K]" });
        };
        let flat = tape.reshape(tokens, [batch * time, k])?;
        let view = self.view(tape, flat)?;
        let dims: Vec<usize> = [batch, time].iter().chain(view.dims().iter().skip(1)).copied().collect();
        tape.reshape(view, engine::Shape::try_from(dims.as_slice())?)
    }

    /// Takes over the networks of an agent of the same config, maybe on another device, with the optimisers' state.
    pub(crate) fn copy_from(&self, other: &Agent) -> Result<()> {
        let networks = self.networks(None).into_iter().zip(other.networks(None));
        networks.into_iter().try_for_each(|((_, to), (_, from))| to.params.copy_from(&from.params))?;
        let [to, from] = [self, other].map(|agent| agent.actor_critic.return_range.buffer());
        to.copy_from(from)
    }

    /// What captured steps over its networks depend on.
    pub(crate) fn identity(&self) -> AgentId {
        let networks = [&self.tokenizer.network, &self.world_model.network, &self.actor_critic.network];
        AgentId { networks: networks.map(|network| network.params.values().identity()) }
    }
}

/// Tells an agent from every other that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AgentId {
    /// The buffers of the parameters.
    networks: [u64; 3],
}
