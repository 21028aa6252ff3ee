use super::Backward;
use crate::cpu::{
    self, Layout, Mat, Start, column_sums, column_sums_scratch_len, gemm, gemm_scratch_len, math,
    multiversion,
};
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

/// What follows a linear layer in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    None,
    Relu,
    /// Exact: x * Phi(x), not the tanh approximation.
    Gelu,
}

pub(crate) struct Linear {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    activation: Activation,
    /// Before the activation for GELU, which needs it; the result for ReLU.
    saved: Tensor,
    out: Tensor,
}

const OP: &str = "linear";

impl Tape {
    /// activation(x W^T + b): x [.., I], weight [O, I], bias [O] -> [.., O]. A 1x1 convolution over NHWC is this op.
    pub fn linear(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        activation: Activation,
    ) -> Result<Tensor> {
        self.linear_op(x, weight, bias, None, activation)
    }

    /// x W^T + b + residual
    pub fn linear_residual(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        residual: Tensor,
    ) -> Result<Tensor> {
        self.linear_op(x, weight, bias, Some(residual), Activation::None)
    }

    fn linear_op(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        residual: Option<Tensor>,
        activation: Activation,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[x, weight])?;
        self.check_not_empty(OP, &[x, weight])?;
        let (m, k, n) = (x.shape().rows(), x.shape().last(), weight.shape().rows());
        if weight.shape().rank() != 2 || x.shape().rank() < 1 || weight.shape().last() != k {
            let rule = "x is [.., I] and the weight [O, I]";
            return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: weight.shape(), rule });
        }
        let shape = x.shape().with_last(n);
        if let Some(bias) = bias {
            self.check_exact(OP, &[bias])?;
            if bias.dims() != [n] {
                let rule = "the bias is [O] for a weight [O, I]";
                return Err(Error::ShapeMismatch { op: OP, lhs: weight.shape(), rhs: bias.shape(), rule });
            }
        }
        if let Some(residual) = residual {
            self.check_f32(OP, &[residual])?;
            if residual.shape() != shape {
                let rule = "the residual has the result's shape";
                return Err(Error::ShapeMismatch { op: OP, lhs: shape, rhs: residual.shape(), rule });
            }
        }
        let needs_grad = self.any_needs_grad(&[x, weight])
            || bias.is_some_and(|b| self.needs_grad(b))
            || residual.is_some_and(|r| self.needs_grad(r));

        let dtype = if n <= NARROW { DType::F32 } else { self.float() };
        let mut out = self.alloc(m * n, dtype)?;
        // Where nothing is learnt, cuBLASLt may apply the ReLU, which loses NaN.
        let fused_relu = activation == Activation::Relu && bias.is_some() && !needs_grad;
        if self.gpu().is_some() {
            self.gpu_linear(x, weight, bias, residual, fused_relu, &out, dtype)?;
        } else {
            let mut scratch = self.scratch(gemm_scratch_len(m, n, k, Layout::Rows))?;
            let start = bias.map_or(Start::Zero, |b| Start::Bias(self.f32(b)));
            let (a, b) = (Mat::rows(self.f32(x), k), Mat::transposed(self.f32(weight), k));
            gemm(m, n, k, a, b, out.f32_mut(), n, start, scratch.f32_mut());
            if let Some(residual) = residual {
                crate::tape::add_or_set(out.f32_mut(), self.f32(residual), true);
            }
            self.give_back(scratch);
        }

        let (saved, out) = match activation {
            Activation::Gelu if needs_grad => {
                let mut y = self.alloc(m * n, dtype)?;
                if self.gpu().is_some() {
                    self.gpu_activate(kernels::gelu_values, &out, &y, m * n, dtype)?;
                } else {
                    let h = out.f32();
                    cpu::chunks_mut(y.f32_mut(), CHUNK, |i, y| gelu(&h[i * CHUNK..i * CHUNK + y.len()], y));
                }
                (self.push(out, shape, dtype, false), self.push(y, shape, dtype, true))
            }
            _ => {
                match (activation, self.gpu().is_some()) {
                    (Activation::None, _) => {}
                    (Activation::Relu, true) if fused_relu => {}
                    (Activation::Relu, true) => {
                        self.gpu_activate(kernels::relu_values, &out, &out, m * n, dtype)?
                    }
                    (Activation::Gelu, true) => {
                        self.gpu_activate(kernels::gelu_values, &out, &out, m * n, dtype)?
                    }
                    (Activation::Relu, false) => {
                        cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| relu_in_place(y))
                    }
                    (Activation::Gelu, false) => {
                        cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| gelu_in_place(y))
                    }
                }
                let out = self.push(out, shape, dtype, needs_grad);
                (out, out)
            }
        };
        if needs_grad {
            self.record(Linear { x, weight, bias, residual, activation, saved, out });
        }
        Ok(out)
    }

    fn gpu_linear(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        residual: Option<Tensor>,
        relu: bool,
        out: &Block,
        dtype: DType,
    ) -> Result<()> {
        let (m, k, n) = (x.shape().rows(), x.shape().last(), weight.shape().rows());
        let (x, weight) = (self.operand(x, dtype)?, self.operand(weight, dtype)?);
        // cuBLASLt adds a bias or another matrix, not both.
        let fused = bias.filter(|_| residual.is_none()).map(|b| self.operand(b, dtype)).transpose()?;
        let residual = residual.map(|r| self.operand(r, dtype)).transpose()?;
        if let Some(gpu) = self.gpu() {
            gpu.product(&Product {
                start: residual.as_ref().map(|r| r.at),
                bias: fused.as_ref().map(|b| b.at),
                relu,
                ..Product::new(
                    (m, n, k),
                    Matrix::rows(x.at, dtype, k),
                    Matrix::transposed(weight.at, dtype, k),
                    Matrix::rows(out.at(), dtype, n),
                )
            })?;
            if let (Some(bias), None) = (bias, &fused) {
                let (y, bias, len) = (View::new(out.at(), dtype), self.at(bias), m * n);
                let grid = Grid::elements(gpu, len);
                kernels::finish_rows(gpu, grid, y, bias, View::NOTHING, len, n, false)?;
            }
        }
        for operand in [Some(x), Some(weight), fused, residual].into_iter().flatten() {
            self.release(operand);
        }
        Ok(())
    }

    fn gpu_activate(&self, kernel: Values, x: &Block, y: &Block, n: usize, dtype: DType) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        let (y, x) = (View::new(y.at(), dtype), View::new(x.at(), dtype));
        kernel(gpu, Grid::elements(gpu, n), y, x, n, 0.0, 0.0)
    }
}

