//! Group-norm over NHWC images, optionally followed by swish (x * sigmoid(x)) in the same pass.

mod cpu;
mod cuda;

pub(crate) use cuda::takes_shapes;

use super::Backward;
use crate::backend::Backend;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct GroupNorm {
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    swish: bool,
    /// Per image and channel: (mean, 1 / standard deviation) of its group, [B, 2, C].
    statistics: Tensor,
    groups: usize,
    out: Tensor,
}

const OP: &str = "group-norm";

impl Tape {
    /// (x - mean) / sqrt(variance + epsilon) * gain + shift, with mean and variance over the pixels and channels of each group:
    /// x [B, H, W, C], gain and shift `[C]` -> [B, H, W, C]
    pub fn group_norm(
        &mut self,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        groups: usize,
        epsilon: f32,
        swish: bool,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[x])?;
        self.check_exact(OP, &[gain, shift])?;
        self.check_not_empty(OP, &[x])?;
        let &[batch, _, _, channels] = x.dims() else {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "x is [B, H, W, C]" });
        };
        if groups == 0 || channels % groups != 0 {
            return Err(Error::BadShape { op: OP, shape: x.shape(), rule: "the groups divide the channels" });
        }
        for parameter in [gain, shift] {
            if parameter.dims() != [channels] {
                let rule = "gain and shift are [C]";
                return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: parameter.shape(), rule });
            }
        }
        let dtype = self.float();
        let mut out = self.alloc(x.len(), dtype)?;
        let mut statistics = self.alloc(batch * 2 * channels, DType::F32)?;
        let parameters = [gain, shift];
        match self.backend() {
            Backend::Cpu => {
                self.cpu_group_norm(x, parameters, groups, epsilon, swish, &mut out, &mut statistics)?;
            }
            Backend::Cuda(gpu) => {
                self.gpu_group_norm(&gpu, x, parameters, groups, epsilon, swish, &out, &statistics)?;
            }
        }
        let needs_grad = self.any_needs_grad(&[x, gain, shift]);
        let statistics = self.push(statistics, [batch, 2, channels], DType::F32, false);
        let out = self.push(out, x.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(GroupNorm { x, gain, shift, swish, statistics, groups, out });
        }
        Ok(out)
    }
}

impl Backward for GroupNorm {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, on_tape, values};

    #[test]
    fn gradients() {
        let shapes = [
            (1, 1, 2, 2, 1),
            (2, 3, 5, 6, 3),
            (3, 4, 4, 20, 5),
            (1, 15, 10, 32, 32),
            (2, 2, 2, 64, 32),
            // More than a GPU's thread keeps, with and without whole warps; more channels than it has threads for.
            (1, 7, 7, 512, 4),
            (1, 8, 7, 260, 2),
            (1, 1, 2, 1028, 4),
            // Kept by clusters of blocks, and more than they keep.
            (2, 20, 17, 64, 32),
            (1, 40, 41, 64, 32),
            (1, 33, 9, 8, 1),
            (1, 17, 18, 128, 4),
            (1, 64, 64, 64, 16),
            (1, 65, 64, 64, 32),
        ];
        for (batch, height, width, channels, groups) in shapes {
            for swish in [false, true] {
                check_gradients(&[&[batch, height, width, channels], &[channels], &[channels]], |tape, x| {
                    tape.group_norm(x[0], x[1], x[2], groups, 1e-6, swish)
                });
            }
        }
        let shapes =
            [(1, 2, 2, 4, 2), (1, 9, 9, 64, 4), (2, 20, 17, 64, 32), (1, 40, 41, 64, 1), (1, 64, 64, 64, 32)];
        for (batch, height, width, channels, groups) in shapes {
            let image = [batch, height, width, channels];
            // x used twice.
            check_gradients(&[&image, &[channels], &[channels]], |tape, x| {
                let y = tape.group_norm(x[0], x[1], x[2], groups, 1e-6, true)?;
                tape.add(y, x[0])
            });
            // x without a gradient, stored as activations are.
            check_gradients(&[&[channels], &[channels]], |tape, x| {
                let fixed = frames(tape, image)?;
                tape.group_norm(fixed, x[0], x[1], groups, 1e-6, true)
            });
        }
    }

    /// Images of all bytes.
    fn frames(tape: &mut Tape, image: [usize; 4]) -> Result<Tensor> {
        let bytes: Vec<u8> = (0..image.iter().product::<usize>()).map(|i| (i * 89 % 251) as u8).collect();
        let mut block = tape.alloc(bytes.len(), DType::U8)?;
        block.write(0, &bytes)?;
        let bytes = tape.push(block, image, DType::U8, false);
        tape.frames(bytes, 1.0 / 128.0, -1.0)
    }

    /// Mean and variance stay exact when the mean is a thousand times the deviation.
    #[test]
    fn large_means_do_not_spoil_the_variance() -> Result<()> {
        let (pixels, channels, groups) = (4096, 4, 2);
        let x = values(pixels * channels, 0);
        let out = on_tape(&[&[1, 64, 64, channels], &[channels], &[channels]], |tape, x| {
            let shifted = tape.affine(x[0], 1.0, 1000.0)?;
            let (gain, shift) = (tape.affine(x[1], 0.0, 1.0)?, tape.affine(x[2], 0.0, 0.0)?);
            tape.group_norm(shifted, gain, shift, groups, 1e-6, false)
        })?;
        for group in 0..groups {
            let members: Vec<f64> = (0..pixels * channels)
                .filter(|i| i % channels / (channels / groups) == group)
                .map(|i| f64::from(x[i] + 1000.0))
                .collect();
            let mean = members.iter().sum::<f64>() / members.len() as f64;
            let variance = members.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / members.len() as f64;
            for i in (0..pixels * channels).filter(|i| i % channels / (channels / groups) == group) {
                let expected = (f64::from(x[i] + 1000.0) - mean) / (variance + 1e-6).sqrt();
                assert!((f64::from(out[i]) - expected).abs() < 1e-3, "{} against {expected}", out[i]);
            }
        }
        Ok(())
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[1, 2, 2, 6], &[6], &[6]], |tape, x| {
            tape.group_norm(x[0], x[1], x[2], 4, 1e-6, false)
        });
        assert_eq!(
            error.unwrap_err().to_string(),
            "group-norm: cannot take a tensor of shape [1, 2, 2, 6]: the groups divide the channels"
        );
        let error = on_tape(&[&[1, 2, 2, 6], &[5], &[6]], |tape, x| {
            tape.group_norm(x[0], x[1], x[2], 3, 1e-6, false)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { op: "group-norm", .. })));
    }
}
