//! Convolutions 3x3 over NHWC images, as products of register tiles whose rows point into the image. Taps that fall outside point at
//! zeros, so images are neither padded nor copied.

use super::gemm::{Mat, Out, Packed, packed_len};
use super::parallel;
use super::tile::{self, From, MAX_NR, MR, Panel, Tile};
use super::winograd::{Filters, Winograd};

const TAPS: usize = 9;

/// Pixels per task.
const PIXELS: usize = 384;

/// K is cut so that a panel of weights stays in the second-level cache.
const KC: usize = 1536;

/// A 3x3 convolution: stride 1 with one pixel of padding all around, or stride 2 with one at the right and bottom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub stride: usize,
}

impl ConvShape {
    pub fn out_height(&self) -> usize {
        self.out_size(self.height)
    }

    pub fn out_width(&self) -> usize {
        self.out_size(self.width)
    }

    /// (n + 2 - 3) / 1 + 1 or (n + 1 - 3) / 2 + 1.
    fn out_size(&self, n: usize) -> usize {
        if self.stride == 1 { n } else { n / 2 }
    }

    /// The fast way to compute the convolution, where there is one that pays.
    fn winograd(&self) -> Option<Winograd> {
        let ConvShape { batch, height, width, inputs, outputs, stride } = *self;
        Some(Winograd { batch, height, width, inputs, outputs }).filter(|w| stride == 1 && w.pays())
    }

    /// The fast way to compute the input's gradient.
    fn winograd_backward(&self) -> Option<Winograd> {
        let swapped = ConvShape { inputs: self.outputs, outputs: self.inputs, ..*self };
        swapped.winograd()
    }

    /// Where the first tap of output 0 falls.
    fn pad(&self) -> isize {
        if self.stride == 1 { 1 } else { 0 }
    }
}

/// What happens to a tile after the products, while it is still in the cache.
#[derive(Clone, Copy, Default)]
pub(crate) struct Epilogue<'a> {
    pub residual: Option<&'a [f32]>,
    pub relu: bool,
}

/// Room for packed weights and a row of zeros, forward or input gradient.
pub(crate) fn conv_scratch_len(shape: &ConvShape) -> usize {
    let forward = packed_len(TAPS * shape.inputs, shape.outputs);
    let backward = TAPS * packed_len(shape.outputs, shape.inputs);
    let fast = |way: Option<Winograd>| way.map_or(0, |w| w.scratch_len());
    (forward.max(backward) + shape.inputs.max(shape.outputs))
        .max(fast(shape.winograd()))
        .max(fast(shape.winograd_backward()))
}

/// out [B, H', W', O] = x [B, H, W, I] * w [O, 3, 3, I] + bias
pub(crate) fn conv_forward(
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    epilogue: Epilogue,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let k = TAPS * shape.inputs;
    if let Some(fast) = shape.winograd() {
        return fast.run(x, w, Filters::Forward, bias, false, epilogue, out, scratch);
    }
    let (room, zeros) = scratch.split_at_mut(packed_len(k, shape.outputs));
    zeros.fill(0.0);
    // [panel][tap][input][width]
    Packed::parallel(Mat::transposed(w, k), k, shape.outputs, room);
    let width = tile::panel_width();
    let taps: [Tap; TAPS] = std::array::from_fn(|t| Tap {
        dy: (t / 3) as isize - shape.pad(),
        dx: (t % 3) as isize - shape.pad(),
        weights: t * shape.inputs * width,
    });
    let (out_height, out_width) = (shape.out_height(), shape.out_width());
    run(
        &Pass {
            batch: shape.batch,
            grid: (out_height, out_width),
            source: (shape.height, shape.width, shape.inputs),
            source_step: shape.stride,
            target: (out_height, out_width, shape.outputs),
            target_step: 1,
            target_offset: (0, 0),
            panel: k * width,
            accumulate: false,
        },
        &taps,
        x,
        room,
        zeros,
        bias,
        epilogue,
        out,
    );
}