/// A kernel that computes values from values; two numbers are for those that need them.
type Values = fn(&Gpu, Grid, View, View, usize, f32, f32) -> Result<()>;

/// Layers of up to this many results (logits, values) are computed in f32 on every device: they cost nothing, and everything depends on them.
const NARROW: usize = 32;

impl Linear {
    fn gpu_backward(self, tape: &mut Tape, dy: Block) -> Result<()> {
        let (m, k, n) = (self.x.shape().rows(), self.x.shape().last(), self.weight.dims()[0]);
        let dtype = self.out.dtype();
        let d = View::new(dy.at(), dtype);
        if let Some(gpu) = tape.gpu() {
            let (grid, saved) = (Grid::elements(gpu, m * n), tape.view(self.saved));
            match self.activation {
                Activation::None => {}
                Activation::Relu => kernels::relu_gradient(gpu, grid, d, saved, m * n)?,
                Activation::Gelu => kernels::gelu_gradient(gpu, grid, d, saved, m * n)?,
            }
        }
        let product = Product::new(
            (m, k, n),
            Matrix::rows(dy.at(), dtype, n),
            Matrix::rows(0, dtype, k),
            Matrix::rows(0, dtype, k),
        );
        if let Some(dx) = tape.grad(self.x)? {
            let weight = tape.operand(self.weight, dtype)?;
            let b = Matrix { at: weight.at, ..product.b };
            // An exact product cannot be stored otherwise at once.
            let apart = dtype == DType::F32 && dx.dtype() != dtype;
            let exact = apart.then(|| tape.scratch(m * k)).transpose()?;
            let (out, start) = match &exact {
                Some(exact) => (Matrix::rows(exact.at(), dtype, k), None),
                None => (Matrix::rows(dx.at(), dx.dtype(), k), dx.accumulate.then(|| dx.at())),
            };
            if let Some(gpu) = tape.gpu() {
                gpu.product(&Product { b, out, start, ..product })?;
            }
            tape.release(weight);
            let mut dx = dx;
            if let Some(exact) = exact {
                tape.add_or_set(&mut dx, &exact, dtype)?;
                tape.give_back(exact);
            }
            tape.put_grad(dx);
        }
        if let Some(dw) = tape.grad(self.weight)? {
            let x = tape.operand(self.x, dtype)?;
            let (out, start) = (Matrix::rows(dw.at(), dw.dtype(), k), dw.accumulate.then(|| dw.at()));
            let (a, b) = (Matrix::transposed(dy.at(), dtype, n), Matrix::rows(x.at, dtype, k));
            if let Some(gpu) = tape.gpu() {
                gpu.product(&Product { m: n, k: m, a, b, out, start, ..product })?;
            }
            tape.release(x);
            tape.put_grad(dw);
        }
        if let Some(db) = self.bias.map_or(Ok(None), |bias| tape.grad(bias))? {
            tape.gpu_column_sums(d, m, n, db.view(), db.accumulate)?;
            tape.put_grad(db);
        }
        tape.pass_on(self.residual, dy, dtype)
    }
}

