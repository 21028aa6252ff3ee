use super::Backward;
use crate::cpu::{self, Mat, Packed, Start, gemm_packed, gemm_serial, math, multiversion, packed_len};
use crate::cuda::{Arg, Gpu, Grid, Matrix, Product};
use crate::memory::Block;
use crate::rng::{Site, unit};
use crate::tape::Operand;
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
        let mut out = self.alloc(batch * time * width, dtype);
        let mut normaliser = self.alloc(batch * heads * time, DType::F32);
        if self.gpu().is_some() {
            self.gpu_attention(&setup, [q, k, v], &out, &normaliser)?;
        } else {
            let room = setup.forward_room();
            let mut scratch = self.scratch(batch * heads * room);
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

    /// Scores of all heads by matrix products, then their softmax, then the blend of the values.
    fn gpu_attention(
        &mut self,
        setup: &Setup,
        inputs: [Tensor; 3],
        out: &Block,
        normaliser: &Block,
    ) -> Result<()> {
        let dtype = self.float();
        if setup.is_flash(dtype) {
            return self.gpu_flash(setup, inputs, out, normaliser);
        }
        let [q, k, v] = inputs.map(|x| self.operand(x, dtype).and_then(|x| self.gpu_heads(setup, x)));
        let (q, k, v) = (q?, k?, v?);
        let (rows, stride) = (setup.batch * setup.heads * setup.time, setup.stride());
        let scores = self.scratch(rows * stride);
        let weights = self.alloc(rows * stride, dtype);
        let apart = (setup.heads > 1).then(|| self.alloc(rows * setup.head_width(), dtype));
        if let Some(gpu) = self.gpu() {
            gpu.product(&setup.scores(q.at, k.at, scores.at(), dtype))?;
            let [causal, scale, rate] =
                [Arg::Flag(setup.causal), Arg::F32(setup.scale()), Arg::F32(setup.dropout)];
            let tensors = [Arg::At(scores.at()), Arg::View(weights.at(), dtype), Arg::At(normaliser.at())];
            let sizes = [rows, setup.time, stride].map(Arg::U32);
            let draw = [causal, scale, rate, self.state(), Arg::U32(setup.site.number() as usize)];
            gpu.launch("attention_softmax", Grid::rows(rows), &[&tensors[..], &sizes, &draw].concat())?;
            let to = apart.as_ref().map_or(out.at(), Block::at);
            gpu.product(&setup.blend(weights.at(), false, v.at, (to, dtype), false, dtype))?;
            if let Some(apart) = &apart {
                setup.launch_heads(gpu, (out.at(), dtype), (apart.at(), dtype), true, false)?;
            }
        }
        for operand in [q, k, v] {
            self.release(operand);
        }
        for block in [Some(scores), Some(weights), apart].into_iter().flatten() {
            self.give_back(block);
        }
        Ok(())
    }

    /// The same without scores in memory.
    fn gpu_flash(
        &mut self,
        setup: &Setup,
        inputs: [Tensor; 3],
        out: &Block,
        normaliser: &Block,
    ) -> Result<()> {
        let [q, k, v] = inputs.map(|x| self.operand(x, DType::BF16));
        let (q, k, v) = (q?, k?, v?);
        if let Some(gpu) = self.gpu() {
            let tensors = [out.at(), normaliser.at(), q.at, k.at, v.at].map(Arg::At);
            let args = [&tensors[..], &setup.flash_args(self.state())].concat();
            gpu.launch("flash_forward", setup.flash_grid(), &args)?;
        }
        for operand in [q, k, v] {
            self.release(operand);
        }
        Ok(())
    }

    /// [B, T, heads, d] as [B, heads, T, d].
    fn gpu_heads(&mut self, setup: &Setup, x: Operand) -> Result<Operand> {
        if setup.heads == 1 {
            return Ok(x);
        }
        let dtype = self.float();
        let apart = self.alloc(setup.batch * setup.time * setup.width, dtype);
        if let Some(gpu) = self.gpu() {
            setup.launch_heads(gpu, (apart.at(), dtype), (x.at, dtype), false, false)?;
        }
        self.release(x);
        Ok(Operand::temporary(apart))
    }
}

/// How the heads lie on a GPU: inputs and results [B, heads, T, d], scores [B, heads, T, stride].
impl Setup {
    /// Whether the kernels that keep scores in registers can do it.
    fn is_flash(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.head_width() == 64
    }

