//! The world model: a GPT over frame tokens and actions that predicts the next tokens, rewards and ends (paper, section 2.2).

use engine::{
    Activation, Buffer, DecodeBlock, DecodeHead, Decoder, Device, Error, Init, KvCache, Param, Params,
    Result, Tape, Tensor,
};

use crate::layers::{Builder, LAYER_NORM_EPSILON, Linear, LinearInit, Network, Norm};
use crate::{TokenizerConfig, WorldModelConfig};

pub(crate) const ENDS: usize = 2;

pub struct WorldModel {
    pub config: WorldModelConfig,
    pub network: Network,
    /// K, frame tokens per step; one action token follows them.
    pub tokens: usize,
    blocks: Vec<Block>,
    final_norm: Norm,
    positions: Param,
    action_table: Param,
    token_table: Param,
    head_observations: Head,
    head_rewards: Head,
    head_ends: Head,
}

/// What the model says at every step of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct WorldModelOutput {
    /// After the final norm, [B, L * (K + 1), D].
    pub hidden: Tensor,
    /// [B, L * K, N]: prediction n is of frame token n + 1 of the flattened sequence.
    pub observations: Tensor,
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

/// What a rollout remembers: keys and values of every position so far. How many positions there are is the caller's to count.
pub struct Memory {
    cache: KvCache,
}

