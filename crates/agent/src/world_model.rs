//! The world model: a GPT over frame tokens and actions that predicts the next tokens, rewards and ends (paper, section 2.2).

mod blocks;
mod frames;
mod memory;

use engine::{Device, Error, Init, Param, Params, Result, Tape, Tensor};

use crate::layers::{Builder, LinearInit, Network, Norm};
use crate::{Attention, TokenizerConfig, WorldModelConfig, WorldModelKind};
use blocks::{Block, Head};
use frames::{Frames, Predicted};
pub use memory::{Memory, Thought};

pub(crate) const ENDS: usize = 2;

pub struct WorldModel {
    pub config: WorldModelConfig,
    pub network: Network,
    /// K, frame tokens per step.
    pub tokens: usize,
    blocks: Vec<Block>,
    final_norm: Norm,
    positions: Param,
    action_table: Param,
    family: Family,
    head_rewards: Head,
    head_ends: Head,
}

/// What differs between the kinds.
#[expect(clippy::large_enum_variant, reason = "an agent has one")]
enum Family {
    /// A step is K positions of frame tokens and one of the action; a position sees those before it and predicts the token after it.
    Token { table: Param, head: Head },
    /// A step is a position of the action and those of the frame.
    Frame(Frames),
}

/// What the model says at every step of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct WorldModelOutput {
    /// After the final norm, [B, L * positions per step, D].
    pub hidden: Tensor,
    /// [B, n, N]; [`prediction_of`](WorldModel::prediction_of) says which is of which token.
    pub observations: Tensor,
    /// The same for each token by itself, where tokens are drawn [in order](crate::Draws::InOrder).
    pub alone: Option<Tensor>,
    /// [B, L, R], with the R of [`RewardModel::outputs`](crate::RewardModel::outputs).
    pub rewards: Tensor,
    /// [B, L, 2]
    pub ends: Tensor,
}

/// A batch of sequences. Padded steps have mask 0.
#[derive(Clone, Copy, Debug)]
pub struct WorldModelBatch {
    /// i32 [B, L, K]
    pub tokens: Tensor,
    /// i32 [B, L]
    pub actions: Tensor,
    /// The sign of the reward plus one, i32 [B, L]; two bins [B, L, 2] where rewards are learnt as bins.
    pub rewards: Tensor,
    /// Rewards [B, L], or the shares of the two bins [B, L, 2]; none where signs are learnt.
    pub amounts: Option<Tensor>,
    /// i32 [B, L]
    pub ends: Tensor,
    /// i32 [B, L]
    pub mask: Tensor,
}

#[derive(Clone, Copy, Debug)]
pub struct WorldModelLosses {
    pub total: Tensor,
    pub observations: Tensor,
    pub rewards: Tensor,
    pub ends: Tensor,
}

impl WorldModelLosses {
    /// The names that the reference release logs, in the order of [`named`](WorldModelLosses::named).
    pub const NAMES: [&'static str; 4] = [
        "world_model/train/total_loss",
        "world_model/train/loss_obs",
        "world_model/train/loss_rewards",
        "world_model/train/loss_ends",
    ];

    /// The losses under the names that the reference release logs.
    pub fn named(&self) -> [(&'static str, Tensor); 4] {
        let [total, observations, rewards, ends] = Self::NAMES;
        [(total, self.total), (observations, self.observations), (rewards, self.rewards), (ends, self.ends)]
    }
}

impl WorldModel {
    pub fn new(
        device: &Device,
        config: &WorldModelConfig,
        tokenizer: &TokenizerConfig,
        actions: usize,
        seed: u64,
    ) -> Result<WorldModel> {
        WorldModel::within(device, config, tokenizer, actions, seed, usize::MAX)
    }

