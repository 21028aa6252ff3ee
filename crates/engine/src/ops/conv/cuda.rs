//! 3x3 convolutions on a GPU: cuDNN's, and one of our own for few outputs.

use super::super::launches;
use super::super::slice::{Blocks, copy_blocks};
use super::{Conv, Layer};
use crate::cpu::ConvShape;
use crate::cuda::{Convolution, Direction, Gpu, Grid, Tail, View, kernels};
use crate::memory::Block;
use crate::tape::{Grad, Operand};
use crate::{DType, Result, Tape};

impl Tape {
    pub(super) fn gpu_conv(&mut self, gpu: &Gpu, layer: &Layer, out: &Block) -> Result<()> {
        let &Layer { x, weight, bias, residual, relu, shape } = layer;
        let dtype = self.float();
        let from_outside = self.is_bound(weight) && self.is_bound(bias);
        let (input, weight) = (self.gpu_operand(gpu, x, dtype)?, self.gpu_operand(gpu, weight, dtype)?);
        if dtype == DType::BF16 && residual.is_none() && is_narrow(&shape) && from_outside {
            let at = [out.at(), input.at, weight.at, self.at(bias)];
            narrow_conv(gpu, &shape, at, relu)?;
            self.release(input);
            self.release(weight);
            return Ok(());
        }
        let pixels = [x.len() / shape.inputs, 9 * shape.outputs];
        let input = self.gpu_widen(gpu, &shape, input, pixels[0])?;
        let weight = self.gpu_widen(gpu, &shape, weight, pixels[1])?;
        let shape = &shape.widened(dtype);
        let padded = self.gpu_pad(gpu, shape, input.at)?;
        let from = padded.as_ref().map_or(input.at, Block::at);
        let conv = as_cudnn(shape, dtype);
        let fused = dtype == DType::BF16 && {
            let narrow = self.gpu_operand(gpu, bias, dtype)?;
            let other = residual.map(|r| self.gpu_operand(gpu, r, dtype)).transpose()?;
            let tail = Tail { bias: narrow.at, residual: other.as_ref().map(|r| r.at), relu };
            let fused = gpu.convolve_fused(&conv, from, weight.at, out.at(), tail)?;
            [Some(narrow), other].into_iter().flatten().for_each(|operand| self.release(operand));
            fused
        };
        if !fused {
            gpu.convolve(&conv, Direction::Forward, from, weight.at, out.at(), false)?;
            let n = shape.batch * shape.out_height() * shape.out_width() * shape.outputs;
            let (grid, y, bias) = (Grid::elements(gpu, n), View::new(out.at(), dtype), self.at(bias));
            kernels::finish_rows(gpu, grid, y, bias, self.view_of(residual), n, shape.outputs, relu)?;
        }
        self.release(input);
        self.release(weight);
        padded.into_iter().for_each(|block| self.give_back(block));
        Ok(())
    }

    /// Images or weights of a few channels, with zeros up to as many as tensor cores take at once.
    fn gpu_widen(&mut self, gpu: &Gpu, shape: &ConvShape, x: Operand, pixels: usize) -> Result<Operand> {
        let dtype = self.float();
        if shape.widened(dtype).inputs == shape.inputs {
            return Ok(x);
        }
        let wide = self.alloc(pixels * WIDE, dtype)?;
        let (grid, from) = (Grid::elements(gpu, pixels), View::new(x.at, dtype));
        kernels::widen_pixels(gpu, grid, wide.at(), from, shape.inputs, pixels)?;
        self.release(x);
        Ok(Operand::temporary(wide))
    }

    /// Weights to a few channels, with zeros up to as many as tensor cores take at once.
    fn gpu_widen_outputs(&mut self, gpu: &Gpu, shape: &ConvShape, weight: Operand) -> Result<Operand> {
        let dtype = self.float();
        if !shape.has_few_outputs(dtype) {
            return Ok(weight);
        }
        let (output, size) = (9 * shape.inputs, dtype.size());
        let wide = self.alloc(WIDE * output, dtype)?;
        gpu.fill_bytes(wide.at(), 0, WIDE * output * size)?;
        gpu.copy(wide.at(), weight.at, shape.outputs * output * size)?;
        self.release(weight);
        Ok(Operand::temporary(wide))
    }

