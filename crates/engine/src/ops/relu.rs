//! ReLU: max(x, 0).

use super::{Backward, linear};
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{Result, Tape, Tensor};

pub(crate) struct Relu {
    x: Tensor,
    out: Tensor,
}

const CHUNK: usize = 1 << 14;

impl Tape {
    /// max(x, 0)
    pub fn relu(&mut self, x: Tensor) -> Result<Tensor> {
        self.check_f32("relu", &[x])?;
        let mut out = self.alloc(x.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_relu(x, &mut out),
            Backend::Cuda(gpu) => self.gpu_relu(&gpu, x, &out)?,
        }
        let needs_grad = self.needs_grad(x);
        let out = self.push(out, x.shape(), x.dtype(), needs_grad);
        if needs_grad {
            self.record(Relu { x, out });
        }
        Ok(out)
    }

    fn cpu_relu(&self, x: Tensor, out: &mut Block) {
        let xv = self.f32(x);
        cpu::chunks_mut(out.f32_mut(), CHUNK, |i, out| {
            out.copy_from_slice(&xv[i * CHUNK..i * CHUNK + out.len()]);
            linear::relu_in_place(out);
        });
    }

    fn gpu_relu(&self, gpu: &Gpu, x: Tensor, out: &Block) -> Result<()> {
        let (n, to) = (x.len(), View::new(out.at(), x.dtype()));
        kernels::relu_values(gpu, Grid::elements(gpu, n), to, self.view(x), n, 0.0, 0.0)
    }
}

impl Backward for Relu {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(mut dy) = tape.take_grad(self.out) else { return Ok(()) };
        match tape.backend() {
            Backend::Cpu => {
                let y = tape.f32(self.out);
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| linear::relu_gradient(&y[i * CHUNK..], dy));
            }
            Backend::Cuda(gpu) => {
                let (n, d) = (self.out.len(), View::new(dy.at(), self.out.dtype()));
                kernels::relu_gradient(&gpu, Grid::elements(&gpu, n), d, tape.view(self.out), n)?;
            }
        }
        tape.hand_grad(self.x, dy, self.out.dtype())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        for len in [1, 5, 20_000] {
            check_gradients(&[&[len]], |tape, x| tape.relu(x[0]));
        }
    }

    #[test]
    fn cuts_at_zero() {
        let out = on_tape(&[&[100]], |tape, x| tape.relu(x[0])).unwrap();
        assert!(out.iter().zip(values(100, 0)).all(|(&y, x)| y == x.max(0.0)));
    }
}
