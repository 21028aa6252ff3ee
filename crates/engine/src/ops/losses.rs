//! Errors of pixels: the mean of |a - b| or (a - b)^2.

use super::Backward;
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct PixelError {
    a: Tensor,
    b: Tensor,
    squared: bool,
    out: Tensor,
}

/// Elements summed in f32 before they join an f64 total.
const CHUNK: usize = 4096;

impl Tape {
    /// mean |a - b|
    pub fn absolute_error(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.pixel_error("absolute error", a, b, false)
    }

    /// mean (a - b)^2
    pub fn squared_error(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.pixel_error("squared error", a, b, true)
    }

    fn pixel_error(&mut self, op: &'static str, a: Tensor, b: Tensor, squared: bool) -> Result<Tensor> {
        self.check_f32(op, &[a, b])?;
        if a.shape() != b.shape() || a.len() == 0 {
            let rule = "both have the same shape, with at least one element";
            return Err(Error::ShapeMismatch { op, lhs: a.shape(), rhs: b.shape(), rule });
        }
        let mut out = self.alloc(1, DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_pixel_error(a, b, squared, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_pixel_error(&gpu, a, b, squared, &out)?,
        }
        let needs_grad = self.any_needs_grad(&[a, b]);
        let out = self.push(out, [], DType::F32, needs_grad);
        if needs_grad {
            self.record(PixelError { a, b, squared, out });
        }
        Ok(out)
    }

    fn cpu_pixel_error(&mut self, a: Tensor, b: Tensor, squared: bool, out: &mut Block) -> Result<()> {
        let mut sums = self.scratch(a.len().div_ceil(CHUNK))?;
        let (av, bv) = (self.f32(a), self.f32(b));
        cpu::chunks_mut_of(av.len(), sums.f32_mut(), 1, |i, part| {
            let range = i * CHUNK..av.len().min((i + 1) * CHUNK);
            let pairs = av[range.clone()].iter().zip(&bv[range]);
            part[0] = match squared {
                true => pairs.map(|(a, b)| (a - b) * (a - b)).sum(),
                false => pairs.map(|(a, b)| (a - b).abs()).sum(),
            };
        });
        let total: f64 = sums.f32().iter().map(|&p| f64::from(p)).sum();
        out.f32_mut()[0] = (total / a.len() as f64) as f32;
        self.give_back(sums);
        Ok(())
    }

    fn gpu_pixel_error(&mut self, gpu: &Gpu, a: Tensor, b: Tensor, squared: bool, out: &Block) -> Result<()> {
        let (n, count) = (a.len(), Grid::parts(gpu, a.len()));
        let sums = self.scratch(2 * count)?;
        kernels::pixel_error(gpu, Grid::blocks(count), self.view(a), self.view(b), sums.at(), n, squared)?;
        kernels::sum_of_parts(gpu, Grid::blocks(1), sums.at(), count, 1.0 / n as f64, out.at())?;
        self.give_back(sums);
        Ok(())
    }
}

impl Backward for PixelError {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        let backend = tape.backend();
        for (input, other) in [(self.a, self.b), (self.b, self.a)] {
            if let Some(mut grad) = tape.grad(input)? {
                match &backend {
                    Backend::Cpu => self.cpu_gradient(tape, input, other, &dy, &mut grad),
                    Backend::Cuda(gpu) => self.gpu_gradient(tape, gpu, input, other, &dy, &grad)?,
                }
                tape.put_grad(grad);
            }
        }
        tape.give_back(dy);
        Ok(())
    }
}

impl PixelError {
    fn cpu_gradient(&self, tape: &Tape, input: Tensor, other: Tensor, dy: &Block, grad: &mut Grad) {
        let (x, y, accumulate) = (tape.f32(input), tape.f32(other), grad.accumulate);
        let weight = dy.f32()[0] / self.a.len() as f32;
        cpu::chunks_mut(grad.slice(), CHUNK, |i, grad| {
            for (j, g) in grad.iter_mut().enumerate() {
                let d = x[i * CHUNK + j] - y[i * CHUNK + j];
                // The gradient of |d| at 0 is 0.
                let slope = match self.squared {
                    true => 2.0 * d,
                    false if d == 0.0 => 0.0,
                    false => d.signum(),
                };
                *g = if accumulate { *g + weight * slope } else { weight * slope };
            }
        });
    }

    fn gpu_gradient(
        &self,
        tape: &Tape,
        gpu: &Gpu,
        input: Tensor,
        other: Tensor,
        dy: &Block,
        grad: &Grad,
    ) -> Result<()> {
        let (x, y, n) = (tape.view(input), tape.view(other), input.len());
        let (grid, dx, squared) = (Grid::elements(gpu, n), grad.view(), self.squared);
        kernels::pixel_error_gradient(gpu, grid, dx, x, y, dy.at(), n, squared, grad.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        for len in [1, 7, 5000] {
            check_gradients(&[&[len], &[len]], |tape, x| tape.squared_error(x[0], x[1]));
        }
        // Far enough apart that no step width crosses the kink.
        check_gradients(&[&[7], &[7]], |tape, x| {
            let far = tape.affine(x[1], 1.0, 3.0)?;
            tape.absolute_error(x[0], far)
        });
    }

    #[test]
    fn values_match_the_definition() {
        let (a, b) = (values(5001, 0), values(5001, 1));
        let dims: [&[usize]; 2] = [&[5001], &[5001]];
        let absolute = a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / 5001.0;
        let squared = a.iter().zip(&b).map(|(a, b)| f64::from((a - b).powi(2))).sum::<f64>() / 5001.0;
        let got = on_tape(&dims, |tape, x| tape.absolute_error(x[0], x[1])).unwrap()[0];
        assert!((f64::from(got) - absolute).abs() < 1e-6);
        let got = on_tape(&dims, |tape, x| tape.squared_error(x[0], x[1])).unwrap()[0];
        assert!((f64::from(got) - squared).abs() < 1e-6);
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[2, 3], &[3, 2]], |tape, x| tape.squared_error(x[0], x[1])).unwrap_err();
        assert!(error.to_string().starts_with("squared error: shapes [2, 3] and [3, 2] do not fit"));
    }
}
