//! 3x3 convolutions of stride 1 by Winograd's F(2x2, 3x3): four outputs from a 4x4 patch with 16 products instead of 36
//! (Lavin and Gray, "Fast algorithms for convolutional neural networks").
//!
//! Patches and filters are transformed, multiplied point by point (16 matrix products over the channels), and transformed back:
//! Y = A^T ((G g G^T) . (B^T d B)) A. The transforms only add and halve, so the result differs from the direct sum by rounding alone.

use super::conv::Epilogue;
use super::gemm::Out;
use super::parallel;
use super::tile::{self, From, MR, Panel, Tile};

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
        self.height.is_multiple_of(2)
            && self.width.is_multiple_of(2)
            && self.inputs.is_multiple_of(LANES)
            && self.outputs.is_multiple_of(LANES)
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

    /// out [B, H, W, O] (+)= x [B, H, W, I] * w + bias
    pub fn run(
        &self,
        x: &[f32],
        w: &[f32],
        layout: Filters,
        bias: Option<&[f32]>,
        accumulate: bool,
        epilogue: Epilogue,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (filters, rest) = scratch.split_at_mut(self.filters_len());
        let (zeros, rooms) = rest.split_at_mut(self.inputs);
        zeros.fill(0.0);
        self.transform_filters(w, layout, filters);
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
    fn transform_filters(&self, w: &[f32], filters: Filters, out: &mut [f32]) {
        let (inputs, width) = (self.inputs, tile::panel_width());
        let point_len = inputs * self.packed_outputs();
        assert_eq!(out.len(), POINTS * point_len);
        assert_eq!(w.len(), 9 * inputs * self.outputs);
        if self.outputs < self.packed_outputs() {
            out.fill(0.0);
        }
        let target = Out(out.as_mut_ptr());
        // One task per square of channels.
        let blocks = self.outputs / LANES;
        parallel::for_each(inputs / LANES * blocks, |task| {
            let (input, output) = (task / blocks * LANES, task % blocks * LANES);
            let mut square = [[[0.0; LANES]; LANES]; POINTS];
            filters.transform(w, self, input, output, &mut square);
            for (point, lines) in square.iter().enumerate() {
                for (i, line) in lines.iter().enumerate() {
                    let at =
                        point * point_len + (output / width * inputs + input + i) * width + output % width;
                    // SAFETY: `at` is inside the filters, whose length was checked; squares are disjoint, and one never
                    // crosses a panel since a panel is a whole number of them.
                    unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), target.get().add(at), LANES) };
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
                        segments: &[Panel {
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

/// How the filters lie in memory.
#[derive(Clone, Copy)]
pub(super) enum Filters {
    /// [output][tap][input]
    Forward,
    /// [input][turned tap][output]: the filters of a forward pass, used for its gradient.
    Backward,
}

impl Filters {
    /// The transforms of a square of channels: square[point][input][output].
    fn transform(self, w: &[f32], shape: &Winograd, input: usize, output: usize, square: &mut Square) {
        match self {
            Filters::Forward => {
                for o in 0..LANES {
                    let points =
                        transform_filter(&w[(output + o) * 9 * shape.inputs + input..], shape.inputs, false);
                    for (lines, point) in square.iter_mut().zip(&points) {
                        for (line, value) in lines.iter_mut().zip(point) {
                            line[o] = *value;
                        }
                    }
                }
            }
            Filters::Backward => {
                for i in 0..LANES {
                    let points =
                        transform_filter(&w[(input + i) * 9 * shape.outputs + output..], shape.outputs, true);
                    for (lines, point) in square.iter_mut().zip(&points) {
                        lines[i] = *point;
                    }
                }
            }
        }
    }
}

type Lane = [f32; LANES];
type Square = [[Lane; LANES]; POINTS];

super::multiversion! {
    /// G g G^T of sixteen 3x3 filters side by side; tap t stands at `w[t * stride..]`, or the other way round.
    fn transform_filter(w: &[f32], stride: usize, turned: bool) -> [Lane; POINTS] {
        let tap = |t: usize| -> Lane {
            let at = if turned { 8 - t } else { t } * stride;
            std::array::from_fn(|l| w[at..at + LANES][l])
        };
        let mut columns = [[[0.0; LANES]; 4]; 3];
        for (x, column) in columns.iter_mut().enumerate() {
            *column = widen(tap(x), tap(3 + x), tap(6 + x));
        }
        let mut out = [[0.0; LANES]; POINTS];
        for y in 0..4 {
            let row = widen(columns[0][y], columns[1][y], columns[2][y]);
            out[4 * y..4 * y + 4].copy_from_slice(&row);
        }
        out
    }
}

/// G applied to three values.
#[inline(always)]
fn widen(a: Lane, b: Lane, c: Lane) -> [Lane; 4] {
    let plus = each(|l| 0.5 * (a[l] + b[l] + c[l]));
    let minus = each(|l| 0.5 * (a[l] - b[l] + c[l]));
    [a, plus, minus, c]
}

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> Lane {
    let mut lane = [0.0; LANES];
    for (l, value) in lane.iter_mut().enumerate() {
        *value = f(l);
    }
    lane
}

/// A^T applied to four values.
#[inline(always)]
fn narrow(a: Lane, b: Lane, c: Lane, d: Lane) -> [Lane; 2] {
    [each(|l| a[l] + b[l] + c[l]), each(|l| b[l] - c[l] - d[l])]
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
            let m = |i: usize| each(|l| products[i * stride + first..][..LANES][l]);
            let columns: [[Lane; 2]; 4] = [
                narrow(m(0), m(4), m(8), m(12)),
                narrow(m(1), m(5), m(9), m(13)),
                narrow(m(2), m(6), m(10), m(14)),
                narrow(m(3), m(7), m(11), m(15)),
            ];
            let [y0, y1] = narrow(columns[0][0], columns[1][0], columns[2][0], columns[3][0]);
            let [y2, y3] = narrow(columns[0][1], columns[1][1], columns[2][1], columns[3][1]);
            for (i, (line, mut y)) in lines.iter_mut().zip([y0, y1, y2, y3]).enumerate() {
                let line = &mut line[first..first + LANES];
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
                    (0..LANES).for_each(|l| y[l] = if y[l] < 0.0 { 0.0 } else { y[l] });
                }
                line.copy_from_slice(&y);
            }
        }
    }
}
