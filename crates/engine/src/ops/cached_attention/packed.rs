//! Attention of new tokens to themselves and the cache: where the GPU's kernel can read queries, keys and values side by side, they are one product.

use super::super::Activation;
use super::super::attention::{Layers, project};
use super::{KvCache, Place};
use crate::backend::Backend;
use crate::cuda::Gpu;
use crate::{DType, Result, Tape, Tensor};

impl Tape {
    /// [`cached_attention`](Tape::cached_attention) of new tokens x [B, n, D] with weight [D, D] and bias `[D]` of queries, keys and values -> [B, n, D].
    pub fn cached_self_attention(
        &mut self,
        x: Tensor,
        [query, key, value]: [[Tensor; 2]; 3],
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        let layers = [key, query, value];
        if let Backend::Cuda(gpu) = self.backend()
            && self.takes_packed(x, &layers, cache, at)
        {
            let place = Place { cache, start: cache.start(layer)?, at, tokens: x.dims()[1] };
            return self.gpu_cached_self_attention(&gpu, x, &layers, &place);
        }
        // Invalid input takes this path too: the single ops report the error.
        let [q, k, v] =
            [query, key, value].map(|[weight, bias]| self.linear(x, weight, Some(bias), Activation::None));
        self.cached_attention(q?, k?, v?, cache, layer, at)
    }

    fn takes_packed(&self, x: Tensor, layers: &Layers, cache: &KvCache, at: usize) -> bool {
        let width = cache.heads * cache.head_width;
        let &[batch, tokens, last] = x.dims() else { return false };
        (batch, last) == (cache.batch, width)
            && tokens > 0
            && at.saturating_add(tokens) <= cache.capacity
            && cache.check_blocks(at, tokens).is_ok()
            && cache.is_blocks_of(self.float())
            && layers.iter().all(|layer| self.is_square_layer(x, layer))
            && !layers.iter().any(|layer| self.any_needs_grad(layer))
    }

    fn gpu_cached_self_attention(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        layers: &Layers,
        place: &Place,
    ) -> Result<Tensor> {
        let (packed, projected) = project(self, gpu, x, layers)?;
        let out = self.alloc(x.len(), DType::BF16)?;
        let width = x.shape().last();
        let [k, q, v] = [0, 1, 2].map(|part| projected.at() + (2 * part * width) as u64);
        self.gpu_block_attention(gpu, [q, k, v], 3 * width, place, &out)?;
        self.give_back(packed);
        self.give_back(projected);
        Ok(self.push(out, x.shape(), DType::BF16, false))
    }
}
