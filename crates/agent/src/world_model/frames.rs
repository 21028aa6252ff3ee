//! A world model that predicts whole frames: a position of a frame holds a patch of its tokens, and predicts the same patch of the next frame.
//!
//! A step is [action, P patches]; attention is block-causal over steps, so that a patch sees the action and the rest of its frame. The transformer is
//! passed once per frame. Given what came before, its tokens are then drawn independently of each other or, in order, each from what the pass says of its
//! place and a sum over the tokens before it.

use engine::{Activation, Error, FrameDraw, Init, Param, Params, Result, Tape, Tensor, place_in_patches};

use crate::layers::{Builder, Linear, Norm};
use crate::{Draws, TokenizerConfig, WorldModelConfig};

pub struct Frames {
    /// Of the tokens, [N, D / tokens of a patch]: a patch is the embeddings of its tokens behind each other.
    table: Param,
    hidden: Linear,
    norm: Norm,
    /// 2D -> tokens of a patch * N
    out: Linear,
    ordered: Option<Ordered>,
    /// Height and width of a patch, and of the grid, in tokens.
    patch: usize,
    grid: usize,
    vocabulary: usize,
}

/// What draws tokens in order, beside the logits that each token has by itself.
struct Ordered {
    /// 2D -> tokens of a patch * C: what each token is told of the past.
    told: Linear,
    /// A row [3C] per token, of which those that come after it are told.
    earlier: Param,
    /// [N, C]
    out: Param,
}

/// Channels of what tokens are told, C: as many as the engine draws from.
const TOLD: usize = 64;

