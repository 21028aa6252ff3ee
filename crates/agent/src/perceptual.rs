//! The perceptual loss (LPIPS): how far two images are apart in the features of a frozen VGG16.

use engine::{Device, Init, Param, Result, Tape, Tensor};

use crate::layers::{Builder, Conv, Linear, LinearInit, Network};
use crate::reference::Layout;

/// VGG16's convolutions up to relu5_3: (channels, names of the layers in torchvision's numbering) per block.
const BLOCKS: [(usize, &[usize]); 5] =
    [(64, &[0, 2]), (128, &[5, 7]), (256, &[10, 12, 14]), (512, &[17, 19, 21]), (512, &[24, 26, 28])];

/// What LPIPS subtracts from each colour and divides it by.
pub(crate) const SHIFT: [f32; 3] = [-0.030, -0.088, -0.188];
pub(crate) const SCALE: [f32; 3] = [0.458, 0.448, 0.450];

/// The frozen network. Without pretrained weights its features are random, which is known to work as a perceptual loss.
pub struct Perceptual {
    pub network: Network,
    /// Share of the squared differences dropped while training; the reference release leaves 0.5 on.
    pub dropout: f32,
    scaling: Linear,
    blocks: Vec<Vec<Conv>>,
    weights: Vec<Param>,
}

impl Perceptual {
    /// Fixed random features, the same for every run.
    pub fn random(device: &Device, dropout: f32) -> Result<Perceptual> {
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
        let network = b.finish_frozen(device, "perceptual", 0)?;
        // (x - shift) / scale is a linear layer with a diagonal weight.
        let mut diagonal = [0.0; 9];
        (0..3).for_each(|i| diagonal[4 * i] = 1.0 / SCALE[i]);
        network.params.set("scaling.weight", &diagonal)?;
        network.params.set("scaling.bias", &std::array::from_fn::<f32, 3, _>(|i| -SHIFT[i] / SCALE[i]))?;
        // He initialisation, so that the features of deep layers do not vanish.
        for spec in network.params.specs() {
            if spec.name.starts_with("net.") && spec.name.ends_with("weight") {
                let gain = 6f32.sqrt();
                let scaled: Vec<f32> = network.params.get(&spec.name)?.iter().map(|w| w * gain).collect();
                network.params.set(&spec.name, &scaled)?;
            }
        }
        Ok(Perceptual { network, dropout, scaling, blocks, weights })
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
