//! Finite scalar quantisation: each number becomes the nearest of a few levels; its gradient passes straight through.
//!
//! digit = round((tanh y + 1) / 2 * (L - 1)), from 0 to L - 1, stands for the level 2 digit / (L - 1) - 1. The C digits of a row make its token, in
//! base L, the first digit least. There is no codebook: every token is in use as soon as inputs spread.

use super::Backward;
use super::embedding::check_indices;
use crate::backend::Backend;
use crate::cpu::{self, math};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Shape, Tape, Tensor};

/// Rows of numbers, each rounded to a level.
#[derive(Clone, Copy, Debug)]
pub struct Levelled {
    /// Which levels, i32 [..].
    pub tokens: Tensor,
    /// The levels themselves, [.., C], from -1 to 1. Their gradient reaches the input as if they were tanh y.
    pub levels: Tensor,
}

pub(crate) struct Fsq {
    y: Tensor,
    levels: Tensor,
}

const OP: &str = "finite scalar quantisation";
/// Rows per task.
const CHUNK: usize = 1 << 12;

/// The number of tokens, L^C, which must be an i32.
fn check_levels(levels: usize, channels: usize, shape: Shape) -> Result<usize> {
    let power = u32::try_from(channels).ok().and_then(|channels| levels.checked_pow(channels));
    match power.filter(|tokens| levels >= 2 && channels > 0 && i32::try_from(*tokens).is_ok()) {
        Some(tokens) => Ok(tokens),
        None => {
            let rule = "there are two levels or more, and their combinations have numbers of 31 bits";
            Err(Error::BadShape { op: OP, shape, rule })
        }
    }
}

impl Tape {
    /// Rounds every number to one of `levels` levels: y [.., C].
    pub fn fsq(&mut self, y: Tensor, levels: usize) -> Result<Levelled> {
        self.check_f32(OP, &[y])?;
        self.check_not_empty(OP, &[y])?;
        check_levels(levels, y.shape().last(), y.shape())?;
        let dtype = self.float();
        let mut tokens = self.alloc(y.shape().rows(), DType::I32)?;
        let mut out = self.alloc(y.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_fsq(y, levels, &mut tokens, &mut out),
            Backend::Cuda(gpu) => self.gpu_fsq(&gpu, y, levels, &tokens, &out)?,
        }
        let needs_grad = self.needs_grad(y);
        let tokens = self.push(tokens, y.shape().without_last(), DType::I32, false);
        let levels = self.push(out, y.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(Fsq { y, levels });
        }
        Ok(Levelled { tokens, levels })
    }

    fn cpu_fsq(&self, y: Tensor, levels: usize, tokens: &mut Block, out: &mut Block) {
        let (channels, yv) = (y.shape().last(), self.f32(y));
        let top = (levels - 1) as f32;
        let (tokens, out) = (tokens.all_mut::<i32>(), out.f32_mut());
        let rows = yv.chunks_exact(channels).zip(out.chunks_exact_mut(channels));
        for (token, (y, out)) in tokens.iter_mut().zip(rows) {
            let (mut number, mut place) = (0, 1);
            for (y, out) in y.iter().zip(out) {
                let digit = ((math::tanh(*y) + 1.0) * 0.5 * top + 0.5).floor().clamp(0.0, top);
                *out = level(digit, top);
                number += digit as i32 * place;
                place *= levels as i32;
            }
            *token = number;
        }
    }

    fn gpu_fsq(&self, gpu: &Gpu, y: Tensor, levels: usize, tokens: &Block, out: &Block) -> Result<()> {
        let (rows, channels) = (y.shape().rows(), y.shape().last());
        let to = View::new(out.at(), self.float());
        kernels::fsq(gpu, Grid::elements(gpu, rows), to, tokens.at(), self.view(y), levels, channels, rows)
    }

