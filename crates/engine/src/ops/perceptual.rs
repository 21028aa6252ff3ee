//! The distance of two feature maps as LPIPS defines it, for one layer.

use super::Backward;
use crate::backend::Backend;
use crate::cpu::math::lane_sum;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::rng::{Site, unit};
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct Perceptual {
    a: Tensor,
    b: Tensor,
    weights: Tensor,
    dropout: f32,
    site: Site,
    out: Tensor,
}

const OP: &str = "perceptual distance";

/// Added to the length of a feature vector before dividing by it.
const EPSILON: f32 = 1e-10;

/// Pixels per task.
const PIXELS: usize = 64;

impl Tape {
    /// Mean over images and pixels of sum_c w_c (a_c / |a| - b_c / |b|)^2: a, b [B, H, W, C], weights `[C]` -> scalar. `dropout` drops single
    /// channels' squared differences, as the reference release does while training.
    pub fn perceptual_distance(
        &mut self,
        a: Tensor,
        b: Tensor,
        weights: Tensor,
        dropout: f32,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[a, b])?;
        self.check_exact(OP, &[weights])?;
        super::dropout::check_rate(OP, dropout)?;
        if a.shape() != b.shape() || a.shape().rank() != 4 || a.len() == 0 {
            let rule = "both are [B, H, W, C]";
            return Err(Error::ShapeMismatch { op: OP, lhs: a.shape(), rhs: b.shape(), rule });
        }
        if weights.dims() != [a.shape().last()] {
            let rule = "the weights are [C]";
            return Err(Error::ShapeMismatch { op: OP, lhs: a.shape(), rhs: weights.shape(), rule });
        }
        let site = self.next_site();
        let out = match self.backend() {
            Backend::Cpu => self.cpu_perceptual(a, b, weights, dropout, site)?,
            Backend::Cuda(gpu) => self.gpu_perceptual(&gpu, a, b, weights, dropout, site)?,
        };
        let needs_grad = self.any_needs_grad(&[a, b]);
        let out = self.push(out, [], DType::F32, needs_grad);
        if needs_grad {
            self.record(Perceptual { a, b, weights, dropout, site, out });
        }
        Ok(out)
    }

    fn cpu_perceptual(
        &mut self,
        a: Tensor,
        b: Tensor,
        weights: Tensor,
        dropout: f32,
        site: Site,
    ) -> Result<Block> {
        let (pixels, channels) = (a.shape().rows(), a.shape().last());
        let mut parts = self.scratch(pixels.div_ceil(PIXELS))?;
        let mut masks = self.scratch(pixels.div_ceil(PIXELS) * channels)?;
        let (av, bv, wv) = (self.f32(a), self.f32(b), self.f32(weights));
        cpu::chunks2_mut((parts.f32_mut(), 1), (masks.f32_mut(), channels), |i, part, weights| {
            part[0] = 0.0;
            for pixel in i * PIXELS..pixels.min((i + 1) * PIXELS) {
                let range = pixel * channels..(pixel + 1) * channels;
                drop_weights(site, pixel, dropout, wv, weights);
                part[0] += distance(&av[range.clone()], &bv[range], weights);
            }
        });
        let total: f64 = parts.f32().iter().map(|&p| f64::from(p)).sum();
        let mut out = self.alloc(1, DType::F32)?;
        out.f32_mut()[0] = (total / pixels as f64) as f32;
        self.give_back(parts);
        self.give_back(masks);
        Ok(out)
    }

    fn gpu_perceptual(
        &mut self,
        gpu: &Gpu,
        a: Tensor,
        b: Tensor,
        weights: Tensor,
        dropout: f32,
        site: Site,
    ) -> Result<Block> {
        let (pixels, channels) = (a.shape().rows(), a.shape().last());
        let out = self.alloc(1, DType::F32)?;
        // Four waves of four blocks per multiprocessor: the last of them may end early.
        let count = pixels.div_ceil(64).min(16 * gpu.processors());
        let sums = self.scratch(2 * count)?;
        kernels::perceptual(
            gpu,
            Grid::blocks(count),
            self.view(a),
            self.view(b),
            self.at(weights),
            sums.at(),
            pixels,
            channels,
            dropout,
            self.state(),
            site.number() as usize,
        )?;
        kernels::sum_of_parts(gpu, Grid::blocks(1), sums.at(), count, 1.0 / pixels as f64, out.at())?;
        self.give_back(sums);
        Ok(out)
    }
}

