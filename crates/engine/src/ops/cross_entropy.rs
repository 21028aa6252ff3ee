//! Mean cross-entropy of softmax(logits) with integer labels.

use super::{Backward, launches};
use crate::backend::Backend;
use crate::cpu::{self, math, multiversion};
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct CrossEntropy {
    logits: Tensor,
    labels: Tensor,
    saved: Saved,
    out: Tensor,
}

/// What the gradient needs beside the inputs.
struct Saved {
    /// The logarithm of each row's softmax denominator.
    normaliser: Tensor,
    /// Labels that count.
    counted: Tensor,
}

const OP: &str = "cross-entropy";

impl Tape {
    /// Mean over the rows whose label is not negative: logits [.., C], labels i32 [..] -> scalar. A negative label means "ignore"; if all
    /// are, the loss is 0.
    pub fn cross_entropy(&mut self, logits: Tensor, labels: Tensor) -> Result<Tensor> {
        self.check_f32(OP, &[logits])?;
        self.check_not_empty(OP, &[logits])?;
        self.check(OP, labels, DType::I32)?;
        if logits.shape().rank() == 0 || labels.shape() != logits.shape().without_last() {
            let rule = "logits are [.., C] and labels [..]";
            return Err(Error::ShapeMismatch { op: OP, lhs: logits.shape(), rhs: labels.shape(), rule });
        }
        let (out, saved) = match self.backend() {
            Backend::Cpu => self.cpu_cross_entropy(logits, labels)?,
            Backend::Cuda(gpu) => self.gpu_cross_entropy(&gpu, logits, labels)?,
        };
        let needs_grad = self.needs_grad(logits);
        let out = self.push(out, [], DType::F32, needs_grad);
        if needs_grad {
            self.record(CrossEntropy { logits, labels, saved, out });
        }
        Ok(out)
    }

    fn cpu_cross_entropy(&mut self, logits: Tensor, labels: Tensor) -> Result<(Block, Saved)> {
        let (rows, classes) = (logits.shape().rows(), logits.shape().last());
        let labels_v = self.i32(labels);
        if let Some(position) = labels_v.iter().position(|&l| l >= classes as i32) {
            let index = i64::from(labels_v[position]);
            return Err(Error::IndexOutOfRange { op: OP, index, position, limit: classes });
        }
        let mut normaliser = self.alloc(rows, DType::F32)?;
        let logits_v = self.f32(logits);
        const ROWS: usize = 64;
        cpu::chunks_mut_of(rows * classes, normaliser.f32_mut(), ROWS, |i, out| {
            for (r, out) in out.iter_mut().enumerate() {
                let row = i * ROWS + r;
                *out = log_sum_exp(&logits_v[row * classes..(row + 1) * classes]);
            }
        });
        let (mut sum, mut count) = (0.0f64, 0usize);
        for (row, &label) in self.i32(labels).iter().enumerate() {
            if label >= 0 {
                sum += f64::from(normaliser.f32()[row] - logits_v[row * classes + label as usize]);
                count += 1;
            }
        }
        let (mut out, mut counted) = (self.alloc(1, DType::F32)?, self.alloc(1, DType::F32)?);
        out.f32_mut()[0] = (sum / count.max(1) as f64) as f32;
        counted.f32_mut()[0] = count as f32;
        let normaliser = self.push(normaliser, [rows], DType::F32, false);
        let counted = self.push(counted, [1], DType::F32, false);
        Ok((out, Saved { normaliser, counted }))
    }

    fn gpu_cross_entropy(&mut self, gpu: &Gpu, logits: Tensor, labels: Tensor) -> Result<(Block, Saved)> {
        let (rows, classes) = (logits.shape().rows(), logits.shape().last());
        launches::check_indices(self, gpu, OP, labels, i32::MIN, classes)?;
        let normaliser = launches::row_normalisers(self, gpu, logits)?;
        let (out, counted) = (self.alloc(1, DType::F32)?, self.alloc(1, DType::F32)?);
        let count = Grid::parts(gpu, rows);
        let sums = self.scratch(4 * count)?;
        let (grid, logits, labels) = (Grid::blocks(count), self.view(logits), self.at(labels));
        kernels::cross_entropy(gpu, grid, logits, labels, self.at(normaliser), sums.at(), rows, classes)?;
        kernels::mean_of_parts(gpu, Grid::blocks(1), sums.at(), count, out.at(), counted.at())?;
        self.give_back(sums);
        let counted = self.push(counted, [1], DType::F32, false);
        Ok((out, Saved { normaliser, counted }))
    }
}

