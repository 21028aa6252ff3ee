//! The perceptual loss (LPIPS): how far two images are apart in the features of a frozen VGG16.

use engine::{Device, Init, Key, Param, Result, Rng, Stepper, Stride, Tape, Tensor};

use crate::layers::{Builder, Conv, Layout, Linear, LinearInit, Network};

/// VGG16's convolutions up to relu5_3: (channels, names of the layers in torchvision's numbering) per block.
const BLOCKS: [(usize, &[usize]); 5] =
    [(64, &[0, 2]), (128, &[5, 7]), (256, &[10, 12, 14]), (512, &[17, 19, 21]), (512, &[24, 26, 28])];

/// Mean and standard deviation by which LPIPS normalises each colour.
pub(crate) const SHIFT: [f32; 3] = [-0.030, -0.088, -0.188];
pub(crate) const SCALE: [f32; 3] = [0.458, 0.448, 0.450];

/// The frozen network.
pub struct Perceptual {
    pub network: Network,
    /// Share of the squared differences dropped while training; the reference release leaves 0.5 on.
    pub dropout: f32,
    scaling: Linear,
    blocks: Vec<Vec<Conv>>,
    weights: Vec<Param>,
}

impl Perceptual {
    /// To be filled with pretrained weights.
    pub(crate) fn new(device: &Device, dropout: f32) -> Result<Perceptual> {
        Perceptual::within(device, dropout, usize::MAX)
    }

    /// [`new`](Perceptual::new) if it has at most `limit` parameters, for files that may be smaller than it.
    pub(crate) fn within(device: &Device, dropout: f32, limit: usize) -> Result<Perceptual> {
        let mut b = Builder::new(LinearInit::Uniform);
        let mut inputs = 3;
        let mut blocks = Vec::new();
        for (i, (channels, layers)) in BLOCKS.iter().enumerate() {
            let block = b.within(&format!("net.slice{}", i + 1), |b| {
                layers
                    .iter()
                    .map(|layer| {
                        let conv = b.conv3x3(&layer.to_string(), inputs, *channels);
                        inputs = *channels;
                        conv
                    })
                    .collect::<Result<Vec<_>>>()
            })?;
            blocks.push(block);
        }
        // Without learned weights every channel counts the same; the five layers are averaged.
        let mut weights = Vec::new();
        for (i, (channels, _)) in BLOCKS.iter().enumerate() {
            let name = format!("lin{i}.model.1.weight");
            weights.push(b.param(&name, &[*channels], Init::Constant(0.2), Layout::ChannelWeights)?);
        }
        let scaling = b.linear("scaling", 3, 3)?;
        let network = b.finish_frozen(device, "perceptual", 0, limit)?;
        // (x - shift) / scale is a linear layer with a diagonal weight.
        let mut diagonal = [0.0; 9];
        (0..3).for_each(|i| diagonal[4 * i] = 1.0 / SCALE[i]);
        network.params.set("scaling.weight", &diagonal)?;
        network.params.set("scaling.bias", &std::array::from_fn::<f32, 3, _>(|i| -SHIFT[i] / SCALE[i]))?;
        Ok(Perceptual { network, dropout, scaling, blocks, weights })
    }

    /// The same network on another device.
    pub(crate) fn copy_to(&self, device: &Device) -> Result<Perceptual> {
        let copy = Perceptual::new(device, self.dropout)?;
        copy.network.params.copy_from(&self.network.params)?;
        Ok(copy)
    }

    /// Fixed random features, the same for every run. In a plain random network the deep features of any two images are nearly parallel, so
    /// small objects would hardly change the loss. Every channel is therefore centred and scaled to standard deviation 1, measured on `pictures`.
    pub fn random(device: &Device, dropout: f32) -> Result<Perceptual> {
        let perceptual = Perceptual::new(device, dropout)?;
        if !device.is_gpu() {
            perceptual.centre(device)?;
            return Ok(perceptual);
        }
        // Measured on the CPU, so that the features are the same on every device.
        let cpu = Device::cpu(None)?;
        let centred = Perceptual::new(&cpu, dropout)?;
        centred.centre(&cpu)?;
        let (from, to) = (&centred.network.params, &perceptual.network.params);
        for spec in from.specs() {
            to.set(&spec.name, &from.get(&spec.name)?)?;
        }
        Ok(perceptual)
    }

    /// Centres and scales every channel of every convolution, one layer after the other.
    fn centre(&self, cpu: &Device) -> Result<()> {
        let params = &self.network.params;
        let mut stepper = Stepper::new(cpu, Key::new(0, 0));
        let (mut size, mut channels, mut images) = (PICTURE, 3, pictures());
        for (i, (block, (outputs, names))) in self.blocks.iter().zip(BLOCKS).enumerate() {
            for (layer, (conv, name)) in block.iter().zip(names).enumerate() {
                let input = cpu.buffer::<f32>("images", [PICTURES, size, size, channels])?;
                input.write(&images)?;
                images = stepper.infer(|tape| -> Result<Vec<f32>> {
                    let mut x = tape.buffer(&input)?;
                    if (i, layer) == (0, 0) {
                        x = self.scaling.forward(tape, params, x)?;
                    } else if layer == 0 {
                        x = tape.max_pool(x)?;
                    }
                    let x = conv.forward(tape, params, x, Stride::One)?;
                    tape.read(x)
                })?;
                if i > 0 && layer == 0 {
                    size /= 2;
                }
                let spread = spread(&images, outputs);
                for pixel in images.chunks_exact_mut(outputs) {
                    for (x, (mean, deviation)) in pixel.iter_mut().zip(&spread) {
                        *x = ((*x - mean) / deviation).max(0.0);
                    }
                }
                let [weight, bias] = ["weight", "bias"].map(|w| format!("net.slice{}.{name}.{w}", i + 1));
                let mut scaled = params.get(&weight)?;
                for (row, (_, deviation)) in scaled.chunks_exact_mut(9 * channels).zip(&spread) {
                    row.iter_mut().for_each(|w| *w /= deviation);
                }
                let moved = params.get(&bias)?.into_iter().zip(&spread).map(|(b, (mean, d))| (b - mean) / d);
                params.set(&weight, &scaled)?;
                params.set(&bias, &moved.collect::<Vec<_>>())?;
                channels = outputs;
            }
        }
        Ok(())
    }