impl Backward for Perceptual {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
    }
}

impl Perceptual {
    fn cpu_backward(&self, tape: &mut Tape, dy: &Block) -> Result<()> {
        let (pixels, channels) = (self.a.shape().rows(), self.a.shape().last());
        let factor = dy.f32()[0] / pixels as f32;
        let mut masks = tape.scratch(pixels.div_ceil(PIXELS) * channels)?;
        for (input, other) in [(self.a, self.b), (self.b, self.a)] {
            if let Some(mut grad) = tape.grad(input)? {
                let (x, y, w) = (tape.f32(input), tape.f32(other), tape.f32(self.weights));
                let accumulate = grad.accumulate;
                let (dx, masks) = ((grad.slice(), PIXELS * channels), (masks.f32_mut(), channels));
                cpu::chunks2_mut(dx, masks, |i, dx, weights| {
                    for (p, dx) in dx.chunks_exact_mut(channels).enumerate() {
                        let pixel = i * PIXELS + p;
                        let range = pixel * channels..(pixel + 1) * channels;
                        drop_weights(self.site, pixel, self.dropout, w, weights);
                        if !accumulate {
                            dx.fill(0.0);
                        }
                        add_gradient(&x[range.clone()], &y[range], weights, factor, dx);
                    }
                });
                tape.put_grad(grad);
            }
        }
        tape.give_back(masks);
        Ok(())
    }

    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let (pixels, channels) = (self.a.shape().rows(), self.a.shape().last());
        for (input, other) in [(self.a, self.b), (self.b, self.a)] {
            if let Some(grad) = tape.grad(input)? {
                kernels::perceptual_gradient(
                    gpu,
                    Grid::warps(gpu, pixels),
                    grad.view(),
                    tape.view(input),
                    tape.view(other),
                    tape.at(self.weights),
                    dy.at(),
                    pixels,
                    channels,
                    self.dropout,
                    tape.state(),
                    self.site.number() as usize,
                    grad.accumulate,
                )?;
                tape.put_grad(grad);
            }
        }
        Ok(())
    }
}

/// The weights of one pixel's channels after dropout.
fn drop_weights(site: Site, pixel: usize, rate: f32, weights: &[f32], out: &mut [f32]) {
    out.copy_from_slice(weights);
    if rate > 0.0 {
        let keep = 1.0 / (1.0 - rate);
        site.for_range(pixel * weights.len(), weights.len(), |c, bits| {
            out[c] *= if unit(bits) >= rate { keep } else { 0.0 };
        });
    }
}

multiversion! {
    fn distance(a: &[f32], b: &[f32], weights: &[f32]) -> f32 {
        let len = weights.len();
        let (a, b) = (&a[..len], &b[..len]);
        let inverse_a = 1.0 / (lane_sum(len, |c| a[c] * a[c]).sqrt() + EPSILON);
        let inverse_b = 1.0 / (lane_sum(len, |c| b[c] * b[c]).sqrt() + EPSILON);
        lane_sum(len, |c| {
            let d = a[c] * inverse_a - b[c] * inverse_b;
            weights[c] * d * d
        })
    }
}

