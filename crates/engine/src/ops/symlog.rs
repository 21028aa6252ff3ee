//! Distributions over evenly spaced symlog values: what one expects, symexp(sum p v), and which two of the values a number lies between. symlog(x) is
//! sign(x) ln(1 + |x|), symexp(x) is sign(x) (exp |x| - 1).

use super::launches;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

/// Where numbers lie among evenly spaced symlog values.
#[derive(Clone, Copy, Debug)]
pub struct SymlogPlace {
    /// Numbers of the values below and above, i32 [..].
    pub values: [Tensor; 2],
    /// How much of the number each has, [..]: both sum to 1.
    pub shares: [Tensor; 2],
}

impl Tape {
    /// Between which two of `values` symlog values, spaced evenly from -limit to limit, x lies: [..]. Without gradient.
    pub fn symlog_place(&mut self, x: Tensor, values: usize, limit: f32) -> Result<SymlogPlace> {
        const OP: &str = "symlog place";
        self.check_f32(OP, &[x])?;
        if values < 2 {
            let (name, value) = ("values", values as f64);
            return Err(Error::BadArgument { op: OP, name, value, rule: "2 or more" });
        }
        let mut places = [self.alloc(x.len(), DType::I32)?, self.alloc(x.len(), DType::I32)?];
        let mut shares = [self.scratch(x.len())?, self.scratch(x.len())?];
        match self.backend() {
            Backend::Cpu => self.cpu_symlog_place(x, values, limit, &mut places, &mut shares),
            Backend::Cuda(gpu) => {
                let [low, high] = places.each_ref().map(Block::at);
                let [low_share, high_share] = shares.each_ref().map(Block::at);
                let (n, grid) = (x.len(), Grid::elements(&gpu, x.len()));
                kernels::symlog_place(
                    &gpu,
                    grid,
                    low,
                    high,
                    low_share,
                    high_share,
                    self.view(x),
                    values,
                    n,
                    limit,
                )?;
            }
        }
        Ok(SymlogPlace {
            values: places.map(|block| self.push(block, x.shape(), DType::I32, false)),
            shares: shares.map(|block| self.push(block, x.shape(), DType::F32, false)),
        })
    }

    fn cpu_symlog_place(
        &self,
        x: Tensor,
        values: usize,
        limit: f32,
        [low, high]: &mut [Block; 2],
        [low_share, high_share]: &mut [Block; 2],
    ) {
        let places = low.all_mut::<i32>().iter_mut().zip(high.all_mut::<i32>());
        let shares = low_share.f32_mut().iter_mut().zip(high_share.f32_mut());
        for ((x, places), shares) in self.f32(x).iter().zip(places).zip(shares) {
            let symlog = x.abs().ln_1p().copysign(*x).clamp(-limit, limit);
            let place = (symlog + limit) * ((values - 1) as f32 / (2.0 * limit));
            let below = place.floor().min((values - 2) as f32);
            (*places.0, *places.1) = (below as i32, below as i32 + 1);
            (*shares.0, *shares.1) = (1.0 - (place - below), place - below);
        }
    }

