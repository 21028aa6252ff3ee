use super::time::{Blocks, copy_blocks};
use super::{Backward, linear};
use crate::cpu::{
    self, ConvShape, Epilogue, column_sums, column_sums_scratch_len, conv_forward, conv_input_gradient,
    conv_scratch_len, conv_weight_gradient, conv_weight_scratch_len,
};
use crate::cuda::{Convolution, Direction, Gpu, Grid, Tail, View, kernels};
use crate::memory::Block;
use crate::tape::Operand;
use crate::{DType, Error, Result, Tape, Tensor};

/// The two 3x3 convolutions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// Stride 1, padded by one pixel on every side: the size stays.
    One,
    /// Stride 2, padded by one pixel at the right and bottom only: the size is halved.
    Two,
}

pub(crate) struct Conv {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Option<Tensor>,
    relu: bool,
    stride: Stride,
    out: Tensor,
}

const OP: &str = "conv3x3";

impl Tape {
    /// x [B, H, W, I], weight [O, 3, 3, I], bias [O] -> [B, H', W', O]
    pub fn conv3x3(&mut self, x: Tensor, weight: Tensor, bias: Tensor, stride: Stride) -> Result<Tensor> {
        self.conv_op(x, weight, bias, stride, None, false)
    }

    /// relu(conv3x3(x)), stride 1.
    pub fn conv3x3_relu(&mut self, x: Tensor, weight: Tensor, bias: Tensor) -> Result<Tensor> {
        self.conv_op(x, weight, bias, Stride::One, None, true)
    }

    /// conv3x3(x) + residual, stride 1.
    pub fn conv3x3_residual(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor,
    ) -> Result<Tensor> {
        self.conv_op(x, weight, bias, Stride::One, Some(residual), false)
    }

