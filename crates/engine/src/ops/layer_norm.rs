//! Layer-norm: (x - mean) / sqrt(variance + epsilon) * gain + shift of each row.

use super::Backward;
use crate::backend::Backend;
use crate::cpu::math::lane_sum;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct LayerNorm {
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    /// (mean, 1 / standard deviation) of each row.
    statistics: Tensor,
    out: Tensor,
}

const OP: &str = "layer-norm";

/// A kernel for the gradients of x, gain and shift.
type Gradients = fn(&Gpu, Grid, View, View, View, u64, u64, u64, usize, usize, bool) -> Result<()>;

/// Rows per task; gradients of gain and shift are summed within one, then over tasks.
const ROWS: usize = 64;

impl Tape {
    /// (x - mean) / sqrt(variance + epsilon) * gain + shift over the last dimension: x [.., D], gain and shift `[D]` -> [.., D]
    pub fn layer_norm(&mut self, x: Tensor, gain: Tensor, shift: Tensor, epsilon: f32) -> Result<Tensor> {
        self.check_f32(OP, &[x])?;
        self.check_exact(OP, &[gain, shift])?;
        self.check_not_empty(OP, &[x])?;
        let (rows, width) = (x.shape().rows(), x.shape().last());
        for parameter in [gain, shift] {
            if x.shape().rank() == 0 || parameter.dims() != [width] {
                let rule = "x is [.., D], gain and shift [D]";
                return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: parameter.shape(), rule });
            }
        }
        let dtype = self.float();
        let mut out = self.alloc(x.len(), dtype)?;
        let mut statistics = self.alloc(2 * rows, DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_layer_norm(x, gain, shift, epsilon, &mut out, &mut statistics),
            Backend::Cuda(gpu) => self.gpu_layer_norm(&gpu, x, gain, shift, epsilon, &out, &statistics)?,
        }
        let needs_grad = self.any_needs_grad(&[x, gain, shift]);
        let statistics = self.push(statistics, [rows, 2], DType::F32, false);
        let out = self.push(out, x.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(LayerNorm { x, gain, shift, statistics, out });
        }
        Ok(out)
    }

    fn cpu_layer_norm(
        &self,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        epsilon: f32,
        out: &mut Block,
        statistics: &mut Block,
    ) {
        let width = x.shape().last();
        let (xv, gain, shift) = (self.f32(x), self.f32(gain), self.f32(shift));
        let (out, statistics) = ((out.f32_mut(), ROWS * width), (statistics.f32_mut(), 2 * ROWS));
        cpu::chunks2_mut(out, statistics, |i, out, statistics| {
            let x = &xv[i * ROWS * width..];
            let rows = out.chunks_exact_mut(width).zip(statistics.chunks_exact_mut(2));
            for (r, (out, statistics)) in rows.enumerate() {
                let x = &x[r * width..(r + 1) * width];
                (statistics[0], statistics[1]) = normalise(x, gain, shift, epsilon, out);
            }
        });
    }

    fn gpu_layer_norm(
        &self,
        gpu: &Gpu,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        epsilon: f32,
        out: &Block,
        statistics: &Block,
    ) -> Result<()> {
        let (rows, width) = (x.shape().rows(), x.shape().last());
        let (grid, to) = (Grid::warps(gpu, rows), View::new(out.at(), self.float()));
        let (gain, shift) = (self.at(gain), self.at(shift));
        kernels::layer_norm(gpu, grid, to, statistics.at(), self.view(x), gain, shift, rows, width, epsilon)
    }
}

impl Backward for LayerNorm {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
    }
}

