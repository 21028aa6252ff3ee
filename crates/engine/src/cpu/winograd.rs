//! 3x3 convolutions of stride 1 by Winograd's F(2x2, 3x3): four outputs from a 4x4 patch with 16 products instead of 36
//! (Lavin and Gray, "Fast algorithms for convolutional neural networks").
//!
//! Patches and filters are transformed, multiplied point by point (16 matrix products over the channels), and transformed back:
//! Y = A^T ((G g G^T) . (B^T d B)) A. The transforms only add and halve, so the result differs from the direct sum by rounding alone.

use super::conv::Epilogue;
use super::gemm::Out;
use super::parallel;
use super::tile::{self, From, MR, Segment, Tile};

/// Points of a transformed patch.
const POINTS: usize = 16;

/// Patches per task: their transforms stay in the second-level cache.
const PATCHES: usize = 48;

/// Channels transformed at a time, in registers.
const LANES: usize = 16;

/// A stride-1 convolution, or its input gradient (which is one with the filters turned and the channels exchanged).
#[derive(Clone, Copy)]
pub(super) struct Winograd {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl Winograd {
    /// Whether this way is worth it: whole patches, whole vectors, and enough patches to reuse the filters.
    pub fn pays(&self) -> bool {
        self.height % 2 == 0
            && self.width % 2 == 0
            && self.inputs % LANES == 0
            && self.outputs % LANES == 0
            && self.patches() >= 2 * PATCHES
    }

    fn patches(&self) -> usize {
        self.batch * (self.height / 2) * (self.width / 2)
    }

    fn packed_outputs(&self) -> usize {
        self.outputs.next_multiple_of(tile::panel_width())
    }

    fn filters_len(&self) -> usize {
        POINTS * self.inputs * self.packed_outputs()
    }

    /// One thread's transformed patches and products.
    fn task_len(&self) -> usize {
        POINTS * PATCHES * (self.inputs + self.outputs)
    }

    pub fn scratch_len(&self) -> usize {
        self.filters_len() + self.inputs + parallel::threads() * self.task_len()
    }

    /// out [B, H, W, O] (+)= x [B, H, W, I] * filters + bias. `filter(tap, i, o)` is where a weight stands in `w`.
    pub fn run(
        &self,
        x: &[f32],
        w: &[f32],
        filter: impl Fn(usize, usize, usize) -> usize + Sync,
        bias: Option<&[f32]>,
        accumulate: bool,
        epilogue: Epilogue,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (filters, rest) = scratch.split_at_mut(self.filters_len());
        let (zeros, rooms) = rest.split_at_mut(self.inputs);
        zeros.fill(0.0);
        self.transform_filters(w, filter, filters);
        let (filters, zeros) = (&*filters, &*zeros);
        assert_eq!(x.len(), self.batch * self.height * self.width * self.inputs);
        assert_eq!(out.len(), self.batch * self.height * self.width * self.outputs);
        let target = Out(out.as_mut_ptr());
        let tasks = self.patches().div_ceil(PATCHES);
        parallel::for_each_in(tasks, rooms, self.task_len(), |task, room| {
            let first = task * PATCHES;
            let count = PATCHES.min(self.patches() - first);
            let (points, products) = room.split_at_mut(POINTS * PATCHES * self.inputs);
            for p in 0..count {
                let (image, y, x0) = self.place(first + p);
                let pixels: [&[f32]; POINTS] = std::array::from_fn(|i| {
                    let (y, x0) = ((y + i / 4).wrapping_sub(1), (x0 + i % 4).wrapping_sub(1));
                    match y < self.height && x0 < self.width {
                        true => {
                            &x[((image * self.height + y) * self.width + x0) * self.inputs..][..self.inputs]
                        }
                        false => zeros,
                    }
                });
                transform_patch(&pixels, &mut points[p * self.inputs..], PATCHES * self.inputs);
            }
            self.multiply(points, filters, count, products);
            for p in 0..count {
                let (image, y, x0) = self.place(first + p);
                let at = ((image * self.height + y) * self.width + x0) * self.outputs;
                let row = self.width * self.outputs;
                let lines = [at, at + self.outputs, at + row, at + row + self.outputs].map(|at| {
                    // SAFETY: the four pixels of this patch, inside the target; no other task or patch has them.
                    unsafe { std::slice::from_raw_parts_mut(target.get().add(at), self.outputs) }
                });
                let starts = [at, at + self.outputs, at + row, at + row + self.outputs];
                let residuals = epilogue.residual.map(|r| starts.map(|at| &r[at..at + self.outputs]));
                let products = &products[p * self.outputs..];
                transform_back(
                    products,
                    PATCHES * self.outputs,
                    bias,
                    accumulate,
                    residuals,
                    epilogue.relu,
                    lines,
                );
            }
        });
    }