    /// The levels that tokens stand for: i32 [..] -> [.., C]
    pub fn fsq_levels(&mut self, tokens: Tensor, levels: usize, channels: usize) -> Result<Tensor> {
        self.check(OP, tokens, DType::I32)?;
        let limit = check_levels(levels, channels, tokens.shape())?;
        let shape = tokens.shape().appended(channels)?;
        let dtype = self.float();
        let mut out = self.alloc(shape.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_fsq_levels(tokens, levels, channels, limit, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_fsq_levels(&gpu, tokens, levels, channels, limit, &out)?,
        }
        Ok(self.push(out, shape, dtype, false))
    }

    fn cpu_fsq_levels(
        &self,
        tokens: Tensor,
        levels: usize,
        channels: usize,
        limit: usize,
        out: &mut Block,
    ) -> Result<()> {
        let tokens = self.i32(tokens);
        check_indices(OP, tokens, limit)?;
        for (token, out) in tokens.iter().zip(out.f32_mut().chunks_exact_mut(channels)) {
            let mut rest = *token as usize;
            for out in out {
                *out = level((rest % levels) as f32, (levels - 1) as f32);
                rest /= levels;
            }
        }
        Ok(())
    }

    fn gpu_fsq_levels(
        &self,
        gpu: &Gpu,
        tokens: Tensor,
        levels: usize,
        channels: usize,
        limit: usize,
        out: &Block,
    ) -> Result<()> {
        let (rows, to, at) = (tokens.len(), View::new(out.at(), self.float()), self.at(tokens));
        super::launches::check_indices(self, gpu, OP, tokens, 0, limit)?;
        kernels::fsq_levels(gpu, Grid::elements(gpu, rows), to, at, levels, channels, rows)
    }
}

/// What a digit from 0 to `top` stands for.
fn level(digit: f32, top: f32) -> f32 {
    2.0 * digit / top - 1.0
}

impl Backward for Fsq {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Fsq { y, levels } = self;
        tape.pass_gradient(
            (levels, y),
            |tape, dy, grad| {
                let (yv, accumulate) = (tape.f32(y), grad.accumulate);
                cpu::chunks_mut(grad.slice(), CHUNK, |i, grad| {
                    let from = i * CHUNK..i * CHUNK + grad.len();
                    for ((g, d), y) in grad.iter_mut().zip(&dy.f32()[from.clone()]).zip(&yv[from]) {
                        let bounded = math::tanh(*y);
                        let d = d * (1.0 - bounded * bounded);
                        *g = if accumulate { *g + d } else { d };
                    }
                });
            },
            |tape, gpu, dy, grad| {
                let (n, d, x) = (y.len(), View::new(dy.at(), levels.dtype()), tape.view(y));
                kernels::fsq_gradient(gpu, Grid::elements(gpu, n), grad.view(), d, x, n, grad.accumulate)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, gradients as gradients_of, integers, on_tape, values};

    /// Straight through: that of tanh, not of the steps, so checked against the formula.
    #[test]
    fn gradients() -> Result<()> {
        for dims in [[5, 3], [1, 1], [3000, 2]] {
            let count = dims[0] * dims[1];
            let (y, seed) = (values(count, 0), values(count, 1));
            let got = gradients_of(&[&dims], &seed, |tape, x| Ok(tape.fsq(x[0], 5)?.levels))?;
            let expected: Vec<f32> = y.iter().zip(&seed).map(|(y, d)| d * (1.0 - y.tanh().powi(2))).collect();
            assert_close(&got[0], &expected);
        }
        Ok(())
    }

    #[test]
    fn numbers_become_the_nearest_levels_and_tokens_their_digits() -> Result<()> {
        for (levels, channels) in [(8, 3), (2, 5), (5, 1), (3, 4)] {
            let (rows, top) = (50, (levels - 1) as f32);
            on_tape(&[&[rows, channels]], |tape, x| {
                let y = tape.affine(x[0], 3.0, 0.0)?;
                let quantised = tape.fsq(y, levels)?;
                let again = tape.fsq_levels(quantised.tokens, levels, channels)?;
                let (got, again) = (tape.read::<f32>(quantised.levels)?, tape.read::<f32>(again)?);
                let (tokens, seen) = (tape.read::<i32>(quantised.tokens)?, tape.read::<f32>(y)?);
                assert_eq!(quantised.tokens.dims(), [rows]);
                assert_eq!(got, again);
                for (row, token) in tokens.iter().enumerate() {
                    let mut number = 0;
                    for c in (0..channels).rev() {
                        let at = row * channels + c;
                        let digit = (got[at] + 1.0) / 2.0 * top;
                        assert!((digit - digit.round()).abs() < 0.02, "{}", got[at]);
                        // No other level is nearer, but for what a device rounds.
                        assert!((seen[at].tanh() - got[at]).abs() < (1.0 / top) + 0.01);
                        number = number * levels as i32 + digit.round() as i32;
                    }
                    assert_eq!(*token, number);
                }
                tape.affine(y, 1.0, 0.0)
            })?;
        }
        // The ends and the middle of three levels.
        let out = on_tape(&[], |tape, _| {
            let y = crate::testing::constant(tape, &[-9.0, 0.01, 9.0, 0.6], [4]);
            let y = tape.reshape(y, [2, 2])?;
            let quantised = tape.fsq(y, 3)?;
            assert_eq!(tape.read::<i32>(quantised.tokens)?, [3, 8]);
            Ok(quantised.levels)
        })?;
        assert_eq!(out, [-1.0, 0.0, 1.0, 1.0]);
        Ok(())
    }

    #[test]
    fn tokens_and_levels_that_do_not_exist_are_errors() {
        for (levels, channels) in [(1, 3), (8, 11), (3, 0)] {
            let error = on_tape(&[], |tape, _| {
                let tokens = integers(tape, &[0]);
                tape.fsq_levels(tokens, levels, channels)
            });
            assert!(matches!(error, Err(Error::BadShape { .. })));
        }
        for token in [-1, 512] {
            let error = on_tape(&[], |tape, _| {
                let tokens = integers(tape, &[5, token]);
                tape.fsq_levels(tokens, 8, 3)
            });
            assert!(matches!(error, Err(Error::IndexOutOfRange { limit: 512, .. })), "{token}");
        }
    }
}
