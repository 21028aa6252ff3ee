//! Elementwise arithmetic and means: the glue between losses.

use super::Backward;
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct Add {
    a: Tensor,
    b: Tensor,
    out: Tensor,
}

pub(crate) struct Mul {
    a: Tensor,
    b: Tensor,
    out: Tensor,
}

/// x * scale + shift
pub(crate) struct Affine {
    x: Tensor,
    scale: f32,
    out: Tensor,
}

/// sum (x * weight) / sum weight
pub(crate) struct Mean {
    x: Tensor,
    weights: Option<Tensor>,
    /// The sum of the weights.
    total: Tensor,
    out: Tensor,
}

const CHUNK: usize = 1 << 14;

impl Tape {
    /// a + b, same shapes.
    pub fn add(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        let out = self.elementwise("add", a, b, kernels::add, |a, b| a + b)?;
        if self.needs_grad(out) {
            self.record(Add { a, b, out });
        }
        Ok(out)
    }

    /// a * b elementwise, same shapes.
    pub fn mul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        let out = self.elementwise("mul", a, b, kernels::mul, |a, b| a * b)?;
        if self.needs_grad(out) {
            self.record(Mul { a, b, out });
        }
        Ok(out)
    }

    fn elementwise(
        &mut self,
        op: &'static str,
        a: Tensor,
        b: Tensor,
        kernel: fn(&Gpu, Grid, View, View, View, usize) -> Result<()>,
        f: impl Fn(f32, f32) -> f32 + Sync + Send,
    ) -> Result<Tensor> {
        self.check_f32(op, &[a, b])?;
        if a.shape() != b.shape() {
            let rule = "both have the same shape";
            return Err(Error::ShapeMismatch { op, lhs: a.shape(), rhs: b.shape(), rule });
        }
        let dtype = self.joint(&[a, b]);
        let mut out = self.alloc(a.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => {
                let (av, bv) = (self.f32(a), self.f32(b));
                cpu::chunks_mut(out.f32_mut(), CHUNK, |i, out| {
                    let start = i * CHUNK;
                    for ((o, a), b) in out.iter_mut().zip(&av[start..]).zip(&bv[start..]) {
                        *o = f(*a, *b);
                    }
                });
            }
            Backend::Cuda(gpu) => {
                let (n, to) = (a.len(), View::new(out.at(), dtype));
                kernel(&gpu, Grid::elements(&gpu, n), to, self.view(a), self.view(b), n)?;
            }
        }
        let needs_grad = self.any_needs_grad(&[a, b]);
        Ok(self.push(out, a.shape(), dtype, needs_grad))
    }

    /// x * scale + shift
    pub fn affine(&mut self, x: Tensor, scale: f32, shift: f32) -> Result<Tensor> {
        self.check_f32("affine", &[x])?;
        let mut out = self.alloc(x.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => {
                let xv = self.f32(x);
                cpu::chunks_mut(out.f32_mut(), CHUNK, |i, out| {
                    for (o, x) in out.iter_mut().zip(&xv[i * CHUNK..]) {
                        *o = x * scale + shift;
                    }
                });
            }
            Backend::Cuda(gpu) => {
                let (n, to) = (x.len(), View::new(out.at(), x.dtype()));
                kernels::affine(&gpu, Grid::elements(&gpu, n), to, self.view(x), n, scale, shift)?;
            }
        }
        let needs_grad = self.needs_grad(x);
        let out = self.push(out, x.shape(), x.dtype(), needs_grad);
        if needs_grad {
            self.record(Affine { x, scale, out });
        }
        Ok(out)
    }

    /// x cut to [low, high]. For looking at values: no gradient flows through.
    pub fn clamp(&mut self, x: Tensor, low: f32, high: f32) -> Result<Tensor> {
        self.check_f32("clamp", &[x])?;
        let mut out = self.alloc(x.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => {
                for (o, x) in out.f32_mut().iter_mut().zip(self.f32(x)) {
                    *o = x.max(low).min(high);
                }
            }
            Backend::Cuda(gpu) => {
                let (n, to) = (x.len(), View::new(out.at(), x.dtype()));
                kernels::clamp_values(&gpu, Grid::elements(&gpu, n), to, self.view(x), n, low, high)?;
            }
        }
        Ok(self.push(out, x.shape(), x.dtype(), false))
    }

    /// The mean of all elements.
    pub fn mean(&mut self, x: Tensor) -> Result<Tensor> {
        self.mean_op(x, None)
    }

    /// sum(x * weights) / sum(weights), 0 when the weights sum to 0. No gradient flows into the weights.
    pub fn weighted_mean(&mut self, x: Tensor, weights: Tensor) -> Result<Tensor> {
        self.mean_op(x, Some(weights))
    }

    fn mean_op(&mut self, x: Tensor, weights: Option<Tensor>) -> Result<Tensor> {
        const OP: &str = "mean";
        self.check_f32(OP, &[x])?;
        if x.len() == 0 {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "there is at least one element" });
        }
        if let Some(weights) = weights {
            self.check_f32(OP, &[weights])?;
            if weights.shape() != x.shape() {
                let rule = "the weights have the shape of x";
                return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: weights.shape(), rule });
            }
        }
        let mut out = self.alloc(1, DType::F32)?;
        let mut total = self.alloc(1, DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_mean(x, weights, &mut out, &mut total),
            Backend::Cuda(gpu) => self.gpu_mean(&gpu, x, weights, &out, &total)?,
        }
        let needs_grad = self.needs_grad(x);
        let total = self.push(total, [], DType::F32, false);
        let out = self.push(out, [], DType::F32, needs_grad);
        if needs_grad {
            self.record(Mean { x, weights, total, out });
        }
        Ok(out)
    }

    fn cpu_mean(&self, x: Tensor, weights: Option<Tensor>, out: &mut Block, total: &mut Block) {
        let xv = self.f32(x);
        let (sum, weight) = match weights.map(|w| self.f32(w)) {
            None => (xv.iter().map(|&x| f64::from(x)).sum::<f64>(), x.len() as f64),
            Some(w) => (
                xv.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>(),
                w.iter().map(|&w| f64::from(w)).sum::<f64>(),
            ),
        };
        out.f32_mut()[0] = if weight == 0.0 { 0.0 } else { (sum / weight) as f32 };
        total.f32_mut()[0] = weight as f32;
    }

    fn gpu_mean(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        weights: Option<Tensor>,
        out: &Block,
        total: &Block,
    ) -> Result<()> {
        let (n, count) = (x.len(), Grid::parts(gpu, x.len()));
        let sums = self.scratch(4 * count)?;
        kernels::sum(gpu, Grid::blocks(count), self.view(x), self.view_of(weights), sums.at(), n)?;
        kernels::mean_of_parts(gpu, Grid::blocks(1), sums.at(), count, out.at(), total.at())?;
        self.give_back(sums);
        Ok(())
    }
}