impl LayerNorm {
    fn cpu_backward(&self, tape: &mut Tape, dy: &Block) -> Result<()> {
        let (rows, width) = (self.x.shape().rows(), self.x.shape().last());
        let mut parts = tape.scratch(rows.div_ceil(ROWS) * 2 * width)?;
        {
            let (x, statistics) = (tape.f32(self.x), tape.f32(self.statistics));
            cpu::chunks_mut_of(rows * width, parts.f32_mut(), 2 * width, |i, part| {
                part.fill(0.0);
                let (shift, gain) = part.split_at_mut(width);
                for row in i * ROWS..rows.min((i + 1) * ROWS) {
                    let range = row * width..(row + 1) * width;
                    let dy = &dy.f32()[range.clone()];
                    let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
                    parameter_gradients(&x[range], dy, mean, inverse, gain, shift);
                }
            });
        }
        if let Some(mut dx) = tape.grad(self.x)? {
            let accumulate = dx.accumulate;
            let (x, gain, statistics) = (tape.f32(self.x), tape.f32(self.gain), tape.f32(self.statistics));
            cpu::chunks_mut(dx.slice(), ROWS * width, |i, dx| {
                for (r, dx) in dx.chunks_exact_mut(width).enumerate() {
                    let row = i * ROWS + r;
                    let range = row * width..(row + 1) * width;
                    let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
                    input_gradient(&x[range.clone()], &dy.f32()[range], gain, mean, inverse, accumulate, dx);
                }
            });
            tape.put_grad(dx);
        }
        tape.add_parts(parts.f32(), [self.shift, self.gain])?;
        tape.give_back(parts);
        Ok(())
    }

    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let (rows, width) = (self.x.shape().rows(), self.x.shape().last());
        // Two blocks per multiprocessor: each keeps sums for every column.
        let blocks = rows.div_ceil(32).clamp(1, 2 * gpu.processors());
        let parts = tape.scratch(blocks * 2 * width)?;
        let (d, statistics) = (View::new(dy.at(), self.out.dtype()), tape.at(self.statistics));
        let (x, gain) = (tape.view(self.x), tape.at(self.gain));
        let dx = tape.grad(self.x)?;
        if let (Some(dx), true) = (&dx, width % 128 == 0 && width <= 512) {
            let (threads, kernel) = match width {
                ..=256 => (512, kernels::layer_norm_gradients_256 as Gradients),
                _ => (256, kernels::layer_norm_gradients_512 as Gradients),
            };
            let grid = Grid { threads, ..Grid::blocks(blocks) };
            kernel(gpu, grid, dx.view(), x, d, statistics, gain, parts.at(), rows, width, dx.accumulate)?;
        } else {
            let grid = Grid { threads: width.next_multiple_of(32).min(256), ..Grid::blocks(blocks) };
            kernels::layer_norm_shares(gpu, grid, x, d, statistics, parts.at(), rows, width)?;
            if let Some(dx) = &dx {
                let (grid, to, add) = (Grid::warps(gpu, rows), dx.view(), dx.accumulate);
                kernels::layer_norm_gradient(gpu, grid, to, x, d, statistics, gain, rows, width, add)?;
            }
        }
        dx.into_iter().for_each(|dx| tape.put_grad(dx));
        tape.add_sums(gpu, parts, blocks, &[self.shift, self.gain])
    }
}

multiversion! {
    fn normalise(x: &[f32], gain: &[f32], shift: &[f32], epsilon: f32, out: &mut [f32]) -> (f32, f32) {
        let width = x.len() as f32;
        let mean = lane_sum(x.len(), |i| x[i]) / width;
        let variance = lane_sum(x.len(), |i| (x[i] - mean) * (x[i] - mean)) / width;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (((o, x), g), s) in out.iter_mut().zip(x).zip(gain).zip(shift) {
            *o = (x - mean) * inverse * g + s;
        }
        (mean, inverse)
    }
}

multiversion! {
    fn parameter_gradients(x: &[f32], dy: &[f32], mean: f32, inverse: f32, gain: &mut [f32], shift: &mut [f32]) {
        for (((g, s), x), dy) in gain.iter_mut().zip(shift.iter_mut()).zip(x).zip(dy) {
            *g += dy * (x - mean) * inverse;
            *s += dy;
        }
    }
}

multiversion! {
    fn input_gradient(x: &[f32], dy: &[f32], gain: &[f32], mean: f32, inverse: f32, accumulate: bool, dx: &mut [f32]) {
        let (x, gain) = (&x[..dy.len()], &gain[..dy.len()]);
        let width = dy.len() as f32;
        let s1 = lane_sum(dy.len(), |i| dy[i] * gain[i]) / width;
        let s2 = lane_sum(dy.len(), |i| dy[i] * gain[i] * (x[i] - mean)) * inverse / width;
        for i in 0..dx.len() {
            let value = inverse * (dy[i] * gain[i] - s1 - (x[i] - mean) * inverse * s2);
            dx[i] = if accumulate { dx[i] + value } else { value };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape};

    #[test]
    fn gradients() {
        for (rows, width) in [(1, 2), (3, 7), (70, 33), (65, 128), (700, 256), (65, 384), (33, 640)] {
            check_gradients(&[&[rows, width], &[width], &[width]], |tape, x| {
                tape.layer_norm(x[0], x[1], x[2], 1e-5)
            });
        }
        check_gradients(&[&[2, 3, 4], &[4], &[4]], |tape, x| {
            let y = tape.layer_norm(x[0], x[1], x[2], 1e-5)?;
            tape.add(y, x[0])
        });
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[2, 3], &[2], &[3]], |tape, x| tape.layer_norm(x[0], x[1], x[2], 1e-5));
        assert_eq!(
            error.unwrap_err().to_string(),
            "layer-norm: shapes [2, 3] and [2] do not fit: x is [.., D], gain and shift [D]"
        );
    }
}
