//! The discrete autoencoder: a frame becomes K tokens, K tokens become a frame (paper, section 2.1 and appendix A.1).

mod plain;
mod residual;

use engine::{Device, Error, Init, Param, Params, Result, Tape, Tensor};

use crate::layers::{Builder, Linear, LinearInit, Network};
use crate::{Perceptual, TokenizerConfig, TokenizerKind};
use residual::{Decoder, Encoder};

pub struct Tokenizer {
    pub config: TokenizerConfig,
    pub network: Network,
    family: Family,
}

/// What differs between the kinds.
#[expect(clippy::large_enum_variant, reason = "an agent has one")]
enum Family {
    /// The paper's.
    Vq {
        encoder: Encoder,
        pre_quant: Linear,
        codebook: Param,
        post_quant: Linear,
        decoder: Decoder,
    },
    Fsq {
        encoder: plain::Encoder,
        decoder: plain::Decoder,
        levels: usize,
    },
}

/// What an encoding is rounded to.
#[derive(Clone, Copy, Debug)]
pub struct Quantised {
    /// i32 [..]
    pub tokens: Tensor,
    /// What they stand for, [.., E]. Its gradient passes straight through to the encoding.
    pub embedded: Tensor,
    /// Of a codebook; levels have none.
    pub commitment: Option<Tensor>,
}

/// The losses: in the paper three, equally weighted in `total`.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerLosses {
    pub total: Tensor,
    pub reconstruction: Tensor,
    /// Absent without a codebook.
    pub commitment: Option<Tensor>,
    /// Unweighted; absent where its weight is 0.
    pub squared: Option<Tensor>,
    /// As `squared`.
    pub moving: Option<Tensor>,
    /// Absent without a perceptual network.
    pub perceptual: Option<Tensor>,
}

/// Weights of errors of pixels that are added to the absolute error. The paper adds none: 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorWeights {
    /// Of the squared error.
    pub squared: f32,
    /// Of the squared error in which each number counts as much as it differs from its mean over the frames of the batch.
    pub moving: f32,
}

impl ErrorWeights {
    /// Whether there is a squared error, and one over what moves.
    pub(crate) fn are_used(&self) -> [bool; 2] {
        [self.squared, self.moving].map(|weight| weight != 0.0)
    }
}

impl TokenizerLosses {
    /// The names that the reference release logs, in the order of [`named`](TokenizerLosses::named), for a loss with or without these parts.
    pub fn names(commitment: bool, [squared, moving]: [bool; 2], perceptual: bool) -> Vec<&'static str> {
        let mut names = vec!["tokenizer/train/total_loss"];
        names.extend(commitment.then_some("tokenizer/train/commitment_loss"));
        names.push("tokenizer/train/reconstruction_loss");
        names.extend(squared.then_some("tokenizer/train/squared_error"));
        names.extend(moving.then_some("tokenizer/train/moving_error"));
        names.extend(perceptual.then_some("tokenizer/train/perceptual_loss"));
        names
    }

    /// The losses under the names that the reference release logs.
    pub fn named(&self) -> Vec<(&'static str, Tensor)> {
        let Self { total, commitment, reconstruction, squared, moving, perceptual } = *self;
        let parts = [Some(total), commitment, Some(reconstruction), squared, moving, perceptual];
        let errors = [squared.is_some(), moving.is_some()];
        let names = Self::names(commitment.is_some(), errors, perceptual.is_some());
        names.into_iter().zip(parts.into_iter().flatten()).collect()
    }
}

/// Weight of the term that pulls the encoder to the codebook, against the one that pulls the codebook to the encoder.
const BETA: f32 = 1.0;

