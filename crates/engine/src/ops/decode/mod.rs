//! A transformer block and the heads over one new token per sequence: fused kernels on a GPU, the single ops elsewhere.

mod cuda;
#[cfg(test)]
mod tests;
mod tokens;

pub use tokens::Decoder;
pub(crate) use tokens::takes_blocks;

use super::launches;
use super::linear::Activation;
use crate::backend::Backend;
use crate::{KvCache, Result, Tape, Tensor};

/// The parameters of a pre-norm transformer block, as tensors of the current step.
#[derive(Clone, Copy, Debug)]
pub struct DecodeBlock {
    /// Gain and shift `[D]` of the layer-norm before attention.
    pub attention_norm: [Tensor; 2],
    /// Weight [D, D] and bias `[D]` of the queries.
    pub query: [Tensor; 2],
    /// Weight [D, D] and bias `[D]` of the keys.
    pub key: [Tensor; 2],
    /// Weight [D, D] and bias `[D]` of the values.
    pub value: [Tensor; 2],
    /// Weight [D, D] and bias `[D]` of the layer behind attention.
    pub projection: [Tensor; 2],
    /// Gain and shift `[D]` of the layer-norm before the perceptron.
    pub mlp_norm: [Tensor; 2],
    /// Weight [M, D] and bias `[M]`.
    pub expand: [Tensor; 2],
    /// Weight [D, M] and bias `[D]`.
    pub contract: [Tensor; 2],
    /// Of both layer-norms.
    pub epsilon: f32,
}

impl DecodeBlock {
    /// (weight, bias) pairs and (gain, shift) pairs.
    fn layers(&self) -> ([[Tensor; 2]; 6], [[Tensor; 2]; 2]) {
        let linear = [self.query, self.key, self.value, self.projection, self.expand, self.contract];
        (linear, [self.attention_norm, self.mlp_norm])
    }

    /// Whether its layers have these widths.
    fn is_of(&self, width: usize, hidden: usize) -> bool {
        let (linear, norms) = self.layers();
        linear[..4].iter().all(|layer| maps(*layer, width, width))
            && maps(self.expand, width, hidden)
            && maps(self.contract, hidden, width)
            && norms.iter().flatten().all(|tensor| tensor.dims() == [width])
    }
}

/// The parameters of a head behind the last layer-norm: linear, ReLU, linear.
#[derive(Clone, Copy, Debug)]
pub struct DecodeHead {
    /// Gain and shift `[D]`.
    pub norm: [Tensor; 2],
    /// Weight [H, D] and bias `[H]`.
    pub hidden: [Tensor; 2],
    /// Weight [N, H] and bias `[N]`.
    pub out: [Tensor; 2],
    /// Of the layer-norm.
    pub epsilon: f32,
}

/// Head width that the fused kernels are written for.
const HEAD: usize = 64;
/// The widest D: blocks have a thread per column.
const WIDEST: usize = 512;
impl Tape {
    /// A transformer block over new tokens [B, n, D] -> [B, n, D], which attend to the first `at` positions of the cache and to each other:
    /// h = x + projection(attention(norm(x))), then h + contract(gelu(expand(norm(h)))). Writes keys and values into the cache, from position
    /// `at` on.
    pub fn decode_block(
        &mut self,
        x: Tensor,
        block: &DecodeBlock,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        match self.backend() {
            Backend::Cuda(gpu) if self.takes_fused(x, block, cache, layer, at) => {
                self.fused_block(&gpu, x, block, cache, layer, at)
            }
            // Invalid input takes this path too: the single ops report the error.
            _ => self.composed_block(x, block, cache, layer, at),
        }
    }

    fn composed_block(
        &mut self,
        x: Tensor,
        block: &DecodeBlock,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        let [gain, shift] = block.attention_norm;
        let h = self.layer_norm(x, gain, shift, block.epsilon)?;
        let h = self.cached_self_attention(h, [block.query, block.key, block.value], cache, layer, at)?;
        let [weight, bias] = block.projection;
        let x = self.linear_residual(h, weight, Some(bias), x)?;
        let [gain, shift] = block.mlp_norm;
        let h = self.layer_norm(x, gain, shift, block.epsilon)?;
        let [weight, bias] = block.expand;
        let h = self.linear(h, weight, Some(bias), Activation::Gelu)?;
        let [weight, bias] = block.contract;
        self.linear_residual(h, weight, Some(bias), x)
    }

    /// Whether the fused kernels can do it: one token per sequence, in shapes they know.
    fn takes_fused(&self, x: Tensor, block: &DecodeBlock, cache: &KvCache, layer: usize, at: usize) -> bool {
        let width = cache.heads * HEAD;
        let hidden = block.expand[0].shape().rows();
        let (linear, norms) = block.layers();
        let mut tensors = linear.concat();
        tensors.extend(norms.concat());
        launches::fuses(self, x, &tensors)
            && takes_shapes(width, cache.head_width, hidden)
            && x.dims() == [cache.batch, 1, width]
            && cache.batch > 0
            && cache.block == 1
            && block.is_of(width, hidden)
            && layer < cache.layers
            && at < cache.capacity
    }

    /// out(relu(hidden(norm(x)))): x [B, n, D] -> [B, n, N]
    pub fn decode_head(&mut self, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        match self.backend() {
            Backend::Cuda(gpu) if self.takes_fused_head(x, head) => self.fused_head(&gpu, x, head),
            _ => self.composed_head(x, head),
        }
    }

    fn composed_head(&mut self, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        let DecodeHead { norm: [gain, shift], hidden, out, epsilon } = *head;
        let h = self.layer_norm(x, gain, shift, epsilon)?;
        let h = self.linear(h, hidden[0], Some(hidden[1]), Activation::Relu)?;
        self.linear(h, out[0], Some(out[1]), Activation::None)
    }

    fn takes_fused_head(&self, x: Tensor, head: &DecodeHead) -> bool {
        let (width, outputs) = (x.shape().last(), head.out[0].shape().rows());
        launches::fuses(self, x, &[head.norm, head.hidden, head.out].concat())
            && matches!(x.dims(), [_, 1, _])
            && x.len() > 0
            && (1..=WIDEST).contains(&width)
            && width.is_multiple_of(64)
            && head.norm.iter().all(|tensor| tensor.dims() == [width])
            && maps(head.hidden, width, width)
            && outputs > 0
            && outputs.is_multiple_of(16)
            && maps(head.out, width, outputs)
    }
}

/// Whether the fused kernels are written for blocks of these shapes.
pub(crate) fn takes_shapes(width: usize, head_width: usize, hidden: usize) -> bool {
    head_width == HEAD && (1..=WIDEST).contains(&width) && hidden > 0 && hidden.is_multiple_of(64)
}

/// Whether a linear layer has these inputs and outputs.
fn maps([weight, bias]: [Tensor; 2], inputs: usize, outputs: usize) -> bool {
    weight.dims() == [outputs, inputs] && bias.dims() == [outputs]
}