multiversion! {
    /// dx += factor * d distance(x, y) / dx
    fn add_gradient(x: &[f32], y: &[f32], weights: &[f32], factor: f32, dx: &mut [f32]) {
        let len = weights.len();
        let (x, y, dx) = (&x[..len], &y[..len], &mut dx[..len]);
        let length = lane_sum(len, |c| x[c] * x[c]).sqrt();
        let inverse_x = 1.0 / (length + EPSILON);
        let inverse_y = 1.0 / (lane_sum(len, |c| y[c] * y[c]).sqrt() + EPSILON);
        // With u = x / (|x| + eps): du_c / dx_j = [c = j] / (|x| + eps) - u_c x_j / (|x| (|x| + eps)); at x = 0 only the first term is left.
        let slope = |c: usize| 2.0 * factor * weights[c] * (x[c] * inverse_x - y[c] * inverse_y);
        let inner = lane_sum(len, |c| slope(c) * x[c]) * inverse_x * inverse_x;
        let along = if length > 0.0 { inner / length } else { 0.0 };
        for c in 0..len {
            dx[c] += slope(c) * inverse_x - along * x[c];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, constant, gradients as gradients_of, on_tape, values};

    #[test]
    fn gradients() {
        for (batch, height, width, channels) in [(1, 1, 1, 2), (2, 3, 2, 5), (1, 9, 9, 33)] {
            let dims: &[usize] = &[batch, height, width, channels];
            for dropout in [0.0, 0.5] {
                check_gradients(&[dims; 2], |tape, x| {
                    let weights = constant(tape, &values(channels, 7), [channels]);
                    tape.perceptual_distance(x[0], x[1], weights, dropout)
                });
            }
        }
    }

    /// Channels that lanes keep: fewer than there are lanes for, one unit each, two each.
    #[test]
    fn gradients_of_activations() {
        for channels in [8, 40, 64, 256, 320, 512] {
            let dims: &[usize] = &[1, 3, 7, channels];
            check_gradients(&[dims; 2], |tape, x| {
                // As activations are stored: what positions were added to.
                let mut stored = [x[0], x[1]];
                for x in &mut stored {
                    let zeros = constant(tape, &vec![0.0; 21 * channels], [21, channels]);
                    let rows = tape.reshape(*x, [1, 21, channels])?;
                    let rows = tape.add_positions(rows, zeros, 0)?;
                    *x = tape.reshape(rows, [1, 3, 7, channels])?;
                }
                let weights = constant(tape, &values(channels, 7), [channels]);
                tape.perceptual_distance(stored[0], stored[1], weights, 0.5)
            });
        }
    }

    #[test]
    fn values_match_the_definition() {
        let (pixels, channels) = (4, 5);
        let [a, b, w] = [values(20, 0), values(20, 1), values(5, 2)];
        let got = on_tape(&[&[2, 2, 1, 5], &[2, 2, 1, 5], &[5]], |tape, x| {
            tape.perceptual_distance(x[0], x[1], x[2], 0.0)
        })
        .unwrap()[0];
        let mut expected = 0.0;
        for p in 0..pixels {
            let unit = |x: &[f32]| -> Vec<f64> {
                let x: Vec<f64> = x[p * channels..(p + 1) * channels].iter().map(|&v| f64::from(v)).collect();
                let length = x.iter().map(|v| v * v).sum::<f64>().sqrt();
                x.iter().map(|v| v / (length + 1e-10)).collect()
            };
            let (a, b) = (unit(&a), unit(&b));
            expected += (0..channels).map(|c| f64::from(w[c]) * (a[c] - b[c]).powi(2)).sum::<f64>();
        }
        assert!((f64::from(got) - expected / pixels as f64).abs() < 1e-6);
    }

    /// Dead features (all zero after ReLU) must not give NaN.
    #[test]
    fn zero_features_have_a_finite_gradient() -> Result<()> {
        let dx = gradients_of(&[&[1, 1, 1, 3], &[1, 1, 1, 3]], &[1.0], |tape, x| {
            let zero = tape.affine(x[0], 0.0, 0.0)?;
            let weights = constant(tape, &[1.0; 3], [3]);
            tape.perceptual_distance(zero, x[1], weights, 0.0)
        })?;
        assert!(dx.iter().flatten().all(|g| g.is_finite()), "{dx:?}");
        Ok(())
    }
}
