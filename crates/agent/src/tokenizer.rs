//! The discrete autoencoder: a frame becomes K tokens, K tokens become a frame (paper, section 2.1 and appendix A.1).

use engine::{
    Device, Error, ImageAttention, ImageResidual, Init, Param, Params, Quantised, Result, Stride, Tape,
    Tensor,
};

use crate::layers::{Builder, Conv, GROUP_NORM_EPSILON, Linear, LinearInit, Network, Norm};
use crate::{Perceptual, TokenizerConfig};

pub struct Tokenizer {
    pub config: TokenizerConfig,
    pub network: Network,
    encoder: Encoder,
    pre_quant: Linear,
    codebook: Param,
    post_quant: Linear,
    decoder: Decoder,
}

/// The losses: in the paper three, equally weighted in `total`.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerLosses {
    pub total: Tensor,
    pub reconstruction: Tensor,
    pub commitment: Tensor,
    /// Unweighted; absent where its weight is 0.
    pub squared: Option<Tensor>,
    /// Absent without a perceptual network.
    pub perceptual: Option<Tensor>,
}

impl TokenizerLosses {
    /// The names that the reference release logs, in the order of [`named`](TokenizerLosses::named), for a loss with or without these parts.
    pub fn names(squared: bool, perceptual: bool) -> Vec<&'static str> {
        let mut names = vec![
            "tokenizer/train/total_loss",
            "tokenizer/train/commitment_loss",
            "tokenizer/train/reconstruction_loss",
        ];
        names.extend(squared.then_some("tokenizer/train/squared_error"));
        names.extend(perceptual.then_some("tokenizer/train/perceptual_loss"));
        names
    }

    /// The losses under the names that the reference release logs.
    pub fn named(&self) -> Vec<(&'static str, Tensor)> {
        let always = [self.total, self.commitment, self.reconstruction].map(Some);
        let parts = always.into_iter().chain([self.squared, self.perceptual]).flatten();
        Self::names(self.squared.is_some(), self.perceptual.is_some()).into_iter().zip(parts).collect()
    }
}

/// Weight of the term that pulls the encoder to the codebook, against the one that pulls the codebook to the encoder.
const BETA: f32 = 1.0;

impl Tokenizer {
    pub fn new(device: &Device, config: &TokenizerConfig, seed: u64) -> Result<Tokenizer> {
        Tokenizer::within(device, config, seed, usize::MAX)
    }

    /// [`new`](Tokenizer::new) with at most `limit` parameters.
    pub(crate) fn within(
        device: &Device,
        config: &TokenizerConfig,
        seed: u64,
        limit: usize,
    ) -> Result<Tokenizer> {
        let mut b = Builder::new(LinearInit::Uniform);
        let (channels, embedding) = (config.channels, config.embedding);
        let encoder = b.within("encoder", |b| Encoder::new(b, config))?;
        let pre_quant = b.conv1x1("pre_quant_conv", embedding, embedding)?;
        let codebook = b.embedding(
            "embedding",
            config.vocabulary,
            embedding,
            Init::Uniform(1.0 / config.vocabulary as f32),
        )?;
        let post_quant = b.conv1x1("post_quant_conv", embedding, embedding)?;
        let decoder = b.within("decoder", |b| Decoder::new(b, config, channels))?;
        let network = b.finish(device, "tokenizer", seed, limit)?;
        Ok(Tokenizer { config: config.clone(), network, encoder, pre_quant, codebook, post_quant, decoder })
    }

    fn params(&self) -> &Params {
        &self.network.params
    }

    /// Frames [B, H, W, 3] in [-1, 1] -> y [B, h, w, E], what the quantiser looks up.
    pub fn encode(&self, tape: &mut Tape, frames: Tensor) -> Result<Tensor> {
        let h = self.encoder.forward(tape, self.params(), &self.config, frames)?;
        self.pre_quant.forward(tape, self.params(), h)
    }

    /// y [B, h, w, E] -> tokens [B, h, w], their embeddings, and the commitment loss.
    pub fn quantise(&self, tape: &mut Tape, y: Tensor) -> Result<Quantised> {
        let codebook = tape.param(self.params(), self.codebook)?;
        tape.quantise(y, codebook, BETA)
    }

    /// Embedded tokens [B, h, w, E] -> frames [B, H, W, 3], around [-1, 1] and not clamped.
    pub fn decode(&self, tape: &mut Tape, embedded: Tensor) -> Result<Tensor> {
        let h = self.post_quant.forward(tape, self.params(), embedded)?;
        self.decoder.forward(tape, self.params(), &self.config, h)
    }

