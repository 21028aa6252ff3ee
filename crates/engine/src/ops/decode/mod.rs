//! A transformer block and the heads over one new token per sequence: fused kernels on a GPU, the single ops elsewhere.

use super::linear::Activation;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::{DType, KvCache, Result, Tape, Tensor};

/// The parameters of a pre-norm transformer block, as tensors of the current step.
#[derive(Clone, Copy, Debug)]
pub struct DecodeBlock {
    /// Gain and shift [D] of the layer-norm before attention.
    pub attention_norm: [Tensor; 2],
    /// Weight [D, D] and bias [D].
    pub query: [Tensor; 2],
    pub key: [Tensor; 2],
    pub value: [Tensor; 2],
    pub projection: [Tensor; 2],
    /// Gain and shift [D] of the layer-norm before the perceptron.
    pub mlp_norm: [Tensor; 2],
    /// Weight [M, D] and bias [M].
    pub expand: [Tensor; 2],
    /// Weight [D, M] and bias [D].
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
}

/// The parameters of a head behind the last layer-norm: linear, ReLU, linear.
#[derive(Clone, Copy, Debug)]
pub struct DecodeHead {
    /// Gain and shift [D].
    pub norm: [Tensor; 2],
    /// Weight [H, D] and bias [H].
    pub hidden: [Tensor; 2],
    /// Weight [N, H] and bias [N].
    pub out: [Tensor; 2],
    pub epsilon: f32,
}

const OP: &str = "decode block";

