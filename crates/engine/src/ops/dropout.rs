//! Dropout: x * mask / (1 - rate), plus a residual. The mask is drawn again for the gradient, not stored.

use super::Backward;
use crate::backend::Backend;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::rng::{BATCH, Site, unit};
use crate::tape::Grad;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct Dropout {
    x: Tensor,
    residual: Option<Tensor>,
    rate: f32,
    site: Site,
    out: Tensor,
}

const OP: &str = "dropout";

/// Elements per task; a multiple of the generator's batch.
const CHUNK: usize = 64 * BATCH;

pub(super) fn check_rate(op: &'static str, rate: f32) -> Result<()> {
    match (0.0..1.0).contains(&rate) {
        true => Ok(()),
        false => Err(Error::BadArgument {
            op,
            name: "dropout",
            value: f64::from(rate),
            rule: "at least 0 and below 1",
        }),
    }
}

impl Tape {
    /// Sets a share `rate` of the elements to zero and scales the others up to keep the mean.
    pub fn dropout(&mut self, x: Tensor, rate: f32) -> Result<Tensor> {
        self.dropout_op(x, None, rate)
    }

    /// residual + dropout(x)
    pub fn dropout_residual(&mut self, x: Tensor, rate: f32, residual: Tensor) -> Result<Tensor> {
        self.dropout_op(x, Some(residual), rate)
    }

    fn dropout_op(&mut self, x: Tensor, residual: Option<Tensor>, rate: f32) -> Result<Tensor> {
        self.check_f32(OP, &[x])?;
        check_rate(OP, rate)?;
        if let Some(residual) = residual {
            self.check_f32(OP, &[residual])?;
            if residual.shape() != x.shape() {
                let rule = "the residual has the shape of x";
                return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: residual.shape(), rule });
            }
        }
        // Drawn also for rate 0, so that switching dropout off leaves the step's other random numbers alone.
        let site = self.next_site();
        if rate == 0.0 {
            return match residual {
                Some(residual) => self.add(residual, x),
                None => Ok(x),
            };
        }
        let dtype = residual.map_or(x.dtype(), |r| self.joint(&[x, r]));
        let mut out = self.alloc(x.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_dropout(x, residual, rate, site, &mut out),
            Backend::Cuda(gpu) => self.gpu_dropout(&gpu, x, residual, rate, site, (&out, dtype))?,
        }
        let needs_grad = self.needs_grad(x) || residual.is_some_and(|r| self.needs_grad(r));
        let out = self.push(out, x.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(Dropout { x, residual, rate, site, out });
        }
        Ok(out)
    }

    fn cpu_dropout(&self, x: Tensor, residual: Option<Tensor>, rate: f32, site: Site, out: &mut Block) {
        let (xv, rv) = (self.f32(x), residual.map(|r| self.f32(r)));
        cpu::chunks_mut(out.f32_mut(), CHUNK, |i, out| {
            let range = i * CHUNK..i * CHUNK + out.len();
            match rv {
                Some(residual) => out.copy_from_slice(&residual[range.clone()]),
                None => out.fill(0.0),
            }
            add_dropped(site, range.start, rate, &xv[range], out);
        });
    }

    fn gpu_dropout(
        &self,
        gpu: &Gpu,
        x: Tensor,
        residual: Option<Tensor>,
        rate: f32,
        site: Site,
        (out, dtype): (&Block, DType),
    ) -> Result<()> {
        let (n, to) = (x.len(), View::new(out.at(), dtype));
        let (grid, residual, site) = (Grid::elements(gpu, n), self.view_of(residual), site.number() as usize);
        kernels::dropout(gpu, grid, to, self.view(x), residual, n, rate, self.state(), site, false)
    }
}

impl Backward for Dropout {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        if let Some(mut dx) = tape.grad(self.x)? {
            match tape.backend() {
                Backend::Cpu => self.cpu_gradient(&dy, &mut dx),
                Backend::Cuda(gpu) => self.gpu_gradient(tape, &gpu, &dy, &dx)?,
            }
            tape.put_grad(dx);
        }
        tape.pass_on(self.residual, dy, self.out.dtype())
    }
}

impl Dropout {
    fn cpu_gradient(&self, dy: &Block, dx: &mut Grad) {
        let accumulate = dx.accumulate;
        cpu::chunks_mut(dx.slice(), CHUNK, |i, dx| {
            if !accumulate {
                dx.fill(0.0);
            }
            let range = i * CHUNK..i * CHUNK + dx.len();
            add_dropped(self.site, range.start, self.rate, &dy.f32()[range], dx);
        });
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, dx: &Grad) -> Result<()> {
        let (n, d) = (self.x.len(), View::new(dy.at(), self.out.dtype()));
        let (grid, none, site) = (Grid::elements(gpu, n), View::NOTHING, self.site.number() as usize);
        kernels::dropout(gpu, grid, dx.view(), d, none, n, self.rate, tape.state(), site, dx.accumulate)
    }
}

/// out += x * mask / (1 - rate), for elements `start..` of the draw.
fn add_dropped(site: Site, start: usize, rate: f32, x: &[f32], out: &mut [f32]) {
    let mut bits = [0; BATCH];
    for (i, (x, out)) in x.chunks(BATCH).zip(out.chunks_mut(BATCH)).enumerate() {
        site.fill(start + i * BATCH, &mut bits);
        add_masked(&bits, rate, x, out);
    }
}

multiversion! {
    fn add_masked(bits: &[u32], rate: f32, x: &[f32], out: &mut [f32]) {
        let keep = 1.0 / (1.0 - rate);
        for ((o, x), b) in out.iter_mut().zip(x).zip(bits) {
            *o += if unit(*b) >= rate { x * keep } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, on_tape};

    #[test]
    fn gradients() {
        for len in [1, 7, 200] {
            check_gradients(&[&[len]], |tape, x| tape.dropout(x[0], 0.3));
            check_gradients(&[&[len], &[len]], |tape, x| tape.dropout_residual(x[0], 0.3, x[1]));
            check_gradients(&[&[len], &[len]], |tape, x| tape.dropout_residual(x[0], 0.0, x[1]));
        }
    }

    #[test]
    fn drops_the_given_share_and_keeps_the_mean() -> Result<()> {
        let out = on_tape(&[&[20_001]], |tape, x| {
            let ones = tape.affine(x[0], 0.0, 1.0)?;
            tape.dropout(ones, 0.1)
        })?;
        let dropped = out.iter().filter(|&&x| x == 0.0).count() as f32 / out.len() as f32;
        assert!((dropped - 0.1).abs() < 0.01, "{dropped}");
        assert!(out.iter().all(|&x| x == 0.0 || (x - 1.0 / 0.9).abs() < 1e-6));
        Ok(())
    }

    #[test]
    fn impossible_rates_are_errors() {
        for rate in [1.0, -0.1, f32::NAN] {
            let error = on_tape(&[&[3]], |tape, x| tape.dropout(x[0], rate));
            assert!(matches!(error, Err(Error::BadArgument { name: "dropout", .. })));
        }
    }
}