    /// For stride 2: a copy with one more row and column of zeros, since cuDNN pads both sides alike.
    fn gpu_pad(&mut self, gpu: &Gpu, shape: &ConvShape, x: u64) -> Result<Option<Block>> {
        if shape.stride == 1 {
            return Ok(None);
        }
        let dtype = self.float();
        let n = shape.batch * (shape.height + 1) * (shape.width + 1) * shape.inputs;
        let padded = self.alloc(n, dtype)?;
        let (to, from) = (View::new(padded.at(), dtype), View::new(x, dtype));
        kernels::pad(gpu, Grid::elements(gpu, n), to, from, shape.height, shape.width, shape.inputs, n)?;
        Ok(Some(padded))
    }
}

/// Channels that tensor cores take at once.
const WIDE: usize = 8;

impl ConvShape {
    /// The convolution that is computed for this one: with a few channels of zeros where that is faster.
    fn widened(&self, dtype: DType) -> ConvShape {
        let few = dtype == DType::BF16 && self.inputs < WIDE;
        ConvShape { inputs: if few { WIDE } else { self.inputs }, ..*self }
    }

    /// Whether gradients are computed with more outputs, whose gradients are zeros.
    fn has_few_outputs(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.outputs < WIDE
    }

    fn with_outputs(&self, dtype: DType) -> ConvShape {
        ConvShape { outputs: if self.has_few_outputs(dtype) { WIDE } else { self.outputs }, ..*self }
    }

    /// The convolution that turns the gradient of the result into that of the input, for stride 1.
    fn turned(&self) -> ConvShape {
        ConvShape { inputs: self.outputs, outputs: self.inputs, ..*self }
    }
}

/// Whether it is one that we do ourselves: to at most as many channels as tensor cores make at once, for which cuDNN has nothing good.
fn is_narrow(shape: &ConvShape) -> bool {
    shape.inputs == 64 && shape.outputs <= WIDE && shape.stride == 1
}

/// `at`: where out, x, weight and bias lie; a bias of 0 is none.
fn narrow_conv(gpu: &Gpu, shape: &ConvShape, at: [u64; 4], relu: bool) -> Result<()> {
    let (rows, columns) = (shape.height.min(8), shape.width.min(64));
    let parts = shape.height.div_ceil(rows) * shape.width.div_ceil(columns);
    let shared = (rows + 2) * (columns + 2) * 2 * shape.inputs;
    let grid = Grid { blocks: (shape.batch * parts, 1), threads: 256, shared };
    let ([out, x, weight, bias], ConvShape { height, width, outputs, .. }) = (at, *shape);
    kernels::narrow_conv(gpu, grid, out, x, weight, bias, height, width, outputs, rows, columns, relu)
}

/// The convolution as cuDNN is asked for it.
fn as_cudnn(shape: &ConvShape, dtype: DType) -> Convolution {
    let more = shape.stride - 1;
    Convolution {
        batch: shape.batch,
        height: shape.height + more,
        width: shape.width + more,
        inputs: shape.inputs,
        outputs: shape.outputs,
        stride: shape.stride,
        dtype,
    }
}

