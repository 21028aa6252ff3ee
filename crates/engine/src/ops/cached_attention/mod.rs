//! Attention of new tokens to cached keys and values: how a transformer decodes one token, or one block of tokens, at a time.

mod packed;
#[cfg(test)]
mod tests;

use super::attention::{FLASH_HEAD, softmax};
use crate::backend::Backend;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{Buffer, DType, Device, Error, Result, Tape, Tensor};

/// Keys and values of the tokens a transformer has seen, for every layer, so that a new token costs one pass over it alone. It does not count
/// positions: whoever decodes says where new tokens go, so that a step captured for one position stays that step.
pub struct KvCache {
    /// [layers, B, heads, d, capacity]: positions last, so that scores of many positions are one vector operation. A GPU keeps keys like values.
    pub(super) keys: Buffer,
    /// [layers, B, heads, capacity, d]
    pub(super) values: Buffer,
    pub(super) layers: usize,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) head_width: usize,
    pub(super) capacity: usize,
    /// Positions per block: a token sees the positions up to the end of its block.
    pub(super) block: usize,
}

impl KvCache {
    /// Memory for `batch` sequences of up to `capacity` positions, seen by `heads` heads of `head_width` in each of `layers` layers.
    pub fn new(
        device: &Device,
        layers: usize,
        batch: usize,
        heads: usize,
        head_width: usize,
        capacity: usize,
    ) -> Result<KvCache> {
        Ok(KvCache {
            keys: device.float_buffer("key cache", [layers, batch, heads, head_width, capacity])?,
            values: device.float_buffer("value cache", [layers, batch, heads, capacity, head_width])?,
            layers,
            batch,
            heads,
            head_width,
            capacity,
            block: 1,
        })
    }

    /// The same for [`block_causal_attention`](Tape::block_causal_attention): new tokens come in whole blocks of `block` positions.
    pub fn in_blocks(self, block: usize) -> KvCache {
        KvCache { block: block.max(1), ..self }
    }

    /// Positions seen by a token at `position`.
    fn reach(&self, position: usize) -> usize {
        (position / self.block + 1) * self.block
    }

    /// Refuses new tokens that are not whole blocks.
    fn check_blocks(&self, at: usize, tokens: usize) -> Result<()> {
        for (name, count) in [("the first new position", at), ("the number of new tokens", tokens)] {
            if !count.is_multiple_of(self.block) {
                let rule = "a multiple of the cache's block";
                return Err(Error::BadArgument { op: OP, name, value: count as f64, rule });
            }
        }
        Ok(())
    }

    /// Whether the kernel for blocks of new tokens takes it.
    fn is_blocks_of(&self, dtype: DType) -> bool {
        self.block > 1 && dtype == DType::BF16 && self.head_width == FLASH_HEAD
    }

    /// Elements of one layer's keys, and of its values.
    pub(super) fn layer_len(&self) -> usize {
        self.batch * self.heads * self.head_width * self.capacity
    }

    /// The element at which a layer's keys begin, and its values.
    fn start(&self, layer: usize) -> Result<usize> {
        let (index, limit) = (layer as i64, self.layers);
        match layer < limit {
            true => Ok(layer * self.layer_len()),
            false => Err(Error::IndexOutOfRange { op: OP, index, position: 0, limit }),
        }
    }

    /// All of its memory, in an order that every cache of the same shape has: for copies.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        [&self.keys, &self.values].into_iter()
    }

    /// The weights with which queries [B, n, D] at positions `at` to `at + n` attend to the keys of one layer, which are those that
    /// [`cached_attention`](Tape::cached_attention) has put there -> [B, heads, n, at + n], 0 for positions it does not see. For looking
    /// at: computed on the host, whatever the device.
    pub fn attention_weights(&self, layer: usize, queries: &[f32], at: usize) -> Result<Vec<f32>> {
        let KvCache { batch, heads, head_width: d, capacity, .. } = *self;
        let (start, width) = (self.start(layer)?, heads * d);
        let tokens = queries.len() / (batch * width).max(1);
        let expected = batch * tokens * width;
        if queries.len() != expected {
            return Err(Error::WrongLength { name: "queries".into(), expected, got: queries.len() });
        }
        let end = at.saturating_add(tokens);
        if end > capacity {
            return Err(Error::RangeOutOfBounds { op: OP, start: at, end, limit: capacity });
        }
        self.check_blocks(at, tokens)?;
        let stored = self.keys.read_range::<f32>(start, start + self.layer_len())?;
        // (position, channel) of a head's keys lies at position * steps.0 + channel * steps.1.
        let steps = if self.keys.device().is_gpu() { (d, 1) } else { (1, capacity) };
        let mut weights = vec![0.0; batch * heads * tokens * end];
        for (i, rows) in weights.chunks_exact_mut((tokens * end).max(1)).enumerate() {
            let (image, head) = (i / heads, i % heads);
            let keys = &stored[i * d * capacity..(i + 1) * d * capacity];
            for (token, row) in rows.chunks_exact_mut(end).enumerate() {
                let query = &queries[(image * tokens + token) * width + head * d..][..d];
                let seen = &mut row[..self.reach(at + token)];
                for (position, score) in seen.iter_mut().enumerate() {
                    let key = |c: usize| keys[position * steps.0 + c * steps.1];
                    *score = query.iter().enumerate().map(|(c, q)| q * key(c)).sum();
                }
                softmax(seen, 1.0 / (d as f32).sqrt());
            }
        }
        Ok(weights)
    }
}