    /// Mean distance of two batches of images [B, H, W, 3] in [-1, 1].
    pub fn distance(&self, tape: &mut Tape, a: Tensor, b: Tensor) -> Result<Tensor> {
        let params = &self.network.params;
        let mut a = self.scaling.forward(tape, params, a)?;
        let mut b = self.scaling.forward(tape, params, b)?;
        let mut total = None;
        for (i, (block, weights)) in self.blocks.iter().zip(&self.weights).enumerate() {
            for image in [&mut a, &mut b] {
                if i > 0 {
                    *image = tape.max_pool(*image)?;
                }
                for conv in block {
                    *image = conv.relu(tape, params, *image)?;
                }
            }
            let weights = tape.param(params, *weights)?;
            let distance = tape.perceptual_distance(a, b, weights, self.dropout)?;
            total = Some(match total {
                Some(sum) => tape.add(sum, distance)?,
                None => distance,
            });
        }
        total.ok_or(engine::Error::UnknownParameter { name: "net.slice1".into() })
    }
}

/// Images that features are measured on.
const PICTURES: usize = 16;
const PICTURE: usize = 64;

/// Plain backgrounds with rectangles of all sizes and colours, in [-1, 1]: [PICTURES, PICTURE, PICTURE, 3].
fn pictures() -> Vec<f32> {
    let mut rng = Rng::new(Key::new(0, 1));
    let mut pixels = Vec::with_capacity(PICTURES * PICTURE * PICTURE * 3);
    for _ in 0..PICTURES {
        let colour = |rng: &mut Rng| [(); 3].map(|()| 2.0 * rng.uniform() - 1.0);
        let mut image = [[colour(&mut rng); PICTURE]; PICTURE];
        for _ in 0..16 {
            let fill = colour(&mut rng);
            // Log-uniform: as many between 1 and 2 as between 16 and 32.
            let [height, width] = [(); 2].map(|()| 32f32.powf(rng.uniform()) as usize);
            let [top, left] = [(); 2].map(|()| rng.below(PICTURE as u32) as usize);
            for row in image.iter_mut().skip(top).take(height) {
                row.iter_mut().skip(left).take(width).for_each(|pixel| *pixel = fill);
            }
        }
        pixels.extend(image.iter().flatten().flatten());
    }
    pixels
}

/// Mean and standard deviation of each channel.
fn spread(images: &[f32], channels: usize) -> Vec<(f32, f32)> {
    let mut sums = vec![(0.0f64, 0.0f64); channels];
    for pixel in images.chunks_exact(channels) {
        for ((sum, squares), x) in sums.iter_mut().zip(pixel) {
            *sum += f64::from(*x);
            *squares += f64::from(*x) * f64::from(*x);
        }
    }
    let count = (images.len() / channels) as f64;
    let of = |(sum, squares): (f64, f64)| {
        let mean = sum / count;
        (mean as f32, (squares / count - mean * mean).max(1e-10).sqrt() as f32)
    };
    sums.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames with something small in them and the same without are far enough apart that it counts beside the absolute error, whatever the
    /// background.
    #[test]
    fn small_things_count() -> Result<()> {
        let device = Device::cpu(Some(2))?;
        let perceptual = Perceptual::random(&device, 0.0)?;
        let input = device.buffer::<f32>("frames", [2, 64, 64, 3])?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let greys = [-1.0, -0.3, 0.0, 1.0].map(|grey| [grey; 3]);
        for background in greys.into_iter().chain([[0.1, -0.4, -0.9], [-0.8, -0.2, 0.6]]) {
            let mut frames = background.repeat(2 * 64 * 64);
            for (y, x) in [(30, 12), (31, 12), (32, 12), (33, 12), (20, 40)] {
                frames[(y * 64 + x) * 3..][..3].fill(0.8);
            }
            input.write(&frames)?;
            let [distance, error] = stepper.infer(|tape| -> Result<[f32; 2]> {
                let x = tape.buffer(&input)?;
                let (with, without) = (tape.slice(x, 0, 0, 1)?, tape.slice(x, 0, 1, 2)?);
                let distance = perceptual.distance(tape, with, without)?;
                let error = tape.absolute_error(with, without)?;
                Ok([tape.read(distance)?[0], tape.read(error)?[0]])
            })?;
            assert!(distance > 10.0 * error && distance < 0.4, "{background:?}: {distance} for {error}");
        }
        Ok(())
    }
}