    fn conv_op(
        &mut self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        stride: Stride,
        residual: Option<Tensor>,
        relu: bool,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[x, weight])?;
        self.check_exact(OP, &[bias])?;
        self.check_not_empty(OP, &[x, weight])?;
        let shape = conv_shape(x, weight, stride)?;
        if bias.dims() != [shape.outputs] {
            let rule = "the bias is [O] for a weight [O, 3, 3, I]";
            return Err(Error::ShapeMismatch { op: OP, lhs: weight.shape(), rhs: bias.shape(), rule });
        }
        let result = [shape.batch, shape.out_height(), shape.out_width(), shape.outputs];
        if let Some(residual) = residual {
            self.check_f32(OP, &[residual])?;
            if residual.dims() != result {
                let rule = "the residual has the result's shape";
                return Err(Error::ShapeMismatch { op: OP, lhs: result.into(), rhs: residual.shape(), rule });
            }
        }
        let dtype = self.float();
        let mut out = self.alloc(result.iter().product(), dtype)?;
        if self.gpu().is_some() {
            self.gpu_conv(&shape, x, weight, bias, residual, relu, &out)?;
        } else {
            let mut scratch = self.scratch(conv_scratch_len(&shape))?;
            let epilogue = Epilogue { residual: residual.map(|r| self.f32(r)), relu };
            let (xv, wv, bv) = (self.f32(x), self.f32(weight), self.f32(bias));
            conv_forward(&shape, xv, wv, Some(bv), epilogue, out.f32_mut(), scratch.f32_mut());
            self.give_back(scratch);
        }
        let needs_grad =
            self.any_needs_grad(&[x, weight, bias]) || residual.is_some_and(|r| self.needs_grad(r));
        let out = self.push(out, result, dtype, needs_grad);
        if needs_grad {
            self.record(Conv { x, weight, bias, residual, relu, stride, out });
        }
        Ok(out)
    }

    fn gpu_conv(
        &mut self,
        shape: &ConvShape,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Option<Tensor>,
        relu: bool,
        out: &Block,
    ) -> Result<()> {
        let dtype = self.float();
        let from_outside = self.is_bound(weight) && self.is_bound(bias);
        let (input, weight) = (self.operand(x, dtype)?, self.operand(weight, dtype)?);
        if dtype == DType::BF16 && residual.is_none() && is_narrow(shape) && from_outside {
            let at = [out.at(), input.at, weight.at, self.at(bias)];
            self.gpu().map_or(Ok(()), |gpu| narrow_conv(gpu, shape, at, relu))?;
            self.release(input);
            self.release(weight);
            return Ok(());
        }
        let pixels = [x.len() / shape.inputs, 9 * shape.outputs];
        let input = self.gpu_widen(shape, input, pixels[0])?;
        let weight = self.gpu_widen(shape, weight, pixels[1])?;
        let shape = &shape.widened(dtype);
        let padded = self.gpu_pad(shape, input.at)?;
        let from = padded.as_ref().map_or(input.at, Block::at);
        let conv = on_gpu(shape, dtype);
        let fused = dtype == DType::BF16 && {
            let narrow = self.operand(bias, dtype)?;
            let other = residual.map(|r| self.operand(r, dtype)).transpose()?;
            let tail = Tail { bias: narrow.at, residual: other.as_ref().map(|r| r.at), relu };
            let gpu = self.gpu();
            let fused =
                gpu.map_or(Ok(false), |gpu| gpu.convolve_fused(&conv, from, weight.at, out.at(), tail))?;
            [Some(narrow), other].into_iter().flatten().for_each(|operand| self.release(operand));
            fused
        };
        if let Some(gpu) = self.gpu().filter(|_| !fused) {
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
    fn gpu_widen(&mut self, shape: &ConvShape, x: Operand, pixels: usize) -> Result<Operand> {
        let dtype = self.float();
        if shape.widened(dtype).inputs == shape.inputs {
            return Ok(x);
        }
        let wide = self.alloc(pixels * WIDE, dtype)?;
        if let Some(gpu) = self.gpu() {
            let (grid, from) = (Grid::elements(gpu, pixels), View::new(x.at, dtype));
            kernels::widen_pixels(gpu, grid, wide.at(), from, shape.inputs, pixels)?;
        }
        self.release(x);
        Ok(Operand::temporary(wide))
    }

    /// For stride 2: a copy with one more row and column of zeros, since cuDNN pads both sides alike.
    fn gpu_pad(&mut self, shape: &ConvShape, x: u64) -> Result<Option<Block>> {
        if shape.stride == 1 {
            return Ok(None);
        }
        let dtype = self.float();
        let n = shape.batch * (shape.height + 1) * (shape.width + 1) * shape.inputs;
        let padded = self.alloc(n, dtype)?;
        if let Some(gpu) = self.gpu() {
            let (to, from) = (View::new(padded.at(), dtype), View::new(x, dtype));
            let grid = Grid::elements(gpu, n);
            kernels::pad(gpu, grid, to, from, shape.height, shape.width, shape.inputs, n)?;
        }
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
}

/// Whether it is one that we do ourselves: to at most as many channels as tensor cores make at once, for which cuDNN has nothing good.
fn is_narrow(shape: &ConvShape) -> bool {
    shape.inputs == 64 && shape.outputs <= WIDE && shape.stride == 1
}

/// `at`: where out, x, weight and bias lie.
fn narrow_conv(gpu: &Gpu, shape: &ConvShape, at: [u64; 4], relu: bool) -> Result<()> {
    let (rows, columns) = (shape.height.min(8), shape.width.min(64));
    let parts = shape.height.div_ceil(rows) * shape.width.div_ceil(columns);
    let shared = (rows + 2) * (columns + 2) * 2 * shape.inputs;
    let grid = Grid { blocks: (shape.batch * parts, 1), threads: 256, shared };
    let ([out, x, weight, bias], ConvShape { height, width, outputs, .. }) = (at, *shape);
    kernels::narrow_conv(gpu, grid, out, x, weight, bias, height, width, outputs, rows, columns, relu)
}

/// The convolution as cuDNN is asked for it.
fn on_gpu(shape: &ConvShape, dtype: DType) -> Convolution {
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
    fn gpu_backward(self, tape: &mut Tape, dy: Block) -> Result<()> {
        let shape = conv_shape(self.x, self.weight, self.stride)?;
        let dtype = self.out.dtype();
        let conv = on_gpu(&shape, dtype);
        let (n, d) = (self.out.len(), View::new(dy.at(), dtype));
        if self.relu
            && let Some(gpu) = tape.gpu()
        {
            kernels::relu_gradient(gpu, Grid::elements(gpu, n), d, tape.view(self.out), n)?;
        }
        if let Some(dx) = tape.grad(self.x)? {
            let weight = tape.operand(self.weight, dtype)?;
            let direct = shape.stride == 1 && dx.dtype() == dtype;
            let len = conv.batch * conv.height * conv.width * conv.inputs;
            let wide = (!direct).then(|| tape.alloc(len, dtype)).transpose()?;
            if let Some(gpu) = tape.gpu() {
                let (to, accumulate) = match &wide {
                    Some(wide) => (wide.at(), false),
                    None => (dx.at(), dx.accumulate),
                };
                gpu.convolve(&conv, Direction::InputGradient, to, weight.at, dy.at(), accumulate)?;
                if let Some(wide) = &wide {
                    kernels::crop(
                        gpu,
                        Grid::elements(gpu, self.x.len()),
                        dx.view(),
                        View::new(wide.at(), dtype),
                        shape.height,
                        shape.width,
                        shape.inputs,
                        conv.width,
                        conv.height,
                        self.x.len(),
                        dx.accumulate,
                    )?;
                }
            }
            wide.into_iter().for_each(|block| tape.give_back(block));
            tape.release(weight);
            tape.put_grad(dx);
        }
        if let Some(dw) = tape.grad(self.weight)? {
            let x = tape.operand(self.x, dtype)?;
            let x = tape.gpu_widen(&shape, x, self.x.len() / shape.inputs)?;
            let wide = shape.widened(dtype);
            let padded = tape.gpu_pad(&wide, x.at)?;
            // cuDNN writes weights in the type of the images; ours are added up in f32.
            let count = 9 * shape.outputs;
            let narrow = tape.alloc(count * wide.inputs, dtype)?;
            if let Some(gpu) = tape.gpu() {
                let from = padded.as_ref().map_or(x.at, Block::at);
                gpu.convolve(
                    &on_gpu(&wide, dtype),
                    Direction::WeightGradient,
                    from,
                    narrow.at(),
                    dy.at(),
                    false,
                )?;
                let from = Blocks { at: narrow.at(), dtype, start: 0, stride: wide.inputs };
                let to = Blocks { at: dw.at(), dtype: dw.dtype(), start: 0, stride: shape.inputs };
                copy_blocks(gpu, to, from, shape.inputs, count, dw.accumulate)?;
            }
            tape.give_back(narrow);
            padded.into_iter().for_each(|block| tape.give_back(block));
            tape.release(x);
            tape.put_grad(dw);
        }
        if let Some(db) = tape.grad(self.bias)? {
            tape.gpu_column_sums(d, self.out.shape().rows(), shape.outputs, db.view(), db.accumulate)?;
            tape.put_grad(db);
        }
        tape.pass_on(self.residual, dy, dtype)
    }
}

fn conv_shape(x: Tensor, weight: Tensor, stride: Stride) -> Result<ConvShape> {
    let mismatch = |rule| Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: weight.shape(), rule };
    let (&[batch, height, width, inputs], &[outputs, 3, 3, weight_inputs]) = (x.dims(), weight.dims()) else {
        return Err(mismatch("x is [B, H, W, I] and the weight [O, 3, 3, I]"));
    };
    if inputs != weight_inputs {
        return Err(mismatch("x is [B, H, W, I] and the weight [O, 3, 3, I]"));
    }
    let stride = match stride {
        Stride::One => 1,
        Stride::Two if height % 2 == 1 || width % 2 == 1 => {
            return Err(mismatch("stride 2 halves an even height and width"));
        }
        Stride::Two => 2,
    };
    Ok(ConvShape { batch, height, width, inputs, outputs, stride })
}

impl Backward for Conv {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(mut dy) = tape.take_grad(self.out) else { return Ok(()) };
        if tape.gpu().is_some() {
            return self.gpu_backward(tape, dy);
        }
        let shape = conv_shape(self.x, self.weight, self.stride)?;
        if self.relu {
            const CHUNK: usize = 1 << 14;
            let y = tape.f32(self.out);
            cpu::chunks_mut(dy.f32_mut(), CHUNK, |i, dy| linear::relu_gradient(&y[i * CHUNK..], dy));
        }
        let room = conv_scratch_len(&shape)
            .max(conv_weight_scratch_len(&shape))
            .max(column_sums_scratch_len(self.out.shape().rows(), shape.outputs));
        let mut scratch = tape.scratch(room)?;
        if let Some(mut dx) = tape.grad(self.x)? {
            let accumulate = dx.accumulate;
            let w = tape.f32(self.weight);
            conv_input_gradient(&shape, dy.f32(), w, dx.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(dx);
        }
        if let Some(mut dw) = tape.grad(self.weight)? {
            let accumulate = dw.accumulate;
            let x = tape.f32(self.x);
            conv_weight_gradient(&shape, x, dy.f32(), dw.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(dw);
        }
        if let Some(mut db) = tape.grad(self.bias)? {
            let accumulate = db.accumulate;
            column_sums(dy.f32(), db.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        tape.pass_on(self.residual, dy, DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{Limits, assert_same, check_gradients, evaluate, on_tape, spread, values};

    /// The paper's batch. In f32 cuDNN has no algorithm for it that fits into the working memory, so it is computed in halves.
    #[test]
    fn large_batches_are_computed_in_parts_on_a_gpu() -> Result<()> {
        let device = Device::under_test(1)?;
        if !device.is_gpu() {
            return Ok(());
        }
        // Gradients reach four of the images, and those are what the CPU computes.
        let (batch, chosen, image) = (256, [0, 1, 127, 255], 64 * 64 * 64);
        let pick = |all: &[f32]| -> Vec<f32> {
            chosen.iter().flat_map(|i| all[i * image..(i + 1) * image].to_vec()).collect()
        };
        let op = |tape: &mut Tape, x: &[Tensor]| tape.conv3x3(x[0], x[1], x[2], Stride::One);
        let inputs = [values(batch * image, 0), values(64 * 9 * 64, 1), values(64, 2)];
        let seed = values(chosen.len() * image, 3);
        let mut spread_out = vec![0.0; batch * image];
        for (part, i) in seed.chunks(image).zip(chosen) {
            spread_out[i * image..(i + 1) * image].copy_from_slice(part);
        }
        let dims = |batch| [[batch, 64, 64, 64].to_vec(), vec![64, 3, 3, 64], vec![64]];
        let run = |device: &Device, batch, inputs: &[Vec<f32>], seed: &[f32]| {
            let dims = dims(batch);
            let dims: Vec<&[usize]> = dims.iter().map(|d| &d[..]).collect();
            evaluate(device, &dims, (inputs, false), &op, Some(seed))
        };
        let got = run(&device, batch, &inputs, &spread_out)?;
        let few = [pick(&inputs[0]), inputs[1].clone(), inputs[2].clone()];
        let expected = run(&Device::cpu(None)?, chosen.len(), &few, &seed)?;
        let limits = Limits::under_test();
        assert_same("result", &pick(&got.result), &expected.result, 64, limits);
        assert_same("images", &pick(&got.gradients[0]), &expected.gradients[0], 64, limits);
        for i in [1, 2] {
            assert_same("parameters", &got.gradients[i], &expected.gradients[i], 64, limits);
        }
        Ok(())
    }

    #[test]
    fn gradients() {
        let shapes = [
            (1, 1, 1, 1, 1),
            (1, 4, 4, 3, 5),
            (2, 5, 7, 3, 2),
            (2, 8, 6, 20, 17),
            (18, 3, 2, 4, 3),
            (1, 6, 6, 66, 65),
            (2, 5, 9, 16, 3),
            // To few channels, in whole parts and with something left over.
            (1, 9, 65, 64, 3),
            (2, 8, 16, 64, 8),
            (1, 3, 2, 64, 1),
        ];
        for (batch, height, width, inputs, outputs) in shapes {
            let dims: [&[usize]; 3] = [&[batch, height, width, inputs], &[outputs, 3, 3, inputs], &[outputs]];
            check_gradients(&dims, |tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::One));
            check_gradients(&dims, |tape, x| {
                let bias = spread(tape, x[2])?;
                tape.conv3x3_relu(x[0], x[1], bias)
            });
            if height % 2 == 0 && width % 2 == 0 {
                check_gradients(&dims, |tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::Two));
            }
        }
        check_gradients(&[&[2, 4, 4, 3], &[5, 3, 3, 3], &[5], &[2, 4, 4, 5]], |tape, x| {
            tape.conv3x3_residual(x[0], x[1], x[2], x[3])
        });
        // An input used twice: as the convolution's and as the residual.
        check_gradients(&[&[2, 4, 4, 3], &[3, 3, 3, 3], &[3]], |tape, x| {
            tape.conv3x3_residual(x[0], x[1], x[2], x[0])
        });
        // Large enough for Winograd's way, forward and backward, accumulating too.
        check_gradients(&[&[3, 12, 14, 16], &[32, 3, 3, 16], &[32]], |tape, x| {
            tape.conv3x3(x[0], x[1], x[2], Stride::One)
        });
        check_gradients(&[&[2, 14, 14, 16], &[16, 3, 3, 16], &[16]], |tape, x| {
            let y = tape.conv3x3_residual(x[0], x[1], x[2], x[0])?;
            let bias = spread(tape, x[2])?;
            let z = tape.conv3x3_relu(x[0], x[1], bias)?;
            tape.mul(y, z)
        });
        // Weights large enough to be summed over all images at once.
        check_gradients(&[&[2, 2, 2, 150], &[100, 3, 3, 150], &[100]], |tape, x| {
            tape.conv3x3(x[0], x[1], x[2], Stride::One)
        });
    }

    /// Against the definition, for both paddings.
    #[test]
    fn values_match_the_definition() {
        let small = (2, 6, 8, 5, 7);
        // Large enough for Winograd's way.
        let large = (2, 14, 16, 80, 96);
        let cases = [(Stride::One, 1, 1, small), (Stride::Two, 2, 0, small), (Stride::One, 1, 1, large)];
        for (stride, step, pad, (batch, height, width, inputs, outputs)) in cases {
            let x = values(batch * height * width * inputs, 0);
            let w = values(outputs * 9 * inputs, 1);
            let b = values(outputs, 2);
            let out = on_tape(
                &[&[batch, height, width, inputs], &[outputs, 3, 3, inputs], &[outputs]],
                |tape, x| tape.conv3x3(x[0], x[1], x[2], stride),
            )
            .unwrap();
            let (out_height, out_width) = (height / step, width / step);
            for (at, got) in out.iter().enumerate() {
                let (o, ox, oy, image) = (
                    at % outputs,
                    at / outputs % out_width,
                    at / outputs / out_width % out_height,
                    at / outputs / out_width / out_height,
                );
                let mut sum = b[o];
                for ky in 0..3 {
                    for kx in 0..3 {
                        let (y, x_) = (oy * step + ky, ox * step + kx);
                        if y < pad || x_ < pad || y - pad >= height || x_ - pad >= width {
                            continue;
                        }
                        for i in 0..inputs {
                            sum += x[((image * height + y - pad) * width + x_ - pad) * inputs + i]
                                * w[((o * 3 + ky) * 3 + kx) * inputs + i];
                        }
                    }
                }
                assert!((got - sum).abs() < 2e-4, "{stride:?} at {at}: {got} against {sum}");
            }
        }
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[1, 4, 4, 3], &[5, 3, 3, 2], &[5]], |tape, x| {
            tape.conv3x3(x[0], x[1], x[2], Stride::One)
        });
        assert_eq!(
            error.unwrap_err().to_string(),
            "conv3x3: shapes [1, 4, 4, 3] and [5, 3, 3, 2] do not fit: x is [B, H, W, I] and the weight [O, 3, 3, I]"
        );
        let odd = on_tape(&[&[1, 5, 4, 3], &[5, 3, 3, 3], &[5]], |tape, x| {
            tape.conv3x3(x[0], x[1], x[2], Stride::Two)
        });
        assert!(odd.unwrap_err().to_string().contains("stride 2 halves an even height"));
    }
}