/// dx [B, H, W, I] (+)= the convolution's transpose applied to dy [B, H', W', O]
pub(crate) fn conv_input_gradient(
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    accumulate: bool,
    scratch: &mut [f32],
) {
    if let Some(fast) = shape.winograd_backward() {
        return fast.run(dy, w, Filters::Backward, None, accumulate, Epilogue::default(), dx, scratch);
    }
    let width = tile::panel_width();
    let tap_len = packed_len(shape.outputs, shape.inputs);
    let (room, zeros) = scratch.split_at_mut(TAPS * tap_len);
    zeros.fill(0.0);
    // [tap][panel][output][width]
    parallel::chunks_mut(room, tap_len, |t, room| {
        let taps = Mat { data: &w[t * shape.inputs..], row: TAPS * shape.inputs, col: 1 };
        Packed::serial(taps, shape.outputs, shape.inputs, room);
    });
    let (out_height, out_width) = (shape.out_height(), shape.out_width());
    let pass = Pass {
        batch: shape.batch,
        grid: (shape.height, shape.width),
        source: (out_height, out_width, shape.outputs),
        source_step: 1,
        target: (shape.height, shape.width, shape.inputs),
        target_step: 1,
        target_offset: (0, 0),
        panel: shape.outputs * width,
        accumulate,
    };
    if shape.stride == 1 {
        // Input pixel y got tap ky of output y + 1 - ky.
        let taps: [Tap; TAPS] = std::array::from_fn(|t| Tap {
            dy: 1 - (t / 3) as isize,
            dx: 1 - (t % 3) as isize,
            weights: t * tap_len,
        });
        run(&pass, &taps, dy, room, zeros, None, Epilogue::default(), dx);
        return;
    }
    // Stride 2: input pixel 2j + parity got those taps of its parity, tap k of output j - (k - parity) / 2.
    let mut taps = [Tap::default(); 4];
    for parity in 0..4 {
        let (py, px) = (parity / 2, parity % 2);
        let mut count = 0;
        for ky in (py..3).step_by(2) {
            for kx in (px..3).step_by(2) {
                let back = |k: usize, p: usize| -(((k - p) / 2) as isize);
                taps[count] = Tap { dy: back(ky, py), dx: back(kx, px), weights: (ky * 3 + kx) * tap_len };
                count += 1;
            }
        }
        let grid = ((shape.height - py).div_ceil(2), (shape.width - px).div_ceil(2));
        let pass = Pass { grid, target_step: 2, target_offset: (py, px), ..pass };
        run(&pass, &taps[..count], dy, room, zeros, None, Epilogue::default(), dx);
    }
}

/// One filter tap: where it reads relative to a grid point, and where its packed weights start.
#[derive(Clone, Copy, Default)]
struct Tap {
    dy: isize,
    dx: isize,
    weights: usize,
}

/// For every grid point j: target[j * target_step + target_offset] (+)= sum over taps of source[j * source_step + tap] . weights[tap].
struct Pass {
    batch: usize,
    grid: (usize, usize),
    source: (usize, usize, usize),
    source_step: usize,
    target: (usize, usize, usize),
    target_step: usize,
    target_offset: (usize, usize),
    /// Values from one panel of weights to the next.
    panel: usize,
    accumulate: bool,
}

