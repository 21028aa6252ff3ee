//! Nearest-neighbour enlargement: every pixel four times.

use super::Backward;
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{Error, Result, Tape, Tensor};

pub(crate) struct Upsample {
    x: Tensor,
    out: Tensor,
}

const OP: &str = "upsample";

impl Tape {
    /// Nearest-neighbour enlargement by two: [B, H, W, C] -> [B, 2H, 2W, C]
    pub fn upsample(&mut self, x: Tensor) -> Result<Tensor> {
        self.check_f32(OP, &[x])?;
        self.check_not_empty(OP, &[x])?;
        let &[batch, height, width, channels] = x.dims() else {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "x is [B, H, W, C]" });
        };
        let mut out = self.alloc(4 * x.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_upsample(x, &mut out),
            Backend::Cuda(gpu) => self.gpu_upsample(&gpu, x, &out)?,
        }
        let needs_grad = self.needs_grad(x);
        let out = self.push(out, [batch, 2 * height, 2 * width, channels], x.dtype(), needs_grad);
        if needs_grad {
            self.record(Upsample { x, out });
        }
        Ok(out)
    }

    fn cpu_upsample(&self, x: Tensor, out: &mut Block) {
        let (width, channels) = (x.dims()[2], x.dims()[3]);
        let (xv, line) = (self.f32(x), width * channels);
        // One task per input row: it becomes two output rows.
        cpu::chunks_mut(out.f32_mut(), 4 * line, |row, out| {
            let (top, bottom) = out.split_at_mut(2 * line);
            let source = xv[row * line..(row + 1) * line].chunks_exact(channels);
            for (out, x) in top.chunks_exact_mut(2 * channels).zip(source) {
                out[..channels].copy_from_slice(x);
                out[channels..].copy_from_slice(x);
            }
            bottom.copy_from_slice(top);
        });
    }

    fn gpu_upsample(&self, gpu: &Gpu, x: Tensor, out: &Block) -> Result<()> {
        let (width, channels) = (x.dims()[2], x.dims()[3]);
        let (n, to) = (4 * x.len(), View::new(out.at(), x.dtype()));
        kernels::upsample(gpu, Grid::elements(gpu, n), to, self.view(x), 2 * width, channels, n)
    }
}

impl Backward for Upsample {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.x),
            |_, dy, dx| self.cpu_gradient(dy, dx),
            |_, gpu, dy, dx| self.gpu_gradient(gpu, dy, dx),
        )
    }
}

impl Upsample {
    fn cpu_gradient(&self, dy: &Block, dx: &mut Grad) {
        let (width, channels) = (self.x.dims()[2], self.x.dims()[3]);
        let (line, accumulate) = (width * channels, dx.accumulate);
        cpu::chunks_mut(dx.slice(), line, |row, dx| {
            let (top, bottom) = dy.f32()[row * 4 * line..(row + 1) * 4 * line].split_at(2 * line);
            for (x, dx) in dx.chunks_exact_mut(channels).enumerate() {
                let pair = 2 * x * channels..(2 * x + 2) * channels;
                let (top, bottom) = (&top[pair.clone()], &bottom[pair]);
                for c in 0..channels {
                    let sum = (top[c] + top[channels + c]) + (bottom[c] + bottom[channels + c]);
                    dx[c] = if accumulate { dx[c] + sum } else { sum };
                }
            }
        });
    }

    fn gpu_gradient(&self, gpu: &Gpu, dy: &Block, dx: &Grad) -> Result<()> {
        let (width, channels) = (self.x.dims()[2], self.x.dims()[3]);
        let (n, dy) = (self.x.len(), View::new(dy.at(), self.out.dtype()));
        let grid = Grid::elements(gpu, n);
        kernels::upsample_gradient(gpu, grid, dx.view(), dy, width, channels, n, dx.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        for (batch, height, width, channels) in [(1, 1, 1, 1), (2, 3, 2, 5), (1, 2, 4, 17)] {
            check_gradients(&[&[batch, height, width, channels]], |tape, x| tape.upsample(x[0]));
        }
    }

    #[test]
    fn repeats_every_pixel() {
        let x = values(2 * 3 * 2, 0);
        let out = on_tape(&[&[1, 2, 3, 2]], |tape, x| tape.upsample(x[0])).unwrap();
        for (i, got) in out.iter().enumerate() {
            let (c, ox, oy) = (i % 2, i / 2 % 6, i / 12);
            assert_eq!(*got, x[(oy / 2 * 3 + ox / 2) * 2 + c]);
        }
    }
}
