//! Linear layers: activation(x W^T + b), or x W^T + b + residual.

mod cpu;
mod cuda;

pub(super) use cpu::{relu_gradient, relu_in_place};

use super::Backward;
use crate::backend::Backend;
use crate::{DType, Error, Result, Tape, Tensor};

/// What follows a linear layer in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// max(x, 0)
    Relu,
    /// Exact: x * Phi(x), not the tanh approximation.
    Gelu,
}

/// A layer and its input, checked.
#[derive(Clone, Copy)]
struct Layer {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
    activation: Activation,
    needs_grad: bool,
}

impl Layer {
    /// (rows, outputs, inputs)
    fn size(&self) -> (usize, usize, usize) {
        (self.x.shape().rows(), self.weight.shape().rows(), self.x.shape().last())
    }
}

pub(crate) struct Linear {
    layer: Layer,
    /// Before the activation for GELU, which needs it; the result for ReLU.
    saved: Tensor,
    out: Tensor,
}

const OP: &str = "linear";

/// Layers of up to this many results (logits, values) are computed in f32 on every device: they cost nothing, and everything depends on them.
const NARROW: usize = 32;

impl Tape {
    /// activation(x W^T + b): x [.., I], weight [O, I], bias `[O]` -> [.., O]. A 1x1 convolution over NHWC is this op.
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

        let layer = Layer { x, weight, bias, residual, activation, needs_grad };
        let dtype = if n <= NARROW { DType::F32 } else { self.float() };
        let mut out = self.alloc(m * n, dtype)?;
        // Where the gradient needs the values before the activation, those after it are in a block of their own.
        let activated = match self.backend() {
            Backend::Cpu => self.cpu_linear(&layer, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_linear(&gpu, &layer, (&out, dtype))?,
        };
        let saved = self.push(out, shape, dtype, needs_grad && activated.is_none());
        let out = match activated {
            Some(y) => self.push(y, shape, dtype, needs_grad),
            None => saved,
        };
        if needs_grad {
            if let (Some(bias), Activation::None) = (bias, activation) {
                self.ask_for_sums(out, bias);
            }
            self.record(Linear { layer, saved, out });
        }
        Ok(out)
    }
}

impl Backward for Linear {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, self.layer.residual),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
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
