mod gpu;

pub(crate) use gpu::FLASH_HEAD;

use super::Backward;
use crate::cpu::{self, Mat, Packed, Start, gemm_packed, gemm_serial, math, multiversion, packed_len};
use crate::rng::{Site, unit};
use crate::{DType, Error, Result, Tape, Tensor};

/// softmax(q k^T / sqrt(d)) v per head. The weights are recomputed for the gradient, not stored.
pub(crate) struct Attention {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    setup: Setup,
    /// The logarithm of each row's softmax denominator, [B, heads, T].
    normaliser: Tensor,
    out: Tensor,
}

#[derive(Clone, Copy)]
struct Setup {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
    causal: bool,
    dropout: f32,
    site: Site,
}

const OP: &str = "attention";

/// Query rows handled at a time.
const ROWS: usize = 48;

impl Tape {
    /// Causal multi-head attention with dropout on the attention weights: q, k, v [B, T, D] -> [B, T, D].
    pub fn causal_attention(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: usize,
        dropout: f32,
    ) -> Result<Tensor> {
        self.attention_op(q, k, v, heads, true, dropout)
    }

    /// Single-head attention of every position to every position: q, k, v [B, T, D] -> [B, T, D].
    pub fn spatial_attention(&mut self, q: Tensor, k: Tensor, v: Tensor) -> Result<Tensor> {
        self.attention_op(q, k, v, 1, false, 0.0)
    }

    fn attention_op(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: usize,
        causal: bool,
        dropout: f32,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[q, k, v])?;
        self.check_not_empty(OP, &[q, k, v])?;
        for other in [k, v] {
            if other.shape() != q.shape() {
                let rule = "q, k and v have the same shape";
                return Err(Error::ShapeMismatch { op: OP, lhs: q.shape(), rhs: other.shape(), rule });
            }
        }
        let &[batch, time, width] = q.dims() else {
            return Err(Error::BadShape { op: OP, shape: q.shape(), rule: "q, k and v are [B, T, D]" });
        };
        if heads == 0 || width % heads != 0 {
            return Err(Error::BadShape { op: OP, shape: q.shape(), rule: "the heads divide D" });
        }
        super::dropout::check_rate(OP, dropout)?;
        let site = self.next_site();
        let setup = Setup { batch, time, width, heads, causal, dropout, site };
        let dtype = self.float();
        let mut out = self.alloc(batch * time * width, dtype)?;
        let mut normaliser = self.alloc(batch * heads * time, DType::F32)?;
        if self.gpu().is_some() {
            self.gpu_attention(&setup, [q, k, v], &out, &normaliser)?;
        } else {
            let room = setup.forward_room();
            let mut scratch = self.scratch(batch * heads * room)?;
            let (qv, kv, vv) = (self.f32(q), self.f32(k), self.f32(v));
            cpu::chunks2_mut(
                (scratch.f32_mut(), room),
                (normaliser.f32_mut(), time),
                |i, room, normaliser| setup.forward_head(i, qv, kv, vv, room, normaliser),
            );
            setup.join_heads(scratch.f32(), room, 0, out.f32_mut(), false);
            self.give_back(scratch);
        }

        let needs_grad = self.any_needs_grad(&[q, k, v]);
        let normaliser = self.push(normaliser, [batch, heads, time], DType::F32, false);
        let out = self.push(out, q.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(Attention { q, k, v, setup, normaliser, out });
        }
        Ok(out)
    }
}

