//! Frames token by token, row by row: what a token is told of those before it in its frame, and the draws.
//!
//! Token k of a frame whose rows have W tokens is told `y[k]` = sum of `a[q]` over all q < k, + `b[k - 1]` of the token to its left, + `c[k - W]` of the
//! one above it, where a token's row of a table is its `[a, b, c]`.

use super::Backward;
use super::categorical::{add_gumbel, argmax};
use crate::backend::Backend;
use crate::cpu::{self, math, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::rng::Site;
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct Earlier {
    x: Tensor,
    side: usize,
    out: Tensor,
}

/// Draws a frame's tokens one after the other: token k has the logits `alone[k] + relu(told[k] + y[k]) weight^T`. What is given of the tokens lies
/// patch by patch, what is drawn row by row.
#[derive(Clone, Copy, Debug)]
pub struct FrameDraw {
    /// Logits that do not depend on the frame's own tokens, [B, K, N].
    pub alone: Tensor,
    /// [B, K, D] with at most 64 channels, which is what a GPU's threads hold.
    pub told: Tensor,
    /// [N, 3D]
    pub table: Tensor,
    /// [N, D]
    pub weight: Tensor,
    /// Tokens of a row, W.
    pub side: usize,
    /// Tokens of a patch in each direction; 1 where nothing lies patch by patch.
    pub patch: usize,
}

/// Where token k of a frame whose rows have `side` tokens stands if they lie patch by patch, with `patch` tokens of a patch in each direction.
pub fn place_in_patches(k: usize, side: usize, patch: usize) -> usize {
    let (y, x, p) = (k / side, k % side, patch);
    ((y / p * (side / p) + x / p) * p + y % p) * p + x % p
}

/// Channels that are summed together.
const LANES: usize = 16;
/// WIDEST of raster.cu.
const WIDEST: usize = 64;
const EARLIER: &str = "earlier tokens";
const DRAW: &str = "draw of a frame";

impl Tape {
    /// y from the rows of a table that tokens stand for: x [N, K, 3D] -> [N, K, D].
    pub fn earlier(&mut self, x: Tensor, side: usize) -> Result<Tensor> {
        self.check_f32(EARLIER, &[x])?;
        self.check_not_empty(EARLIER, &[x])?;
        let &[frames, tokens, three] = x.dims() else {
            return Err(Error::BadShape { op: EARLIER, shape: x.shape(), rule: "x is [N, K, 3D]" });
        };
        if !three.is_multiple_of(3) || side == 0 {
            let rule = "x is [N, K, 3D], and a row of a frame has a token or more";
            return Err(Error::BadShape { op: EARLIER, shape: x.shape(), rule });
        }
        let mut out = self.alloc(x.len() / 3, x.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_earlier(x, side, &mut out),
            Backend::Cuda(gpu) => self.gpu_earlier(&gpu, x, side, &out)?,
        }
        let needs_grad = self.needs_grad(x);
        let out = self.push(out, [frames, tokens, three / 3], x.dtype(), needs_grad);
        if needs_grad {
            self.record(Earlier { x, side, out });
        }
        Ok(out)
    }

    fn cpu_earlier(&self, x: Tensor, side: usize, out: &mut Block) {
        let (tokens, width) = (x.dims()[1], x.dims()[2] / 3);
        let xv = self.f32(x);
        cpu::chunks_mut(out.f32_mut(), tokens * width, |frame, out| {
            let x = &xv[frame * tokens * 3 * width..][..tokens * 3 * width];
            let row = |k: usize, part: usize| &x[(k * 3 + part) * width..][..width];
            for (k, out) in out.chunks_exact_mut(width).enumerate() {
                out.fill(0.0);
                if !k.is_multiple_of(side) {
                    add(out, row(k - 1, 1));
                }
                if k >= side {
                    add(out, row(k - side, 2));
                }
            }
            for start in (0..width).step_by(LANES) {
                let (lanes, mut sum) = (LANES.min(width - start), [0.0; LANES]);
                for (k, out) in out.chunks_exact_mut(width).enumerate() {
                    add(&mut out[start..][..lanes], &sum);
                    add(&mut sum, &row(k, 0)[start..][..lanes]);
                }
            }
        });
    }

    fn gpu_earlier(&self, gpu: &Gpu, x: Tensor, side: usize, out: &Block) -> Result<()> {
        let (frames, tokens, width) = (x.dims()[0], x.dims()[1], x.dims()[2] / 3);
        let (n, to) = (frames * width, View::new(out.at(), x.dtype()));
        kernels::earlier(gpu, Grid::elements(gpu, 4 * n), to, self.view(x), tokens, side, width, n)
    }

    /// Tokens i32 [B, K], and the logits [B, K, N] if they are asked for.
    pub fn draw_frame(&mut self, frame: &FrameDraw, with_logits: bool) -> Result<(Tensor, Option<Tensor>)> {
        let FrameDraw { alone, told, table, weight, side, patch } = *frame;
        self.check_f32(DRAW, &[alone, told, table, weight])?;
        self.check_not_empty(DRAW, &[alone, told, table, weight])?;
        let &[batch, tokens, width] = told.dims() else {
            return Err(Error::BadShape { op: DRAW, shape: told.shape(), rule: "what is told is [B, K, D]" });
        };
        if width > WIDEST || side == 0 {
            let rule = "D is at most 64, and a row of a frame has a token or more";
            return Err(Error::BadShape { op: DRAW, shape: told.shape(), rule });
        }
        if patch == 0 || patch > 1 && !(side.is_multiple_of(patch) && tokens.is_multiple_of(side * patch)) {
            let rule = "a frame is a whole number of patches wide and high";
            return Err(Error::BadShape { op: DRAW, shape: told.shape(), rule });
        }
        let entries = alone.shape().last();
        let expected: [(_, &[usize]); 3] =
            [(alone, &[batch, tokens, entries]), (table, &[entries, 3 * width]), (weight, &[entries, width])];
        for (of, dims) in expected {
            if of.dims() != dims {
                let rule = "for [B, K, D] the logits are [B, K, N], the table [N, 3D] and the weight [N, D]";
                return Err(Error::ShapeMismatch { op: DRAW, lhs: of.shape(), rhs: told.shape(), rule });
            }
        }
        let site = self.next_site();
        let mut out = self.alloc(batch * tokens, DType::I32)?;
        let kept = if with_logits { Some(self.alloc(batch * tokens * entries, DType::F32)?) } else { None };
        let kept = match self.backend() {
            Backend::Cpu => self.cpu_draw_frame(frame, site, &mut out, kept)?,
            Backend::Cuda(gpu) => self.gpu_draw_frame(&gpu, frame, site, &out, kept)?,
        };
        let out = self.push(out, [batch, tokens], DType::I32, false);
        Ok((out, kept.map(|kept| self.push(kept, [batch, tokens, entries], DType::F32, false))))
    }

    fn cpu_draw_frame(
        &mut self,
        frame: &FrameDraw,
        site: Site,
        out: &mut Block,
        mut kept: Option<Block>,
    ) -> Result<Option<Block>> {
        let (batch, tokens, width) = (frame.told.dims()[0], frame.told.dims()[1], frame.told.dims()[2]);
        let entries = frame.alone.shape().last();
        // Of each frame: sums and activations, logits of all tokens, and those of one with noise.
        let room = 2 * width + tokens * entries + entries;
        let mut floats = self.scratch(batch * room)?;
        let mut bits = self.alloc(batch * tokens * entries, DType::I32)?;
        site.fill(0, bits.all_mut::<u32>());
        let (alone, told) = (self.f32(frame.alone), self.f32(frame.told));
        let (table, weight) = (self.f32(frame.table), self.f32(frame.weight));
        let work = frame.told.len() * entries;
        let (floats_of, drawn) = ((floats.f32_mut(), room), (out.all_mut::<u32>(), tokens));
        cpu::chunks2_mut_of(work, floats_of, drawn, |b, floats, drawn| {
            let (sum, floats) = floats.split_at_mut(width);
            let (active, floats) = floats.split_at_mut(width);
            let (logits, noisy) = floats.split_at_mut(tokens * entries);
            let part = |token: u32, part: usize| &table[(token as usize * 3 + part) * width..][..width];
            sum.fill(0.0);
            for k in 0..tokens {
                let (row, place) =
                    (b * tokens + k, b * tokens + place_in_patches(k, frame.side, frame.patch));
                active.copy_from_slice(&told[place * width..][..width]);
                add(active, sum);
                if !k.is_multiple_of(frame.side) {
                    add(active, part(drawn[k - 1], 1));
                }
                if k >= frame.side {
                    add(active, part(drawn[k - frame.side], 2));
                }
                super::linear::relu_in_place(active);
                let logits = &mut logits[k * entries..][..entries];
                scores(&alone[place * entries..][..entries], weight, active, logits);
                add_gumbel(logits, &bits.all::<u32>()[row * entries..][..entries], 1.0, noisy);
                drawn[k] = argmax(noisy) as u32;
                add(sum, part(drawn[k], 0));
            }
        });
        if let Some(kept) = &mut kept {
            let made = floats.f32().chunks_exact(room);
            for (kept, made) in kept.f32_mut().chunks_exact_mut(tokens * entries).zip(made) {
                kept.copy_from_slice(&made[2 * width..][..tokens * entries]);
            }
        }
        self.give_back(floats);
        self.give_back(bits);
        Ok(kept)
    }

    fn gpu_draw_frame(
        &self,
        gpu: &Gpu,
        frame: &FrameDraw,
        site: Site,
        out: &Block,
        kept: Option<Block>,
    ) -> Result<Option<Block>> {
        let FrameDraw { alone, told, table, weight, side, patch } = *frame;
        let &[batch, tokens, width] = told.dims() else { return Ok(kept) };
        let grid = Grid { shared: 4 * side * WIDEST, ..Grid::blocks(batch) };
        let logits = kept.as_ref().map_or(View::NOTHING, |kept| View::new(kept.at(), DType::F32));
        let entries = alone.shape().last();
        let [alone, told, table, weight] = [alone, told, table, weight].map(|x| self.view(x));
        let (at, state, site) = (out.at(), self.state(), site.number() as usize);
        kernels::draw_frame(
            gpu, grid, at, logits, alone, told, table, weight, tokens, side, patch, width, entries, state,
            site,
        )?;
        Ok(kept)
    }
}

fn add(to: &mut [f32], x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += x);
}