fn run(
    pass: &Pass,
    taps: &[Tap],
    source: &[f32],
    weights: &[f32],
    zeros: &[f32],
    bias: Option<&[f32]>,
    epilogue: Epilogue,
    out: &mut [f32],
) {
    let (source_height, source_width, k) = pass.source;
    let (target_height, target_width, n) = pass.target;
    let (grid_height, grid_width) = pass.grid;
    let width = tile::panel_width();
    let panels = n.div_ceil(width);
    let pixels = pass.batch * grid_height * grid_width;
    assert_eq!(source.len(), pass.batch * source_height * source_width * k);
    assert_eq!(out.len(), pass.batch * target_height * target_width * n);
    assert!(zeros.len() >= k);
    let taps_at_once = (KC / k).clamp(1, taps.len());
    let out = Out(out.as_mut_ptr());
    parallel::for_each(pixels.div_ceil(PIXELS) * panels, |task| {
        let (block, panel) = (task / panels, task % panels);
        let first = panel * width;
        let cols = width.min(n - first);
        let mut padded_bias = [0.0; MAX_NR];
        if let Some(bias) = bias {
            padded_bias[..cols].copy_from_slice(&bias[first..first + cols]);
        }
        let (pixel0, pixel1) = (block * PIXELS, pixels.min((block + 1) * PIXELS));
        for (chunk, taps) in taps.chunks(taps_at_once).enumerate() {
            let from = match (chunk, pass.accumulate) {
                (0, false) => From::Bias(padded_bias.as_ptr()),
                _ => From::C,
            };
            for pixel in (pixel0..pixel1).step_by(MR) {
                let rows = MR.min(pixel1 - pixel);
                // Grid point of each row of the tile; the rows beyond the last repeat it and are not computed.
                let points: [(usize, usize, usize); MR] = std::array::from_fn(|r| {
                    let p = pixel + r.min(rows - 1);
                    (p / (grid_height * grid_width), p / grid_width % grid_height, p % grid_width)
                });
                let mut segments = [Panel { a: [zeros.as_ptr(); MR], b: zeros.as_ptr() }; TAPS];
                for (segment, tap) in segments.iter_mut().zip(taps) {
                    for (a, &(image, y, x)) in segment.a.iter_mut().zip(&points) {
                        // Outside the image this wraps far beyond its size.
                        let y = (y * pass.source_step).wrapping_add_signed(tap.dy);
                        let x = (x * pass.source_step).wrapping_add_signed(tap.dx);
                        if y < source_height && x < source_width {
                            let at = ((image * source_height + y) * source_width + x) * k;
                            *a = source[at..at + k].as_ptr();
                        }
                    }
                    segment.b = weights[panel * pass.panel + tap.weights..][..k * width].as_ptr();
                }
                let c = std::array::from_fn(|r| {
                    let (image, y, x) = points[r];
                    let y = y * pass.target_step + pass.target_offset.0;
                    let x = x * pass.target_step + pass.target_offset.1;
                    out.get().wrapping_add(((image * target_height + y) * target_width + x) * n + first)
                });
                let tile = Tile {
                    segments: &segments[..taps.len()],
                    k,
                    a_step: 1,
                    b_step: width,
                    from,
                    c,
                    rows,
                    cols,
                };
                // SAFETY: every row of A is `k` values of the image or of the zeros, B is `k` whole rows of packed weights, and each
                // task writes its own pixels and channels of the target.
                unsafe { tile::run(&tile) };
            }
        }
        if epilogue.residual.is_none() && !epilogue.relu {
            return;
        }
        // Only the forward pass has an epilogue, and its grid is the target.
        for pixel in pixel0..pixel1 {
            let at = pixel * n + first;
            // SAFETY: this task's own pixels and channels, written above.
            let line = unsafe { std::slice::from_raw_parts_mut(out.get().add(at), cols) };
            if let Some(residual) = epilogue.residual {
                for (o, r) in line.iter_mut().zip(&residual[at..at + cols]) {
                    *o += r;
                }
            }
            if epilogue.relu {
                line.iter_mut().for_each(|o| *o = if *o < 0.0 { 0.0 } else { *o });
            }
        }
    });
}

/// Weight gradients up to this size are summed over groups of images in parallel; larger ones over all images, taps in parallel.
const GROUPED: usize = 1 << 17;

/// Groups of images that are summed apart: enough for a laptop's cores, and never dependent on their number.
fn groups(shape: &ConvShape) -> usize {
    match TAPS * shape.inputs * shape.outputs <= GROUPED {
        true => shape.batch.min(16),
        false => 1,
    }
}

/// Channels of x as rows of B: rounded up to whole vectors when they are copied.
fn padded_inputs(shape: &ConvShape) -> usize {
    shape.inputs.next_multiple_of(tile::lanes())
}

pub(crate) fn conv_weight_scratch_len(shape: &ConvShape) -> usize {
    let copied = match padded_inputs(shape) == shape.inputs {
        true => 0,
        false => shape.batch * shape.height * shape.width * padded_inputs(shape),
    };
    copied + groups(shape) * TAPS * shape.inputs * shape.outputs
}

