//! Attention on a GPU: through matrix products, unless its scores stay in registers (`flash`).

use super::{Attention, Setup};
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::tape::Operand;
use crate::{DType, Result, Tape, Tensor};

impl Tape {
    /// Scores of all heads by matrix products, then their softmax, then the blend of the values. Returns the dropout masks where they are kept.
    pub(super) fn gpu_attention(
        &mut self,
        gpu: &Gpu,
        setup: &Setup,
        inputs: [Tensor; 3],
        out: &Block,
        normaliser: &Block,
    ) -> Result<Option<Block>> {
        let dtype = self.float();
        if setup.is_flash(dtype) {
            return self.gpu_flash(gpu, setup, inputs, out, normaliser);
        }
        let [q, k, v] = inputs.map(|x| {
            let x = self.gpu_operand(gpu, x, dtype)?;
            self.gpu_heads(gpu, setup, x)
        });
        let (q, k, v) = (q?, k?, v?);
        let (rows, stride) = (setup.batch * setup.heads * setup.time, setup.stride());
        let scores = self.scratch(rows * stride)?;
        let weights = self.alloc(rows * stride, dtype)?;
        let apart = (setup.heads > 1).then(|| self.alloc(rows * setup.head_width(), dtype)).transpose()?;
        gpu.product(&setup.scores(q.at, k.at, scores.at(), dtype))?;
        kernels::attention_softmax(
            gpu,
            Grid::rows(rows),
            scores.at(),
            View::new(weights.at(), dtype),
            normaliser.at(),
            rows,
            setup.time,
            stride,
            setup.block,
            setup.scale(),
            setup.dropout,
            self.state(),
            setup.site.number() as usize,
        )?;
        let to = apart.as_ref().map_or(out.at(), Block::at);
        gpu.product(&setup.blend(weights.at(), false, v.at, (to, dtype), false, dtype))?;
        if let Some(apart) = &apart {
            setup.launch_heads(gpu, (out.at(), dtype), (apart.at(), dtype), true, false)?;
        }
        for operand in [q, k, v] {
            self.release(operand);
        }
        for block in [Some(scores), Some(weights), apart].into_iter().flatten() {
            self.give_back(block);
        }
        Ok(None)
    }

    /// [B, T, heads, d] as [B, heads, T, d].
    fn gpu_heads(&mut self, gpu: &Gpu, setup: &Setup, x: Operand) -> Result<Operand> {
        if setup.heads == 1 {
            return Ok(x);
        }
        let dtype = self.float();
        let apart = self.alloc(setup.batch * setup.time * setup.width, dtype)?;
        setup.launch_heads(gpu, (apart.at(), dtype), (x.at, dtype), false, false)?;
        self.release(x);
        Ok(Operand::temporary(apart))
    }
}

/// How the heads lie on a GPU: inputs and results [B, heads, T, d], scores [B, heads, T, stride].
impl Setup {
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
        let (grid, to, from) = (Grid::elements(gpu, n), View::new(out.0, out.1), View::new(x.0, x.1));
        kernels::swap_heads(gpu, grid, to, from, self.time, self.heads, self.head_width(), n, joining, add)
    }
}

impl Attention {
    pub(super) fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, d_out: &Block) -> Result<()> {
        let (setup, dtype) = (self.setup, self.out.dtype());
        if setup.is_flash(dtype) {
            return self.flash_backward(tape, gpu, d_out);
        }
        let [q, k, v] = [self.q, self.k, self.v].map(|x| {
            let x = tape.gpu_operand(gpu, x, dtype)?;
            tape.gpu_heads(gpu, &setup, x)
        });
        let (q, k, v) = (q?, k?, v?);
        let d_apart = tape.gpu_heads(gpu, &setup, Operand::at(d_out.at()))?;
        let (rows, stride) = (setup.batch * setup.heads * setup.time, setup.stride());
        let (scores, d_scores) = (tape.scratch(rows * stride)?, tape.scratch(rows * stride)?);
        let (weights, d_weights) = (tape.alloc(rows * stride, dtype)?, tape.alloc(rows * stride, dtype)?);
        let apart = (setup.heads > 1).then(|| tape.alloc(rows * setup.head_width(), dtype)).transpose()?;
        gpu.product(&setup.scores(q.at, k.at, scores.at(), dtype))?;
        gpu.product(&setup.scores(d_apart.at, v.at, d_scores.at(), dtype))?;
        kernels::attention_gradient(
            gpu,
            Grid::rows(rows),
            scores.at(),
            d_scores.at(),
            View::new(weights.at(), dtype),
            View::new(d_weights.at(), dtype),
            tape.at(self.normaliser),
            tape.view(self.out),
            View::new(d_out.at(), dtype),
            rows,
            setup.time,
            stride,
            setup.heads,
            setup.head_width(),
            setup.block,
            setup.scale(),
            setup.dropout,
            tape.state(),
            setup.site.number() as usize,
        )?;
        // dq = ds k, dk = ds^T q, dv = weights^T d_out
        for (input, left, transposed, right) in [
            (self.q, d_weights.at(), false, k.at),
            (self.k, d_weights.at(), true, q.at),
            (self.v, weights.at(), true, d_apart.at),
        ] {
            if let Some(grad) = tape.grad(input)? {
                let (target, add) = ((grad.at(), grad.dtype()), grad.accumulate);
                match &apart {
                    None => gpu.product(&setup.blend(left, transposed, right, target, add, dtype))?,
                    Some(apart) => {
                        let apart = (apart.at(), dtype);
                        gpu.product(&setup.blend(left, transposed, right, apart, false, dtype))?;
                        setup.launch_heads(gpu, target, apart, true, add)?;
                    }
                }
                tape.put_grad(grad);
            }
        }
        for operand in [q, k, v, d_apart] {
            tape.release(operand);
        }
        let blocks = [Some(scores), Some(d_scores), Some(weights), Some(d_weights), apart];
        blocks.into_iter().flatten().for_each(|block| tape.give_back(block));
        Ok(())
    }
}