impl Backward for CrossEntropy {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.logits),
            |tape, dy, grad| self.cpu_gradient(tape, dy, grad),
            |tape, gpu, dy, grad| self.gpu_gradient(tape, gpu, dy, grad),
        )
    }
}

impl CrossEntropy {
    fn cpu_gradient(&self, tape: &Tape, dy: &Block, grad: &mut Grad) {
        let (classes, accumulate) = (self.logits.shape().last(), grad.accumulate);
        let weight = dy.f32()[0] / tape.f32(self.saved.counted)[0].max(1.0);
        let (logits, labels) = (tape.f32(self.logits), tape.i32(self.labels));
        let normaliser = tape.f32(self.saved.normaliser);
        cpu::chunks_mut(grad.slice(), classes, |row, grad| {
            let line = &logits[row * classes..(row + 1) * classes];
            if !accumulate {
                grad.fill(0.0);
            }
            if let Ok(label) = usize::try_from(labels[row]) {
                add_softmax(line, normaliser[row], weight, grad);
                grad[label] -= weight;
            }
        });
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (n, classes) = (self.logits.len(), self.logits.shape().last());
        kernels::cross_entropy_gradient(
            gpu,
            Grid::elements(gpu, n),
            grad.view(),
            tape.view(self.logits),
            tape.at(self.labels),
            tape.at(self.saved.normaliser),
            tape.at(self.saved.counted),
            dy.at(),
            classes,
            n,
            grad.accumulate,
        )
    }
}

multiversion! {
    fn log_sum_exp(x: &[f32]) -> f32 {
        let max = x.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        let mut sums = [0.0f32; 16];
        let (chunks, rest) = x.as_chunks::<16>();
        for chunk in chunks {
            for l in 0..16 {
                sums[l] += math::exp(chunk[l] - max);
            }
        }
        let sum = sums.iter().sum::<f32>() + rest.iter().map(|x| math::exp(x - max)).sum::<f32>();
        max + sum.ln()
    }
}

multiversion! {
    /// out += weight * exp(x - normaliser)
    fn add_softmax(x: &[f32], normaliser: f32, weight: f32, out: &mut [f32]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o += weight * math::exp(x - normaliser);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, integers, values};
    use crate::{Device, Key, Stepper};

    #[test]
    fn gradients() {
        for (classes, given) in
            [(1, vec![0]), (5, vec![4, -100, 0]), (70, vec![-1, 69, 3, 3]), (3, vec![-100, -100])]
        {
            check_gradients(&[&[given.len(), classes]], |tape, x| {
                let labels = integers(tape, &given);
                tape.cross_entropy(x[0], labels)
            });
        }
    }

    #[test]
    fn ignored_rows_do_not_count_and_nan_and_huge_logits_keep_their_meaning() -> Result<()> {
        let device = Device::under_test(1)?;
        let buffer = device.buffer::<f32>("logits", [3, 4])?;
        buffer.write(&[1e4f32, 0.0, 0.0, -1e4, 0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0, 0.0])?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let logits = tape.buffer(&buffer)?;
            let given = integers(tape, &[0, 2, -100]);
            let loss = tape.cross_entropy(logits, given)?;
            assert!((tape.read::<f32>(loss)?[0] - 4f32.ln() / 2.0).abs() < 1e-6);
            let given = integers(tape, &[-1, -1, -1]);
            let loss = tape.cross_entropy(logits, given)?;
            assert_eq!(tape.read::<f32>(loss)?, vec![0.0]);
            let given = integers(tape, &[0, 2, 1]);
            let loss = tape.cross_entropy(logits, given)?;
            assert!(tape.read::<f32>(loss)?[0].is_nan());
            Ok(())
        })
    }

    #[test]
    fn bad_labels_are_errors() -> Result<()> {
        let device = Device::under_test(1)?;
        let buffer = device.buffer::<f32>("logits", [2, 3])?;
        buffer.write(&values(6, 0))?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let logits = tape.buffer(&buffer)?;
            let given = integers(tape, &[0, 3]);
            assert_eq!(
                tape.cross_entropy(logits, given).and_then(|l| tape.read::<f32>(l)).unwrap_err().to_string(),
                "cross-entropy: index 3 at position 1 is outside 0..3"
            );
            let given = integers(tape, &[0, 1, 2]);
            assert!(matches!(tape.cross_entropy(logits, given), Err(Error::ShapeMismatch { .. })));
            Ok(())
        })
    }
}