const OP: &str = "cached attention";

impl Tape {
    /// Causal attention of new tokens to the first `at` positions of the cache and to each other, block-causal in a cache of blocks, without gradient:
    /// q, k, v [B, n, D] -> [B, n, D]. Writes k and v into the cache, from position `at` on.
    pub fn cached_attention(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[q, k, v])?;
        self.check_not_empty(OP, &[q, k, v])?;
        let width = cache.heads * cache.head_width;
        for input in [q, k, v] {
            if input.shape() != q.shape()
                || !matches!(input.dims(), &[b, _, w] if b == cache.batch && w == width)
            {
                let rhs = [cache.batch, 1, width].into();
                let rule = "q, k and v are [B, n, D] of the cache's batch and width";
                return Err(Error::ShapeMismatch { op: OP, lhs: input.shape(), rhs, rule });
            }
        }
        let tokens = q.dims()[1];
        let (end, limit) = (at.saturating_add(tokens), cache.capacity);
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: OP, start: at, end, limit });
        }
        cache.check_blocks(at, tokens)?;
        let start = cache.start(layer)?;
        let mut out = self.alloc(q.len(), self.float())?;
        let place = Place { cache, start, at, tokens };
        match self.backend() {
            Backend::Cpu => self.cpu_cached_attention([q, k, v], &place, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_cached_attention(&gpu, [q, k, v], &place, &out)?,
        }
        Ok(self.push(out, q.shape(), self.float(), false))
    }

    /// Where keys and values lie on the GPU, from element `start` on.
    pub(super) fn cache_at(&mut self, cache: &KvCache, start: usize) -> Result<[u64; 2]> {
        let offset = (start * self.float().size()) as u64;
        Ok([self.buffer_at(&cache.keys)? + offset, self.buffer_at(&cache.values)? + offset])
    }

    fn cpu_cached_attention(&mut self, [q, k, v]: [Tensor; 3], place: &Place, out: &mut Block) -> Result<()> {
        let &Place { cache, start, at: past, tokens } = place;
        let KvCache { ref keys, ref values, batch, heads, head_width: d, capacity, .. } = *cache;
        let width = heads * d;
        self.with_buffer_mut::<f32, _>(keys, |tape, keys| {
            let (k, keys) = (tape.f32(k), &mut keys[start..]);
            for (index, row) in k.chunks_exact(width).enumerate() {
                let (image, position) = (index / tokens, past + index % tokens);
                for (c, x) in row.iter().enumerate() {
                    keys[(image * width + c) * capacity + position] = *x;
                }
            }
        })?;
        self.with_buffer_mut::<f32, _>(values, |tape, values| {
            let (v, values) = (tape.f32(v), &mut values[start..]);
            for (index, row) in v.chunks_exact(width).enumerate() {
                let (image, position) = (index / tokens, past + index % tokens);
                for (head, part) in row.chunks_exact(d).enumerate() {
                    let at = ((image * heads + head) * capacity + position) * d;
                    values[at..at + d].copy_from_slice(part);
                }
            }
        })?;
        let (keys, values) = (self.buffer(keys)?, self.buffer(values)?);
        // One task per sequence and head; its results [n, d] stand together before they are joined to [B, n, D].
        let mut parts = self.scratch(batch * heads * tokens * d)?;
        let mut scores = self.scratch(batch * heads * capacity)?;
        let (qv, kv, vv) = (self.f32(q), &self.f32(keys)[start..], &self.f32(values)[start..]);
        let task = |i: usize, part: &mut [f32], scores: &mut [f32]| {
            let (image, head) = (i / heads, i % heads);
            for (token, out) in part.chunks_exact_mut(d).enumerate() {
                let query = &qv[(image * tokens + token) * width + head * d..][..d];
                let scores = &mut scores[..cache.reach(past + token)];
                score(query, &kv[i * d * capacity..], capacity, scores);
                softmax(scores, 1.0 / (d as f32).sqrt());
                blend(scores, &vv[i * capacity * d..], out);
            }
        };
        let work = batch * tokens * (past + tokens) * width;
        cpu::chunks2_mut_of(work, (parts.f32_mut(), tokens * d), (scores.f32_mut(), capacity), task);
        for (i, part) in parts.f32().chunks_exact(tokens * d).enumerate() {
            let (image, head) = (i / heads, i % heads);
            for (token, part) in part.chunks_exact(d).enumerate() {
                let at = (image * tokens + token) * width + head * d;
                out.f32_mut()[at..at + d].copy_from_slice(part);
            }
        }
        self.give_back(parts);
        self.give_back(scores);
        Ok(())
    }

    fn gpu_cached_attention(
        &mut self,
        gpu: &Gpu,
        [q, k, v]: [Tensor; 3],
        place: &Place,
        out: &Block,
    ) -> Result<()> {
        let &Place { cache, start, at: past, tokens } = place;
        let KvCache { batch, heads, head_width: d, capacity, .. } = *cache;
        let dtype = self.float();
        if cache.is_blocks_of(dtype) {
            let [q, k, v] = [q, k, v].map(|x| self.gpu_operand(gpu, x, dtype));
            let (q, k, v) = (q?, k?, v?);
            self.gpu_block_attention(gpu, [q.at, k.at, v.at], heads * d, place, out)?;
            [q, k, v].into_iter().for_each(|operand| self.release(operand));
            return Ok(());
        }
        let [keys, values] = self.cache_at(cache, start)?.map(|at| View::new(at, dtype));
        let (n, k, v) = (q.len(), self.view(k), self.view(v));
        let grid = Grid::elements(gpu, n);
        kernels::cache_append(gpu, grid, keys, values, k, v, tokens, heads, d, capacity, past, n)?;
        let (block, scale) = (cache.block, 1.0 / (d as f32).sqrt());
        kernels::cache_attention(
            gpu,
            // Whole vectors of shared memory: the compiler reads weights four at a time.
            Grid {
                blocks: (batch * tokens * heads, 1),
                threads: 128,
                shared: 4 * (past + tokens).next_multiple_of(4),
            },
            View::new(out.at(), dtype),
            self.view(q),
            keys,
            values,
            tokens,
            heads,
            d,
            capacity,
            past,
            block,
            scale,
        )
    }
}

