//! Blocks of image networks: on a GPU one kernel each where images are small and no gradient is asked for.

use super::launches;
use super::linear::Activation;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::{DType, Error, Result, Stride, Tape, Tensor};

/// The parameters of a residual block, as tensors of the current step.
#[derive(Clone, Copy, Debug)]
pub struct ImageResidual {
    /// Gain and shift `[C]` of the group-norms, which swish follows.
    pub norms: [[Tensor; 2]; 2],
    /// Weight [C, 3, 3, C] and bias `[C]` of the convolutions.
    pub convolutions: [[Tensor; 2]; 2],
    /// Groups of both group-norms.
    pub groups: usize,
    /// Of both group-norms.
    pub epsilon: f32,
}

/// The parameters of an attention block, as tensors of the current step.
#[derive(Clone, Copy, Debug)]
pub struct ImageAttention {
    /// Gain and shift `[C]` of the group-norm.
    pub norm: [Tensor; 2],
    /// Weight [C, C] and bias `[C]` of the queries.
    pub query: [Tensor; 2],
    /// Weight [C, C] and bias `[C]` of the keys.
    pub key: [Tensor; 2],
    /// Weight [C, C] and bias `[C]` of the values.
    pub value: [Tensor; 2],
    /// Weight [C, C] and bias `[C]` of the last layer.
    pub out: [Tensor; 2],
    /// Groups of the group-norm.
    pub groups: usize,
    /// Of the group-norm.
    pub epsilon: f32,
}

/// Channels that the fused kernels are written for.
pub(crate) const CHANNELS: usize = 64;
/// The most pixels of an image that they take.
const PIXELS: usize = 256;
/// Bytes of a pixel in shared memory.
const PIXEL: usize = 2 * CHANNELS;
/// Bytes of shared memory that the kernels have beside what they are launched with, and a little more.
const OWN_SHARED: usize = 10 << 10;

impl Tape {
    /// x + conv(swish(norm(conv(swish(norm(x)))))): x [B, H, W, C] -> [B, H, W, C]
    pub fn image_residual(&mut self, x: Tensor, block: &ImageResidual) -> Result<Tensor> {
        match self.backend() {
            Backend::Cuda(gpu) if self.fuses_residual(&gpu, x, block) => self.fused_residual(&gpu, x, block),
            // Invalid input takes this path too: the single ops report the error.
            _ => self.composed_residual(x, block),
        }
    }

    fn composed_residual(&mut self, x: Tensor, block: &ImageResidual) -> Result<Tensor> {
        let ImageResidual { norms, convolutions, groups, epsilon } = *block;
        let [[gain, shift], [weight, bias]] = [norms[0], convolutions[0]];
        let h = self.group_norm(x, gain, shift, groups, epsilon, true)?;
        let h = self.conv3x3(h, weight, bias, Stride::One)?;
        let [[gain, shift], [weight, bias]] = [norms[1], convolutions[1]];
        let h = self.group_norm(h, gain, shift, groups, epsilon, true)?;
        self.conv3x3_residual(h, weight, bias, x)
    }

    /// x + out(attention(query(h), key(h), value(h))) of every pixel to every pixel, with h = norm(x): x [B, H, W, C] -> [B, H, W, C]
    pub fn image_attention(&mut self, x: Tensor, block: &ImageAttention) -> Result<Tensor> {
        match self.backend() {
            Backend::Cuda(gpu) if self.fuses_attention(&gpu, x, block) => {
                self.fused_attention(&gpu, x, block)
            }
            _ => self.composed_attention(x, block),
        }
    }

