//! Linear layers on the CPU: a matrix product, then the activation in chunks.

use super::{Activation, Layer, Linear};
use crate::cpu::{
    self, Layout, Mat, Start, column_sums, column_sums_scratch_len, gemm, gemm_scratch_len, math,
    multiversion,
};
use crate::memory::Block;
use crate::{Result, Tape};

const CHUNK: usize = 4096;

impl Tape {
    pub(super) fn cpu_linear(&mut self, layer: &Layer, out: &mut Block) -> Result<Option<Block>> {
        let (m, n, k) = layer.size();
        let mut scratch = self.scratch(gemm_scratch_len(m, n, k, Layout::Rows))?;
        let start = layer.bias.map_or(Start::Zero, |b| Start::Bias(self.f32(b)));
        let (a, b) = (Mat::rows(self.f32(layer.x), k), Mat::transposed(self.f32(layer.weight), k));
        gemm(m, n, k, a, b, out.f32_mut(), n, start, scratch.f32_mut());
        if let Some(residual) = layer.residual {
            crate::tape::add_or_set(out.f32_mut(), self.f32(residual), true);
        }
        self.give_back(scratch);
        match layer.activation {
            Activation::None => {}
            Activation::Relu => cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| relu_in_place(y)),
            Activation::Gelu if layer.needs_grad => {
                let mut y = self.scratch(m * n)?;
                let h = out.f32();
                cpu::chunks_mut(y.f32_mut(), CHUNK, |i, y| gelu(&h[i * CHUNK..i * CHUNK + y.len()], y));
                return Ok(Some(y));
            }
            Activation::Gelu => cpu::chunks_mut(out.f32_mut(), CHUNK, |_, y| gelu_in_place(y)),
        }
        Ok(None)
    }
}

impl Linear {
    pub(super) fn cpu_backward(&self, tape: &mut Tape, dy: &mut Block) -> Result<()> {
        let (m, n, k) = self.layer.size();
        let saved = tape.f32(self.saved);
        match self.layer.activation {
            Activation::None => {}
            Activation::Relu => {
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| relu_gradient(&saved[i * CHUNK..], dy))
            }
            Activation::Gelu => {
                cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| gelu_gradient(&saved[i * CHUNK..], dy))
            }
        }
        let room = gemm_scratch_len(m, k, n, Layout::Rows)
            .max(gemm_scratch_len(n, k, m, Layout::Transposed))
            .max(column_sums_scratch_len(m, n));
        let mut scratch = tape.scratch(room)?;
        let start = |accumulate| if accumulate { Start::C } else { Start::Zero };
        if let Some(mut dx) = tape.grad(self.layer.x)? {
            let (a, b) = (Mat::rows(dy.f32(), n), Mat::rows(tape.f32(self.layer.weight), k));
            let from = start(dx.accumulate);
            gemm(m, k, n, a, b, dx.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dx);
        }
        if let Some(mut dw) = tape.grad(self.layer.weight)? {
            let (a, b) = (Mat::transposed(dy.f32(), n), Mat::rows(tape.f32(self.layer.x), k));
            let from = start(dw.accumulate);
            gemm(n, k, m, a, b, dw.slice(), k, from, scratch.f32_mut());
            tape.put_grad(dw);
        }
        if let Some(mut db) = self.layer.bias.map_or(Ok(None), |bias| tape.grad(bias))? {
            let accumulate = db.accumulate;
            column_sums(dy.f32(), db.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        Ok(())
    }
}

multiversion! {
    fn gelu(h: &[f32], y: &mut [f32]) {
        for (y, h) in y.iter_mut().zip(h) {
            *y = math::gelu(*h);
        }
    }
}

multiversion! {
    fn gelu_in_place(y: &mut [f32]) {
        for y in y {
            *y = math::gelu(*y);
        }
    }
}

multiversion! {
    fn gelu_gradient(h: &[f32], dy: &mut [f32]) {
        for (dy, h) in dy.iter_mut().zip(h) {
            *dy *= math::gelu_derivative(*h);
        }
    }
}

multiversion! {
    pub(in crate::ops) fn relu_in_place(y: &mut [f32]) {
        for y in y {
            // Not `max`: that would turn NaN into 0 and hide a divergence.
            *y = if *y < 0.0 { 0.0 } else { *y };
        }
    }
}

multiversion! {
    /// Passes the gradient on where the result was positive.
    pub(in crate::ops) fn relu_gradient(y: &[f32], dy: &mut [f32]) {
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}