impl Setup {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    /// One head's q, k, v or result in the [B, T, D] tensor.
    fn head<'a>(&self, index: usize, x: &'a [f32]) -> &'a [f32] {
        let (image, head) = (index / self.heads, index % self.heads);
        &x[image * self.time * self.width + head * self.head_width()..]
    }

    /// Columns that the rows up to `end` attend to.
    fn reach(&self, end: usize) -> usize {
        if self.causal { end } else { self.time }
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
            let n = self.reach(row + rows);
            let queries = Mat::rows(&q[row * self.width..], self.width);
            gemm_packed(rows, queries, keys.corner(d, n), weights, n, Start::Zero);
            for (r, line) in weights[..rows * n].chunks_exact_mut(n).enumerate() {
                let seen = self.reach(row + r + 1);
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
            let n = self.reach(row + rows);
            let (q, d_out) = (Mat::rows(&q[row * width..], width), Mat::rows(&d_out[row * width..], width));
            gemm_packed(rows, q, keys_t.corner(d, n), weights, n, Start::Zero);
            gemm_packed(rows, d_out, values_t.corner(d, n), d_weights, n, Start::Zero);
            for r in 0..rows {
                let seen = self.reach(row + r + 1);
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

impl Backward for Attention {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(d_out) = tape.take_grad(self.out) else { return Ok(()) };
        if tape.gpu().is_some() {
            return self.gpu_backward(tape, d_out);
        }
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
        tape.give_back(d_out);
        Ok(())
    }
}

multiversion! {
    /// softmax(scale * x) in place; returns the logarithm of the denominator.
    pub(super) fn softmax(x: &mut [f32], scale: f32) -> f32 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        let shapes =
            [(1, 1, 2, 1), (2, 5, 6, 3), (1, 100, 8, 2), (2, 49, 4, 1), (1, 70, 64, 1), (2, 130, 128, 2)];
        for (batch, time, width, heads) in shapes {
            let dims: &[usize] = &[batch, time, width];
            for dropout in [0.0, 0.3] {
                check_gradients(&[dims; 3], |tape, x| {
                    tape.causal_attention(x[0], x[1], x[2], heads, dropout)
                });
            }
            check_gradients(&[dims; 3], |tape, x| tape.spatial_attention(x[0], x[1], x[2]));
        }
    }

    #[test]
    fn values_match_the_definition() {
        let (batch, time, width, heads) = (2, 53, 12, 3);
        let d = width / heads;
        let [q, k, v] = [0, 1, 2].map(|i| values(batch * time * width, i));
        for causal in [true, false] {
            let heads = if causal { heads } else { 1 };
            let d = if causal { d } else { width };
            let out = on_tape(&[&[batch, time, width][..]; 3], |tape, x| match causal {
                true => tape.causal_attention(x[0], x[1], x[2], heads, 0.0),
                false => tape.spatial_attention(x[0], x[1], x[2]),
            })
            .unwrap();
            for b in 0..batch {
                for h in 0..heads {
                    for i in 0..time {
                        let at = |j: usize, c: usize| (b * time + j) * width + h * d + c;
                        let seen = if causal { i + 1 } else { time };
                        let score = |j: usize| -> f64 {
                            (0..d).map(|c| f64::from(q[at(i, c)] * k[at(j, c)])).sum::<f64>()
                                / (d as f64).sqrt()
                        };
                        let total: f64 = (0..seen).map(|j| score(j).exp()).sum();
                        for c in 0..d {
                            let expected: f64 =
                                (0..seen).map(|j| score(j).exp() / total * f64::from(v[at(j, c)])).sum();
                            assert!((f64::from(out[at(i, c)]) - expected).abs() < 1e-5);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[1, 3, 4], &[1, 3, 4], &[1, 2, 4]], |tape, x| {
            tape.causal_attention(x[0], x[1], x[2], 2, 0.0)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { op: "attention", .. })));
        let error = on_tape(&[&[1, 3, 4][..]; 3], |tape, x| tape.causal_attention(x[0], x[1], x[2], 3, 0.0));
        assert!(error.unwrap_err().to_string().contains("the heads divide D"));
        let error = on_tape(&[&[1, 3, 4][..]; 3], |tape, x| tape.causal_attention(x[0], x[1], x[2], 2, 1.0));
        assert!(error.unwrap_err().to_string().contains("dropout is 1"));
    }
}
