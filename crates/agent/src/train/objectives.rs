//! What each of the three networks is trained for. A new loss term belongs to its network's `loss`, `names` and `named`, a new network here and in `learning`.

use engine::{Bits, Buffer, Device, Lstm, Shape, Tape};

use super::{Losses, Objective, Phase, TokenizerTraining};
use crate::layers::Network;
use crate::{
    ActorCriticLosses, Agent, AgentConfig, ErrorWeights, Perceptual, Returns, Seen, Tokenizer,
    TokenizerConfig, TokenizerKind, TokenizerLosses, Trajectories, WorldModel, WorldModelBatch,
    WorldModelLosses,
};

const IMAGINED_REWARD: &str = "actor_critic/train/imagined_reward_per_step";

/// Reconstruct frames of the game (paper, section 2.1).
pub struct TokenizerObjective {
    /// u8 [B, H, W, 3]
    pub frames: Buffer,
    /// Whether there is a codebook with a loss of its own.
    commitment: bool,
    perceptual: Option<Perceptual>,
    weights: ErrorWeights,
}

impl TokenizerObjective {
    pub fn new(
        device: &Device,
        config: &TokenizerConfig,
        batch: usize,
        perceptual: Option<Perceptual>,
        weights: ErrorWeights,
    ) -> engine::Result<TokenizerObjective> {
        let size = config.frame_size;
        let frames = device.buffer::<u8>("frame batch", [batch, size, size, 3])?;
        let commitment = config.kind == TokenizerKind::Vq;
        Ok(TokenizerObjective { frames, commitment, perceptual, weights })
    }

    /// The same on another device, with a batch of one.
    pub(super) fn copy_to(
        &self,
        device: &Device,
        config: &TokenizerConfig,
    ) -> engine::Result<TokenizerObjective> {
        let perceptual = self.perceptual.as_ref().map(|from| from.copy_to(device)).transpose()?;
        TokenizerObjective::new(device, config, 1, perceptual, self.weights)
    }

    /// Does something while dropout is off.
    pub(super) fn without_dropout<R>(&mut self, act: impl FnOnce(&Self) -> R) -> R {
        let off = |perceptual: &mut Perceptual| std::mem::take(&mut perceptual.dropout);
        let dropout = self.perceptual.as_mut().map(off);
        let result = act(self);
        if let Some((perceptual, dropout)) = self.perceptual.as_mut().zip(dropout) {
            perceptual.dropout = dropout;
        }
        result
    }

    /// The losses over frames u8 [N, H, W, 3].
    pub(super) fn losses_of(
        &self,
        tape: &mut Tape,
        model: &Tokenizer,
        frames: &Buffer,
    ) -> engine::Result<TokenizerLosses> {
        let frames = tape.buffer(frames)?;
        let x = crate::tokenizer::from_bytes(tape, frames)?;
        model.loss(tape, x, self.perceptual.as_ref(), self.weights)
    }
}

impl From<&TokenizerTraining> for ErrorWeights {
    fn from(training: &TokenizerTraining) -> ErrorWeights {
        ErrorWeights { squared: training.squared_weight, moving: training.moving_weight }
    }
}

impl Objective for TokenizerObjective {
    const PHASE: Phase = Phase::Tokenizer;
    type Model = Tokenizer;
    /// Weights of the squared errors, and dropout of the perceptual loss.
    type Settings = ([Bits; 2], Option<Bits>);

    fn network(model: &Tokenizer) -> &Network {
        &model.network
    }

    fn settings(&self) -> ([Bits; 2], Option<Bits>) {
        let ErrorWeights { squared, moving } = self.weights;
        ([Bits(squared), Bits(moving)], self.perceptual.as_ref().map(|p| Bits(p.dropout)))
    }

    fn names(&self) -> Vec<&'static str> {
        TokenizerLosses::names(self.commitment, self.weights.are_used(), self.perceptual.is_some())
    }

    fn losses(&self, tape: &mut Tape, model: &Tokenizer) -> engine::Result<Losses> {
        let losses = self.losses_of(tape, model, &self.frames)?;
        Ok(Losses { total: losses.total, named: losses.named() })
    }
}

/// Predict what follows in sequences of the game (paper, section 2.2). Padded steps have mask 0.
pub struct WorldModelObjective {
    /// i32 [B, L, K]
    pub tokens: Buffer,
    /// i32 [B, L]
    pub actions: Buffer,
    /// The sign of the reward plus one, i32 [B, L]; two bins [B, L, 2] where rewards are learnt as bins.
    pub rewards: Buffer,
    /// Rewards [B, L], or the shares of the two bins [B, L, 2]; none where signs are learnt.
    pub amounts: Option<Buffer>,
    /// i32 [B, L]
    pub ends: Buffer,
    /// i32 [B, L]
    pub mask: Buffer,
}

