//! 2x2 maximum, stride 2.

use super::Backward;
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct MaxPool {
    x: Tensor,
    /// Which of the four was taken, the first of equals.
    taken: Tensor,
    out: Tensor,
}

const OP: &str = "max-pool";

impl Tape {
    /// The maximum of every 2x2 block: [B, H, W, C] -> [B, H/2, W/2, C]
    pub fn max_pool(&mut self, x: Tensor) -> Result<Tensor> {
        self.check_f32(OP, &[x])?;
        self.check_not_empty(OP, &[x])?;
        let &[batch, height, width, channels] = x.dims() else {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "x is [B, H, W, C]" });
        };
        if height % 2 == 1 || width % 2 == 1 {
            let rule = "height and width are even";
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule });
        }
        let shape = [batch, height / 2, width / 2, channels];
        let len = shape.iter().product();
        let mut out = self.alloc(len, x.dtype())?;
        let mut taken = self.alloc(len, DType::U8)?;
        match self.backend() {
            Backend::Cpu => self.cpu_max_pool(x, &mut out, &mut taken),
            Backend::Cuda(gpu) => self.gpu_max_pool(&gpu, x, &out, &taken)?,
        }
        let needs_grad = self.needs_grad(x);
        let taken = self.push(taken, shape, DType::U8, false);
        let out = self.push(out, shape, x.dtype(), needs_grad);
        if needs_grad {
            self.record(MaxPool { x, taken, out });
        }
        Ok(out)
    }

    fn cpu_max_pool(&self, x: Tensor, out: &mut Block, taken: &mut Block) {
        let (width, channels) = (x.dims()[2], x.dims()[3]);
        let (xv, line) = (self.f32(x), width / 2 * channels);
        cpu::chunks2_mut((out.f32_mut(), line), (taken.all_mut::<u8>(), line), |row, out, taken| {
            let above = &xv[row * 2 * width * channels..(row + 1) * 2 * width * channels];
            let pixels = out.chunks_exact_mut(channels).zip(taken.chunks_exact_mut(channels));
            for (ox, (out, taken)) in pixels.enumerate() {
                let corner = 2 * ox * channels;
                let at: [&[f32]; 4] = [0, channels, width * channels, width * channels + channels]
                    .map(|o| &above[corner + o..corner + o + channels]);
                for c in 0..channels {
                    let (mut best, mut index) = (at[0][c], 0);
                    for (i, quarter) in at.iter().enumerate().skip(1) {
                        // NaN wins, so that it is not lost.
                        let larger = quarter[c] > best || quarter[c].is_nan();
                        best = if larger { quarter[c] } else { best };
                        index = if larger { i as u8 } else { index };
                    }
                    out[c] = best;
                    taken[c] = index;
                }
            }
        });
    }

    fn gpu_max_pool(&self, gpu: &Gpu, x: Tensor, out: &Block, taken: &Block) -> Result<()> {
        let (n, out_width, channels) = (x.len() / 4, x.dims()[2] / 2, x.dims()[3]);
        let (grid, to) = (Grid::elements(gpu, n), View::new(out.at(), x.dtype()));
        kernels::max_pool(gpu, grid, to, taken.at(), self.view(x), out_width, channels, n)
    }
}

impl Backward for MaxPool {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.x),
            |tape, dy, dx| self.cpu_gradient(tape, dy, dx),
            |tape, gpu, dy, dx| self.gpu_gradient(tape, gpu, dy, dx),
        )
    }
}

impl MaxPool {
    fn cpu_gradient(&self, tape: &Tape, dy: &Block, dx: &mut Grad) {
        let (width, channels) = (self.x.dims()[2], self.x.dims()[3]);
        let (line, accumulate) = (width / 2 * channels, dx.accumulate);
        let taken = tape.u8(self.taken);
        cpu::chunks_mut(dx.slice(), 2 * width * channels, |row, dx| {
            let range = row * line..(row + 1) * line;
            let (dy, taken) = (&dy.f32()[range.clone()], &taken[range]);
            let (top, bottom) = dx.split_at_mut(width * channels);
            for ox in 0..width / 2 {
                for (part, dx) in [&mut *top, &mut *bottom].into_iter().enumerate() {
                    for side in 0..2 {
                        let index = (2 * part + side) as u8;
                        let dx = &mut dx[(2 * ox + side) * channels..][..channels];
                        let source = ox * channels..(ox + 1) * channels;
                        for ((d, g), t) in dx.iter_mut().zip(&dy[source.clone()]).zip(&taken[source]) {
                            let value = if *t == index { *g } else { 0.0 };
                            *d = if accumulate { *d + value } else { value };
                        }
                    }
                }
            }
        });
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, dx: &Grad) -> Result<()> {
        let (n, width, channels) = (self.x.len(), self.x.dims()[2], self.x.dims()[3]);
        let (dy, taken) = (View::new(dy.at(), self.out.dtype()), tape.at(self.taken));
        let grid = Grid::elements(gpu, n);
        kernels::max_pool_gradient(gpu, grid, dx.view(), dy, taken, width, channels, n, dx.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        for (batch, height, width, channels) in [(1, 2, 2, 1), (2, 4, 6, 3), (3, 2, 8, 17)] {
            check_gradients(&[&[batch, height, width, channels]], |tape, x| tape.max_pool(x[0]));
        }
    }

    #[test]
    fn takes_the_largest_of_each_block() {
        let x = values(2 * 4 * 6 * 3, 0);
        let out = on_tape(&[&[2, 4, 6, 3]], |tape, x| tape.max_pool(x[0])).unwrap();
        for (i, got) in out.iter().enumerate() {
            let (c, ox, row) = (i % 3, i / 3 % 3, i / 9);
            let at = |dy: usize, dx: usize| x[((2 * row + dy) * 6 + 2 * ox + dx) * 3 + c];
            assert_eq!(*got, at(0, 0).max(at(0, 1)).max(at(1, 0)).max(at(1, 1)));
        }
    }

    #[test]
    fn odd_sizes_are_errors() {
        let error = on_tape(&[&[1, 3, 4, 2]], |tape, x| tape.max_pool(x[0])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "max-pool: cannot take a tensor of shape [1, 3, 4, 2]: height and width are even"
        );
    }
}