    /// [`new`](WorldModel::new) with at most `limit` parameters.
    pub(crate) fn within(
        device: &Device,
        config: &WorldModelConfig,
        tokenizer: &TokenizerConfig,
        actions: usize,
        seed: u64,
        limit: usize,
    ) -> Result<WorldModel> {
        let mut b = Builder::new(LinearInit::Normal(config.init_std));
        let (width, init) = (config.width, Init::Normal(config.init_std));
        let (blocks, final_norm) = b.within("transformer", |b| -> Result<_> {
            let blocks = (0..config.layers)
                .map(|i| b.within(&format!("blocks.{i}"), |b| Block::new(b, config)))
                .collect::<Result<Vec<_>>>()?;
            Ok((blocks, b.norm("ln_f", width)?))
        })?;
        let parts = match config.kind {
            WorldModelKind::Token => tokenizer.tokens(),
            WorldModelKind::Frame => Frames::positions(config, tokenizer),
        };
        let positions = b.embedding("pos_emb", config.steps * (parts + 1), width, init)?;
        let part = match config.kind {
            WorldModelKind::Token => width,
            WorldModelKind::Frame => Frames::part(config),
        };
        let (action_table, table) = b.within("embedder", |b| -> Result<_> {
            Ok((
                b.embedding("embedding_tables.0", actions, width, init)?,
                b.embedding("embedding_tables.1", tokenizer.vocabulary, part, init)?,
            ))
        })?;
        let family = b.within("head_observations", |b| match config.kind {
            WorldModelKind::Token => {
                Ok(Family::Token { table, head: Head::new(b, width, tokenizer.vocabulary)? })
            }
            WorldModelKind::Frame => Ok(Family::Frame(Frames::new(b, config, tokenizer, table)?)),
        })?;
        let head_rewards = b.within("head_rewards", |b| Head::new(b, width, config.reward.outputs()))?;
        let head_ends = b.within("head_ends", |b| Head::new(b, width, ENDS))?;
        Ok(WorldModel {
            config: config.clone(),
            network: b.finish(device, "world_model", seed, limit)?,
            tokens: tokenizer.tokens(),
            blocks,
            final_norm,
            positions,
            action_table,
            family,
            head_rewards,
            head_ends,
        })
    }

    fn params(&self) -> &Params {
        &self.network.params
    }

    /// Tokens i32 [B, L, K], actions i32 [B, L] -> predictions. With dropout while training only.
    pub fn forward(
        &self,
        tape: &mut Tape,
        tokens: Tensor,
        actions: Tensor,
        train: bool,
    ) -> Result<WorldModelOutput> {
        const OP: &str = "world model";
        let &[batch, steps, k] = tokens.dims() else {
            return Err(Error::BadShape { op: OP, shape: tokens.shape(), rule: "tokens are [B, L, K]" });
        };
        if k != self.tokens {
            let rhs = [batch, steps, self.tokens].into();
            return Err(Error::ShapeMismatch {
                op: OP,
                lhs: tokens.shape(),
                rhs,
                rule: "tokens are [B, L, K]",
            });
        }
        if actions.dims() != [batch, steps] {
            let rule = "actions are [B, L] for tokens [B, L, K]";
            return Err(Error::ShapeMismatch { op: OP, lhs: tokens.shape(), rhs: actions.shape(), rule });
        }
        let (params, width) = (self.params(), self.config.width);
        let [embedding, attention, residual] = if train { self.config.dropout() } else { [0.0; 3] };
        let x = self.embed(tape, tokens, actions, 0)?;
        let mut x = tape.dropout(x, embedding)?;
        for block in &self.blocks {
            let seen = (self.config.heads, self.span());
            x = block.forward(tape, params, seen, [attention, residual], x)?;
        }
        let hidden = self.final_norm.layer(tape, params, x)?;
        let head = match &self.family {
            Family::Token { head, .. } => head,
            Family::Frame(frames) => {
                let Predicted { at_actions, logits, alone } = frames.predict(tape, params, hidden, tokens)?;
                return Ok(WorldModelOutput {
                    hidden,
                    observations: logits,
                    alone,
                    rewards: self.head_rewards.forward(tape, params, at_actions)?,
                    ends: self.head_ends.forward(tape, params, at_actions)?,
                });
            }
        };

        // Heads look only at the positions they speak for: [B, L, K + 1, D] without the last frame token, and the action token.
        let by_step = tape.reshape(hidden, [batch, steps, k + 1, width])?;
        let frame_positions = tape.slice(by_step, 2, 0, k - 1)?;
        let action_positions = tape.slice(by_step, 2, k, k + 1)?;
        let speaking = tape.concat(&[frame_positions, action_positions], 2)?;
        let speaking = tape.reshape(speaking, [batch, steps * k, width])?;
        let at_actions = tape.reshape(action_positions, [batch, steps, width])?;
        Ok(WorldModelOutput {
            hidden,
            observations: head.forward(tape, params, speaking)?,
            alone: None,
            rewards: self.head_rewards.forward(tape, params, at_actions)?,
            ends: self.head_ends.forward(tape, params, at_actions)?,
        })
    }