    /// Image, and the row and column of the first output of a patch.
    fn place(&self, patch: usize) -> (usize, usize, usize) {
        let (rows, columns) = (self.height / 2, self.width / 2);
        (patch / (rows * columns), patch / columns % rows * 2, patch % columns * 2)
    }

    /// G g G^T for every pair of channels, as packed panels [point][panel][input][width].
    fn transform_filters(
        &self,
        w: &[f32],
        filter: impl Fn(usize, usize, usize) -> usize + Sync,
        out: &mut [f32],
    ) {
        let (inputs, width) = (self.inputs, tile::panel_width());
        let point_len = inputs * self.packed_outputs();
        let target = Out(out.as_mut_ptr());
        parallel::for_each(inputs / LANES, |block| {
            let mut lines = [0.0; POINTS];
            for input in block * LANES..(block + 1) * LANES {
                for output in 0..self.packed_outputs() {
                    match output < self.outputs {
                        true => {
                            lines = transform_filter(std::array::from_fn(|tap| w[filter(tap, input, output)]))
                        }
                        false => lines.fill(0.0),
                    }
                    let at = (output / width * inputs + input) * width + output % width;
                    for (point, value) in lines.iter().enumerate() {
                        assert!(point * point_len + at < POINTS * point_len);
                        // SAFETY: inside the filters, as just checked; every task has its own inputs.
                        unsafe { *target.get().add(point * point_len + at) = *value };
                    }
                }
            }
        });
    }