    /// Tokens i32 [B, K] -> their grid i32 [B, h, w].
    fn grid(&self, tape: &mut Tape, op: &'static str, tokens: Tensor) -> Result<Tensor> {
        let &[batch, k] = tokens.dims() else {
            return Err(Error::BadShape { op, shape: tokens.shape(), rule: "tokens are [B, K]" });
        };
        let grid = self.config.grid();
        if k != grid * grid {
            let rule = "there are K tokens per frame";
            let rhs = [batch, grid * grid].into();
            return Err(Error::ShapeMismatch { op, lhs: tokens.shape(), rhs, rule });
        }
        tape.reshape(tokens, [batch, grid, grid])
    }

    /// Tokens i32 [B, K] -> their embeddings [B, h, w, E], through which no gradient reaches the codebook.
    pub fn codes(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let tokens = self.grid(tape, "codes", tokens)?;
        let codebook = tape.param_values(self.params(), self.codebook)?;
        tape.embedding(codebook, tokens)
    }

    /// Tokens i32 [B, K] -> frames [B, H, W, 3] in [0, 1], as anyone looks at them.
    pub fn render(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let tokens = self.grid(tape, "render", tokens)?;
        let codebook = tape.param(self.params(), self.codebook)?;
        let embedded = tape.embedding(codebook, tokens)?;
        let frames = self.decode(tape, embedded)?;
        visible(tape, frames)
    }

    /// Frames u8 [B, H, W, 3] -> tokens i32 [B, K].
    pub fn tokenise(&self, tape: &mut Tape, frames: Tensor) -> Result<Tensor> {
        let &[batch, _, _, _] = frames.dims() else {
            let rule = "frames are [B, H, W, 3]";
            return Err(Error::BadShape { op: "tokenise", shape: frames.shape(), rule });
        };
        let x = from_bytes(tape, frames)?;
        let y = self.encode(tape, x)?;
        let tokens = self.quantise(tape, y)?.tokens;
        tape.reshape(tokens, [batch, self.config.tokens()])
    }

    /// Frames u8 [B, H, W, 3] -> tokens i32 [B, K] and their reconstruction [B, H, W, 3] in [0, 1].
    pub fn reconstruct(&self, tape: &mut Tape, frames: Tensor) -> Result<(Tensor, Tensor)> {
        let tokens = self.tokenise(tape, frames)?;
        Ok((tokens, self.render(tape, tokens)?))
    }

    /// |x - D(z)| + commitment + perceptual distance, each a mean: frames [B, H, W, 3] in [-1, 1]. `squared_weight` adds that much of
    /// (x - D(z))^2 to the reconstruction loss; the paper's is 0.
    pub fn loss(
        &self,
        tape: &mut Tape,
        frames: Tensor,
        perceptual: Option<&Perceptual>,
        squared_weight: f32,
    ) -> Result<TokenizerLosses> {
        let y = self.encode(tape, frames)?;
        let quantised = self.quantise(tape, y)?;
        let reconstruction = self.decode(tape, quantised.embedded)?;
        let absolute = tape.absolute_error(frames, reconstruction)?;
        let mut total = tape.add(absolute, quantised.commitment)?;
        let squared = match squared_weight {
            0.0 => None,
            weight => {
                let squared = tape.squared_error(frames, reconstruction)?;
                let weighted = tape.affine(squared, weight, 0.0)?;
                total = tape.add(total, weighted)?;
                Some(squared)
            }
        };
        let perceptual = match perceptual {
            Some(network) => {
                let distance = network.distance(tape, frames, reconstruction)?;
                total = tape.add(total, distance)?;
                Some(distance)
            }
            None => None,
        };
        Ok(TokenizerLosses {
            total,
            reconstruction: absolute,
            squared,
            commitment: quantised.commitment,
            perceptual,
        })
    }
}

/// Bytes to [-1, 1], the range the networks work in.
pub(crate) fn from_bytes(tape: &mut Tape, frames: Tensor) -> Result<Tensor> {
    tape.frames(frames, 2.0 / 255.0, -1.0)
}

/// From [-1, 1] to [0, 1], clamped.
fn visible(tape: &mut Tape, frames: Tensor) -> Result<Tensor> {
    let frames = tape.affine(frames, 0.5, 0.5)?;
    tape.clamp(frames, 0.0, 1.0)
}

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

struct Encoder {
    conv_in: Conv,
    /// From the frame's size downwards.
    levels: Vec<Level>,
    middle: Middle,
    norm_out: Norm,
    conv_out: Conv,
}

impl Encoder {
    fn new(b: &mut Builder, config: &TokenizerConfig) -> Result<Encoder> {
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

    fn forward(
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

struct Decoder {
    conv_in: Conv,
    middle: Middle,
    /// Indexed like the encoder's: 0 has the frame's size and comes last.
    levels: Vec<Level>,
    norm_out: Norm,
    conv_out: Conv,
}

impl Decoder {
    fn new(b: &mut Builder, config: &TokenizerConfig, channels: usize) -> Result<Decoder> {
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

    fn forward(
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