    fn composed_attention(&mut self, x: Tensor, block: &ImageAttention) -> Result<Tensor> {
        const OP: &str = "attention block";
        let &[batch, height, width, channels] = x.dims() else {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "x is [B, H, W, C]" });
        };
        let [gain, shift] = block.norm;
        let h = self.group_norm(x, gain, shift, block.groups, block.epsilon, false)?;
        let h = self.reshape(h, [batch, height * width, channels])?;
        let linear = |tape: &mut Tape, [weight, bias]: [Tensor; 2]| {
            tape.linear(h, weight, Some(bias), Activation::None)
        };
        let q = linear(self, block.query)?;
        let k = linear(self, block.key)?;
        let v = linear(self, block.value)?;
        let h = self.spatial_attention(q, k, v)?;
        let h = self.reshape(h, [batch, height, width, channels])?;
        let [weight, bias] = block.out;
        self.linear_residual(h, weight, Some(bias), x)
    }

    /// Whether a fused kernel may take these: small images of 64 channels, stored in bf16, and no gradients.
    fn fuses_image(&self, x: Tensor, tensors: &[Tensor], groups: usize) -> bool {
        let exact = |tensor: &Tensor| tensor.dims().len() > 1 || tensor.dtype() == DType::F32;
        launches::fuses(self, x, tensors)
            && tensors.iter().all(exact)
            && x.dtype() == DType::BF16
            && matches!(x.dims(), &[_, h, w, CHANNELS] if (1..=PIXELS).contains(&(h * w)))
            && x.len() > 0
            && groups > 0
            && CHANNELS.is_multiple_of(groups)
    }

    fn fuses_residual(&self, gpu: &Gpu, x: Tensor, block: &ImageResidual) -> bool {
        let fits = |[weight, bias]: [Tensor; 2], [gain, shift]: [Tensor; 2]| {
            weight.dims() == [CHANNELS, 3, 3, CHANNELS]
                && [bias, gain, shift].iter().all(|tensor| tensor.dims() == [CHANNELS])
        };
        let tensors = [block.norms.concat(), block.convolutions.concat()].concat();
        self.fuses_image(x, &tensors, block.groups)
            && block.convolutions.into_iter().zip(block.norms).all(|(conv, norm)| fits(conv, norm))
            && has_room(gpu, residual_grid(x))
    }

    fn fused_residual(&mut self, gpu: &Gpu, x: Tensor, block: &ImageResidual) -> Result<Tensor> {
        let params = [block.norms[0], block.convolutions[0], block.norms[1], block.convolutions[1]];
        let (height, width) = (x.dims()[1], x.dims()[2]);
        let kernel = if pixels(x) <= 16 { kernels::residual_block_16 } else { kernels::residual_block };
        let (groups, epsilon) = (block.groups, block.epsilon);
        self.image_block(
            gpu,
            x,
            params,
            |out, from, [[gain1, shift1], [w1, b1], [gain2, shift2], [w2, b2]]| {
                let grid = residual_grid(x);
                kernel(
                    gpu, grid, out, from, gain1, shift1, w1, b1, gain2, shift2, w2, b2, height, width,
                    groups, epsilon,
                )
            },
        )
    }

    fn fuses_attention(&self, gpu: &Gpu, x: Tensor, block: &ImageAttention) -> bool {
        let linear = [block.query, block.key, block.value, block.out];
        let tensors = [&linear.concat()[..], &block.norm].concat();
        self.fuses_image(x, &tensors, block.groups)
            && linear.iter().all(|[weight, bias]| {
                weight.dims() == [CHANNELS, CHANNELS] && bias.dims() == [CHANNELS]
            })
            && block.norm.iter().all(|tensor| tensor.dims() == [CHANNELS])
            // Whole tiles.
            && pixels(x).is_multiple_of(16)
            && has_room(gpu, attention_grid(x))
    }

    fn fused_attention(&mut self, gpu: &Gpu, x: Tensor, block: &ImageAttention) -> Result<Tensor> {
        let params = [block.norm, block.query, block.key, block.value, block.out];
        let (groups, epsilon, scale) = (block.groups, block.epsilon, 1.0 / (CHANNELS as f32).sqrt());
        self.image_block(
            gpu,
            x,
            params,
            |out, from, [[gain, shift], [wq, bq], [wk, bk], [wv, bv], [wo, bo]]| {
                let (grid, pixels) = (attention_grid(x), pixels(x));
                kernels::attention_block(
                    gpu, grid, out, from, gain, shift, wq, bq, wk, bk, wv, bv, wo, bo, pixels, groups,
                    epsilon, scale,
                )
            },
        )
    }

    /// A kernel that takes images to images of the same shape, launched with where the result, the images and the parameters lie. Of each
    /// pair of parameters, a weight is needed in bf16.
    fn image_block<const N: usize>(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        params: [[Tensor; 2]; N],
        launch: impl FnOnce(u64, u64, [[u64; 2]; N]) -> Result<()>,
    ) -> Result<Tensor> {
        let mut operands = Vec::with_capacity(2 * N);
        for tensor in params.into_iter().flatten() {
            let dtype = if tensor.dims().len() > 1 { DType::BF16 } else { DType::F32 };
            operands.push(self.gpu_operand(gpu, tensor, dtype)?);
        }
        let out = self.alloc(x.len(), DType::BF16)?;
        let at = std::array::from_fn(|i| [operands[2 * i].at, operands[2 * i + 1].at]);
        launch(out.at(), self.at(x), at)?;
        for operand in operands {
            self.release(operand);
        }
        Ok(self.push(out, x.shape(), DType::BF16, false))
    }
}

/// Whether a block's shared memory suffices.
fn has_room(gpu: &Gpu, grid: Grid) -> bool {
    grid.shared + OWN_SHARED <= gpu.shared_memory()
}

