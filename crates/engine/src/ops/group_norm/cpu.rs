//! Group-norms on the CPU: statistics of each channel's group first, then every image in one pass.

use super::GroupNorm;
use crate::cpu::{self, math, multiversion};
use crate::memory::Block;
use crate::{Result, Tape, Tensor};

impl Tape {
    /// Writes the result, and mean and inverse deviation of every channel as its group has them.
    pub(super) fn cpu_group_norm(
        &mut self,
        x: Tensor,
        [gain, shift]: [Tensor; 2],
        groups: usize,
        epsilon: f32,
        swish: bool,
        out: &mut Block,
        statistics: &mut Block,
    ) -> Result<()> {
        let [batch, pixels, channels] = images(x);
        let image = pixels * channels;
        let mut scratch = self.scratch(batch * 2 * channels)?;
        let (xv, gain, shift) = (self.f32(x), self.f32(gain), self.f32(shift));
        cpu::chunks2_mut_of(
            x.len(),
            (statistics.f32_mut(), 2 * channels),
            (scratch.f32_mut(), 2 * channels),
            |b, statistics, sums| {
                let x = &xv[b * image..(b + 1) * image];
                measure(x, channels, sums);
                group_statistics(sums, &x[..channels], pixels, groups, epsilon, statistics);
            },
        );
        let statistics_v = statistics.f32();
        cpu::chunks2_mut((out.f32_mut(), image), (scratch.f32_mut(), 2 * channels), |b, out, line| {
            // y = x * scale + offset per channel
            let (scale, offset) = line.split_at_mut(channels);
            let (mean, inverse) = statistics_v[b * 2 * channels..][..2 * channels].split_at(channels);
            for c in 0..channels {
                scale[c] = inverse[c] * gain[c];
                offset[c] = shift[c] - mean[c] * scale[c];
            }
            normalise(&xv[b * image..(b + 1) * image], scale, offset, swish, out);
        });
        self.give_back(scratch);
        Ok(())
    }
}

/// [batch, pixels, channels] of x [B, H, W, C].
fn images(x: Tensor) -> [usize; 3] {
    let dims = x.dims();
    [dims[0], dims[1] * dims[2], dims[3]]
}

impl GroupNorm {
    pub(super) fn cpu_backward(&self, tape: &mut Tape, dy: &mut Block) -> Result<()> {
        let [batch, pixels, channels] = images(self.x);
        let image = pixels * channels;
        // Per image: sums over pixels of du and of du * xhat, the parts of the gradients of shift and gain.
        let mut parts = tape.scratch(batch * 2 * channels)?;
        let (x, gain, shift) = (tape.f32(self.x), tape.f32(self.gain), tape.f32(self.shift));
        let statistics = tape.f32(self.statistics);
        cpu::chunks2_mut((dy.f32_mut(), image), (parts.f32_mut(), 2 * channels), |b, dy, sums| {
            let statistics = &statistics[b * 2 * channels..][..2 * channels];
            gradient_sums(&x[b * image..(b + 1) * image], statistics, gain, shift, self.swish, dy, sums);
        });
        // dy is now the gradient before swish. dx = inverse * (du * gain - S1 / m - xhat * S2 / m), with S1 and S2 the group's sums of
        // du * gain and du * gain * xhat.
        let mut factors = tape.scratch(batch * 3 * channels)?;
        if let Some(mut dx) = tape.grad(self.x)? {
            let (gain, statistics, x) = (tape.f32(self.gain), tape.f32(self.statistics), tape.f32(self.x));
            let (parts, dy, accumulate) = (parts.f32(), dy.f32(), dx.accumulate);
            let per_group = channels / self.groups;
            let count = (pixels * per_group) as f32;
            cpu::chunks2_mut((dx.slice(), image), (factors.f32_mut(), 3 * channels), |b, dx, factors| {
                let (mean, inverse) = statistics[b * 2 * channels..][..2 * channels].split_at(channels);
                let (du_sum, du_xhat_sum) = parts[b * 2 * channels..][..2 * channels].split_at(channels);
                // dx = du * f0 + x * f1 + f2 per channel
                let (f0, rest) = factors.split_at_mut(channels);
                let (f1, f2) = rest.split_at_mut(channels);
                for group in 0..self.groups {
                    let range = group * per_group..(group + 1) * per_group;
                    let s1: f32 = range.clone().map(|c| du_sum[c] * gain[c]).sum();
                    let s2: f32 = range.clone().map(|c| du_xhat_sum[c] * gain[c]).sum();
                    for c in range {
                        f0[c] = inverse[c] * gain[c];
                        f1[c] = -inverse[c] * inverse[c] * s2 / count;
                        f2[c] = -inverse[c] * s1 / count - f1[c] * mean[c];
                    }
                }
                let range = b * image..(b + 1) * image;
                input_gradient(&x[range.clone()], &dy[range], f0, f1, f2, accumulate, dx);
            });
            tape.put_grad(dx);
        }
        tape.give_back(factors);
        tape.add_parts(parts.f32(), [self.shift, self.gain])?;
        tape.give_back(parts);
        Ok(())
    }
}