impl Tape {
    /// Queries, keys and values of new tokens lie in rows of `stride` numbers.
    fn gpu_block_attention(
        &mut self,
        gpu: &Gpu,
        [q, k, v]: [u64; 3],
        stride: usize,
        place: &Place,
        out: &Block,
    ) -> Result<()> {
        let &Place { cache, start, at: past, tokens } = place;
        let KvCache { batch, heads, head_width, capacity, block, .. } = *cache;
        let [keys, values] = self.cache_at(cache, start)?;
        let grid = Grid { blocks: (batch * heads, tokens.div_ceil(BLOCK_ROWS)), threads: 128, shared: 0 };
        let scale = 1.0 / (head_width as f32).sqrt();
        kernels::block_attention(
            gpu,
            grid,
            out.at(),
            q,
            k,
            v,
            keys,
            values,
            tokens,
            heads,
            stride,
            capacity,
            past,
            block,
            scale,
        )
    }
}

/// Query rows of a block of threads, as the kernel has them.
const BLOCK_ROWS: usize = 32;

/// Where new tokens go: positions `at` to `at + tokens` of one layer's keys and values.
struct Place<'a> {
    cache: &'a KvCache,
    /// The element at which its layer begins.
    start: usize,
    at: usize,
    tokens: usize,
}

multiversion! {
    /// scores[t] = sum over c of query[c] * keys[c][t]
    fn score(query: &[f32], keys: &[f32], capacity: usize, scores: &mut [f32]) {
        scores.fill(0.0);
        let seen = scores.len();
        // Four rows of keys at a time, so that the scores are read and written less often.
        let (quads, rest) = query.as_chunks::<4>();
        for (i, q) in quads.iter().enumerate() {
            let rows: [&[f32]; 4] = std::array::from_fn(|r| &keys[(4 * i + r) * capacity..][..seen]);
            for t in 0..seen {
                scores[t] += q[0] * rows[0][t] + q[1] * rows[1][t] + (q[2] * rows[2][t] + q[3] * rows[3][t]);
            }
        }
        for (i, q) in rest.iter().enumerate() {
            let row = &keys[(4 * quads.len() + i) * capacity..][..seen];
            for (s, k) in scores.iter_mut().zip(row) {
                *s += q * k;
            }
        }
    }
}

multiversion! {
    /// out = sum over t of weights[t] * values[t]
    fn blend(weights: &[f32], values: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        let d = out.len();
        for (w, v) in weights.iter().zip(values.chunks_exact(d)) {
            for (o, v) in out.iter_mut().zip(v) {
                *o += w * v;
            }
        }
    }
}
