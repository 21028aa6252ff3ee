//! Rollouts: one or more tokens or steps at a time, after those that are remembered.

use engine::{Buffer, DecodeBlock, DecodeHead, Decoder, Device, Error, KvCache, Param, Result, Tape, Tensor};

use super::blocks::Head;
use super::{Family, WorldModel};
use crate::layers::LAYER_NORM_EPSILON;

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

/// What the model thinks of a step, before the final norm.
#[derive(Clone, Copy, Debug)]
pub struct Thought {
    /// [B, 1, D]: of the action, and so of what follows from it.
    pub action: Tensor,
    /// [B, P, D]: of the frame, where the next one is predicted all at once.
    pub frame: Option<Tensor>,
}

impl WorldModel {
    /// Memory for rollouts of `batch` sequences.
    pub fn memory(&self, device: &Device, batch: usize) -> Result<Memory> {
        let (config, capacity) = (&self.config, self.config.steps * self.positions_per_step());
        let head_width = config.width / config.heads;
        let cache = KvCache::new(device, config.layers, batch, config.heads, head_width, capacity)?;
        Ok(Memory { cache: cache.in_blocks(self.span()) })
    }

    /// Passes past steps through the model, from position `at` on: tokens i32 [B, n, K] and actions i32 [B, n].
    pub fn see_steps(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        tokens: Tensor,
        actions: Tensor,
    ) -> Result<()> {
        if let Family::Frame(_) = &self.family {
            let x = self.embed(tape, tokens, actions, at)?;
            return self.pass(tape, memory, at, x).map(|_| ());
        }
        let (batch, k) = (actions.dims()[0], self.tokens);
        for t in 0..actions.dims()[1] {
            let at = at + t * (k + 1);
            let frame = tape.slice(tokens, 1, t, t + 1)?;
            let frame = tape.reshape(frame, [batch, k])?;
            self.see_tokens(tape, memory, at, frame)?;
            let action = tape.slice(actions, 1, t, t + 1)?;
            self.see_action(tape, memory, at + k, action)?;
        }
        Ok(())
    }

    /// Shows a frame i32 [B, K] whose action is not known yet, at position `at`, to a model that reads it before the action.
    pub fn see_frame(&self, tape: &mut Tape, memory: &Memory, at: usize, tokens: Tensor) -> Result<()> {
        match &self.family {
            Family::Token { .. } => self.see_tokens(tape, memory, at, tokens).map(|_| ()),
            Family::Frame(_) => Ok(()),
        }
    }

    /// Passes the action i32 `[B]` that followed the newest frame i32 [B, K], which [`see_frame`](WorldModel::see_frame) has shown, through the model, at
    /// position `at`.
    pub fn see_step(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        tokens: Tensor,
        actions: Tensor,
    ) -> Result<Thought> {
        let Family::Frame(frames) = &self.family else {
            return Ok(Thought { action: self.see_action(tape, memory, at, actions)?, frame: None });
        };
        let batch = actions.shape().len();
        let tokens = tape.reshape(tokens, [batch, 1, self.tokens])?;
        let actions = tape.reshape(actions, [batch, 1])?;
        let x = self.embed(tape, tokens, actions, at)?;
        let x = self.pass(tape, memory, at, x)?;
        Ok(Thought { action: tape.slice(x, 1, 0, 1)?, frame: Some(tape.slice(x, 1, 1, 1 + frames.count())?) })
    }

    /// Draws a whole frame from the thought of the one before it: tokens i32 [B, K], and the logits [B, K, N] if they are asked for.
    pub fn draw_frame(
        &self,
        tape: &mut Tape,
        thought: Tensor,
        with_logits: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let Family::Frame(frames) = &self.family else {
            let reason = "world models of the kind \"token\" draw one token after the other".into();
            return Err(Error::BadConfig { reason });
        };
        let hidden = self.hidden(tape, thought)?;
        frames.draw(tape, self.params(), hidden, with_logits)
    }

    /// The table of the kind that reads single tokens.
    fn token_table(&self) -> Result<(Param, &Head)> {
        match &self.family {
            Family::Token { table, head } => Ok((*table, head)),
            Family::Frame(_) => {
                let reason = "world models of the kind \"frame\" read whole steps, not single tokens".into();
                Err(Error::BadConfig { reason })
            }
        }
    }

    /// Passes new frame tokens i32 [B, n] through the model, after the first `at` positions in memory -> what it thinks [B, n, D], before the
    /// final norm. They take positions `at` to `at + n`.
    pub fn see_tokens(&self, tape: &mut Tape, memory: &Memory, at: usize, tokens: Tensor) -> Result<Tensor> {
        self.see(tape, memory, at, self.token_table()?.0, tokens)
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
    /// [B, 1, D] is what the model thinks before the first. Only for the kind that reads single tokens.
    pub fn imagine_tokens(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        thought: Tensor,
        next: &Buffer,
    ) -> Result<()> {
        let (head, table) = (self.token_head(tape)?, tape.param(self.params(), self.token_table()?.0)?);
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

    /// Passes positions [B, n, D] from `at` on through the blocks.
    fn pass(&self, tape: &mut Tape, memory: &Memory, at: usize, mut x: Tensor) -> Result<Tensor> {
        for (layer, block) in self.blocks.iter().enumerate() {
            let block = block.tensors(tape, self.params())?;
            x = tape.decode_block(x, &block, &memory.cache, layer, at)?;
        }
        Ok(x)
    }

    /// Positions that [`watch`](WorldModel::watch) looks at, in a step that is followed by another frame or is the last.
    pub(crate) fn watched(&self, last: bool) -> usize {
        match &self.family {
            Family::Token { .. } if last => 1,
            _ => self.positions_per_step(),
        }
    }

    /// Passes an action i32 [B, 1] and what the model reads with it through the model, from position `at` on: the frame i32 [B, K] that it was taken in, or the
    /// one `after` it, if there is one. Leaves every layer's queries in buffers: what [`Memory::attention_weights`] needs. One op after the other
    /// instead of fused, and into a memory of its own, since keys may come out with other last bits.
    pub(crate) fn watch(
        &self,
        tape: &mut Tape,
        memory: &Memory,
        at: usize,
        actions: Tensor,
        (before, after): (Tensor, Option<Tensor>),
        queries: &[Buffer],
    ) -> Result<()> {
        let params = self.params();
        let mut x = match &self.family {
            Family::Token { table, .. } => {
                let actions_table = tape.param(params, self.action_table)?;
                let mut x = tape.embedding(actions_table, actions)?;
                if let Some(tokens) = after {
                    let table = tape.param(params, *table)?;
                    let tokens = tape.embedding(table, tokens)?;
                    x = tape.concat(&[x, tokens], 1)?;
                }
                let positions = tape.param(params, self.positions)?;
                tape.add_positions(x, positions, at)?
            }
            Family::Frame(_) => {
                let tokens = tape.reshape(before, [actions.dims()[0], 1, self.tokens])?;
                self.embed(tape, tokens, actions, at)?
            }
        };
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
        let (params, (_, head)) = (self.params(), self.token_table()?);
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
