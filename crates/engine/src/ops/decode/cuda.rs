//! One new token per sequence on a GPU: chains of kernels, each of which starts while the one before it runs.

use super::{DecodeBlock, DecodeHead, HEAD};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::{DType, KvCache, Result, Tape, Tensor};

/// Sequences that a block of the products takes.
const SEQUENCES: usize = 8;
/// Bytes of a warp's share of a product of 16 columns: `SEQUENCES` rows of 20 floats.
const SHARE: usize = 4 * SEQUENCES * 20;
/// The most warps that add up the last product.
const CONTRACT_WARPS: usize = 12;
/// Cached positions that a block of attention holds at a time.
const ATTENTION_POSITIONS: usize = 384;

impl Tape {
    /// Five kernels, each of which starts while the one before it runs. What is added up from block to block stays in f32.
    pub(super) fn fused_block(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        block: &DecodeBlock,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        let (batch, width, hidden) = (cache.batch, x.shape().last(), block.expand[0].dims()[0]);
        let [keys, values] = self.cache_at(cache, layer * cache.layer_len())?;
        let (linear, norms) = block.layers();
        let mut operands = Vec::with_capacity(16);
        for [weight, bias] in linear {
            operands.push(self.gpu_operand(gpu, weight, DType::BF16)?);
            operands.push(self.gpu_operand(gpu, bias, DType::F32)?);
        }
        for tensor in norms.into_iter().flatten() {
            operands.push(self.gpu_operand(gpu, tensor, DType::F32)?);
        }
        let pair = |i: usize| [operands[2 * i].at, operands[2 * i + 1].at];
        let [query, key, value, projection, expand, contract] = [0, 1, 2, 3, 4, 5].map(pair);
        let [attention_norm, mlp_norm] = [6, 7].map(pair);
        let (q, attended) =
            (self.alloc(batch * width, DType::BF16)?, self.alloc(batch * width, DType::BF16)?);
        let expanded = self.alloc(batch * hidden, DType::BF16)?;
        let (between, out) = (self.scratch(batch * width)?, self.alloc(batch * width, DType::F32)?);
        let rows = batch.div_ceil(SEQUENCES);
        let (capacity, past, input) = (cache.capacity, at, self.view(x));
        let sum = View::new(between.at(), DType::F32);
        kernels::decode_qkv(
            gpu,
            Grid { blocks: (width / 16, rows), threads: width, shared: norm_shared(width, 3) },
            q.at(),
            keys,
            values,
            input,
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
        kernels::decode_project(gpu, grid(width / 32), sum.at, input, from, w, b, batch, width, width)?;

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
        Ok(self.push(out, x.shape(), DType::F32, false))
    }

    /// Two kernels of the chain.
    pub(super) fn fused_head(&mut self, gpu: &Gpu, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        let (batch, tokens, width) = (x.dims()[0], x.dims()[1], x.shape().last());
        let outputs = head.out[0].dims()[0];
        let mut operands = Vec::with_capacity(6);
        for [weight, bias] in [head.hidden, head.out] {
            operands.push(self.gpu_operand(gpu, weight, DType::BF16)?);
            operands.push(self.gpu_operand(gpu, bias, DType::F32)?);
        }
        for tensor in head.norm {
            operands.push(self.gpu_operand(gpu, tensor, DType::F32)?);
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

/// Shared memory of the kernels that normalise: gain and shift, and a share per warp and tile of 16 columns.
fn norm_shared(width: usize, tiles: usize) -> usize {
    8 * width + width / 32 * tiles * SHARE
}