    fn flash_grid(&self) -> Grid {
        Grid { blocks: (self.time.div_ceil(64), self.batch * self.heads), threads: 128, shared: 0 }
    }

    /// What all of them take after their tensors.
    fn flash_args(&self, state: Arg) -> [Arg; 7] {
        let site = Arg::U32(self.site.number() as usize);
        let (causal, scale, rate) = (Arg::Flag(self.causal), Arg::F32(self.scale()), Arg::F32(self.dropout));
        [Arg::U32(self.time), Arg::U32(self.heads), causal, scale, rate, state, site]
    }

    /// Columns of a row of scores, a multiple of what tensor cores like.
    fn stride(&self) -> usize {
        self.time.next_multiple_of(8)
    }

    /// q, k, v, the result or a gradient of one.
    fn input(&self, at: u64, dtype: DType) -> Matrix {
        Matrix::rows(at, dtype, self.head_width()).every(self.time * self.head_width())
    }

    /// Scores or weights.
    fn matrix(&self, at: u64, dtype: DType) -> Matrix {
        Matrix::rows(at, dtype, self.stride()).every(self.time * self.stride())
    }

    /// x y^T in f32: scores, or gradients of weights.
    fn scores(&self, x: u64, y: u64, out: u64, dtype: DType) -> Product {
        let (t, d, batch) = (self.time, self.head_width(), self.batch * self.heads);
        let b = Matrix { transposed: true, ..self.input(y, dtype) };
        let (a, out) = (self.input(x, dtype), self.matrix(out, DType::F32));
        Product { m: t, n: t, k: d, a, b, out, start: None, bias: None, relu: false, batch }
    }

    /// weights x, or weights^T x
    fn blend(
        &self,
        weights: u64,
        transposed: bool,
        x: u64,
        out: (u64, DType),
        accumulate: bool,
        dtype: DType,
    ) -> Product {
        let (t, d, batch) = (self.time, self.head_width(), self.batch * self.heads);
        let a = Matrix { transposed, ..self.matrix(weights, dtype) };
        let (b, start) = (self.input(x, dtype), accumulate.then_some(out.0));
        Product {
            m: t,
            n: d,
            k: t,
            a,
            b,
            out: self.input(out.0, out.1),
            start,
            bias: None,
            relu: false,
            batch,
        }
    }

    /// Moves values between [B, T, heads, d] and, unless `joining`, [B, heads, T, d].
    fn launch_heads(
        &self,
        gpu: &Gpu,
        out: (u64, DType),
        x: (u64, DType),
        joining: bool,
        add: bool,
    ) -> Result<()> {
        let n = self.batch * self.time * self.width;
        let (to, from) = (Arg::View(out.0, out.1), Arg::View(x.0, x.1));
        let sizes = [self.time, self.heads, self.head_width(), n].map(Arg::U32);
        let args = [&[to, from], &sizes[..], &[Arg::Flag(joining), Arg::Flag(add)]].concat();
        gpu.launch("swap_heads", Grid::elements(n), &args)
    }
}

impl Attention {
    fn flash_backward(self, tape: &mut Tape, d_out: Block) -> Result<()> {
        let setup = self.setup;
        let [q, k, v] = [self.q, self.k, self.v].map(|x| tape.operand(x, DType::BF16));
        let (q, k, v) = (q?, k?, v?);
        let rows = setup.batch * setup.heads * setup.time;
        let inner = tape.scratch(rows);
        let common = [q.at, k.at, v.at, d_out.at(), tape.at(self.normaliser), inner.at()].map(Arg::At);
        let common = [&common[..], &setup.flash_args(tape.state())].concat();
        if let Some(gpu) = tape.gpu() {
            let tensors = [inner.at(), tape.at(self.out), d_out.at()].map(Arg::At);
            let sizes = [setup.time, setup.heads, rows].map(Arg::U32);
            gpu.launch("flash_inner", Grid::warps(rows), &[&tensors[..], &sizes].concat())?;
        }
        if let Some(dq) = tape.grad(self.q) {
            if let Some(gpu) = tape.gpu() {
                let args = [&[dq.view()], &common[..], &[Arg::Flag(dq.accumulate)]].concat();
                gpu.launch("flash_gradient_queries", setup.flash_grid(), &args)?;
            }
            tape.put_grad(dq);
        }
        // Keys and values come from one kernel, into blocks of their own: one of them may be an input twice.
        if tape.any_needs_grad(&[self.k, self.v]) {
            let [dk, dv] = [(); 2].map(|()| tape.alloc(self.k.len(), DType::BF16));
            if let Some(gpu) = tape.gpu() {
                let to = [&dk, &dv].map(|block| Arg::View(block.at(), DType::BF16));
                let args = [&to[..], &common, &[Arg::Flag(false), Arg::Flag(false)]].concat();
                gpu.launch("flash_gradient_keys", setup.flash_grid(), &args)?;
            }
            tape.hand_grad(self.k, dk, DType::BF16)?;
            tape.hand_grad(self.v, dv, DType::BF16)?;
        }
        for operand in [q, k, v] {
            tape.release(operand);
        }
        tape.give_back(inner);
        tape.give_back(d_out);
        Ok(())
    }