impl Backward for Add {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        if let Some(mut grad) = tape.grad(self.a)? {
            tape.add_or_set(&mut grad, &dy, self.out.dtype())?;
            tape.put_grad(grad);
        }
        tape.hand_grad(self.b, dy, self.out.dtype())
    }
}

impl Backward for Mul {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        let backend = tape.backend();
        for (input, other) in [(self.a, self.b), (self.b, self.a)] {
            if let Some(mut grad) = tape.grad(input)? {
                let accumulate = grad.accumulate;
                match &backend {
                    Backend::Cpu => {
                        let other = tape.f32(other);
                        for ((g, dy), o) in grad.slice().iter_mut().zip(dy.f32()).zip(other) {
                            *g = if accumulate { *g + dy * o } else { dy * o };
                        }
                    }
                    Backend::Cuda(gpu) => {
                        let (n, dy) = (input.len(), View::new(dy.at(), self.out.dtype()));
                        let (grid, other) = (Grid::elements(gpu, n), tape.view(other));
                        kernels::mul_gradient(gpu, grid, grad.view(), dy, other, n, accumulate)?;
                    }
                }
                tape.put_grad(grad);
            }
        }
        tape.give_back(dy);
        Ok(())
    }
}

impl Backward for Affine {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(mut dy) = tape.take_grad(self.out) else { return Ok(()) };
        match tape.backend() {
            Backend::Cpu => {
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |_, dy| dy.iter_mut().for_each(|d| *d *= self.scale));
            }
            Backend::Cuda(gpu) => {
                let (n, dy) = (self.out.len(), View::new(dy.at(), self.out.dtype()));
                kernels::affine(&gpu, Grid::elements(&gpu, n), dy, dy, n, self.scale, 0.0)?;
            }
        }
        tape.hand_grad(self.x, dy, self.out.dtype())
    }
}

