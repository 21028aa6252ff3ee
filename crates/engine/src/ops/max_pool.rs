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
            pool_line(above, channels, out, taken);
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
            spread_line(&dy.f32()[range.clone()], &taken[range], channels, accumulate, dx);
        });
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, dx: &Grad) -> Result<()> {
        let (n, width, channels) = (self.x.len(), self.x.dims()[2], self.x.dims()[3]);
        let (dy, taken) = (View::new(dy.at(), self.out.dtype()), tape.at(self.taken));
        let grid = Grid::elements(gpu, n);
        kernels::max_pool_gradient(gpu, grid, dx.view(), dy, taken, width, channels, n, dx.accumulate)
    }
}

/// Channels at a time, in registers.
const LANES: usize = 16;

/// Calls `f(start, length)` for the channels, whole vectors of them first.
#[inline(always)]
fn for_lanes(channels: usize, mut f: impl FnMut(usize, usize)) {
    let whole = channels - channels % LANES;
    for first in (0..whole).step_by(LANES) {
        f(first, LANES);
    }
    for c in whole..channels {
        f(c, 1);
    }
}

cpu::multiversion! {
    /// Two lines of pixels, one after the other, to one.
    fn pool_line(above: &[f32], channels: usize, out: &mut [f32], taken: &mut [u8]) {
        let (top, bottom) = above.split_at(above.len() / 2);
        let pixels = out.chunks_exact_mut(channels).zip(taken.chunks_exact_mut(channels));
        let pairs = top.chunks_exact(2 * channels).zip(bottom.chunks_exact(2 * channels));
        for ((out, taken), (top, bottom)) in pixels.zip(pairs) {
            let ((a, b), (c, d)) = (top.split_at(channels), bottom.split_at(channels));
            for_lanes(channels, |first, len| {
                let lanes = first..first + len;
                let mut best = [0.0; LANES];
                let mut index = [0; LANES];
                best[..len].copy_from_slice(&a[lanes.clone()]);
                for (i, quarter) in [(1, b), (2, c), (3, d)] {
                    for ((best, index), &x) in best.iter_mut().zip(&mut index).zip(&quarter[lanes.clone()]) {
                        // NaN wins, so that it is not lost.
                        let larger = x > *best || x.is_nan();
                        *best = if larger { x } else { *best };
                        *index = if larger { i } else { *index };
                    }
                }
                out[lanes.clone()].copy_from_slice(&best[..len]);
                taken[lanes].iter_mut().zip(&index).for_each(|(t, i): (_, &i32)| *t = *i as u8);
            });
        }
    }
}

cpu::multiversion! {
    /// The gradient of one line to that of the two lines it came from.
    fn spread_line(dy: &[f32], taken: &[u8], channels: usize, accumulate: bool, dx: &mut [f32]) {
        let (top, bottom) = dx.split_at_mut(dx.len() / 2);
        let pixels = dy.chunks_exact(channels).zip(taken.chunks_exact(channels));
        let pairs = top.chunks_exact_mut(2 * channels).zip(bottom.chunks_exact_mut(2 * channels));
        for ((dy, taken), (top, bottom)) in pixels.zip(pairs) {
            let ((a, b), (c, d)) = (top.split_at_mut(channels), bottom.split_at_mut(channels));
            for (i, dx) in [a, b, c, d].into_iter().enumerate() {
                for_lanes(channels, |first, len| {
                    let lanes = first..first + len;
                    let sources = dy[lanes.clone()].iter().zip(&taken[lanes.clone()]);
                    for (d, (g, t)) in dx[lanes].iter_mut().zip(sources) {
                        let value = if i32::from(*t) == i as i32 { *g } else { 0.0 };
                        *d = if accumulate { *d + value } else { value };
                    }
                });
            }
        }
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
