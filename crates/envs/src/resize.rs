//! Pillow's antialiased BILINEAR, bit for bit: the released agents were trained on frames that went through it, and image crates come close but not equal.
//! Across first, then down, as Pillow does before version 13, which has another order for some sizes (210x160 to 128x128 is one, 64x64 is not).

use std::ops::Range;

use crate::{Env, EnvError, Step};

const CHANNELS: usize = 3;
/// Fractional bits of a weight.
const PRECISION: u32 = 22;

/// Resizes RGB images of one size to another.
#[derive(Clone)]
pub struct Resize {
    from: (usize, usize),
    to: (usize, usize),
    across: Vec<Taps>,
    down: Vec<Taps>,
}

/// The input pixels that make an output pixel, in one direction.
#[derive(Clone)]
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

impl Resize {
    /// From and to (height, width).
    pub fn new(from: (usize, usize), to: (usize, usize)) -> Resize {
        Resize { from, to, across: taps(from.1, to.1), down: taps(from.0, to.0) }
    }

    /// Resizes `image` into `out`, both RGB bytes. `scratch` keeps its memory between calls.
    pub fn apply(&self, image: &[u8], out: &mut [u8], scratch: &mut Vec<u8>) {
        let (row, narrow) = (self.from.1 * CHANNELS, self.to.1 * CHANNELS);
        scratch.resize(self.from.0 * narrow, 0);
        for (line, narrowed) in image.chunks_exact(row).zip(scratch.chunks_exact_mut(narrow)) {
            self.across(line, narrowed);
        }
        for (row, line) in out.chunks_exact_mut(narrow).enumerate() {
            self.down(row, scratch, line);
        }
    }

    /// The first half of it, for one line.
    pub fn across(&self, line: &[u8], narrowed: &mut [u8]) {
        for (taps, pixel) in self.across.iter().zip(narrowed.as_chunks_mut::<CHANNELS>().0) {
            let mut sums = [1 << (PRECISION - 1); CHANNELS];
            let pixels = line[taps.first * CHANNELS..].as_chunks::<CHANNELS>().0;
            for (weight, from) in taps.weights.iter().zip(pixels) {
                for (sum, value) in sums.iter_mut().zip(from) {
                    *sum += i32::from(*value) * weight;
                }
            }
            *pixel = sums.map(to_byte);
        }
    }

