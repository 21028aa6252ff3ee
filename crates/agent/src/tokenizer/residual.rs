//! The networks of the paper's autoencoder: residual blocks and attention at every resolution (appendix A.1).

use engine::{ImageAttention, ImageResidual, Params, Result, Stride, Tape, Tensor};

use crate::TokenizerConfig;
use crate::layers::{Builder, Conv, GROUP_NORM_EPSILON, Linear, Norm};

/// GroupNorm, swish, conv, GroupNorm, swish, conv, plus the input.
struct ResidualBlock {
    norm1: Norm,
    conv1: Conv,
    norm2: Norm,
    conv2: Conv,
}

impl ResidualBlock {
    fn new(b: &mut Builder, name: &str, channels: usize) -> Result<ResidualBlock> {
        b.within(name, |b| {
            Ok(ResidualBlock {
                norm1: b.norm("norm1", channels)?,
                conv1: b.conv3x3("conv1", channels, channels)?,
                norm2: b.norm("norm2", channels)?,
                conv2: b.conv3x3("conv2", channels, channels)?,
            })
        })
    }

    fn forward(&self, tape: &mut Tape, params: &Params, groups: usize, x: Tensor) -> Result<Tensor> {
        let block = ImageResidual {
            norms: [self.norm1.tensors(tape, params)?, self.norm2.tensors(tape, params)?],
            convolutions: [self.conv1.tensors(tape, params)?, self.conv2.tensors(tape, params)?],
            groups,
            epsilon: GROUP_NORM_EPSILON,
        };
        tape.image_residual(x, &block)
    }
}

/// Attention of every position to every position, plus the input.
struct AttentionBlock {
    norm: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
}

impl AttentionBlock {
    fn new(b: &mut Builder, name: &str, channels: usize) -> Result<AttentionBlock> {
        b.within(name, |b| {
            Ok(AttentionBlock {
                norm: b.norm("norm", channels)?,
                q: b.conv1x1("q", channels, channels)?,
                k: b.conv1x1("k", channels, channels)?,
                v: b.conv1x1("v", channels, channels)?,
                out: b.conv1x1("proj_out", channels, channels)?,
            })
        })
    }

    fn forward(&self, tape: &mut Tape, params: &Params, groups: usize, x: Tensor) -> Result<Tensor> {
        let block = ImageAttention {
            norm: self.norm.tensors(tape, params)?,
            query: self.q.tensors(tape, params)?,
            key: self.k.tensors(tape, params)?,
            value: self.v.tensors(tape, params)?,
            out: self.out.tensors(tape, params)?,
            groups,
            epsilon: GROUP_NORM_EPSILON,
        };
        tape.image_attention(x, &block)
    }
}

/// Residual blocks of one resolution, each followed by attention where the size asks for it.
struct Level {
    blocks: Vec<(ResidualBlock, Option<AttentionBlock>)>,
    /// To the next resolution; absent at the last.
    resample: Option<Conv>,
}

impl Level {
    fn new(
        b: &mut Builder,
        blocks: usize,
        attention: bool,
        resample: Option<&str>,
        channels: usize,
    ) -> Result<Level> {
        let residual = (0..blocks)
            .map(|i| ResidualBlock::new(b, &format!("block.{i}"), channels))
            .collect::<Result<Vec<_>>>()?;
        let attention = (0..blocks)
            .map(|i| attention.then(|| AttentionBlock::new(b, &format!("attn.{i}"), channels)).transpose())
            .collect::<Result<Vec<_>>>()?;
        let resample = resample.map(|name| b.conv3x3(name, channels, channels)).transpose()?;
        Ok(Level { blocks: residual.into_iter().zip(attention).collect(), resample })
    }

    fn blocks(&self, tape: &mut Tape, params: &Params, groups: usize, mut x: Tensor) -> Result<Tensor> {
        for (residual, attention) in &self.blocks {
            x = residual.forward(tape, params, groups, x)?;
            if let Some(attention) = attention {
                x = attention.forward(tape, params, groups, x)?;
            }
        }
        Ok(x)
    }
}

/// Residual, attention, residual at the smallest resolution.
struct Middle {
    block1: ResidualBlock,
    attention: AttentionBlock,
    block2: ResidualBlock,
}