multiversion! {
    /// alone + x weight^T
    fn scores(alone: &[f32], weight: &[f32], x: &[f32], out: &mut [f32]) {
        for ((out, row), alone) in out.iter_mut().zip(weight.chunks_exact(x.len())).zip(alone) {
            *out = alone + math::lane_sum(x.len(), |c| row[c] * x[c]);
        }
    }
}

impl Backward for Earlier {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.x),
            |_, dy, dx| self.cpu_gradient(dy, dx),
            |_, gpu, dy, dx| self.gpu_gradient(gpu, dy, dx),
        )
    }
}

impl Earlier {
    fn cpu_gradient(&self, dy: &Block, dx: &mut Grad) {
        let (tokens, width) = (self.x.dims()[1], self.x.dims()[2] / 3);
        let (side, accumulate) = (self.side, dx.accumulate);
        cpu::chunks_mut(dx.slice(), tokens * 3 * width, |frame, dx| {
            let dy = &dy.f32()[frame * tokens * width..][..tokens * width];
            let of = |k: usize| &dy[k * width..][..width];
            if !accumulate {
                dx.fill(0.0);
            }
            for (k, dx) in dx.chunks_exact_mut(3 * width).enumerate() {
                let (left, above) = dx[width..].split_at_mut(width);
                if !(k + 1).is_multiple_of(side) && k + 1 < tokens {
                    add(left, of(k + 1));
                }
                if k + side < tokens {
                    add(above, of(k + side));
                }
            }
            for start in (0..width).step_by(LANES) {
                let (lanes, mut sum) = (LANES.min(width - start), [0.0; LANES]);
                for (k, dx) in dx.chunks_exact_mut(3 * width).enumerate().rev() {
                    add(&mut dx[start..][..lanes], &sum);
                    add(&mut sum, &of(k)[start..][..lanes]);
                }
            }
        });
    }