/// Mean and inverse standard deviation of each channel's group, from the channels' shifted sums.
fn group_statistics(
    sums: &[f32],
    origin: &[f32],
    pixels: usize,
    groups: usize,
    epsilon: f32,
    statistics: &mut [f32],
) {
    let channels = origin.len();
    let (sum, squares) = sums.split_at(channels);
    let (mean_out, inverse_out) = statistics.split_at_mut(channels);
    let per_group = channels / groups;
    for group in 0..groups {
        let range = group * per_group..(group + 1) * per_group;
        let count = (pixels * per_group) as f64;
        let total: f64 =
            range.clone().map(|c| f64::from(sum[c]) + pixels as f64 * f64::from(origin[c])).sum();
        let mean = total / count;
        // Sum of (x - mean)^2, with x = origin + e: e was summed.
        let variance: f64 = range
            .clone()
            .map(|c| {
                let d = f64::from(origin[c]) - mean;
                f64::from(squares[c]) + 2.0 * d * f64::from(sum[c]) + pixels as f64 * d * d
            })
            .sum::<f64>()
            / count;
        let inverse = 1.0 / (variance.max(0.0) + f64::from(epsilon)).sqrt();
        mean_out[range.clone()].fill(mean as f32);
        inverse_out[range].fill(inverse as f32);
    }
}

/// Pixels summed in one go before they join the total, which keeps the rounding error small.
const BLOCK: usize = 128;

/// Channels handled at a time, in registers.
const LANES: usize = 16;

multiversion! {
    /// Per channel: sums of x - x[0] and of its square. Subtracting the first pixel keeps the squares small when the mean is large.
    fn measure(x: &[f32], channels: usize, sums: &mut [f32]) {
        let (total, squares) = sums.split_at_mut(channels);
        total.fill(0.0);
        squares.fill(0.0);
        let origin = &x[..channels];
        for block in x.chunks(BLOCK * channels) {
            let mut first = 0;
            while first + LANES <= channels {
                let mut s = [0.0f32; LANES];
                let mut q = [0.0f32; LANES];
                let o = lanes(origin, first);
                for pixel in block.chunks_exact(channels) {
                    let pixel = &pixel[first..first + LANES];
                    for l in 0..LANES {
                        let e = pixel[l] - o[l];
                        s[l] += e;
                        q[l] += e * e;
                    }
                }
                for l in 0..LANES {
                    total[first + l] += s[l];
                    squares[first + l] += q[l];
                }
                first += LANES;
            }
            for c in first..channels {
                let (mut s, mut q) = (0.0, 0.0);
                for pixel in block.chunks_exact(channels) {
                    let e = pixel[c] - origin[c];
                    s += e;
                    q += e * e;
                }
                total[c] += s;
                squares[c] += q;
            }
        }
    }
}

multiversion! {
    fn normalise(x: &[f32], scale: &[f32], offset: &[f32], swish: bool, out: &mut [f32]) {
        let channels = scale.len();
        for (out, x) in out.chunks_mut(BLOCK * channels).zip(x.chunks(BLOCK * channels)) {
            let mut first = 0;
            while first + LANES <= channels {
                let (s, o) = (lanes(scale, first), lanes(offset, first));
                for (out, x) in out.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                    let (out, x) = (&mut out[first..first + LANES], &x[first..first + LANES]);
                    if swish {
                        for l in 0..LANES {
                            let u = x[l] * s[l] + o[l];
                            out[l] = u * math::sigmoid(u);
                        }
                    } else {
                        for l in 0..LANES {
                            out[l] = x[l] * s[l] + o[l];
                        }
                    }
                }
                first += LANES;
            }
            for c in first..channels {
                for (out, x) in out.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                    let u = x[c] * scale[c] + offset[c];
                    out[c] = if swish { u * math::sigmoid(u) } else { u };
                }
            }
        }
    }
}

