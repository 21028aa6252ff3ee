//! The ops, one file each: what it computes, its gradient, its checks.

mod arithmetic;
pub(crate) mod attention;
mod cached_attention;
mod categorical;
mod conv;
mod cross_entropy;
pub(crate) mod decode;
mod deviation;
mod dropout;
mod embedding;
mod frames;
mod fsq;
pub(crate) mod group_norm;
pub(crate) mod image_blocks;
mod labels;
mod launches;
mod layer_norm;
mod linear;
mod losses;
mod lstm;
mod matmul;
mod max_pool;
mod perceptual;
mod quantise;
mod range;
mod raster;
mod relu;
mod returns;
mod rows;
mod select;
mod slice;
mod symlog;
mod upsample;

pub use cached_attention::KvCache;
pub use categorical::Temperature;
pub use conv::Stride;
pub use decode::{DecodeBlock, DecodeHead, Decoder};
pub use fsq::Levelled;
pub use image_blocks::{ImageAttention, ImageResidual};
pub use linear::Activation;
pub use lstm::Lstm;
pub use quantise::Quantised;
pub use range::{MOST_RANGED, RunningRange};
pub use raster::{FrameDraw, place_in_patches};
pub use symlog::SymlogPlace;

use crate::{Result, Tape};

/// What an op with a gradient leaves on the tape.
trait Backward {
    fn backward(self, tape: &mut Tape) -> Result<()>;
}

macro_rules! records {
    ($($name:ident($type:ty)),* $(,)?) => {
        pub(crate) enum Record {
            $($name($type)),*
        }

        impl Record {
            pub(crate) fn backward(self, tape: &mut Tape) -> Result<()> {
                match self {
                    $(Record::$name(op) => op.backward(tape)),*
                }
            }
        }

        $(impl From<$type> for Record {
            fn from(op: $type) -> Record {
                Record::$name(op)
            }
        })*
    };
}

records! {
    Add(arithmetic::Add),
    AddPositions(embedding::AddPositions),
    Affine(arithmetic::Affine),
    Attention(attention::Attention),
    Concat(slice::Concat),
    Conv(conv::Conv),
    CrossEntropy(cross_entropy::CrossEntropy),
    Dropout(dropout::Dropout),
    Earlier(raster::Earlier),
    Embedding(embedding::Embedding),
    Entropy(categorical::Entropy),
    Fsq(fsq::Fsq),
    GroupNorm(group_norm::GroupNorm),
    LayerNorm(layer_norm::LayerNorm),
    Linear(linear::Linear),
    LogProb(categorical::LogProb),
    LstmCell(lstm::LstmCell),
    Matmul(matmul::Matmul),
    MaxPool(max_pool::MaxPool),
    Mean(arithmetic::Mean),
    Mul(arithmetic::Mul),
    Perceptual(perceptual::Perceptual),
    PixelError(losses::PixelError),
    Quantise(quantise::Quantise),
    Relu(relu::Relu),
    SelfAttention(attention::SelfAttention),
    Slice(slice::Slice),
    Upsample(upsample::Upsample),
}
