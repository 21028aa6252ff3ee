//! What a distribution over evenly spaced symlog values expects: symexp(sum p v), with symexp(x) = sign(x) (exp |x| - 1).

use super::launches;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

impl Tape {
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