    /// The second half, for one line of the result.
    pub fn down(&self, row: usize, narrowed: &[u8], out: &mut [u8]) {
        let (taps, narrow) = (&self.down[row], self.to.1 * CHANNELS);
        let lines = narrowed[taps.first * narrow..].chunks_exact(narrow);
        // A few pixels at a time, so that their sums stay in registers.
        const BLOCK: usize = 32;
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut sums = [1 << (PRECISION - 1); BLOCK];
            for (weight, line) in taps.weights.iter().zip(lines.clone()) {
                for (sum, value) in sums.iter_mut().zip(&line[block * BLOCK..]) {
                    *sum += i32::from(*value) * weight;
                }
            }
            for (byte, sum) in out.iter_mut().zip(sums) {
                *byte = to_byte(sum);
            }
        }
    }

    /// The lines that make this one of the result.
    pub fn sources(&self, row: usize) -> Range<usize> {
        let taps = &self.down[row];
        taps.first..taps.first + taps.weights.len()
    }
}

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// A triangle over the output pixel, as wide as the scale where the image shrinks; normalised, then rounded to fixed point.
fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let inverse = 1.0 / support;
    let tap = |position: usize| {
        let centre = (position as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |x: usize| (1.0 - ((x as f64 - centre + 0.5) * inverse).abs()).max(0.0);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let total: f64 = weights.iter().sum();
        let fixed = |w: &f64| (w / total * f64::from(1 << PRECISION) + 0.5) as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(tap).collect()
}

/// A game whose frames are resized.
pub struct Resized {
    env: Box<dyn Env>,
    resize: Resize,
}

impl Resized {
    /// `size` is (height, width).
    pub fn new(env: Box<dyn Env>, size: (usize, usize)) -> Resized {
        Resized { resize: Resize::new(env.frame_size(), size), env }
    }
}

impl Env for Resized {
    fn action_names(&self) -> Vec<String> {
        self.env.action_names()
    }

    fn frame_size(&self) -> (usize, usize) {
        self.resize.to
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        self.env.reset(seed)
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        self.env.step(action)
    }

    fn render(&self, frame: &mut [u8]) {
        let (height, width) = self.env.frame_size();
        let mut original = vec![0; height * width * CHANNELS];
        self.env.render(&mut original);
        self.resize.apply(&original, frame, &mut Vec::new());
    }

    fn continues(&self) -> bool {
        self.env.continues()
    }

    fn info(&self) -> Vec<(String, f64)> {
        self.env.info()
    }

    fn full_frame(&self) -> Option<(usize, usize, Vec<u8>)> {
        self.env.full_frame()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// FNV-1a over the bytes.
    fn hash(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
    }

    fn random_image((height, width): (usize, usize)) -> Vec<u8> {
        let mut random = Random::new((height * 1000 + width) as u64);
        (0..height * width * 3).map(|_| random.next_u64() as u8).collect()
    }

    fn resized(from: (usize, usize), to: (usize, usize)) -> Vec<u8> {
        let mut out = vec![0; to.0 * to.1 * 3];
        Resize::new(from, to).apply(&random_image(from), &mut out, &mut Vec::new());
        out
    }

    /// What Pillow makes of the same images: `tests/make_resize.py`.
    #[test]
    fn equals_pillow() {
        for (from, to, wanted) in PILLOW {
            assert_eq!(hash(&resized(from, to)), wanted, "{from:?} to {to:?}");
        }
    }

    type Case = ((usize, usize), (usize, usize), u64);

    const PILLOW: [Case; 9] = [
        ((210, 160), (64, 64), 0x4927658700bca32a),
        ((32, 32), (64, 64), 0xcdb20c422b54ca67),
        ((50, 70), (64, 40), 0xd01a89ffe1e7a4f1),
        ((210, 160), (16, 16), 0x2c4c0044e5b5ebc5),
        ((210, 160), (32, 32), 0x79b8610c88d96bc2),
        ((210, 160), (84, 84), 0xa65bbe1b5eba8395),
        ((210, 160), (96, 96), 0x828e400d82acefdd),
        ((210, 160), (128, 128), 0x8c6d4fdc0de45ccf),
        ((210, 160), (256, 256), 0xa37169861c3e26b9),
    ];

    /// The definition in real numbers: every pixel weighs as much as a triangle around the output pixel's centre says.
    #[test]
    fn equals_the_triangle_filter_at_any_size() {
        let from = (210, 160);
        let image = random_image(from);
        for size in [1, 7, 48, 64, 100, 160, 210, 256] {
            let weights = |position: usize, side: usize| -> Vec<f64> {
                let scale = side as f64 / size as f64;
                let distance = |x: usize| (x as f64 + 0.5 - (position as f64 + 0.5) * scale).abs();
                let weights: Vec<f64> =
                    (0..side).map(|x| (1.0 - distance(x) / scale.max(1.0)).max(0.0)).collect();
                let total: f64 = weights.iter().sum();
                weights.iter().map(|weight| weight / total).collect()
            };
            let found = resized(from, (size, size));
            // A few rows of each size: all pixels of all of them would take long.
            for row in [0, size / 3, size - 1] {
                let down = weights(row, from.0);
                for column in 0..size {
                    let across = weights(column, from.1);
                    for channel in 0..3 {
                        let mut exact = 0.0;
                        for (y, down) in down.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                            for (x, across) in across.iter().enumerate().filter(|(_, weight)| **weight > 0.0)
                            {
                                exact += down * across * f64::from(image[(y * from.1 + x) * 3 + channel]);
                            }
                        }
                        let value = f64::from(found[(row * size + column) * 3 + channel]);
                        // Rounded twice, to whole numbers.
                        assert!((value - exact).abs() <= 1.01, "{value}, not {exact}, at {size} pixels");
                    }
                }
            }
        }
    }
}