impl Memory {
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.cache.buffers()
    }

    /// How queries [B, n, D] of a layer, at positions `at` to `at + n`, attend to every position -> [B, heads, n, at + n].
    pub(crate) fn attention_weights(&self, layer: usize, queries: &[f32], at: usize) -> Result<Vec<f32>> {
        self.cache.attention_weights(layer, queries, at)
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
        let positions = b.embedding("pos_emb", config.steps * (tokenizer.tokens() + 1), width, init)?;
        let (action_table, token_table) = b.within("embedder", |b| -> Result<_> {
            Ok((
                b.embedding("embedding_tables.0", actions, width, init)?,
                b.embedding("embedding_tables.1", tokenizer.vocabulary, width, init)?,
            ))
        })?;
        let head_observations = Head::new(&mut b, "head_observations", width, tokenizer.vocabulary)?;
        let head_rewards = Head::new(&mut b, "head_rewards", width, config.reward.outputs())?;
        let head_ends = Head::new(&mut b, "head_ends", width, ENDS)?;
        Ok(WorldModel {
            config: config.clone(),
            network: b.finish(device, "world_model", seed, limit)?,
            tokens: tokenizer.tokens(),
            blocks,
            final_norm,
            positions,
            action_table,
            token_table,
            head_observations,
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
        let (token_table, action_table) =
            (tape.param(params, self.token_table)?, tape.param(params, self.action_table)?);
        // [B, L, K, D] and [B, L, 1, D] -> [B, L * (K + 1), D]
        let frames = tape.embedding(token_table, tokens)?;
        let actions = tape.reshape(actions, [batch, steps, 1])?;
        let actions = tape.embedding(action_table, actions)?;
        let x = tape.concat(&[frames, actions], 2)?;
        let x = tape.reshape(x, [batch, steps * (k + 1), width])?;
        let positions = tape.param(params, self.positions)?;
        let x = tape.add_positions(x, positions, 0)?;
        let mut x = tape.dropout(x, embedding)?;
        for block in &self.blocks {
            x = block.forward(tape, params, self.config.heads, [attention, residual], x)?;
        }
        let hidden = self.final_norm.layer(tape, params, x)?;

        // Heads look only at the positions they speak for: [B, L, K + 1, D] without the last frame token, and the action token.
        let by_step = tape.reshape(hidden, [batch, steps, k + 1, width])?;
        let frame_positions = tape.slice(by_step, 2, 0, k - 1)?;
        let action_positions = tape.slice(by_step, 2, k, k + 1)?;
        let speaking = tape.concat(&[frame_positions, action_positions], 2)?;
        let speaking = tape.reshape(speaking, [batch, steps * k, width])?;
        let at_actions = tape.reshape(action_positions, [batch, steps, width])?;
        Ok(WorldModelOutput {
            hidden,
            observations: self.head_observations.forward(tape, params, speaking)?,
            rewards: self.head_rewards.forward(tape, params, at_actions)?,
            ends: self.head_ends.forward(tape, params, at_actions)?,
        })
    }

    /// Cross-entropy of next tokens and ends and the loss of rewards, summed; padded steps are ignored.
    pub fn loss(&self, tape: &mut Tape, batch: &WorldModelBatch, train: bool) -> Result<WorldModelLosses> {
        let output = self.forward(tape, batch.tokens, batch.actions, train)?;
        let rows = batch.tokens.dims()[0];
        let labels = tape.mask_labels(batch.tokens, batch.mask)?;
        // Prediction n is of token n + 1: the first token has no prediction, the last prediction no token.
        let labels = tape.reshape(labels, [rows, output.observations.dims()[1]])?;
        let labels = tape.shift_labels(labels)?;
        let observations = tape.cross_entropy(output.observations, labels)?;
        let rewards =
            self.config.reward.loss(tape, output.rewards, batch.rewards, batch.amounts, batch.mask)?;
        let labels = tape.mask_labels(batch.ends, batch.mask)?;
        let ends = tape.cross_entropy(output.ends, labels)?;
        let total = tape.add(observations, rewards)?;
        let total = tape.add(total, ends)?;
        Ok(WorldModelLosses { total, observations, rewards, ends })
    }

    // ---- rollouts, one or more tokens at a time ----

    /// Memory for rollouts of `batch` sequences.
    pub fn memory(&self, device: &Device, batch: usize) -> Result<Memory> {
        let (config, capacity) = (&self.config, self.config.steps * (self.tokens + 1));
        let head_width = config.width / config.heads;
        let cache = KvCache::new(device, config.layers, batch, config.heads, head_width, capacity)?;
        Ok(Memory { cache })
    }

    /// Passes new frame tokens i32 [B, n] through the model, after the first `at` positions in memory -> what it thinks [B, n, D], before the
    /// final norm. They take positions `at` to `at + n`.
    pub fn see_tokens(&self, tape: &mut Tape, memory: &Memory, at: usize, tokens: Tensor) -> Result<Tensor> {
        self.see(tape, memory, at, self.token_table, tokens)
    }

    /// Passes an action i32 `[B]` through the model, at position `at` -> what it thinks [B, 1, D], before the final norm.
    pub fn see_action(&self, tape: &mut Tape, memory: &Memory, at: usize, actions: Tensor) -> Result<Tensor> {
        let actions = tape.reshape(actions, [actions.shape().len(), 1])?;
        self.see(tape, memory, at, self.action_table, actions)
    }

    /// Entries i32 [B, n] of a table at n positions from `at` on.
    fn see(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        table: Param,
        entries: Tensor,
    ) -> Result<Tensor> {
        let (table, blocks) = (tape.param(self.params(), table)?, self.decode_blocks(tape)?);
        let decoder = self.decoder(tape, memory, &blocks)?;
        tape.decode_entries(table, entries, &decoder, at)
    }

    /// Samples the K tokens of the next frame into `next` i32 [B, K], one after the other, and remembers them from position `at` on. `thought`
    /// [B, 1, D] is what the model thinks before the first.
    pub fn imagine_tokens(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        thought: Tensor,
        next: &Buffer,
    ) -> Result<()> {
        let (head, table) = (self.token_head(tape)?, tape.param(self.params(), self.token_table)?);
        let blocks = self.decode_blocks(tape)?;
        let decoder = self.decoder(tape, memory, &blocks)?;
        tape.decode_tokens(thought, &head, table, &decoder, at, next)
    }

    fn decode_blocks(&self, tape: &mut Tape) -> Result<Vec<DecodeBlock>> {
        self.blocks.iter().map(|block| block.tensors(tape, self.params())).collect()
    }

    fn decoder<'a>(
        &self,
        tape: &mut Tape,
        memory: &'a Memory,
        blocks: &'a [DecodeBlock],
    ) -> Result<Decoder<'a>> {
        Ok(Decoder { blocks, positions: tape.param(self.params(), self.positions)?, cache: &memory.cache })
    }

    /// Passes an action i32 [B, 1] and, if there are any, the frame tokens i32 [B, K] after it through the model, from position `at` on, and leaves
    /// every layer's queries in buffers: what [`Memory::attention_weights`] needs. One op after the other instead of fused, and into a memory of its
    /// own, since keys may come out with other last bits.
    pub(crate) fn watch(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        actions: Tensor,
        tokens: Option<Tensor>,
        queries: &[Buffer],
    ) -> Result<()> {
        let params = self.params();
        let table = tape.param(params, self.action_table)?;
        let mut x = tape.embedding(table, actions)?;
        if let Some(tokens) = tokens {
            let table = tape.param(params, self.token_table)?;
            let tokens = tape.embedding(table, tokens)?;
            x = tape.concat(&[x, tokens], 1)?;
        }
        let positions = tape.param(params, self.positions)?;
        x = tape.add_positions(x, positions, at)?;
        for (layer, (block, queries)) in self.blocks.iter().zip(queries).enumerate() {
            x = block.watched(tape, params, &memory.cache, (layer, at), x, queries)?;
        }
        Ok(())
    }

    /// What the heads look at: a thought after the final norm.
    pub fn hidden(&self, tape: &mut Tape, thought: Tensor) -> Result<Tensor> {
        self.final_norm.layer(tape, self.params(), thought)
    }

    /// Logits of the next frame token, [B, n, N], from thoughts [B, n, D].
    pub fn next_token(&self, tape: &mut Tape, thought: Tensor) -> Result<Tensor> {
        let head = self.token_head(tape)?;
        tape.decode_head(thought, &head)
    }

    fn token_head(&self, tape: &mut Tape) -> Result<DecodeHead> {
        let (params, head) = (self.params(), &self.head_observations);
        Ok(DecodeHead {
            norm: self.final_norm.tensors(tape, params)?,
            hidden: head.hidden.tensors(tape, params)?,
            out: head.out.tensors(tape, params)?,
            epsilon: LAYER_NORM_EPSILON,
        })
    }

    /// Outputs for the reward [B, n, R] and logits of the end [B, n, 2], from the thoughts [B, n, D] after actions.
    pub fn consequences(&self, tape: &mut Tape, thought: Tensor) -> Result<(Tensor, Tensor)> {
        let hidden = self.hidden(tape, thought)?;
        let rewards = self.head_rewards.forward(tape, self.params(), hidden)?;
        let ends = self.head_ends.forward(tape, self.params(), hidden)?;
        Ok((rewards, ends))
    }
}