    fn gpu_gradient(&self, gpu: &Gpu, dy: &Block, dx: &Grad) -> Result<()> {
        let (frames, tokens, width) = (self.x.dims()[0], self.x.dims()[1], self.x.dims()[2] / 3);
        let (n, dy) = (frames * width, View::new(dy.at(), self.out.dtype()));
        let grid = Grid::elements(gpu, 4 * n);
        kernels::earlier_gradient(gpu, grid, dx.view(), dy, tokens, self.side, width, n, dx.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Limits, assert_close, assert_same, check_gradients, constant, on_tape, values};
    use crate::{Device, Key, Stepper};

    #[test]
    fn gradients() {
        for (frames, tokens, side, width) in
            [(1, 1, 1, 1), (2, 6, 3, 5), (1, 9, 3, 4), (3, 16, 4, 20), (2, 5, 2, 3)]
        {
            check_gradients(&[&[frames, tokens, 3 * width]], |tape, x| tape.earlier(x[0], side));
        }
    }

    #[test]
    fn a_token_is_told_of_all_before_it_and_of_its_neighbours() {
        // One channel, a frame of 2 x 3: token k is told numbers of a, b and c.
        let x = values(18, 0);
        let [a, b, c] = [0, 1, 2].map(|part| move |k: usize| values(18, 0)[k * 3 + part]);
        let told = on_tape(&[&[1, 6, 3]], |tape, x| tape.earlier(x[0], 3)).unwrap();
        assert_eq!(x.len(), 18);
        let sum = |k: usize| (0..k).map(a).sum::<f32>();
        let expected =
            [0.0, sum(1) + b(0), sum(2) + b(1), sum(3) + c(0), sum(4) + b(3) + c(1), sum(5) + b(4) + c(2)];
        assert_close(&told, &expected);
    }

    /// The draws are those of the logits, and the logits those of the drawn tokens.
    #[test]
    fn draws_follow_what_was_drawn() {
        draws(64, (6, 3, 1), 8, 5);
        draws(16, (24, 6, 2), 8, 5);
        draws(7, (18, 3, 3), 5, 7);
    }

    /// More than a GPU's threads keep, and as many channels as they can.
    #[test]
    fn draws_from_many_entries() {
        draws(3, (4, 2, 1), WIDEST, 513);
        draws(2, (9, 3, 1), 20, 600);
        draws(2, (8, 2, 2), WIDEST, 600);
    }

    fn draws(batch: usize, (tokens, side, patch): (usize, usize, usize), width: usize, entries: usize) {
        let lie = (tokens, side, patch);
        let device = Device::under_test(2).unwrap();
        let mut stepper = Stepper::new(&device, Key::new(5, 1));
        let (drawn, logits, again) = stepper
            .infer(|tape| -> Result<_> {
                let of_all = values(batch * tokens * entries, 3);
                let alone = constant(tape, &by_patch(&of_all, entries, lie), [batch, tokens, entries]);
                let of_sums = values(batch * tokens * width, 0);
                let told = constant(tape, &by_patch(&of_sums, width, lie), [batch, tokens, width]);
                let table = values(entries * 3 * width, 1).iter().map(|x| 0.5 * x).collect::<Vec<_>>();
                let table = constant(tape, &table, [entries, 3 * width]);
                let weight = values(entries * width, 2).iter().map(|x| 2.0 * x).collect::<Vec<_>>();
                let weight = constant(tape, &weight, [entries, width]);
                let draw = FrameDraw { alone, told, table, weight, side, patch };
                let (drawn, logits) = tape.draw_frame(&draw, true)?;
                let rows = tape.embedding(table, drawn)?;
                let earlier = tape.earlier(rows, side)?;
                let told = constant(tape, &of_sums, [batch, tokens, width]);
                let alone = constant(tape, &of_all, [batch, tokens, entries]);
                let active = tape.add(told, earlier)?;
                let active = tape.relu(active)?;
                let more = tape.linear(active, weight, None, crate::Activation::None)?;
                let again = tape.add(alone, more)?;
                Ok((tape.read::<i32>(drawn)?, tape.read::<f32>(logits.unwrap())?, tape.read::<f32>(again)?))
            })
            .unwrap();
        assert_same("logits", &logits, &again, entries, Limits::under_test());
        let mut gain = 0.0;
        for (token, logits) in drawn.iter().zip(logits.chunks_exact(entries)) {
            gain += logits[*token as usize] - logits.iter().sum::<f32>() / entries as f32;
        }
        assert!(gain > 0.5 * (batch * tokens) as f32, "{gain}");
        // Among many frames every token comes.
        let seen = (0..entries as i32).filter(|token| drawn.contains(token)).count();
        assert!(seen == entries || batch * tokens < 4 * entries, "{seen}");
    }

    /// Of each token of each frame, row by row, -> patch by patch.
    fn by_patch(x: &[f32], inner: usize, (tokens, side, patch): (usize, usize, usize)) -> Vec<f32> {
        let mut out = Vec::with_capacity(x.len());
        for frame in x.chunks_exact(tokens * inner) {
            let patches = (0..tokens / side / patch).flat_map(|y| (0..side / patch).map(move |x| (y, x)));
            for (y, x) in patches {
                for (dy, dx) in (0..patch).flat_map(|dy| (0..patch).map(move |dx| (dy, dx))) {
                    let token = (y * patch + dy) * side + x * patch + dx;
                    out.extend(&frame[token * inner..][..inner]);
                }
            }
        }
        out
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let device = Device::under_test(1).unwrap();
        let mut stepper = Stepper::new(&device, Key::new(5, 1));
        let mut refused = |width: usize, entries: usize, patch: usize| {
            let drawn = stepper.infer(|tape| -> Result<_> {
                let alone = constant(tape, &values(2, 0), [1, 1, 2]);
                let told = constant(tape, &values(width, 0), [1, 1, width]);
                let table = constant(tape, &values(entries * 3 * width, 1), [entries, 3 * width]);
                let weight = constant(tape, &values(2 * width, 2), [2, width]);
                tape.draw_frame(&FrameDraw { alone, told, table, weight, side: 1, patch }, false).map(|_| ())
            });
            drawn.unwrap_err().to_string().contains("draw of a frame")
        };
        assert!(refused(3, 1, 1) && refused(WIDEST + 1, 2, 1) && refused(3, 2, 0) && refused(3, 2, 2));
    }
}