impl WorldModelObjective {
    pub fn new(device: &Device, config: &AgentConfig, batch: usize) -> engine::Result<WorldModelObjective> {
        let steps = config.world_model.steps;
        let reward = config.world_model.reward;
        let per_reward = match reward.classes() {
            1 => Shape::from([batch, steps]),
            classes => Shape::from([batch, steps, classes]),
        };
        let amounts = || device.buffer::<f32>("amounts of rewards", per_reward);
        let integers = |name: &str| device.buffer::<i32>(name, [batch, steps]);
        Ok(WorldModelObjective {
            tokens: device.buffer::<i32>("token batch", [batch, steps, config.tokenizer.tokens()])?,
            actions: integers("action batch")?,
            rewards: device.buffer::<i32>("reward batch", per_reward)?,
            amounts: reward.has_amounts().then(amounts).transpose()?,
            ends: integers("end batch")?,
            mask: integers("mask batch")?,
        })
    }

    /// The losses, with dropout if `train`.
    pub(super) fn losses_if(
        &self,
        tape: &mut Tape,
        model: &WorldModel,
        train: bool,
    ) -> engine::Result<WorldModelLosses> {
        let batch = WorldModelBatch {
            tokens: tape.buffer(&self.tokens)?,
            actions: tape.buffer(&self.actions)?,
            rewards: tape.buffer(&self.rewards)?,
            amounts: self.amounts.as_ref().map(|amounts| tape.buffer(amounts)).transpose()?,
            ends: tape.buffer(&self.ends)?,
            mask: tape.buffer(&self.mask)?,
        };
        model.loss(tape, &batch, train)
    }
}

impl Objective for WorldModelObjective {
    const PHASE: Phase = Phase::WorldModel;
    type Model = WorldModel;
    type Settings = ();

    fn network(model: &WorldModel) -> &Network {
        &model.network
    }

    fn settings(&self) {}

    fn names(&self) -> Vec<&'static str> {
        WorldModelLosses::NAMES.to_vec()
    }

    fn losses(&self, tape: &mut Tape, model: &WorldModel) -> engine::Result<Losses> {
        let losses = self.losses_if(tape, model, true)?;
        Ok(Losses { total: losses.total, named: losses.named().to_vec() })
    }
}

/// Act well in dreams (paper, section 2.3).
pub struct ActorCriticObjective {
    pub dreamt: Trajectories,
    returns: Returns,
}

impl ActorCriticObjective {
    pub fn new(dreamt: Trajectories, returns: Returns) -> ActorCriticObjective {
        ActorCriticObjective { dreamt, returns }
    }
}

impl Objective for ActorCriticObjective {
    const PHASE: Phase = Phase::ActorCritic;
    /// The policy alone learns; what it sees of tokens is the tokenizer's.
    type Model = Agent;
    type Settings = Returns;

    fn network(model: &Agent) -> &Network {
        &model.actor_critic.network
    }

    fn settings(&self) -> Returns {
        self.returns
    }

    fn names(&self) -> Vec<&'static str> {
        [&ActorCriticLosses::NAMES[..], &[IMAGINED_REWARD]].concat()
    }

    fn losses(&self, tape: &mut Tape, agent: &Agent) -> engine::Result<Losses> {
        let (dreamt, model) = (&self.dreamt, &agent.actor_critic);
        let view = match &dreamt.frames {
            Some(frames) => tape.buffer(frames)?,
            None => {
                let tokens = tape.buffer(&dreamt.tokens)?;
                agent.view_over_time(tape, tokens)?
            }
        };
        let previous = dreamt.previous.as_ref().map(|actions| tape.buffer(actions)).transpose()?;
        let state = Lstm { hidden: tape.buffer(&dreamt.hidden)?, cell: tape.buffer(&dreamt.cell)? };
        let output = model.follow(tape, Seen { view, previous }, state)?;
        let (actions, ends) = (tape.buffer(&dreamt.actions)?, tape.buffer(&dreamt.ends)?);
        let rewards = tape.buffer(&dreamt.rewards)?;
        let losses = model.loss(tape, output, actions, rewards, ends, &self.returns)?;
        let mut named = losses.named().to_vec();
        named.push((IMAGINED_REWARD, tape.mean(rewards)?));
        Ok(Losses { total: losses.total, named })
    }
}