    /// Cross-entropy of next tokens and ends and the loss of rewards, summed; padded steps are ignored. The total has the loss of tokens by themselves, too,
    /// where they are drawn in order.
    pub fn loss(&self, tape: &mut Tape, batch: &WorldModelBatch, train: bool) -> Result<WorldModelLosses> {
        let output = self.forward(tape, batch.tokens, batch.actions, train)?;
        let rows = batch.tokens.dims()[0];
        let labels = tape.mask_labels(batch.tokens, batch.mask)?;
        let tokens = match &self.family {
            Family::Token { .. } => {
                // Prediction n is of token n + 1: the first token has no prediction, the last prediction no token.
                let labels = tape.reshape(labels, [rows, output.observations.dims()[1]])?;
                tape.shift_labels(labels)?
            }
            Family::Frame(frames) => frames.labels(tape, labels)?,
        };
        let observations = tape.cross_entropy(output.observations, tokens)?;
        let rewards =
            self.config.reward.loss(tape, output.rewards, batch.rewards, batch.amounts, batch.mask)?;
        let labels = tape.mask_labels(batch.ends, batch.mask)?;
        let ends = tape.cross_entropy(output.ends, labels)?;
        let total = tape.add(observations, rewards)?;
        let mut total = tape.add(total, ends)?;
        if let Some(alone) = output.alone {
            let alone = tape.cross_entropy(alone, tokens)?;
            total = tape.add(total, alone)?;
        }
        Ok(WorldModelLosses { total, observations, rewards, ends })
    }

    /// Steps as the transformer reads them, from position `at` on: tokens i32 [B, n, K] and actions i32 [B, n] -> [B, n * positions per step, D].
    fn embed(&self, tape: &mut Tape, tokens: Tensor, actions: Tensor, at: usize) -> Result<Tensor> {
        let (params, width) = (self.params(), self.config.width);
        let (batch, steps) = (actions.dims()[0], actions.dims()[1]);
        let (table, positions) =
            (tape.param(params, self.action_table)?, tape.param(params, self.positions)?);
        let actions = tape.reshape(actions, [batch, steps, 1])?;
        let actions = tape.embedding(table, actions)?;
        // [B, n, parts, D] and [B, n, 1, D] -> [B, n * (parts + 1), D]
        let both = match &self.family {
            Family::Token { table, .. } => {
                let table = tape.param(params, *table)?;
                [tape.embedding(table, tokens)?, actions]
            }
            Family::Frame(frames) => [actions, frames.embed(tape, params, tokens)?],
        };
        let x = tape.concat(&both, 2)?;
        let x = tape.reshape(x, [batch, steps * self.positions_per_step(), width])?;
        tape.add_positions(x, positions, at)
    }

    /// Which of the predictions of a sequence is of token `token` of frame `step`, of all but the first frame.
    pub fn prediction_of(&self, step: usize, token: usize) -> usize {
        match &self.family {
            Family::Token { .. } => step * self.tokens + token - 1,
            Family::Frame(frames) => (step - 1) * self.tokens + frames.prediction_of(token),
        }
    }

    /// Where the model looked to predict token `token` of the frame that follows the newest step, by what it looked at: for each step K shares of its tokens
    /// and one of its action, but for the frame that follows, which has no action. A patch's share is divided among its tokens.
    pub fn looked_at(&self, attention: &Attention, layer: usize, head: usize, token: usize) -> Vec<f32> {
        let Family::Frame(frames) = &self.family else {
            return attention.of(layer, head, token).to_vec();
        };
        let each = self.config.patch * self.config.patch;
        let weights = attention.of(layer, head, 1 + frames.place(token) / each);
        let mut shares = Vec::new();
        for step in weights.chunks_exact(frames.count() + 1) {
            shares.extend((0..self.tokens).map(|token| step[1 + frames.place(token) / each] / each as f32));
            shares.push(step[0]);
        }
        // The model draws the frame that follows all at once, so that none of its tokens sees another.
        shares.resize(shares.len() + self.tokens, 0.0);
        shares
    }

    /// Positions of a frame and its action.
    pub fn positions_per_step(&self) -> usize {
        match &self.family {
            Family::Token { .. } => self.tokens + 1,
            Family::Frame(frames) => frames.count() + 1,
        }
    }

    /// Positions of a frame whose action is not known yet.
    pub fn positions_ahead(&self) -> usize {
        match &self.family {
            Family::Token { .. } => self.tokens,
            Family::Frame(_) => 0,
        }
    }

    /// Positions that see each other.
    fn span(&self) -> usize {
        match &self.family {
            Family::Token { .. } => 1,
            Family::Frame(_) => self.positions_per_step(),
        }
    }
}