/// Sixteen values that stay in a register.
#[inline(always)]
fn lanes(values: &[f32], first: usize) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    out.copy_from_slice(&values[first..first + LANES]);
    out
}

multiversion! {
    /// Turns dy into the gradient before swish, and sums it and its product with xhat per channel.
    fn gradient_sums(
        x: &[f32],
        statistics: &[f32],
        gain: &[f32],
        shift: &[f32],
        swish: bool,
        dy: &mut [f32],
        sums: &mut [f32],
    ) {
        let channels = gain.len();
        let (mean, inverse) = statistics.split_at(channels);
        let (du_sum, du_xhat_sum) = sums.split_at_mut(channels);
        du_sum.fill(0.0);
        du_xhat_sum.fill(0.0);
        for (dy, x) in dy.chunks_mut(BLOCK * channels).zip(x.chunks(BLOCK * channels)) {
            let mut first = 0;
            while first + LANES <= channels {
                let (m, i) = (lanes(mean, first), lanes(inverse, first));
                let (g, b) = (lanes(gain, first), lanes(shift, first));
                let mut s = [0.0f32; LANES];
                let mut q = [0.0f32; LANES];
                for (dy, x) in dy.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                    let (dy, x) = (&mut dy[first..first + LANES], &x[first..first + LANES]);
                    for l in 0..LANES {
                        let xhat = (x[l] - m[l]) * i[l];
                        let mut du = dy[l];
                        if swish {
                            let u = xhat * g[l] + b[l];
                            let p = math::sigmoid(u);
                            du *= p * (1.0 + u * (1.0 - p));
                            dy[l] = du;
                        }
                        s[l] += du;
                        q[l] += du * xhat;
                    }
                }
                for l in 0..LANES {
                    du_sum[first + l] += s[l];
                    du_xhat_sum[first + l] += q[l];
                }
                first += LANES;
            }
            for c in first..channels {
                for (dy, x) in dy.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                    let xhat = (x[c] - mean[c]) * inverse[c];
                    if swish {
                        let u = xhat * gain[c] + shift[c];
                        let p = math::sigmoid(u);
                        dy[c] *= p * (1.0 + u * (1.0 - p));
                    }
                    du_sum[c] += dy[c];
                    du_xhat_sum[c] += dy[c] * xhat;
                }
            }
        }
    }
}

multiversion! {
    /// dx (+)= du * f0 + x * f1 + f2 per channel
    fn input_gradient(
        x: &[f32],
        du: &[f32],
        f0: &[f32],
        f1: &[f32],
        f2: &[f32],
        accumulate: bool,
        dx: &mut [f32],
    ) {
        let channels = f0.len();
        let blocks = dx.chunks_mut(BLOCK * channels).zip(x.chunks(BLOCK * channels)).zip(du.chunks(BLOCK * channels));
        for ((dx, x), du) in blocks {
            let mut first = 0;
            while first + LANES <= channels {
                let (a, b, c) = (lanes(f0, first), lanes(f1, first), lanes(f2, first));
                let lines = dx.chunks_exact_mut(channels).zip(x.chunks_exact(channels)).zip(du.chunks_exact(channels));
                for ((dx, x), du) in lines {
                    let range = first..first + LANES;
                    let (dx, x, du) = (&mut dx[range.clone()], &x[range.clone()], &du[range]);
                    for l in 0..LANES {
                        let value = du[l] * a[l] + (x[l] * b[l] + c[l]);
                        dx[l] = if accumulate { dx[l] + value } else { value };
                    }
                }
                first += LANES;
            }
            for c in first..channels {
                let lines = dx.chunks_exact_mut(channels).zip(x.chunks_exact(channels)).zip(du.chunks_exact(channels));
                for ((dx, x), du) in lines {
                    let value = du[c] * f0[c] + (x[c] * f1[c] + f2[c]);
                    dx[c] = if accumulate { dx[c] + value } else { value };
                }
            }
        }
    }
}