    fn gpu_backward(self, tape: &mut Tape, d_out: Block) -> Result<()> {
        let (setup, dtype) = (self.setup, self.out.dtype());
        if setup.is_flash(dtype) {
            return self.flash_backward(tape, d_out);
        }
        let inputs = [self.q, self.k, self.v];
        let [q, k, v] = inputs.map(|x| tape.operand(x, dtype).and_then(|x| tape.gpu_heads(&setup, x)));
        let (q, k, v) = (q?, k?, v?);
        let d_apart = tape.gpu_heads(&setup, Operand::at(d_out.at()))?;
        let (rows, stride) = (setup.batch * setup.heads * setup.time, setup.stride());
        let (scores, d_scores) = (tape.scratch(rows * stride), tape.scratch(rows * stride));
        let (weights, d_weights) = (tape.alloc(rows * stride, dtype), tape.alloc(rows * stride, dtype));
        let apart = (setup.heads > 1).then(|| tape.alloc(rows * setup.head_width(), dtype));
        if let Some(gpu) = tape.gpu() {
            gpu.product(&setup.scores(q.at, k.at, scores.at(), dtype))?;
            gpu.product(&setup.scores(d_apart.at, v.at, d_scores.at(), dtype))?;
            let view = |block: &Block| Arg::View(block.at(), dtype);
            let tensors = [Arg::At(scores.at()), Arg::At(d_scores.at()), view(&weights), view(&d_weights)];
            let results = [Arg::At(tape.at(self.normaliser)), tape.view(self.out), view(&d_out)];
            let sizes = [rows, setup.time, stride, setup.heads, setup.head_width()].map(Arg::U32);
            let draw = [Arg::F32(setup.dropout), tape.state(), Arg::U32(setup.site.number() as usize)];
            let how = [Arg::Flag(setup.causal), Arg::F32(setup.scale())];
            let args = [&tensors[..], &results, &sizes, &how, &draw].concat();
            gpu.launch("attention_gradient", Grid::rows(rows), &args)?;
        }
        // dq = ds k, dk = ds^T q, dv = weights^T d_out
        for (input, left, transposed, right) in [
            (self.q, d_weights.at(), false, k.at),
            (self.k, d_weights.at(), true, q.at),
            (self.v, weights.at(), true, d_apart.at),
        ] {
            if let Some(grad) = tape.grad(input) {
                let (target, add) = ((grad.at(), grad.dtype()), grad.accumulate);
                if let Some(gpu) = tape.gpu() {
                    match &apart {
                        None => gpu.product(&setup.blend(left, transposed, right, target, add, dtype))?,
                        Some(apart) => {
                            let apart = (apart.at(), dtype);
                            gpu.product(&setup.blend(left, transposed, right, apart, false, dtype))?;
                            setup.launch_heads(gpu, target, apart, true, add)?;
                        }
                    }
                }
                tape.put_grad(grad);
            }
        }
        for operand in [q, k, v, d_apart] {
            tape.release(operand);
        }
        let blocks = [Some(scores), Some(d_scores), Some(weights), Some(d_weights), apart, Some(d_out)];
        blocks.into_iter().flatten().for_each(|block| tape.give_back(block));
        Ok(())
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
        let mut scratch = tape.scratch(setup.batch * setup.heads * room);
        let qkv = (tape.f32(self.q), tape.f32(self.k), tape.f32(self.v));
        let (out, normaliser) = (tape.f32(self.out), tape.f32(self.normaliser));
        cpu::chunks_mut(scratch.f32_mut(), room, |i, room| {
            setup.backward_head(i, qkv, (out, d_out.f32()), normaliser, room);
        });
        for (part, input) in [self.q, self.k, self.v].into_iter().enumerate() {
            if let Some(mut grad) = tape.grad(input) {
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
