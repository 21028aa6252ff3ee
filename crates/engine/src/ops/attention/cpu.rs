//! Attention on the CPU: a head at a time, some query rows at a time.

use super::{Attention, Setup};
use crate::cpu::{self, Mat, Packed, Start, gemm_packed, gemm_serial, math, multiversion, packed_len};
use crate::memory::Block;
use crate::rng::unit;
use crate::{Result, Tape, Tensor};

/// Query rows handled at a time.
const ROWS: usize = 48;

impl Tape {
    pub(super) fn cpu_attention(
        &mut self,
        setup: &Setup,
        [q, k, v]: [Tensor; 3],
        out: &mut Block,
        normaliser: &mut Block,
    ) -> Result<()> {
        let room = setup.forward_room();
        let mut scratch = self.scratch(setup.batch * setup.heads * room)?;
        let (q, k, v) = (self.f32(q), self.f32(k), self.f32(v));
        let (rooms, normalisers) = ((scratch.f32_mut(), room), (normaliser.f32_mut(), setup.time));
        cpu::chunks2_mut(rooms, normalisers, |i, room, normaliser| {
            setup.forward_head(i, q, k, v, room, normaliser);
        });
        setup.join_heads(scratch.f32(), room, 0, out.f32_mut(), false);
        self.give_back(scratch);
        Ok(())
    }
}

impl Attention {
    pub(super) fn cpu_backward(&self, tape: &mut Tape, d_out: &Block) -> Result<()> {
        let setup = self.setup;
        let room = setup.backward_room();
        let mut scratch = tape.scratch(setup.batch * setup.heads * room)?;
        let qkv = (tape.f32(self.q), tape.f32(self.k), tape.f32(self.v));
        let (out, normaliser) = (tape.f32(self.out), tape.f32(self.normaliser));
        cpu::chunks_mut(scratch.f32_mut(), room, |i, room| {
            setup.backward_head(i, qkv, (out, d_out.f32()), normaliser, room);
        });
        for (part, input) in [self.q, self.k, self.v].into_iter().enumerate() {
            if let Some(mut grad) = tape.grad(input)? {
                let (offset, accumulate) = (part * setup.time * setup.head_width(), grad.accumulate);
                setup.join_heads(scratch.f32(), room, offset, grad.slice(), accumulate);
                tape.put_grad(grad);
            }
        }
        tape.give_back(scratch);
        Ok(())
    }
}

