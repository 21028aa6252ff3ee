//! 3x3 convolutions over NHWC images, with stride 1 or 2, plus a residual or followed by ReLU.

mod cpu;
mod cuda;

use super::Backward;
use crate::backend::Backend;
use crate::cpu::ConvShape;
use crate::{Error, Result, Tape, Tensor};

/// The two 3x3 convolutions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// Stride 1, padded by one pixel on every side: the size stays.
    One,
    /// Stride 2, padded by one pixel at the right and bottom only: the size is halved.
    Two,
}

/// A layer and its input, checked.
#[derive(Clone, Copy)]
struct Layer {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Option<Tensor>,
    relu: bool,
    shape: ConvShape,
}

pub(crate) struct Conv {
    layer: Layer,
    out: Tensor,
}

const OP: &str = "conv3x3";

impl Tape {
    /// x [B, H, W, I], weight [O, 3, 3, I], bias `[O]` -> [B, H', W', O]
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
        let layer = Layer { x, weight, bias, residual, relu, shape };
        let dtype = self.float();
        let mut out = self.alloc(result.iter().product(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_conv(&layer, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_conv(&gpu, &layer, &out)?,
        }
        let needs_grad =
            self.any_needs_grad(&[x, weight, bias]) || residual.is_some_and(|r| self.needs_grad(r));
        let out = self.push(out, result, dtype, needs_grad);
        if needs_grad {
            if !relu {
                self.ask_for_sums(out, bias);
            }
            self.record(Conv { layer, out });
        }
        Ok(out)
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
        tape.pass_gradients(
            (self.out, self.layer.residual),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
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
            // From few channels to 64: the same backwards.
            (1, 9, 65, 3, 64),
            (2, 8, 6, 8, 64),
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