impl Conv {
    pub(super) fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let Layer { x, weight, bias, relu, shape, .. } = self.layer;
        let dtype = self.out.dtype();
        let (n, rows, d) = (self.out.len(), self.out.shape().rows(), View::new(dy.at(), dtype));
        if relu {
            kernels::relu_gradient(gpu, Grid::elements(gpu, n), d, tape.view(self.out), n)?;
        }
        let wide_dy = shape.has_few_outputs(dtype).then(|| tape.alloc(rows * WIDE, dtype)).transpose()?;
        if let Some(wide) = &wide_dy {
            kernels::widen_pixels(gpu, Grid::elements(gpu, rows), wide.at(), d, shape.outputs, rows)?;
        }
        let dy = wide_dy.as_ref().map_or(dy.at(), Block::at);
        if let Some(dx) = tape.grad(x)? {
            match dtype == DType::BF16 && dx.dtype() == dtype && !dx.accumulate && is_narrow(&shape.turned())
            {
                true => self.gpu_narrow_input_gradient(tape, gpu, dy, &dx)?,
                false => self.gpu_input_gradient(tape, gpu, dy, &dx)?,
            }
            tape.put_grad(dx);
        }
        if let Some(dw) = tape.grad(weight)? {
            let input = tape.gpu_operand(gpu, x, dtype)?;
            let input = tape.gpu_widen(gpu, &shape, input, x.len() / shape.inputs)?;
            let wide = shape.widened(dtype).with_outputs(dtype);
            let padded = tape.gpu_pad(gpu, &wide, input.at)?;
            // cuDNN writes weights in the type of the images; ours are added up in f32.
            let narrow = tape.alloc(9 * wide.outputs * wide.inputs, dtype)?;
            let (conv, from) = (as_cudnn(&wide, dtype), padded.as_ref().map_or(input.at, Block::at));
            gpu.convolve(&conv, Direction::WeightGradient, from, narrow.at(), dy, false)?;
            let from = Blocks { at: narrow.at(), dtype, start: 0, stride: wide.inputs };
            let to = Blocks { at: dw.at(), dtype: dw.dtype(), start: 0, stride: shape.inputs };
            copy_blocks(gpu, to, from, shape.inputs, 9 * shape.outputs, dw.accumulate)?;
            tape.give_back(narrow);
            padded.into_iter().for_each(|block| tape.give_back(block));
            tape.release(input);
            tape.put_grad(dw);
        }
        wide_dy.into_iter().for_each(|block| tape.give_back(block));
        launches::bias_gradient(tape, gpu, (d, (!relu).then_some(self.out)), rows, bias)
    }

    fn gpu_input_gradient(&self, tape: &mut Tape, gpu: &Gpu, dy: u64, dx: &Grad) -> Result<()> {
        let Layer { x, weight, shape, .. } = self.layer;
        let dtype = self.out.dtype();
        let conv = as_cudnn(&shape.with_outputs(dtype), dtype);
        let weight = tape.gpu_operand(gpu, weight, dtype)?;
        let weight = tape.gpu_widen_outputs(gpu, &shape, weight)?;
        let direct = shape.stride == 1 && dx.dtype() == dtype;
        let len = conv.batch * conv.height * conv.width * conv.inputs;
        let wide = (!direct).then(|| tape.alloc(len, dtype)).transpose()?;
        let (to, accumulate) = match &wide {
            Some(wide) => (wide.at(), false),
            None => (dx.at(), dx.accumulate),
        };
        gpu.convolve(&conv, Direction::InputGradient, to, weight.at, dy, accumulate)?;
        if let Some(wide) = &wide {
            kernels::crop(
                gpu,
                Grid::elements(gpu, x.len()),
                dx.view(),
                View::new(wide.at(), dtype),
                shape.height,
                shape.width,
                shape.inputs,
                conv.width,
                conv.height,
                x.len(),
                dx.accumulate,
            )?;
        }
        wide.into_iter().for_each(|block| tape.give_back(block));
        tape.release(weight);
        Ok(())
    }

    /// To few channels: a convolution of our own with the weights turned round.
    fn gpu_narrow_input_gradient(&self, tape: &mut Tape, gpu: &Gpu, dy: u64, dx: &Grad) -> Result<()> {
        let Layer { weight, shape, .. } = self.layer;
        let (weight, n) = (tape.gpu_operand(gpu, weight, DType::BF16)?, weight.len());
        let turned = tape.alloc(n, DType::BF16)?;
        let grid = Grid::elements(gpu, n);
        kernels::turn_weights(gpu, grid, turned.at(), weight.at, shape.outputs, shape.inputs, n)?;
        narrow_conv(gpu, &shape.turned(), [dx.at(), dy, turned.at(), 0], false)?;
        tape.give_back(turned);
        tape.release(weight);
        Ok(())
    }
}