    /// symexp of the mean under softmax(logits) of values spaced evenly from -limit to limit: logits [.., A] -> [..]. For looking at predictions: no gradient
    /// flows through.
    pub fn symexp_mean(&mut self, logits: Tensor, limit: f32) -> Result<Tensor> {
        const OP: &str = "symexp mean";
        self.check_f32(OP, &[logits])?;
        self.check_not_empty(OP, &[logits])?;
        if logits.shape().last() < 2 {
            return Err(Error::BadShape {
                op: OP,
                shape: logits.shape(),
                rule: "there are two values or more",
            });
        }
        let mut out = self.alloc(logits.shape().rows(), DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_symexp_mean(logits, limit, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_symexp_mean(&gpu, logits, limit, &out)?,
        }
        Ok(self.push(out, logits.shape().without_last(), DType::F32, false))
    }

    fn cpu_symexp_mean(&mut self, logits: Tensor, limit: f32, out: &mut Block) -> Result<()> {
        let values = logits.shape().last();
        let step = 2.0 * limit / (values - 1) as f32;
        let mut probabilities = self.scratch(logits.len())?;
        probabilities.f32_mut()[..logits.len()].copy_from_slice(self.f32(logits));
        for (out, line) in out.f32_mut().iter_mut().zip(probabilities.f32_mut().chunks_exact_mut(values)) {
            super::attention::softmax(line, 1.0);
            let mean: f32 = line.iter().enumerate().map(|(i, p)| p * (i as f32 * step - limit)).sum();
            *out = mean.abs().exp_m1().copysign(mean);
        }
        self.give_back(probabilities);
        Ok(())
    }

    fn gpu_symexp_mean(&mut self, gpu: &Gpu, logits: Tensor, limit: f32, out: &Block) -> Result<()> {
        let (rows, values) = (logits.shape().rows(), logits.shape().last());
        let normaliser = launches::row_normalisers(self, gpu, logits)?;
        let (grid, at) = (Grid::elements(gpu, rows), self.at(normaliser));
        kernels::symexp_mean(gpu, grid, out.at(), self.view(logits), at, values, rows, limit)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{constant, on_tape, values};
    use crate::{Device, Key, Result, Stepper};

    #[test]
    fn numbers_lie_between_two_values() -> Result<()> {
        let device = Device::under_test(1)?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let x = [0.0f32, 1.0, -1.0, 0.3, -7.5, 500.0, 1e9, -1e9];
            let place = constant(tape, &x, [2, 4]);
            let place = tape.symlog_place(place, 11, 5.0)?;
            let (low, high) = (tape.read::<i32>(place.values[0])?, tape.read::<i32>(place.values[1])?);
            let (less, more) = (tape.read::<f32>(place.shares[0])?, tape.read::<f32>(place.shares[1])?);
            for (i, x) in x.iter().enumerate() {
                let symlog = f64::from(x.signum()) * f64::from(x.abs()).ln_1p();
                let mean =
                    f64::from(less[i]) * f64::from(low[i] - 5) + f64::from(more[i]) * f64::from(high[i] - 5);
                assert!((mean - symlog.clamp(-5.0, 5.0)).abs() < 1e-4, "{x}: {mean} for {symlog}");
                assert!((0..10).contains(&low[i]) && high[i] == low[i] + 1);
                assert!((0.0..=1.0).contains(&less[i]) && (less[i] + more[i] - 1.0).abs() < 1e-6);
            }
            let x = constant(tape, &[1.0], [1]);
            assert!(tape.symlog_place(x, 1, 5.0).is_err());
            Ok(())
        })
    }

    #[test]
    fn values_match_the_definition() {
        let logits = values(3 * 5, 0);
        let got = on_tape(&[&[3, 5]], |tape, x| tape.symexp_mean(x[0], 2.0)).unwrap();
        for (line, got) in logits.chunks_exact(5).zip(got) {
            let total: f64 = line.iter().map(|l| f64::from(*l).exp()).sum();
            let terms = line.iter().zip([-2.0, -1.0, 0.0, 1.0, 2.0]);
            let mean: f64 = terms.map(|(l, v)| f64::from(*l).exp() / total * v).sum();
            let expected = mean.signum() * (mean.abs().exp() - 1.0);
            assert!((f64::from(got) - expected).abs() < 1e-5, "{got} for {expected}");
        }
        // Certain of the first value.
        let sure = on_tape(&[], |tape, _| {
            let logits = constant(tape, &[0.0, -100.0, -100.0], [1, 3]);
            tape.symexp_mean(logits, 10.0)
        });
        assert!((sure.unwrap()[0] + 22025.465).abs() < 0.1);
        let error = on_tape(&[&[3, 1]], |tape, x| tape.symexp_mean(x[0], 2.0)).unwrap_err().to_string();
        assert!(error.contains("two values or more"), "{error}");
    }
}