impl Middle {
    fn new(b: &mut Builder, channels: usize) -> Result<Middle> {
        b.within("mid", |b| {
            Ok(Middle {
                block1: ResidualBlock::new(b, "block_1", channels)?,
                attention: AttentionBlock::new(b, "attn_1", channels)?,
                block2: ResidualBlock::new(b, "block_2", channels)?,
            })
        })
    }

    fn forward(&self, tape: &mut Tape, params: &Params, groups: usize, x: Tensor) -> Result<Tensor> {
        let x = self.block1.forward(tape, params, groups, x)?;
        let x = self.attention.forward(tape, params, groups, x)?;
        self.block2.forward(tape, params, groups, x)
    }
}

pub struct Encoder {
    conv_in: Conv,
    /// From the frame's size downwards.
    levels: Vec<Level>,
    middle: Middle,
    norm_out: Norm,
    conv_out: Conv,
}

impl Encoder {
    pub fn new(b: &mut Builder, config: &TokenizerConfig) -> Result<Encoder> {
        let channels = config.channels;
        let conv_in = b.conv3x3("conv_in", 3, channels)?;
        let mut levels = Vec::new();
        for level in 0..config.resolutions {
            let attention = config.attention_sizes.contains(&(config.frame_size >> level));
            let down = (level + 1 < config.resolutions).then_some("downsample.conv");
            levels.push(b.within(&format!("down.{level}"), |b| {
                Level::new(b, config.residual_blocks, attention, down, channels)
            })?);
        }
        Ok(Encoder {
            conv_in,
            levels,
            middle: Middle::new(b, channels)?,
            norm_out: b.norm("norm_out", channels)?,
            conv_out: b.conv3x3("conv_out", channels, config.embedding)?,
        })
    }

    pub fn forward(
        &self,
        tape: &mut Tape,
        params: &Params,
        config: &TokenizerConfig,
        frames: Tensor,
    ) -> Result<Tensor> {
        let mut h = self.conv_in.forward(tape, params, frames, Stride::One)?;
        for level in &self.levels {
            h = level.blocks(tape, params, config.groups, h)?;
            if let Some(down) = &level.resample {
                h = down.forward(tape, params, h, Stride::Two)?;
            }
        }
        h = self.middle.forward(tape, params, config.groups, h)?;
        h = self.norm_out.group(tape, params, h, config.groups, true)?;
        self.conv_out.forward(tape, params, h, Stride::One)
    }
}

pub struct Decoder {
    conv_in: Conv,
    middle: Middle,
    /// Indexed like the encoder's: 0 has the frame's size and comes last.
    levels: Vec<Level>,
    norm_out: Norm,
    conv_out: Conv,
}

impl Decoder {
    pub fn new(b: &mut Builder, config: &TokenizerConfig, channels: usize) -> Result<Decoder> {
        let conv_in = b.conv3x3("conv_in", config.embedding, channels)?;
        let middle = Middle::new(b, channels)?;
        let mut levels = Vec::new();
        for level in 0..config.resolutions {
            let attention = config.attention_sizes.contains(&(config.frame_size >> level));
            let up = (level > 0).then_some("upsample.conv");
            levels.push(b.within(&format!("up.{level}"), |b| {
                Level::new(b, config.residual_blocks + 1, attention, up, channels)
            })?);
        }
        Ok(Decoder {
            conv_in,
            middle,
            levels,
            norm_out: b.norm("norm_out", channels)?,
            conv_out: b.conv3x3("conv_out", channels, 3)?,
        })
    }

    pub fn forward(
        &self,
        tape: &mut Tape,
        params: &Params,
        config: &TokenizerConfig,
        z: Tensor,
    ) -> Result<Tensor> {
        let mut h = self.conv_in.forward(tape, params, z, Stride::One)?;
        h = self.middle.forward(tape, params, config.groups, h)?;
        for level in self.levels.iter().rev() {
            h = level.blocks(tape, params, config.groups, h)?;
            if let Some(up) = &level.resample {
                h = tape.upsample(h)?;
                h = up.forward(tape, params, h, Stride::One)?;
            }
        }
        h = self.norm_out.group(tape, params, h, config.groups, true)?;
        self.conv_out.forward(tape, params, h, Stride::One)
    }
}