/// dw [O, 3, 3, I] (+)= sum over images and pixels of dy [pixel, O] x[pixel + tap, I]
pub(crate) fn conv_weight_gradient(
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
    scratch: &mut [f32],
) {
    let padded = padded_inputs(shape);
    let pixels = shape.batch * shape.height * shape.width;
    assert_eq!(x.len(), pixels * shape.inputs);
    assert_eq!(dy.len(), shape.batch * shape.out_height() * shape.out_width() * shape.outputs);
    assert_eq!(dw.len(), TAPS * shape.inputs * shape.outputs);
    let (x, scratch) = if padded == shape.inputs {
        (x, scratch)
    } else {
        let (copy, rest) = scratch.split_at_mut(pixels * padded);
        parallel::chunks_mut(copy, 4096 * padded, |i, out| {
            let x = &x[i * 4096 * shape.inputs..];
            for (out, x) in out.chunks_exact_mut(padded).zip(x.chunks_exact(shape.inputs)) {
                out[..shape.inputs].copy_from_slice(x);
                out[shape.inputs..].fill(0.0);
            }
        });
        (&*copy, rest)
    };
    let (groups, outputs) = (groups(shape), shape.outputs);
    if groups == 1 {
        if !accumulate {
            dw.fill(0.0);
        }
        let out = Out(dw.as_mut_ptr());
        let blocks = shape.outputs.div_ceil(MR);
        parallel::for_each(TAPS * blocks, |task| {
            weight_gradient_part(shape, x, dy, 0..shape.batch, task / blocks, task % blocks, out);
        });
    } else {
        let len = TAPS * shape.inputs * shape.outputs;
        let parts = &mut scratch[..groups * len];
        let each = shape.batch.div_ceil(groups);
        parallel::chunks_mut_of(x.len() * outputs, parts, len, |group, part| {
            part.fill(0.0);
            let images = (group * each).min(shape.batch)..((group + 1) * each).min(shape.batch);
            let out = Out(part.as_mut_ptr());
            for image in images {
                // Rows of one image that stay in the cache for all taps and channels.
                weight_gradient_part(shape, x, dy, image..image + 1, usize::MAX, usize::MAX, out);
            }
        });
        parallel::sum_rows(parts, dw, accumulate);
    }
}

/// Adds the images' part of the gradient for one tap and block of outputs, or for all of them (`usize::MAX`).
fn weight_gradient_part(
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    images: std::ops::Range<usize>,
    only_tap: usize,
    only_block: usize,
    dw: Out,
) {
    /// Pixels whose products are summed before a tile goes back to memory.
    const SPAN: usize = 128;
    const MAX_ROWS: usize = 32;
    let (height, width, inputs, outputs) = (shape.height, shape.width, shape.inputs, shape.outputs);
    let (out_height, out_width) = (shape.out_height(), shape.out_width());
    let padded = padded_inputs(shape);
    let panel = tile::panel_width();
    let rows_at_once = (SPAN / out_width).clamp(1, MAX_ROWS);
    let every = |only: usize, count: usize| if only == usize::MAX { 0..count } else { only..only + 1 };
    for image in images {
        for y0 in (0..out_height).step_by(rows_at_once) {
            for tap in every(only_tap, TAPS) {
                let (ky, kx) = ((tap / 3) as isize - shape.pad(), (tap % 3) as isize - shape.pad());
                // Output columns whose tap falls inside the image.
                let inside = |ox: usize| (ox * shape.stride).wrapping_add_signed(kx) < width;
                let x0 = (0..out_width).find(|&ox| inside(ox)).unwrap_or(out_width);
                let x1 = (x0..out_width).rfind(|&ox| inside(ox)).map_or(x0, |last| last + 1);
                if x0 == x1 {
                    continue;
                }
                for block in every(only_block, outputs.div_ceil(MR)) {
                    let rows = MR.min(outputs - block * MR);
                    for first in (0..inputs).step_by(panel) {
                        let mut segments = [Panel { a: [dy.as_ptr(); MR], b: x.as_ptr() }; MAX_ROWS];
                        let mut count = 0;
                        for y in y0..out_height.min(y0 + rows_at_once) {
                            let iy = (y * shape.stride).wrapping_add_signed(ky);
                            if iy >= height {
                                continue;
                            }
                            let ix = (x0 * shape.stride).wrapping_add_signed(kx);
                            let a = &dy[((image * out_height + y) * out_width + x0) * outputs + block * MR..];
                            segments[count] = Panel {
                                a: std::array::from_fn(|r| a.as_ptr().wrapping_add(r.min(rows - 1))),
                                b: x[((image * height + iy) * width + ix) * padded + first..].as_ptr(),
                            };
                            count += 1;
                        }
                        let tile = Tile {
                            segments: &segments[..count],
                            k: x1 - x0,
                            a_step: outputs,
                            b_step: padded * shape.stride,
                            from: From::C,
                            c: std::array::from_fn(|r| {
                                let o = block * MR + r.min(rows - 1);
                                dw.get().wrapping_add((o * TAPS + tap) * inputs + first)
                            }),
                            rows,
                            cols: panel.min(inputs - first),
                        };
                        // SAFETY: rows of A are columns `block` of dy for pixels inside it, rows of B are pixels of x with whole vectors
                        // of channels, and no other task adds to this part of dw.
                        unsafe { tile::run(&tile) };
                    }
                }
            }
        }
    }
}