impl Backward for Linear {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(mut dy) = tape.take_grad(self.out) else { return Ok(()) };
        if tape.gpu().is_some() {
            return self.gpu_backward(tape, dy);
        }
        let (m, k, n) = (self.x.shape().rows(), self.x.shape().last(), self.weight.dims()[0]);
        let saved = tape.f32(self.saved);
        match self.activation {
            Activation::None => {}
            Activation::Relu => {
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| relu_gradient(&saved[i * CHUNK..], dy))
            }
            Activation::Gelu => {
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| gelu_gradient(&saved[i * CHUNK..], dy))
            }
        }
        let room = gemm_scratch_len(m, k, n, Layout::Rows)
            .max(gemm_scratch_len(n, k, m, Layout::Transposed))
            .max(column_sums_scratch_len(m, n));
        let mut scratch = tape.scratch(room)?;
        let start = |accumulate| if accumulate { Start::C } else { Start::Zero };
        if let Some(mut dx) = tape.grad(self.x)? {
            let (a, b) = (Mat::rows(dy.f32(), n), Mat::rows(tape.f32(self.weight), k));
            let from = start(dx.accumulate);
            gemm(m, k, n, a, b, dx.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dx);
        }
        if let Some(mut dw) = tape.grad(self.weight)? {
            let (a, b) = (Mat::transposed(dy.f32(), n), Mat::rows(tape.f32(self.x), k));
            let from = start(dw.accumulate);
            gemm(n, k, m, a, b, dw.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dw);
        }
        if let Some(mut db) = self.bias.map_or(Ok(None), |bias| tape.grad(bias))? {
            let accumulate = db.accumulate;
            column_sums(dy.f32(), db.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        tape.pass_on(self.residual, dy, DType::F32)
    }
}

const CHUNK: usize = 4096;

multiversion! {
    fn gelu(h: &[f32], y: &mut [f32]) {
        for (y, h) in y.iter_mut().zip(h) {
            *y = math::gelu(*h);
        }
    }
}

multiversion! {
    fn gelu_in_place(y: &mut [f32]) {
        for y in y {
            *y = math::gelu(*y);
        }
    }
}

multiversion! {
    fn gelu_gradient(h: &[f32], dy: &mut [f32]) {
        for (dy, h) in dy.iter_mut().zip(h) {
            *dy *= math::gelu_derivative(*h);
        }
    }
}

multiversion! {
    pub(super) fn relu_in_place(y: &mut [f32]) {
        for y in y {
            // Not `max`: that would turn NaN into 0 and hide a divergence.
            *y = if *y < 0.0 { 0.0 } else { *y };
        }
    }
}

multiversion! {
    /// Passes the gradient on where the result was positive.
    pub(super) fn relu_gradient(y: &[f32], dy: &mut [f32]) {
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, on_tape, spread};

    #[test]
    fn gradients() {
        for activation in [Activation::None, Activation::Relu, Activation::Gelu] {
            for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 3), (33, 70, 65)] {
                check_gradients(&[&[rows, inputs], &[outputs, inputs], &[outputs]], |tape, x| {
                    let bias = if activation == Activation::Relu { spread(tape, x[2])? } else { x[2] };
                    tape.linear(x[0], x[1], Some(bias), activation)
                });
            }
        }
        check_gradients(&[&[2, 3, 5], &[4, 5], &[2, 3, 4]], |tape, x| {
            tape.linear_residual(x[0], x[1], None, x[2])
        });
        // Two layers: the first result is an activation, the second is exact.
        check_gradients(&[&[9, 7], &[48, 7], &[5, 48]], |tape, x| {
            let y = tape.linear(x[0], x[1], None, Activation::None)?;
            tape.linear(y, x[2], None, Activation::None)
        });
        check_gradients(&[&[3, 5, 64], &[96, 64], &[96], &[3, 5, 96]], |tape, x| {
            tape.linear_residual(x[0], x[1], Some(x[2]), x[3])
        });
        // A weight used twice gets both gradients.
        check_gradients(&[&[3, 4], &[4, 4]], |tape, x| {
            let y = tape.linear(x[0], x[1], None, Activation::Gelu)?;
            tape.linear(y, x[1], None, Activation::None)
        });
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error =
            on_tape(&[&[2, 3], &[4, 5], &[5]], |tape, x| tape.linear(x[0], x[1], None, Activation::None));
        assert_eq!(
            error.unwrap_err().to_string(),
            "linear: shapes [2, 3] and [4, 5] do not fit: x is [.., I] and the weight [O, I]"
        );
        let error = on_tape(&[&[2, 5], &[4, 5], &[5]], |tape, x| {
            tape.linear(x[0], x[1], Some(x[2]), Activation::None)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { op: "linear", .. })));
    }
}
