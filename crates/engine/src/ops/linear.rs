use super::Backward;
use crate::cpu::{
    self, Layout, Mat, Start, column_sums, column_sums_scratch_len, gemm, gemm_scratch_len, math,
    multiversion,
};
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
            self.check_f32(OP, &[bias])?;
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

        let mut out = self.alloc(m * n, DType::F32);
        let mut scratch = self.scratch(gemm_scratch_len(m, n, k, Layout::Rows));
        let start = bias.map_or(Start::Zero, |b| Start::Bias(self.f32(b)));
        let (a, b) = (Mat::rows(self.f32(x), k), Mat::transposed(self.f32(weight), k));
        gemm(m, n, k, a, b, out.f32_mut(), n, start, scratch.f32_mut());
        if let Some(residual) = residual {
            crate::tape::add_or_set(out.f32_mut(), self.f32(residual), true);
        }
        self.give_back(scratch);

        let (saved, out) = match activation {
            Activation::Gelu if needs_grad => {
                let mut y = self.alloc(m * n, DType::F32);
                let h = out.f32();
                cpu::chunks_mut(y.f32_mut(), CHUNK, |i, y| gelu(&h[i * CHUNK..i * CHUNK + y.len()], y));
                (self.push(out, shape, DType::F32, false), self.push(y, shape, DType::F32, true))
            }
            _ => {
                match activation {
                    Activation::None => {}
                    Activation::Relu => cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| relu_in_place(y)),
                    Activation::Gelu => cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| gelu_in_place(y)),
                }
                let out = self.push(out, shape, DType::F32, needs_grad);
                (out, out)
            }
        };
        if needs_grad {
            self.record(Linear { x, weight, bias, residual, activation, saved, out });
        }
        Ok(out)
    }
}

impl Backward for Linear {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(mut dy) = tape.take_grad(self.out) else { return Ok(()) };
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
        let mut scratch = tape.scratch(room);
        let start = |accumulate| if accumulate { Start::C } else { Start::Zero };
        if let Some(mut dx) = tape.grad(self.x) {
            let (a, b) = (Mat::rows(dy.f32(), n), Mat::rows(tape.f32(self.weight), k));
            let from = start(dx.accumulate);
            gemm(m, k, n, a, b, dx.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dx);
        }
        if let Some(mut dw) = tape.grad(self.weight) {
            let (a, b) = (Mat::transposed(dy.f32(), n), Mat::rows(tape.f32(self.x), k));
            let from = start(dw.accumulate);
            gemm(n, k, m, a, b, dw.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dw);
        }
        if let Some(mut db) = self.bias.and_then(|bias| tape.grad(bias)) {
            let accumulate = db.accumulate;
            column_sums(dy.f32(), db.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        match self.residual {
            Some(residual) => tape.hand_grad(residual, dy),
            None => tape.give_back(dy),
        }
        Ok(())
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