/// The loops over one head.
impl Setup {
    /// One head's q, k, v or result in the [B, T, D] tensor.
    fn head<'a>(&self, index: usize, x: &'a [f32]) -> &'a [f32] {
        let (image, head) = (index / self.heads, index % self.heads);
        &x[image * self.time * self.width + head * self.head_width()..]
    }

    fn forward_room(&self) -> usize {
        let (t, d) = (self.time, self.head_width());
        t * d + packed_len(d, t) + packed_len(t, d) + ROWS * t
    }

    /// Result of one head to the front of `room`, [T, d].
    fn forward_head(
        &self,
        index: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        room: &mut [f32],
        normaliser: &mut [f32],
    ) {
        let (t, d) = (self.time, self.head_width());
        let (q, k, v) = (self.head(index, q), self.head(index, k), self.head(index, v));
        let (out, room) = room.split_at_mut(t * d);
        let (keys, room) = room.split_at_mut(packed_len(d, t));
        let (values, weights) = room.split_at_mut(packed_len(t, d));
        let keys = Packed::serial(Mat::transposed(k, self.width), d, t, keys);
        let values = Packed::serial(Mat::rows(v, self.width), t, d, values);
        for row in (0..t).step_by(ROWS) {
            let rows = ROWS.min(t - row);
            let n = self.reach(row + rows - 1);
            let queries = Mat::rows(&q[row * self.width..], self.width);
            gemm_packed(rows, queries, keys.corner(d, n), weights, n, Start::Zero);
            for (r, line) in weights[..rows * n].chunks_exact_mut(n).enumerate() {
                let seen = self.reach(row + r);
                normaliser[row + r] = softmax(&mut line[..seen], self.scale());
                line[seen..].fill(0.0);
                self.drop_weights(index, row + r, &mut line[..seen]);
            }
            gemm_packed(
                rows,
                Mat::rows(weights, n),
                values.corner(n, d),
                &mut out[row * d..],
                d,
                Start::Zero,
            );
        }
    }

    /// Dropout on one row of attention weights (or of their gradient).
    fn drop_weights(&self, index: usize, row: usize, line: &mut [f32]) {
        if self.dropout > 0.0 {
            let keep = 1.0 / (1.0 - self.dropout);
            let start = (index * self.time + row) * self.time;
            self.site.for_range(start, line.len(), |j, bits| {
                line[j] *= if unit(bits) >= self.dropout { keep } else { 0.0 };
            });
        }
    }

    /// Copies the heads' [T, d] parts, `offset` into each head's room, into a [B, T, D] tensor.
    fn join_heads(&self, scratch: &[f32], room: usize, offset: usize, out: &mut [f32], accumulate: bool) {
        let (t, d) = (self.time, self.head_width());
        cpu::chunks_mut(out, t * self.width, |image, out| {
            for head in 0..self.heads {
                let part = &scratch[(image * self.heads + head) * room + offset..][..t * d];
                for (line, part) in out.chunks_exact_mut(self.width).zip(part.chunks_exact(d)) {
                    let line = &mut line[head * d..(head + 1) * d];
                    match accumulate {
                        true => line.iter_mut().zip(part).for_each(|(o, p)| *o += p),
                        false => line.copy_from_slice(part),
                    }
                }
            }
        });
    }

    fn backward_room(&self) -> usize {
        let (t, d) = (self.time, self.head_width());
        3 * t * d + 2 * packed_len(d, t) + packed_len(t, d) + packed_len(ROWS, d) + 3 * ROWS * t
    }

    /// Gradients of q, k, v of one head to the front of `room`, [3, T, d].
    fn backward_head(
        &self,
        index: usize,
        (q, k, v): (&[f32], &[f32], &[f32]),
        (out, d_out): (&[f32], &[f32]),
        normaliser: &[f32],
        room: &mut [f32],
    ) {
        let (t, d, width) = (self.time, self.head_width(), self.width);
        let (q, k, v) = (self.head(index, q), self.head(index, k), self.head(index, v));
        let (out, d_out) = (self.head(index, out), self.head(index, d_out));
        let normaliser = &normaliser[index * t..(index + 1) * t];
        let (gradients, room) = room.split_at_mut(3 * t * d);
        let (dq, rest) = gradients.split_at_mut(t * d);
        let (dk, dv) = rest.split_at_mut(t * d);
        let (keys_t, room) = room.split_at_mut(packed_len(d, t));
        let (values_t, room) = room.split_at_mut(packed_len(d, t));
        let (keys, room) = room.split_at_mut(packed_len(t, d));
        let (small, room) = room.split_at_mut(packed_len(ROWS, d));
        let (weights, room) = room.split_at_mut(ROWS * t);
        let (dropped, d_weights) = room.split_at_mut(ROWS * t);
        let keys_t = Packed::serial(Mat::transposed(k, width), d, t, keys_t);
        let values_t = Packed::serial(Mat::transposed(v, width), d, t, values_t);
        let keys = Packed::serial(Mat::rows(k, width), t, d, keys);
        dk.fill(0.0);
        dv.fill(0.0);
        for row in (0..t).step_by(ROWS) {
            let rows = ROWS.min(t - row);
            let n = self.reach(row + rows - 1);
            let (q, d_out) = (Mat::rows(&q[row * width..], width), Mat::rows(&d_out[row * width..], width));
            gemm_packed(rows, q, keys_t.corner(d, n), weights, n, Start::Zero);
            gemm_packed(rows, d_out, values_t.corner(d, n), d_weights, n, Start::Zero);
            for r in 0..rows {
                let seen = self.reach(row + r);
                let line = r * n..r * n + seen;
                exp_shifted(&mut weights[line.clone()], self.scale(), normaliser[row + r]);
                dropped[line.clone()].copy_from_slice(&weights[line.clone()]);
                self.drop_weights(index, row + r, &mut dropped[line.clone()]);
                self.drop_weights(index, row + r, &mut d_weights[line.clone()]);
                // The softmax gradient's row sum, sum_j p_j dp_j, is the product of the result and its gradient.
                let at = r * width..r * width + d;
                let inner: f32 =
                    out[row * width..][at.clone()].iter().zip(&d_out.data[at]).map(|(o, g)| o * g).sum();
                softmax_gradient(&weights[line.clone()], &mut d_weights[line.clone()], inner, self.scale());
                dropped[line.end..(r + 1) * n].fill(0.0);
                d_weights[line.end..(r + 1) * n].fill(0.0);
            }
            gemm_packed(rows, Mat::rows(d_weights, n), keys.corner(n, d), &mut dq[row * d..], d, Start::Zero);
            gemm_serial(n, d, rows, Mat::transposed(d_weights, n), q, dk, d, Start::C, small);
            gemm_serial(n, d, rows, Mat::transposed(dropped, n), d_out, dv, d, Start::C, small);
        }
    }
}

multiversion! {
    /// softmax(scale * x) in place; returns the logarithm of the denominator.
    pub(in crate::ops) fn softmax(x: &mut [f32], scale: f32) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 16];
        let (chunks, rest) = x.as_chunks::<16>();
        for chunk in chunks {
            for l in 0..16 {
                lanes[l] = if chunk[l] > lanes[l] { chunk[l] } else { lanes[l] };
            }
        }
        let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b)) * scale;
        let mut sums = [0.0f32; 16];
        let (chunks, rest) = x.as_chunks_mut::<16>();
        for chunk in chunks {
            for l in 0..16 {
                chunk[l] = math::exp(chunk[l] * scale - max);
                sums[l] += chunk[l];
            }
        }
        let mut sum: f32 = sums.iter().sum();
        for x in rest {
            *x = math::exp(*x * scale - max);
            sum += *x;
        }
        let inverse = 1.0 / sum;
        for x in x {
            *x *= inverse;
        }
        max + sum.ln()
    }
}

multiversion! {
    /// exp(scale * x - shift) in place.
    fn exp_shifted(x: &mut [f32], scale: f32, shift: f32) {
        for x in x {
            *x = math::exp(*x * scale - shift);
        }
    }
}

multiversion! {
    /// dp <- p (dp - inner) * scale
    fn softmax_gradient(p: &[f32], dp: &mut [f32], inner: f32, scale: f32) {
        for (dp, p) in dp.iter_mut().zip(p) {
            *dp = p * (*dp - inner) * scale;
        }
    }
}
