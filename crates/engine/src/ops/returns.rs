//! Lambda-returns, and which steps of a sequence come before its end.

use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

const OP: &str = "lambda-returns";

impl Tape {
    /// Lambda-returns along time, without gradient: rewards, values [B, T], ends i32 [B, T] -> [B, T].
    ///
    /// R_T = V_T and R_t = r_t + gamma (1 - end_t) ((1 - lambda) V_{t+1} + lambda R_{t+1}).
    pub fn lambda_returns(
        &mut self,
        rewards: Tensor,
        ends: Tensor,
        values: Tensor,
        gamma: f32,
        lambda: f32,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[rewards, values])?;
        self.check(OP, ends, DType::I32)?;
        for other in [ends, values] {
            if other.shape() != rewards.shape() || rewards.shape().rank() != 2 || rewards.len() == 0 {
                let rule = "rewards, ends and values are all [B, T]";
                return Err(Error::ShapeMismatch { op: OP, lhs: rewards.shape(), rhs: other.shape(), rule });
            }
        }
        let mut out = self.alloc(rewards.len(), DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_lambda_returns(rewards, ends, values, gamma, lambda, &mut out),
            Backend::Cuda(gpu) => {
                self.gpu_lambda_returns(&gpu, rewards, ends, values, gamma, lambda, &out)?
            }
        }
        Ok(self.push(out, rewards.shape(), DType::F32, false))
    }

    fn cpu_lambda_returns(
        &self,
        rewards: Tensor,
        ends: Tensor,
        values: Tensor,
        gamma: f32,
        lambda: f32,
        out: &mut Block,
    ) {
        let time = rewards.shape().last();
        let (rewards, ends, values) = (self.f32(rewards), self.i32(ends), self.f32(values));
        for (row, out) in out.f32_mut().chunks_exact_mut(time).enumerate() {
            let (r, e, v) = (&rewards[row * time..], &ends[row * time..], &values[row * time..]);
            out[time - 1] = v[time - 1];
            for t in (0..time - 1).rev() {
                let next = (1.0 - lambda) * v[t + 1] + lambda * out[t + 1];
                out[t] = r[t] + if e[t] == 0 { gamma * next } else { 0.0 };
            }
        }
    }

    fn gpu_lambda_returns(
        &self,
        gpu: &Gpu,
        rewards: Tensor,
        ends: Tensor,
        values: Tensor,
        gamma: f32,
        lambda: f32,
        out: &Block,
    ) -> Result<()> {
        let (rows, time) = (rewards.dims()[0], rewards.shape().last());
        let (r, e, v) = (self.view(rewards), self.at(ends), self.view(values));
        let grid = Grid::elements(gpu, rows);
        kernels::lambda_returns(gpu, grid, out.at(), r, e, v, time, rows, gamma, lambda)
    }

    /// 1 for every step up to and including the first end, 0 after it: ends i32 [B, T] -> [B, T]
    pub fn alive(&mut self, ends: Tensor) -> Result<Tensor> {
        self.check("alive", ends, DType::I32)?;
        let time = ends.shape().last().max(1);
        let mut out = self.alloc(ends.len(), DType::F32)?;
        match self.backend() {
            Backend::Cpu => {
                let rows = out.f32_mut().chunks_exact_mut(time).zip(self.i32(ends).chunks_exact(time));
                for (out, ends) in rows {
                    let last = ends.iter().position(|&e| e != 0).unwrap_or(time);
                    out.iter_mut().enumerate().for_each(|(t, o)| *o = if t <= last { 1.0 } else { 0.0 });
                }
            }
            Backend::Cuda(gpu) => {
                let rows = ends.len() / time;
                kernels::alive(&gpu, Grid::elements(&gpu, rows), out.at(), self.at(ends), time, rows)?;
            }
        }
        Ok(self.push(out, ends.shape(), DType::F32, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{constant, integers};
    use crate::{Device, Key, Stepper};

    #[test]
    fn returns_are_cut_at_ends_and_bootstrapped_at_the_last_step() -> Result<()> {
        let device = Device::under_test(1)?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let rewards = constant(tape, &[1.0, 0.0, 2.0, 1.0, -1.0, 5.0], [2, 3]);
            let values = constant(tape, &[0.5, 1.5, 2.5, 1.0, 2.0, 3.0], [2, 3]);
            let ends = integers(tape, &[0, 0, 0, 0, 1, 0]);
            let ends = tape.reshape(ends, [2, 3])?;
            let alive = tape.alive(ends)?;
            assert_eq!(tape.read::<f32>(alive)?, [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
            let out = tape.lambda_returns(rewards, ends, values, 0.9, 0.8)?;
            let out = tape.read::<f32>(out)?;
            let middle = 0.9 * 2.5;
            let expected = [
                1.0 + 0.9 * (0.2 * 1.5 + 0.8 * middle),
                middle,
                2.5,
                1.0 + 0.9 * (0.2 * 2.0 - 0.8),
                -1.0,
                3.0,
            ];
            for (got, expected) in out.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-6, "{out:?}");
            }
            Ok(())
        })
    }
}