    /// products[point] = points[point] (patches x inputs) * filters[point] (inputs x outputs)
    fn multiply(&self, points: &[f32], filters: &[f32], count: usize, products: &mut [f32]) {
        let (inputs, outputs, width) = (self.inputs, self.outputs, tile::panel_width());
        for point in 0..POINTS {
            let a = &points[point * PATCHES * inputs..][..PATCHES * inputs];
            let c = products[point * PATCHES * outputs..][..PATCHES * outputs].as_mut_ptr();
            for first in (0..outputs).step_by(width) {
                let b = &filters[(point * self.packed_outputs() + first) * inputs..][..inputs * width];
                for row in (0..count).step_by(MR) {
                    let rows = MR.min(count - row);
                    let at = |r: usize| row + r.min(rows - 1);
                    let tile = Tile {
                        segments: &[Segment {
                            a: std::array::from_fn(|r| a[at(r) * inputs..].as_ptr()),
                            b: b.as_ptr(),
                        }],
                        k: inputs,
                        a_step: 1,
                        b_step: width,
                        from: From::Zero,
                        c: std::array::from_fn(|r| c.wrapping_add(at(r) * outputs + first)),
                        rows,
                        cols: width.min(outputs - first),
                    };
                    // SAFETY: rows of A are whole transformed patches, B is a whole panel, C this thread's own room.
                    unsafe { tile::run(&tile) };
                }
            }
        }
    }
}

/// G g G^T of one 3x3 filter.
#[inline(always)]
fn transform_filter(g: [f32; 9]) -> [f32; POINTS] {
    let three = |a: f32, b: f32, c: f32| [a, 0.5 * (a + b + c), 0.5 * (a - b + c), c];
    let columns: [[f32; 4]; 3] = std::array::from_fn(|x| three(g[x], g[3 + x], g[6 + x]));
    let mut out = [0.0; POINTS];
    for y in 0..4 {
        let row = three(columns[0][y], columns[1][y], columns[2][y]);
        out[4 * y..4 * y + 4].copy_from_slice(&row);
    }
    out
}

super::multiversion! {
    /// B^T d B for all channels of one 4x4 patch; point i goes to `out[i * stride..]`.
    fn transform_patch(pixels: &[&[f32]; 16], out: &mut [f32], stride: usize) {
        let channels = pixels[0].len();
        for first in (0..channels).step_by(LANES) {
            let mut d = [[0.0f32; LANES]; POINTS];
            for (d, pixel) in d.iter_mut().zip(pixels) {
                d.copy_from_slice(&pixel[first..first + LANES]);
            }
            let mut t = [[0.0f32; LANES]; POINTS];
            for x in 0..4 {
                for l in 0..LANES {
                    let (d0, d1, d2, d3) = (d[x][l], d[4 + x][l], d[8 + x][l], d[12 + x][l]);
                    t[x][l] = d0 - d2;
                    t[4 + x][l] = d1 + d2;
                    t[8 + x][l] = d2 - d1;
                    t[12 + x][l] = d1 - d3;
                }
            }
            for y in 0..4 {
                let row = 4 * y;
                let mut v = [[0.0f32; LANES]; 4];
                for l in 0..LANES {
                    v[0][l] = t[row][l] - t[row + 2][l];
                    v[1][l] = t[row + 1][l] + t[row + 2][l];
                    v[2][l] = t[row + 2][l] - t[row + 1][l];
                    v[3][l] = t[row + 1][l] - t[row + 3][l];
                }
                for (x, v) in v.iter().enumerate() {
                    out[(row + x) * stride + first..][..LANES].copy_from_slice(v);
                }
            }
        }
    }
}

super::multiversion! {
    /// A^T m A for all channels of one patch, then bias, accumulation, residual and ReLU, into its four pixels.
    fn transform_back(
        products: &[f32],
        stride: usize,
        bias: Option<&[f32]>,
        accumulate: bool,
        residuals: Option<[&[f32]; 4]>,
        relu: bool,
        lines: [&mut [f32]; 4],
    ) {
        let mut lines = lines;
        let channels = lines[0].len();
        for first in (0..channels).step_by(LANES) {
            let mut m = [[0.0f32; LANES]; POINTS];
            for (i, m) in m.iter_mut().enumerate() {
                m.copy_from_slice(&products[i * stride + first..][..LANES]);
            }
            let mut t = [[0.0f32; LANES]; 8];
            for x in 0..4 {
                for l in 0..LANES {
                    let (m0, m1, m2, m3) = (m[x][l], m[4 + x][l], m[8 + x][l], m[12 + x][l]);
                    t[x][l] = m0 + m1 + m2;
                    t[4 + x][l] = m1 - m2 - m3;
                }
            }
            for (i, line) in lines.iter_mut().enumerate() {
                let (row, right) = (i / 2 * 4, i % 2 == 1);
                let line = &mut line[first..first + LANES];
                let mut y = [0.0f32; LANES];
                for l in 0..LANES {
                    let (t0, t1, t2, t3) = (t[row][l], t[row + 1][l], t[row + 2][l], t[row + 3][l]);
                    y[l] = if right { t1 - t2 - t3 } else { t0 + t1 + t2 };
                }
                if let Some(bias) = bias {
                    let bias = &bias[first..first + LANES];
                    (0..LANES).for_each(|l| y[l] += bias[l]);
                }
                if accumulate {
                    (0..LANES).for_each(|l| y[l] += line[l]);
                }
                if let Some(residuals) = &residuals {
                    let residual = &residuals[i][first..first + LANES];
                    (0..LANES).for_each(|l| y[l] += residual[l]);
                }
                if relu {
                    (0..LANES).for_each(|l| y[l] = y[l].max(0.0));
                }
                line.copy_from_slice(&y);
            }
        }
    }
}