/// Head width that the fused kernels are written for.
const HEAD: usize = 64;
/// The widest D: blocks have a thread per column.
const WIDEST: usize = 512;
/// Sequences that a block of the products takes.
const SEQUENCES: usize = 8;
/// Bytes of a warp's share of a product of 16 columns: `SEQUENCES` rows of 20 floats.
const SHARE: usize = 4 * SEQUENCES * 20;
/// The most warps that add up the last product.
const CONTRACT_WARPS: usize = 12;
/// Cached positions that a block of attention holds at a time.
const ATTENTION_POSITIONS: usize = 384;

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
        let linear = |tape: &mut Tape, h, [weight, bias]: [Tensor; 2], activation| {
            tape.linear(h, weight, Some(bias), activation)
        };
        let [gain, shift] = block.attention_norm;
        let h = self.layer_norm(x, gain, shift, block.epsilon)?;
        let q = linear(self, h, block.query, Activation::None)?;
        let k = linear(self, h, block.key, Activation::None)?;
        let v = linear(self, h, block.value, Activation::None)?;
        let h = self.cached_attention(q, k, v, cache, layer, at)?;
        let [weight, bias] = block.projection;
        let x = self.linear_residual(h, weight, Some(bias), x)?;
        let [gain, shift] = block.mlp_norm;
        let h = self.layer_norm(x, gain, shift, block.epsilon)?;
        let h = linear(self, h, block.expand, Activation::Gelu)?;
        let [weight, bias] = block.contract;
        self.linear_residual(h, weight, Some(bias), x)
    }

    /// Whether fused kernels may take these: on a GPU in bf16, without gradient, with nothing wrong. They may start to read parameters while what comes
    /// before them still runs, so those must not come out of the step.
    pub(super) fn fuses(&self, x: Tensor, params: &[Tensor]) -> bool {
        let all = [params, &[x]].concat();
        self.gpu().is_some()
            && self.float() == DType::BF16
            && self.check_f32(OP, &all).is_ok()
            && !self.any_needs_grad(&all)
            && params.iter().all(|tensor| self.is_bound(*tensor))
    }

    /// Whether the fused kernels can do it: one token per sequence, in shapes they know.
    fn takes_fused(&self, x: Tensor, block: &DecodeBlock, cache: &KvCache, layer: usize, at: usize) -> bool {
        let width = cache.heads * HEAD;
        let hidden = block.expand[0].shape().rows();
        let (linear, norms) = block.layers();
        let mut tensors = linear.concat();
        tensors.extend(norms.concat());
        self.fuses(x, &tensors)
            && takes_shapes(width, cache.head_width, hidden)
            && x.dims() == [cache.batch, 1, width]
            && cache.batch > 0
            && linear[..4].iter().all(|layer| maps(*layer, width, width))
            && maps(block.expand, width, hidden)
            && maps(block.contract, hidden, width)
            && norms.iter().flatten().all(|tensor| tensor.dims() == [width])
            && layer < cache.keys.len()
            && at < cache.capacity
    }

    /// Five kernels, each of which starts while the one before it runs. What is added up from block to block stays in f32.
    fn fused_block(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        block: &DecodeBlock,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        let (batch, width, hidden) = (cache.batch, x.shape().last(), block.expand[0].dims()[0]);
        let (keys, values) = (self.buffer_at(&cache.keys[layer])?, self.buffer_at(&cache.values[layer])?);
        let (linear, norms) = block.layers();
        let mut operands = Vec::with_capacity(16);
        for [weight, bias] in linear {
            operands.push(self.operand(weight, DType::BF16)?);
            operands.push(self.operand(bias, DType::F32)?);
        }
        for tensor in norms.into_iter().flatten() {
            operands.push(self.operand(tensor, DType::F32)?);
        }
        let pair = |i: usize| [operands[2 * i].at, operands[2 * i + 1].at];
        let [query, key, value, projection, expand, contract] = [0, 1, 2, 3, 4, 5].map(pair);
        let [attention_norm, mlp_norm] = [6, 7].map(pair);
        let (q, attended) =
            (self.alloc(batch * width, DType::BF16)?, self.alloc(batch * width, DType::BF16)?);
        let expanded = self.alloc(batch * hidden, DType::BF16)?;
        let (between, out) = (self.scratch(batch * width)?, self.alloc(batch * width, DType::F32)?);
        let rows = batch.div_ceil(SEQUENCES);
        let (capacity, past, shape, x) = (cache.capacity, at, x.shape(), self.view(x));
        let sum = View::new(between.at(), DType::F32);
        kernels::decode_qkv(
            gpu,
            Grid { blocks: (width / 16, rows), threads: width, shared: norm_shared(width, 3) },
            q.at(),
            keys,
            values,
            x,
            attention_norm[0],
            attention_norm[1],
            query[0],
            key[0],
            value[0],
            query[1],
            key[1],
            value[1],
            batch,
            width,
            capacity,
            past,
            block.epsilon,
        )?;

        let positions = (past + 1).next_multiple_of(16).min(ATTENTION_POSITIONS);
        let grid = Grid { blocks: (batch * cache.heads, 1), threads: 128, shared: positions * 2 * 2 * HEAD };
        let scale = 1.0 / (HEAD as f32).sqrt();
        kernels::decode_attention(gpu, grid, attended.at(), q.at(), keys, values, capacity, past, scale)?;

        let grid = |warps| Grid { blocks: (width / 16, rows), threads: 32 * warps, shared: warps * SHARE };
        let ([w, b], from) = (projection, attended.at());
        kernels::decode_project(gpu, grid(width / 32), sum.at, x, from, w, b, batch, width, width)?;

        let ([gain, shift], [w, b], to) = (mlp_norm, expand, expanded.at());
        let wide = Grid { blocks: (hidden / 64, rows), threads: width, shared: norm_shared(width, 4) };
        let epsilon = block.epsilon;
        kernels::decode_expand(gpu, wide, to, sum, gain, shift, w, b, batch, width, hidden, epsilon)?;

        // Each warp loads four chunks of 32 columns at once.
        let grid = grid((hidden / 128).clamp(2, CONTRACT_WARPS));
        let ([w, b], from) = (contract, expanded.at());
        kernels::decode_contract(gpu, grid, out.at(), sum, from, w, b, batch, width, hidden)?;
        for operand in operands {
            self.release(operand);
        }
        for scratch in [q, attended, expanded, between] {
            self.give_back(scratch);
        }
        Ok(self.push(out, shape, DType::F32, false))
    }

    /// out(relu(hidden(norm(x)))): x [B, n, D] -> [B, n, N]
    pub fn decode_head(&mut self, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        if let Backend::Cuda(gpu) = self.backend()
            && self.takes_fused_head(x, head)
        {
            return self.fused_head(&gpu, x, head);
        }
        let DecodeHead { norm: [gain, shift], hidden, out, epsilon } = *head;
        let h = self.layer_norm(x, gain, shift, epsilon)?;
        let h = self.linear(h, hidden[0], Some(hidden[1]), Activation::Relu)?;
        self.linear(h, out[0], Some(out[1]), Activation::None)
    }

    fn takes_fused_head(&self, x: Tensor, head: &DecodeHead) -> bool {
        let (width, outputs) = (x.shape().last(), head.out[0].shape().rows());
        self.fuses(x, &[head.norm, head.hidden, head.out].concat())
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

    /// Two kernels of the chain.
    fn fused_head(&mut self, gpu: &Gpu, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        let &[batch, tokens, width] = x.dims() else { unreachable!("checked by takes_fused_head") };
        let outputs = head.out[0].dims()[0];
        let mut operands = Vec::with_capacity(6);
        for [weight, bias] in [head.hidden, head.out] {
            operands.push(self.operand(weight, DType::BF16)?);
            operands.push(self.operand(bias, DType::F32)?);
        }
        for tensor in head.norm {
            operands.push(self.operand(tensor, DType::F32)?);
        }
        let pair = |i: usize| [operands[2 * i].at, operands[2 * i + 1].at];
        let [hidden, last, norm] = [0, 1, 2].map(pair);
        let between = self.alloc(batch * width, DType::BF16)?;
        let out = self.alloc(batch * outputs, DType::F32)?;
        let (rows, warps) = (batch.div_ceil(SEQUENCES), width / 32);
        let (x, h, epsilon) = (self.view(x), between.at(), head.epsilon);
        let ([gain, shift], [w, b]) = (norm, hidden);
        let grid = Grid { blocks: (width / 64, rows), threads: width, shared: norm_shared(width, 4) };
        kernels::decode_head(gpu, grid, h, x, gain, shift, w, b, batch, width, width, epsilon)?;

        let ([w, b], start) = (last, View::NOTHING);
        let grid = Grid { blocks: (outputs / 16, rows), threads: width, shared: warps * SHARE };
        kernels::decode_project(gpu, grid, out.at(), start, h, w, b, batch, outputs, width)?;
        for operand in operands {
            self.release(operand);
        }
        self.give_back(between);
        Ok(self.push(out, [batch, tokens, outputs], DType::F32, false))
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

/// Shared memory of the kernels that normalise: gain and shift, and a share per warp and tile of 16 columns.
fn norm_shared(width: usize, tiles: usize) -> usize {
    8 * width + width / 32 * tiles * SHARE
}

#[cfg(test)]
mod tests;
