//! How far every element is from its mean over the first axis: in a batch of frames, what moves.

use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

const CHUNK: usize = 1 << 12;

impl Tape {
    /// |x - mean of x over the first axis|, a constant: no gradient passes.
    pub fn deviation(&mut self, x: Tensor) -> Result<Tensor> {
        const OP: &str = "deviation";
        self.check_f32(OP, &[x])?;
        if x.len() == 0 || x.dims().is_empty() {
            let rule = "x has a first axis and at least one element";
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule });
        }
        let mut out = self.alloc(x.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_deviation(x, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_deviation(&gpu, x, &out)?,
        }
        Ok(self.push(out, x.shape(), x.dtype(), false))
    }

    fn cpu_deviation(&mut self, x: Tensor, out: &mut Block) -> Result<()> {
        let rows = x.dims()[0];
        let n = x.len() / rows;
        let mut means = self.alloc(n, DType::F32)?;
        let xv = self.f32(x);
        cpu::chunks_mut_of(x.len(), means.f32_mut(), CHUNK, |i, means| {
            means.fill(0.0);
            for row in xv.chunks_exact(n) {
                means.iter_mut().zip(&row[i * CHUNK..]).for_each(|(mean, x)| *mean += x);
            }
            means.iter_mut().for_each(|mean| *mean /= rows as f32);
        });
        cpu::chunks_mut(out.f32_mut(), n, |row, out| {
            let pairs = xv[row * n..].iter().zip(means.f32());
            out.iter_mut().zip(pairs).for_each(|(out, (x, mean))| *out = (x - mean).abs());
        });
        self.give_back(means);
        Ok(())
    }

    fn gpu_deviation(&self, gpu: &Gpu, x: Tensor, out: &Block) -> Result<()> {
        let rows = x.dims()[0];
        let n = x.len() / rows;
        // A thread per element.
        let (grid, out) = (Grid::elements(gpu, 4 * n), View::new(out.at(), x.dtype()));
        kernels::deviation(gpu, grid, out, self.view(x), rows, n)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{assert_close, check_gradients, constant, on_tape, values};

    #[test]
    fn elements_are_compared_with_their_mean_over_the_first_axis() {
        for (rows, n) in [(1, 3), (2, 1), (3, 5), (7, 5000)] {
            let (x, dims) = (values(rows * n, 0), [rows, n]);
            let mean = |i: usize| (0..rows).map(|row| x[row * n + i]).sum::<f32>() / rows as f32;
            let expected: Vec<f32> = (0..rows * n).map(|i| (x[i] - mean(i % n)).abs()).collect();
            assert_close(&on_tape(&[&dims], |tape, x| tape.deviation(x[0])).unwrap(), &expected);
        }
        assert!(on_tape(&[&[]], |tape, x| tape.deviation(x[0])).is_err());
    }

    #[test]
    fn as_a_weight_it_is_constant() {
        check_gradients(&[&[3, 4]], |tape, x| {
            let frames = constant(tape, &values(12, 1), [3, 4]);
            let weights = tape.deviation(frames)?;
            let squared = tape.mul(x[0], x[0])?;
            tape.weighted_mean(squared, weights)
        });
    }
}