/// Pre-norm transformer block.
struct Block {
    norm1: Norm,
    norm2: Norm,
    key: Linear,
    query: Linear,
    value: Linear,
    projection: Linear,
    expand: Linear,
    contract: Linear,
}

impl Block {
    fn new(b: &mut Builder, config: &WorldModelConfig) -> Result<Block> {
        let width = config.width;
        Ok(Block {
            norm1: b.norm("ln1", width)?,
            norm2: b.norm("ln2", width)?,
            key: b.linear("attn.key", width, width)?,
            query: b.linear("attn.query", width, width)?,
            value: b.linear("attn.value", width, width)?,
            projection: b.linear("attn.proj", width, width)?,
            expand: b.linear("mlp.0", width, config.hidden())?,
            contract: b.linear("mlp.2", config.hidden(), width)?,
        })
    }

    fn forward(
        &self,
        tape: &mut Tape,
        params: &Params,
        heads: usize,
        [attention, residual]: [f32; 2],
        x: Tensor,
    ) -> Result<Tensor> {
        let h = self.norm1.layer(tape, params, x)?;
        let query = self.query.tensors(tape, params)?;
        let key = self.key.tensors(tape, params)?;
        let value = self.value.tensors(tape, params)?;
        let h = tape.causal_self_attention(h, [query, key, value], heads, attention)?;
        let h = self.projection.forward(tape, params, h)?;
        let x = tape.dropout_residual(h, residual, x)?;
        let h = self.norm2.layer(tape, params, x)?;
        let h = self.expand.activated(tape, params, h, Activation::Gelu)?;
        let h = self.contract.forward(tape, params, h)?;
        tape.dropout_residual(h, residual, x)
    }

    fn tensors(&self, tape: &mut Tape, params: &Params) -> Result<DecodeBlock> {
        Ok(DecodeBlock {
            attention_norm: self.norm1.tensors(tape, params)?,
            query: self.query.tensors(tape, params)?,
            key: self.key.tensors(tape, params)?,
            value: self.value.tensors(tape, params)?,
            projection: self.projection.tensors(tape, params)?,
            mlp_norm: self.norm2.tensors(tape, params)?,
            expand: self.expand.tensors(tape, params)?,
            contract: self.contract.tensors(tape, params)?,
            epsilon: LAYER_NORM_EPSILON,
        })
    }

    /// Over new tokens by single ops, with the queries [B, n, D] left in a buffer.
    fn watched(
        &self,
        tape: &mut Tape,
        params: &Params,
        cache: &KvCache,
        (layer, at): (usize, usize),
        x: Tensor,
        queries: &Buffer,
    ) -> Result<Tensor> {
        let h = self.norm1.layer(tape, params, x)?;
        let q = self.query.forward(tape, params, h)?;
        tape.store(queries, 0, q)?;
        let k = self.key.forward(tape, params, h)?;
        let v = self.value.forward(tape, params, h)?;
        let h = tape.cached_attention(q, k, v, cache, layer, at)?;
        let h = self.projection.forward(tape, params, h)?;
        let x = tape.add(h, x)?;
        let h = self.norm2.layer(tape, params, x)?;
        let h = self.expand.activated(tape, params, h, Activation::Gelu)?;
        let h = self.contract.forward(tape, params, h)?;
        tape.add(h, x)
    }
}

/// Linear, ReLU, Linear.
struct Head {
    hidden: Linear,
    out: Linear,
}

impl Head {
    fn new(b: &mut Builder, name: &str, width: usize, outputs: usize) -> Result<Head> {
        b.within(name, |b| {
            Ok(Head {
                hidden: b.linear("head_module.0", width, width)?,
                out: b.linear("head_module.2", width, outputs)?,
            })
        })
    }

    fn forward(&self, tape: &mut Tape, params: &Params, x: Tensor) -> Result<Tensor> {
        let h = self.hidden.activated(tape, params, x, Activation::Relu)?;
        self.out.forward(tape, params, h)
    }
}
