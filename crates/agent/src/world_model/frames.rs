//! A world model that predicts whole frames: a position of a frame holds a patch of its tokens, and predicts the same patch of the next frame.
//!
//! A step is [action, P patches]; attention is block-causal over steps, so that a patch sees the action and the rest of its frame. Given what came
//! before, the tokens of a frame are predicted independently of each other.

use engine::{Activation, Error, Param, Params, Result, Tape, Tensor};

use crate::layers::{Builder, Linear, Norm};
use crate::{TokenizerConfig, WorldModelConfig};

pub struct Frames {
    /// Of the tokens, [N, D / tokens of a patch]: a patch is the embeddings of its tokens behind each other.
    table: Param,
    hidden: Linear,
    norm: Norm,
    out: Linear,
    /// Height and width of a patch, and of the grid, in tokens.
    patch: usize,
    grid: usize,
    vocabulary: usize,
}

impl Frames {
    /// Width of a token's embedding.
    pub fn part(config: &WorldModelConfig) -> usize {
        config.width / (config.patch * config.patch)
    }

    /// P, patches of a frame.
    pub fn positions(config: &WorldModelConfig, tokenizer: &TokenizerConfig) -> usize {
        let side = tokenizer.grid() / config.patch;
        side * side
    }

    /// The head, around a table of tokens.
    pub fn new(
        b: &mut Builder,
        config: &WorldModelConfig,
        tokenizer: &TokenizerConfig,
        table: Param,
    ) -> Result<Frames> {
        let (width, each) = (config.width, config.patch * config.patch);
        Ok(Frames {
            table,
            hidden: b.linear("hidden", width, 2 * width)?,
            norm: b.norm("norm", 2 * width)?,
            out: b.linear("out", 2 * width, each * tokenizer.vocabulary)?,
            patch: config.patch,
            grid: tokenizer.grid(),
            vocabulary: tokenizer.vocabulary,
        })
    }

    /// P
    pub fn count(&self) -> usize {
        (self.grid / self.patch).pow(2)
    }

    /// Tokens of a patch.
    fn each(&self) -> usize {
        self.patch * self.patch
    }

    /// Where token number `token` of a frame stands patch by patch.
    pub fn place(&self, token: usize) -> usize {
        let (y, x, p) = (token / self.grid, token % self.grid, self.patch);
        let patch = y / p * (self.grid / p) + x / p;
        patch * self.each() + y % p * p + x % p
    }

    /// Tokens i32 [.., K] -> patch by patch, [n, P, tokens of a patch].
    fn by_patch(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let (p, side) = (self.patch, self.grid / self.patch);
        let frames = tokens.shape().len() / (self.grid * self.grid);
        let rows = tape.reshape(tokens, [frames * side, p, self.grid])?;
        let lines = (0..p).map(|y| {
            let line = tape.slice(rows, 1, y, y + 1)?;
            tape.reshape(line, [frames, side * side, p])
        });
        let lines = lines.collect::<Result<Vec<_>>>()?;
        tape.concat(&lines, 2)
    }

    /// Of each token, patch by patch [n, K] or [n, K, N] -> row by row, the same shape.
    pub fn in_order(&self, tape: &mut Tape, x: Tensor) -> Result<Tensor> {
        let (p, side) = (self.patch, self.grid / self.patch);
        let frames = x.dims()[0];
        let inner = x.shape().len() / (frames * self.grid * self.grid);
        let patches = tape.reshape(x, [frames, self.count(), self.each() * inner])?;
        let lines = (0..p).map(|y| {
            let line = tape.slice(patches, 2, y * p * inner, (y + 1) * p * inner)?;
            tape.reshape(line, [frames * side, 1, self.grid * inner])
        });
        let lines = lines.collect::<Result<Vec<_>>>()?;
        let rows = tape.concat(&lines, 1)?;
        tape.reshape(rows, x.shape())
    }

    /// Tokens i32 [B, n, K] -> patches [B, n, P, D].
    pub fn embed(&self, tape: &mut Tape, params: &Params, tokens: Tensor) -> Result<Tensor> {
        let (batch, steps) = (tokens.dims()[0], tokens.dims()[1]);
        let table = tape.param(params, self.table)?;
        let patches = self.by_patch(tape, tokens)?;
        let x = tape.embedding(table, patches)?;
        let width = x.shape().last() * self.each();
        tape.reshape(x, [batch, steps, self.count(), width])
    }

    /// What is predicted of a sequence of two steps or more, from hidden [B, L * (P + 1), D]: what to ask about rewards and ends [B, L, D], and logits of
    /// all frames but the first [B, (L - 1) * K, N], patch by patch.
    pub fn predict(
        &self,
        tape: &mut Tape,
        params: &Params,
        hidden: Tensor,
        steps: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (batch, width, p) = (hidden.dims()[0], hidden.shape().last(), self.count());
        if steps < 2 {
            let rule = "a frame is predicted from the step before it, so that there are two or more";
            return Err(Error::BadShape { op: "world model", shape: hidden.shape(), rule });
        }
        let by_step = tape.reshape(hidden, [batch, steps, p + 1, width])?;
        let at_actions = tape.slice(by_step, 2, 0, 1)?;
        let at_actions = tape.reshape(at_actions, [batch, steps, width])?;
        let before = tape.slice(by_step, 1, 0, steps - 1)?;
        let patches = tape.slice(before, 2, 1, p + 1)?;
        let patches = tape.reshape(patches, [batch, (steps - 1) * p, width])?;
        Ok((at_actions, self.logits(tape, params, patches)?))
    }

    /// Logits [B, n * tokens of a patch, N] from hidden [B, n, D].
    pub fn logits(&self, tape: &mut Tape, params: &Params, hidden: Tensor) -> Result<Tensor> {
        let (batch, patches) = (hidden.dims()[0], hidden.dims()[1]);
        let h = self.hidden.activated(tape, params, hidden, Activation::Gelu)?;
        let h = self.norm.layer(tape, params, h)?;
        let logits = self.out.forward(tape, params, h)?;
        tape.reshape(logits, [batch, patches * self.each(), self.vocabulary])
    }

    /// The tokens of [`predict`](Frames::predict)'s logits: i32 [B, L, K] -> [B, (L - 1) * K].
    pub fn labels(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let &[batch, steps, k] = tokens.dims() else {
            let rule = "tokens are [B, L, K]";
            return Err(Error::BadShape { op: "world model", shape: tokens.shape(), rule });
        };
        let after = tape.slice(tokens, 1, 1, steps)?;
        let after = self.by_patch(tape, after)?;
        tape.reshape(after, [batch, (steps - 1) * k])
    }
}