/// What is predicted of a sequence.
pub struct Predicted {
    /// What to ask about rewards and ends, [B, L, D].
    pub at_actions: Tensor,
    /// Logits that tokens are drawn from, of all frames but the first, in the order of [`prediction_of`](Frames::prediction_of): [B, (L - 1) * K, N].
    pub logits: Tensor,
    /// Where tokens are drawn in order: those of each token by itself, which are learnt as well. A token that follows from its neighbours teaches the
    /// transformer nothing otherwise.
    pub alone: Option<Tensor>,
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
        let (width, each, entries) = (config.width, config.patch * config.patch, tokenizer.vocabulary);
        let (hidden, norm) = (b.linear("hidden", width, 2 * width)?, b.norm("norm", 2 * width)?);
        let out = b.linear("out", 2 * width, each * entries)?;
        let ordered = match config.draws {
            Draws::AtOnce => None,
            Draws::InOrder => Some(b.within("in_order", |b| -> Result<_> {
                Ok(Ordered {
                    told: b.linear("told", 2 * width, each * TOLD)?,
                    earlier: b.embedding("earlier", entries, 3 * TOLD, Init::Normal(config.init_std))?,
                    out: b.embedding("out", entries, TOLD, Init::Normal(config.init_std))?,
                })
            })?),
        };
        Ok(Frames {
            table,
            hidden,
            norm,
            out,
            ordered,
            patch: config.patch,
            grid: tokenizer.grid(),
            vocabulary: entries,
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
        place_in_patches(token, self.grid, self.patch)
    }

    /// Which of a frame's predictions is of token number `token`.
    pub fn prediction_of(&self, token: usize) -> usize {
        if self.ordered.is_some() { token } else { self.place(token) }
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
    fn in_order(&self, tape: &mut Tape, x: Tensor) -> Result<Tensor> {
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

    /// What is predicted of a sequence i32 [B, L, K] of two steps or more, from hidden [B, L * (P + 1), D].
    pub fn predict(
        &self,
        tape: &mut Tape,
        params: &Params,
        hidden: Tensor,
        tokens: Tensor,
    ) -> Result<Predicted> {
        let (batch, steps, k) = (tokens.dims()[0], tokens.dims()[1], tokens.dims()[2]);
        let (width, p) = (hidden.shape().last(), self.count());
        if steps < 2 {
            let rule = "a frame is predicted from the step before it, so that there are two or more";
            return Err(Error::BadShape { op: "world model", shape: hidden.shape(), rule });
        }
        let by_step = tape.reshape(hidden, [batch, steps, p + 1, width])?;
        let at_actions = tape.slice(by_step, 2, 0, 1)?;
        let at_actions = tape.reshape(at_actions, [batch, steps, width])?;
        let before = tape.slice(by_step, 1, 0, steps - 1)?;
        let patches = tape.slice(before, 2, 1, p + 1)?;
        let patches = tape.reshape(patches, [batch * (steps - 1), p, width])?;
        let head = self.head(tape, params, patches)?;
        let shape = [batch, (steps - 1) * k, self.vocabulary];
        let alone = self.alone(tape, params, head)?;
        let Some(ordered) = &self.ordered else {
            return Ok(Predicted { at_actions, logits: tape.reshape(alone, shape)?, alone: None });
        };
        let told = self.told(tape, params, ordered, head)?;
        let [alone, told] = [self.in_order(tape, alone)?, self.in_order(tape, told)?];
        let table = tape.param(params, ordered.earlier)?;
        let after = tape.slice(tokens, 1, 1, steps)?;
        let after = tape.reshape(after, [batch * (steps - 1), k])?;
        let rows = tape.embedding(table, after)?;
        let earlier = tape.earlier(rows, self.grid)?;
        let x = tape.add(told, earlier)?;
        let x = tape.relu(x)?;
        let weight = tape.param(params, ordered.out)?;
        let more = tape.linear(x, weight, None, Activation::None)?;
        let logits = tape.add(alone, more)?;
        let [logits, alone] = [tape.reshape(logits, shape)?, tape.reshape(alone, shape)?];
        Ok(Predicted { at_actions, logits, alone: Some(alone) })
    }

    /// Draws frames from hidden [B, P, D]: tokens i32 [B, K], and their logits [B, K, N] if they are asked for.
    pub fn draw(
        &self,
        tape: &mut Tape,
        params: &Params,
        hidden: Tensor,
        with_logits: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let head = self.head(tape, params, hidden)?;
        let alone = self.alone(tape, params, head)?;
        if let Some(ordered) = &self.ordered {
            let told = self.told(tape, params, ordered, head)?;
            let [table, weight] = [tape.param(params, ordered.earlier)?, tape.param(params, ordered.out)?];
            let draw = FrameDraw { alone, told, table, weight, side: self.grid, patch: self.patch };
            return tape.draw_frame(&draw, with_logits);
        }
        let drawn = tape.sample(alone, 1.0)?;
        let logits = with_logits.then(|| self.in_order(tape, alone)).transpose()?;
        Ok((self.in_order(tape, drawn)?, logits))
    }

    /// [B, P, D] -> [B, P, 2D]
    fn head(&self, tape: &mut Tape, params: &Params, hidden: Tensor) -> Result<Tensor> {
        let h = self.hidden.activated(tape, params, hidden, Activation::Gelu)?;
        self.norm.layer(tape, params, h)
    }

    /// Logits of each token by itself, patch by patch: [B, P, 2D] -> [B, K, N].
    fn alone(&self, tape: &mut Tape, params: &Params, head: Tensor) -> Result<Tensor> {
        let logits = self.out.forward(tape, params, head)?;
        tape.reshape(logits, [head.dims()[0], self.grid * self.grid, self.vocabulary])
    }

    /// What every token of a frame is told of the past, patch by patch: [B, P, 2D] -> [B, K, C].
    fn told(&self, tape: &mut Tape, params: &Params, ordered: &Ordered, head: Tensor) -> Result<Tensor> {
        let told = ordered.told.forward(tape, params, head)?;
        tape.reshape(told, [head.dims()[0], self.grid * self.grid, TOLD])
    }

    /// The tokens that [`Predicted`]'s logits are of: i32 [B, L, K] -> [B, (L - 1) * K].
    pub fn labels(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let &[batch, steps, k] = tokens.dims() else {
            let rule = "tokens are [B, L, K]";
            return Err(Error::BadShape { op: "world model", shape: tokens.shape(), rule });
        };
        let mut after = tape.slice(tokens, 1, 1, steps)?;
        if self.ordered.is_none() {
            after = self.by_patch(tape, after)?;
        }
        tape.reshape(after, [batch, (steps - 1) * k])
    }
}
