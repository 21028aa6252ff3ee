//! A plain convolutional autoencoder: a convolution per resolution, whose channels double as the image halves. No residual blocks, no attention.

use engine::{Params, Result, Stride, Tape, Tensor};

use crate::TokenizerConfig;
use crate::layers::{Builder, Conv, Linear, Norm};

/// Channels at each resolution, from the frame's size downwards.
fn channels(config: &TokenizerConfig) -> Vec<usize> {
    (0..config.resolutions).map(|level| config.channels << level).collect()
}

/// Channels between the smallest resolution and the codes.
fn narrow(config: &TokenizerConfig) -> usize {
    2 * config.channels
}

/// A convolution; then, for each further resolution, group-norm, swish and a convolution of stride 2; then group-norm, swish, a convolution and a linear layer.
pub struct Encoder {
    first: Conv,
    down: Vec<(Norm, Conv)>,
    last: (Norm, Conv),
    out: Linear,
}

impl Encoder {
    pub fn new(b: &mut Builder, config: &TokenizerConfig) -> Result<Encoder> {
        let sizes = channels(config);
        let deepest = sizes[sizes.len() - 1];
        let down = sizes.windows(2).enumerate().map(|(level, pair)| {
            b.within(&format!("down.{level}"), |b| {
                Ok((b.norm("norm", pair[0])?, b.conv3x3("conv", pair[0], pair[1])?))
            })
        });
        let down = down.collect::<Result<Vec<_>>>()?;
        Ok(Encoder {
            first: b.conv3x3("conv_in", 3, sizes[0])?,
            down,
            last: (b.norm("norm_out", deepest)?, b.conv3x3("conv_out", deepest, narrow(config))?),
            out: b.linear("codes", narrow(config), config.embedding)?,
        })
    }

    /// Frames [B, H, W, 3] -> [B, h, w, E]
    pub fn forward(&self, tape: &mut Tape, params: &Params, groups: usize, frames: Tensor) -> Result<Tensor> {
        let mut h = self.first.forward(tape, params, frames, Stride::One)?;
        for (norm, conv) in &self.down {
            h = norm.group(tape, params, h, groups, true)?;
            h = conv.forward(tape, params, h, Stride::Two)?;
        }
        let (norm, conv) = &self.last;
        h = norm.group(tape, params, h, groups, true)?;
        h = conv.forward(tape, params, h, Stride::One)?;
        self.out.forward(tape, params, h)
    }
}

/// The same backwards: nearest upsampling before each convolution that halves the channels.
pub struct Decoder {
    codes: Linear,
    first: Conv,
    /// From the smallest resolution upwards.
    up: Vec<(Norm, Conv)>,
    last: (Norm, Conv),
}

impl Decoder {
    pub fn new(b: &mut Builder, config: &TokenizerConfig) -> Result<Decoder> {
        let sizes = channels(config);
        let deepest = sizes[sizes.len() - 1];
        let up = sizes.windows(2).enumerate().rev().map(|(level, pair)| {
            b.within(&format!("up.{level}"), |b| {
                Ok((b.norm("norm", pair[1])?, b.conv3x3("conv", pair[1], pair[0])?))
            })
        });
        let up = up.collect::<Result<Vec<_>>>()?;
        Ok(Decoder {
            codes: b.linear("codes", config.embedding, narrow(config))?,
            first: b.conv3x3("conv_in", narrow(config), deepest)?,
            up,
            last: (b.norm("norm_out", sizes[0])?, b.conv3x3("conv_out", sizes[0], 3)?),
        })
    }

    /// Codes [B, h, w, E] -> frames [B, H, W, 3]
    pub fn forward(&self, tape: &mut Tape, params: &Params, groups: usize, codes: Tensor) -> Result<Tensor> {
        let mut h = self.codes.forward(tape, params, codes)?;
        h = self.first.forward(tape, params, h, Stride::One)?;
        for (norm, conv) in &self.up {
            h = norm.group(tape, params, h, groups, true)?;
            h = tape.upsample(h)?;
            h = conv.forward(tape, params, h, Stride::One)?;
        }
        let (norm, conv) = &self.last;
        h = norm.group(tape, params, h, groups, true)?;
        conv.forward(tape, params, h, Stride::One)
    }
}
