//! 3x3 convolutions on the CPU.

use super::super::linear;
use super::{Conv, Layer};
use crate::cpu::{
    self, Epilogue, column_sums, column_sums_scratch_len, conv_forward, conv_input_gradient,
    conv_scratch_len, conv_weight_gradient, conv_weight_scratch_len,
};
use crate::memory::Block;
use crate::{Result, Tape};

impl Tape {
    pub(super) fn cpu_conv(&mut self, layer: &Layer, out: &mut Block) -> Result<()> {
        let &Layer { x, weight, bias, residual, relu, shape } = layer;
        let mut scratch = self.scratch(conv_scratch_len(&shape))?;
        let epilogue = Epilogue { residual: residual.map(|r| self.f32(r)), relu };
        let (x, weight, bias) = (self.f32(x), self.f32(weight), self.f32(bias));
        conv_forward(&shape, x, weight, Some(bias), epilogue, out.f32_mut(), scratch.f32_mut());
        self.give_back(scratch);
        Ok(())
    }
}

impl Conv {
    pub(super) fn cpu_backward(&self, tape: &mut Tape, dy: &mut Block) -> Result<()> {
        let Layer { x, weight, bias, relu, shape, .. } = self.layer;
        if relu {
            const CHUNK: usize = 1 << 14;
            let y = tape.f32(self.out);
            cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| linear::relu_gradient(&y[i * CHUNK..], dy));
        }
        let room = conv_scratch_len(&shape)
            .max(conv_weight_scratch_len(&shape))
            .max(column_sums_scratch_len(self.out.shape().rows(), shape.outputs));
        let mut scratch = tape.scratch(room)?;
        if let Some(mut dx) = tape.grad(x)? {
            let accumulate = dx.accumulate;
            let weight = tape.f32(weight);
            conv_input_gradient(&shape, dy.f32(), weight, dx.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(dx);
        }
        if let Some(mut dw) = tape.grad(weight)? {
            let accumulate = dw.accumulate;
            let x = tape.f32(x);
            conv_weight_gradient(&shape, x, dy.f32(), dw.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(dw);
        }
        if let Some(mut db) = tape.grad(bias)? {
            let accumulate = db.accumulate;
            column_sums(dy.f32(), db.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        Ok(())
    }
}