impl Backward for Mean {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.x),
            |tape, dy, grad| self.cpu_gradient(tape, dy, grad),
            |tape, gpu, dy, grad| self.gpu_gradient(tape, gpu, dy, grad),
        )
    }
}

impl Mean {
    fn cpu_gradient(&self, tape: &Tape, dy: &Block, grad: &mut Grad) {
        let (total, accumulate) = (tape.f32(self.total)[0], grad.accumulate);
        let share = if total == 0.0 { 0.0 } else { dy.f32()[0] / total };
        let weights = self.weights.map(|w| tape.f32(w));
        for (i, g) in grad.slice().iter_mut().enumerate() {
            let value = share * weights.map_or(1.0, |w| w[i]);
            *g = if accumulate { *g + value } else { value };
        }
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (weights, total, n) = (tape.view_of(self.weights), tape.at(self.total), self.x.len());
        let (grid, dx) = (Grid::elements(gpu, n), grad.view());
        kernels::mean_gradient(gpu, grid, dx, weights, dy.at(), total, n, grad.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, constant, gradients as gradients_of, on_tape, values};

    #[test]
    fn gradients() {
        check_gradients(&[&[2, 3], &[2, 3]], |tape, x| tape.add(x[0], x[1]));
        check_gradients(&[&[5]], |tape, x| tape.add(x[0], x[0]));
        check_gradients(&[&[2, 3], &[2, 3]], |tape, x| tape.mul(x[0], x[1]));
        check_gradients(&[&[5]], |tape, x| tape.mul(x[0], x[0]));
        check_gradients(&[&[20_000]], |tape, x| tape.affine(x[0], -2.5, 1.0));
        check_gradients(&[&[7]], |tape, x| tape.mean(x[0]));
        check_gradients(&[&[3, 2]], |tape, x| {
            let weights = constant(tape, &[0.0, 1.0, 2.0, 0.5, 0.0, 1.0], [3, 2]);
            tape.weighted_mean(x[0], weights)
        });
        // A chain in which one tensor is used three times.
        check_gradients(&[&[4]], |tape, x| {
            let y = tape.mul(x[0], x[0])?;
            let z = tape.mul(y, x[0])?;
            tape.add(z, y)
        });
    }

    #[test]
    fn gradients_stop_at_detach() -> Result<()> {
        let dx = gradients_of(&[&[3]], &[1.0; 3], |tape, x| {
            let constant = tape.detach(x[0])?;
            tape.mul(x[0], constant)
        })?;
        assert_eq!(dx[0], values(3, 0));
        Ok(())
    }

    #[test]
    fn nothing_is_broadcast() {
        let error = on_tape(&[&[2, 3], &[3]], |tape, x| tape.add(x[0], x[1])).unwrap_err();
        assert_eq!(error.to_string(), "add: shapes [2, 3] and [3] do not fit: both have the same shape");
        assert!(on_tape(&[&[2, 3], &[1]], |tape, x| tape.mul(x[0], x[1])).is_err());
    }

    #[test]
    fn weights_that_sum_to_zero_give_zero() -> Result<()> {
        let out = on_tape(&[&[3]], |tape, x| {
            let weights = tape.affine(x[0], 0.0, 0.0)?;
            tape.weighted_mean(x[0], weights)
        })?;
        assert_eq!(out, vec![0.0]);
        Ok(())
    }
}
