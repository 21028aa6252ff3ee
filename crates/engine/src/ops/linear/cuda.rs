//! Linear layers on a GPU: a product by cuBLASLt, with as much of the rest as it can take along.

use super::super::launches;
use super::{Activation, Layer, Linear};
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape};

/// A kernel that computes values from values; two numbers are for those that need them.
type Values = fn(&Gpu, Grid, View, View, usize, f32, f32) -> Result<()>;

impl Tape {
    pub(super) fn gpu_linear(
        &mut self,
        gpu: &Gpu,
        layer: &Layer,
        (out, dtype): (&Block, DType),
    ) -> Result<Option<Block>> {
        // Where nothing is learnt, cuBLASLt may apply the ReLU, which loses NaN.
        let fused_relu = layer.activation == Activation::Relu && layer.bias.is_some() && !layer.needs_grad;
        self.gpu_linear_product(gpu, layer, fused_relu, (out, dtype))?;
        let (m, n, _) = layer.size();
        let activate = |kernel: Values, y: &Block| {
            let (y, x, n) = (View::new(y.at(), dtype), View::new(out.at(), dtype), m * n);
            kernel(gpu, Grid::elements(gpu, n), y, x, n, 0.0, 0.0)
        };
        match layer.activation {
            Activation::None => {}
            Activation::Relu if fused_relu => {}
            Activation::Relu => activate(kernels::relu_values, out)?,
            Activation::Gelu if layer.needs_grad => {
                let y = self.alloc(m * n, dtype)?;
                activate(kernels::gelu_values, &y)?;
                return Ok(Some(y));
            }
            Activation::Gelu => activate(kernels::gelu_values, out)?,
        }
        Ok(None)
    }

    fn gpu_linear_product(
        &mut self,
        gpu: &Gpu,
        layer: &Layer,
        relu: bool,
        (out, dtype): (&Block, DType),
    ) -> Result<()> {
        let (m, n, k) = layer.size();
        let x = self.gpu_operand(gpu, layer.x, dtype)?;
        let weight = self.gpu_operand(gpu, layer.weight, dtype)?;
        // cuBLASLt adds a bias or another matrix, not both.
        let fused = layer.bias.filter(|_| layer.residual.is_none());
        let fused = fused.map(|b| self.gpu_operand(gpu, b, dtype)).transpose()?;
        let residual = layer.residual.map(|r| self.gpu_operand(gpu, r, dtype)).transpose()?;
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
        if let (Some(bias), None) = (layer.bias, &fused) {
            let (y, bias, len) = (View::new(out.at(), dtype), self.at(bias), m * n);
            let grid = Grid::elements(gpu, len);
            kernels::finish_rows(gpu, grid, y, bias, View::NOTHING, len, n, false)?;
        }
        for operand in [Some(x), Some(weight), fused, residual].into_iter().flatten() {
            self.release(operand);
        }
        Ok(())
    }
}

impl Linear {
    pub(super) fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let (m, n, k) = self.layer.size();
        let dtype = self.out.dtype();
        let d = View::new(dy.at(), dtype);
        let (grid, saved) = (Grid::elements(gpu, m * n), tape.view(self.saved));
        match self.layer.activation {
            Activation::None => {}
            Activation::Relu => kernels::relu_gradient(gpu, grid, d, saved, m * n)?,
            Activation::Gelu => kernels::gelu_gradient(gpu, grid, d, saved, m * n)?,
        }
        if let Some(mut dx) = tape.grad(self.layer.x)? {
            let weight = tape.gpu_operand(gpu, self.layer.weight, dtype)?;
            let (a, b) = (Matrix::rows(dy.at(), dtype, n), Matrix::rows(weight.at, dtype, k));
            // An exact product cannot be stored otherwise at once.
            let apart = dtype == DType::F32 && dx.dtype() != dtype;
            let exact = apart.then(|| tape.scratch(m * k)).transpose()?;
            let (out, start) = match &exact {
                Some(exact) => (Matrix::rows(exact.at(), dtype, k), None),
                None => (Matrix::rows(dx.at(), dx.dtype(), k), dx.accumulate.then(|| dx.at())),
            };
            gpu.product(&Product { start, ..Product::new((m, k, n), a, b, out) })?;
            tape.release(weight);
            if let Some(exact) = exact {
                tape.add_or_set(&mut dx, &exact, dtype)?;
                tape.give_back(exact);
            }
            tape.put_grad(dx);
        }
        if let Some(dw) = tape.grad(self.layer.weight)? {
            let x = tape.gpu_operand(gpu, self.layer.x, dtype)?;
            let (out, start) = (Matrix::rows(dw.at(), dw.dtype(), k), dw.accumulate.then(|| dw.at()));
            let (a, b) = (Matrix::transposed(dy.at(), dtype, n), Matrix::rows(x.at, dtype, k));
            gpu.product(&Product { start, ..Product::new((n, k, m), a, b, out) })?;
            tape.release(x);
            tape.put_grad(dw);
        }
        let out = (self.layer.activation == Activation::None).then_some(self.out);
        self.layer.bias.map_or(Ok(()), |bias| launches::bias_gradient(tape, gpu, (d, out), m, bias))
    }
}