impl Family {
    fn vq(b: &mut Builder, config: &TokenizerConfig) -> Result<Family> {
        let (channels, embedding) = (config.channels, config.embedding);
        Ok(Family::Vq {
            encoder: b.within("encoder", |b| Encoder::new(b, config))?,
            pre_quant: b.conv1x1("pre_quant_conv", embedding, embedding)?,
            codebook: b.embedding(
                "embedding",
                config.vocabulary,
                embedding,
                Init::Uniform(1.0 / config.vocabulary as f32),
            )?,
            post_quant: b.conv1x1("post_quant_conv", embedding, embedding)?,
            decoder: b.within("decoder", |b| Decoder::new(b, config, channels))?,
        })
    }
}

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
        let family = match (config.kind, config.levels()) {
            (TokenizerKind::Vq, _) => Family::vq(&mut b, config)?,
            (TokenizerKind::Fsq, Some(levels)) => Family::Fsq {
                encoder: b.within("encoder", |b| plain::Encoder::new(b, config))?,
                decoder: b.within("decoder", |b| plain::Decoder::new(b, config))?,
                levels,
            },
            (TokenizerKind::Fsq, None) => {
                let reason = "the vocabulary is no power with the exponent `embedding`";
                return Err(Error::BadConfig { reason: reason.into() });
            }
        };
        let network = b.finish(device, "tokenizer", seed, limit)?;
        Ok(Tokenizer { config: config.clone(), network, family })
    }

    fn params(&self) -> &Params {
        &self.network.params
    }

    /// Frames [B, H, W, 3] in [-1, 1] -> y [B, h, w, E], what the quantiser looks up.
    pub fn encode(&self, tape: &mut Tape, frames: Tensor) -> Result<Tensor> {
        match &self.family {
            Family::Vq { encoder, pre_quant, .. } => {
                let h = encoder.forward(tape, self.params(), &self.config, frames)?;
                pre_quant.forward(tape, self.params(), h)
            }
            Family::Fsq { encoder, .. } => encoder.forward(tape, self.params(), self.config.groups, frames),
        }
    }

    /// y [B, h, w, E] -> tokens [B, h, w], their embeddings, and the commitment loss.
    pub fn quantise(&self, tape: &mut Tape, y: Tensor) -> Result<Quantised> {
        match &self.family {
            Family::Vq { codebook, .. } => {
                let codebook = tape.param(self.params(), *codebook)?;
                let engine::Quantised { tokens, embedded, commitment } = tape.quantise(y, codebook, BETA)?;
                Ok(Quantised { tokens, embedded, commitment: Some(commitment) })
            }
            Family::Fsq { levels, .. } => {
                let engine::Levelled { tokens, levels } = tape.fsq(y, *levels)?;
                Ok(Quantised { tokens, embedded: levels, commitment: None })
            }
        }
    }

    /// Embedded tokens [B, h, w, E] -> frames [B, H, W, 3], around [-1, 1] and not clamped.
    pub fn decode(&self, tape: &mut Tape, embedded: Tensor) -> Result<Tensor> {
        match &self.family {
            Family::Vq { post_quant, decoder, .. } => {
                let h = post_quant.forward(tape, self.params(), embedded)?;
                decoder.forward(tape, self.params(), &self.config, h)
            }
            Family::Fsq { decoder, .. } => decoder.forward(tape, self.params(), self.config.groups, embedded),
        }
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
        match &self.family {
            Family::Vq { codebook, .. } => {
                let codebook = tape.param_values(self.params(), *codebook)?;
                tape.embedding(codebook, tokens)
            }
            Family::Fsq { levels, .. } => tape.fsq_levels(tokens, *levels, self.config.embedding),
        }
    }

    /// Tokens i32 [B, K] -> frames [B, H, W, 3] in [0, 1], as anyone looks at them.
    pub fn render(&self, tape: &mut Tape, tokens: Tensor) -> Result<Tensor> {
        let embedded = self.codes(tape, tokens)?;
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

    /// |x - D(z)| + commitment + perceptual distance, each a mean, + other errors of pixels with their weights: frames [B, H, W, 3] in [-1, 1].
    pub fn loss(
        &self,
        tape: &mut Tape,
        frames: Tensor,
        perceptual: Option<&Perceptual>,
        weights: ErrorWeights,
    ) -> Result<TokenizerLosses> {
        let y = self.encode(tape, frames)?;
        let quantised = self.quantise(tape, y)?;
        let reconstruction = self.decode(tape, quantised.embedded)?;
        let absolute = tape.absolute_error(frames, reconstruction)?;
        let mut total = match quantised.commitment {
            Some(commitment) => tape.add(absolute, commitment)?,
            None => absolute,
        };
        let mut weighted =
            |tape: &mut Tape, weight: f32, error: fn(&mut Tape, Tensor, Tensor) -> Result<Tensor>| {
                if weight == 0.0 {
                    return Ok(None);
                }
                let error = error(tape, frames, reconstruction)?;
                let weighted = tape.affine(error, weight, 0.0)?;
                total = tape.add(total, weighted)?;
                Ok(Some(error))
            };
        let squared = weighted(tape, weights.squared, Tape::squared_error)?;
        let moving = weighted(tape, weights.moving, moving_error)?;
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
            moving,
            commitment: quantised.commitment,
            perceptual,
        })
    }
}

/// The mean of (x - y)^2 over what moves: each number of a frame counts as much as it differs from its mean over all frames.
fn moving_error(tape: &mut Tape, frames: Tensor, reconstruction: Tensor) -> Result<Tensor> {
    let weights = tape.deviation(frames)?;
    let negative = tape.affine(frames, -1.0, 0.0)?;
    let error = tape.add(reconstruction, negative)?;
    let squared = tape.mul(error, error)?;
    tape.weighted_mean(squared, weights)
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