fn pixels(x: Tensor) -> usize {
    x.dims()[1] * x.dims()[2]
}

/// A block of threads per image, with room for the image, another one, one with a border, and sums that warps hand over: two rounds of 64 pixels, 72
/// floats each.
fn residual_grid(x: Tensor) -> Grid {
    let bordered = (x.dims()[1] + 2) * (x.dims()[2] + 2);
    let handed = pixels(x).next_multiple_of(16).min(2 * 64);
    let shared = (2 * pixels(x) + bordered) * PIXEL + handed * 72 * 4;
    Grid { blocks: (x.dims()[0], 1), threads: 256, shared }
}

/// With room for four images and four weights.
fn attention_grid(x: Tensor) -> Grid {
    let shared = 4 * (pixels(x) + CHANNELS) * PIXEL;
    Grid { blocks: (x.dims()[0], 1), threads: 512, shared }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Limits, assert_same, values};
    use crate::{Device, Init, Key, Param, Params, ParamsBuilder, Stepper};

    const EPSILON: f32 = 1e-6;

    /// The parameters of one block of each kind.
    struct Network {
        params: Params,
        norms: [[Param; 2]; 3],
        convolutions: [[Param; 2]; 2],
        linear: [[Param; 2]; 4],
        groups: usize,
    }

    impl Network {
        fn new(device: &Device, channels: usize, groups: usize) -> Result<Network> {
            let mut b = ParamsBuilder::new();
            let c = channels;
            let mut layer = |name: String, shape: &[usize]| -> Result<[Param; 2]> {
                let inputs: usize = shape[1..].iter().product();
                let init = Init::Uniform((3.0 / inputs as f32).sqrt());
                let shape = crate::Shape::try_from(shape)?;
                Ok([
                    b.add(format!("{name}.w"), shape, init),
                    b.add(format!("{name}.b"), [c], Init::Uniform(0.3)),
                ])
            };
            let convolutions = [layer("c0".into(), &[c, 3, 3, c])?, layer("c1".into(), &[c, 3, 3, c])?];
            let mut linear = Vec::new();
            for i in 0..4 {
                linear.push(layer(format!("l{i}"), &[c, c])?);
            }
            let norms = [0, 1, 2].map(|i| {
                [
                    b.add(format!("n{i}.gain"), [c], Init::Constant(0.0)),
                    b.add(format!("n{i}.shift"), [c], Init::Constant(0.0)),
                ]
            });
            let params = b.build(device, "blocks", 3)?;
            for i in 0..3 {
                let gains: Vec<f32> = values(c, 2 * i).iter().map(|v| 1.0 + 0.4 * v).collect();
                params.set(&format!("n{i}.gain"), &gains)?;
                params.set(&format!("n{i}.shift"), &values(c, 2 * i + 1))?;
            }
            Ok(Network {
                params,
                norms,
                convolutions,
                linear: [linear[0], linear[1], linear[2], linear[3]],
                groups,
            })
        }

        fn pair(&self, tape: &mut Tape, [a, b]: [Param; 2]) -> Result<[Tensor; 2]> {
            Ok([tape.param(&self.params, a)?, tape.param(&self.params, b)?])
        }

        fn residual(&self, tape: &mut Tape) -> Result<ImageResidual> {
            Ok(ImageResidual {
                norms: [self.pair(tape, self.norms[0])?, self.pair(tape, self.norms[1])?],
                convolutions: [
                    self.pair(tape, self.convolutions[0])?,
                    self.pair(tape, self.convolutions[1])?,
                ],
                groups: self.groups,
                epsilon: EPSILON,
            })
        }

        fn attention(&self, tape: &mut Tape) -> Result<ImageAttention> {
            Ok(ImageAttention {
                norm: self.pair(tape, self.norms[2])?,
                query: self.pair(tape, self.linear[0])?,
                key: self.pair(tape, self.linear[1])?,
                value: self.pair(tape, self.linear[2])?,
                out: self.pair(tape, self.linear[3])?,
                groups: self.groups,
                epsilon: EPSILON,
            })
        }
    }

    /// The ops, one by one.
    fn composed(tape: &mut Tape, x: Tensor, network: &Network) -> Result<Vec<Tensor>> {
        let residual = network.residual(tape)?;
        let after = tape.composed_residual(x, &residual)?;
        let attention = network.attention(tape)?;
        Ok(vec![after, tape.composed_attention(after, &attention)?])
    }

    fn blocks(tape: &mut Tape, x: Tensor, network: &Network) -> Result<Vec<Tensor>> {
        let residual = network.residual(tape)?;
        let after = tape.image_residual(x, &residual)?;
        let attention = network.attention(tape)?;
        Ok(vec![after, tape.image_attention(after, &attention)?])
    }

    type Pass = fn(&mut Tape, Tensor, &Network) -> Result<Vec<Tensor>>;

    /// The results of both blocks. A GPU runs them again to record them, and again to replay them.
    fn run(device: &Device, shape: [usize; 4], groups: usize, pass: Pass) -> Result<Vec<Vec<f32>>> {
        let network = Network::new(device, shape[3], groups)?;
        let mut stepper = Stepper::new(device, Key::new(0, 0));
        let input = device.float_buffer("x", shape)?;
        let x = values(shape.iter().product(), 100);
        // Channels that differ in size and lie far from zero.
        input.write(
            &x.iter()
                .enumerate()
                .map(|(i, v)| (1 + i % 3) as f32 * v + (i % shape[3]) as f32 / 20.0)
                .collect::<Vec<_>>(),
        )?;
        let outputs = [device.buffer::<f32>("y", shape)?, device.buffer::<f32>("y", shape)?];
        for _ in 0..if device.is_gpu() { 3 } else { 1 } {
            stepper.infer_captured(crate::StepId::new("blocks", &()), |tape| -> Result<()> {
                let x = tape.buffer(&input)?;
                for (result, output) in pass(tape, x, &network)?.into_iter().zip(&outputs) {
                    tape.store(output, 0, result)?;
                }
                Ok(())
            })?;
        }
        outputs.iter().map(crate::Buffer::read::<f32>).collect()
    }

    fn check(shape: [usize; 4], groups: usize) -> Result<()> {
        let device = Device::under_test(2)?;
        let got = run(&device, shape, groups, blocks)?;
        let expected = run(&Device::cpu(Some(2))?, shape, groups, composed)?;
        for (block, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let what = format!("{shape:?}, block {block}");
            assert_same(&what, got, expected, shape[3], Limits::under_test());
            if !device.is_gpu() {
                assert_eq!(got, expected);
            }
        }
        Ok(())
    }

    #[test]
    fn small_images_are_the_composition() -> Result<()> {
        check([3, 4, 4, CHANNELS], 32)?;
        check([70, 8, 8, CHANNELS], 32)?;
        check([2, 16, 16, CHANNELS], 32)
    }

    /// What leaves something over, and what is not for the fused kernels: other channels, larger images.
    #[test]
    fn odd_images_are_the_composition() -> Result<()> {
        check([2, 1, 1, CHANNELS], 64)?;
        check([1, 3, 7, CHANNELS], 8)?;
        check([2, 12, 12, CHANNELS], 16)?;
        check([1, 16, 3, CHANNELS], 1)?;
        check([2, 4, 4, 32], 32)?;
        check([1, 17, 16, CHANNELS], 32)
    }

    /// Steps that record gradients get them.
    #[test]
    fn gradients_are_those_of_the_ops() -> Result<()> {
        let device = Device::under_test(2)?;
        let gradient = |pass: Pass| -> Result<Vec<f32>> {
            let network = Network::new(&device, CHANNELS, 32)?;
            let input = device.float_buffer("x", [2, 4, 4, CHANNELS])?;
            input.write(&values(2 * 16 * CHANNELS, 7))?;
            Stepper::new(&device, Key::new(0, 0)).run(|tape| -> Result<()> {
                let x = tape.buffer(&input)?;
                let y = pass(tape, x, &network)?[1];
                let loss = tape.squared_error(y, x)?;
                tape.backward(loss)
            })?;
            network.params.gradient("c0.w")
        };
        let got = gradient(blocks)?;
        assert!(got.iter().any(|g| g.abs() > 1e-6));
        assert_eq!(got, gradient(composed)?);
        Ok(())
    }

    #[test]
    fn errors_are_those_of_the_ops() -> Result<()> {
        let device = Device::under_test(1)?;
        let network = Network::new(&device, CHANNELS, 32)?;
        let input = device.float_buffer("x", [2, 4, 4, CHANNELS])?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let error = stepper.infer(|tape| {
            let x = tape.buffer(&input)?;
            let block = network.attention(tape)?;
            let x = tape.reshape(x, [2, 16, CHANNELS])?;
            tape.image_attention(x, &block)
        });
        assert_eq!(
            error.unwrap_err().to_string(),
            "attention block: cannot take a tensor of shape [2, 16, 64]: x is [B, H, W, C]"
        );
        let error = stepper.infer(|tape| {
            let x = tape.buffer(&input)?;
            let block = network.residual(tape)?;
            tape.image_residual(x, &ImageResidual { groups: 7, ..block })
        });
        assert!(matches!(error, Err(Error::BadShape { rule: "the groups divide the channels", .. })));
        Ok(())
    }
}
