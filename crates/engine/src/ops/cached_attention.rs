//! Attention of new tokens to cached keys and values: how a transformer decodes one token at a time.

use super::attention::softmax;
use crate::backend::Backend;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{Buffer, DType, Device, Error, Result, Tape, Tensor};

/// Keys and values of the tokens a transformer has seen, for every layer, so that a new token costs one pass over it alone. It does not count
/// positions: whoever decodes says where new tokens go, so that a step captured for one position stays that step.
pub struct KvCache {
    /// [layer][B, heads, d, capacity]: positions last, so that scores of many positions are one vector operation. A GPU keeps keys like values.
    pub(super) keys: Vec<Buffer>,
    /// [layer][B, heads, capacity, d]
    pub(super) values: Vec<Buffer>,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) head_width: usize,
    pub(super) capacity: usize,
}

impl KvCache {
    /// Room for `capacity` positions of `batch` sequences in each of `layers` layers.
    pub fn new(
        device: &Device,
        layers: usize,
        batch: usize,
        heads: usize,
        head_width: usize,
        capacity: usize,
    ) -> Result<KvCache> {
        let buffers = |what: &str, shape: [usize; 4]| -> Result<Vec<Buffer>> {
            (0..layers).map(|i| device.float_buffer(format!("{what} cache of layer {i}"), shape)).collect()
        };
        Ok(KvCache {
            keys: buffers("key", [batch, heads, head_width, capacity])?,
            values: buffers("value", [batch, heads, capacity, head_width])?,
            batch,
            heads,
            head_width,
            capacity,
        })
    }
}

const OP: &str = "cached attention";

impl Tape {
    /// Causal attention of new tokens to the first `at` positions of the cache and to each other, without gradient: q, k, v [B, n, D] -> [B, n, D].
    /// Writes k and v into the cache, from position `at` on.
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
        let (width, capacity) = (cache.heads * cache.head_width, cache.capacity);
        for input in [q, k, v] {
            if input.shape() != q.shape()
                || !matches!(input.dims(), &[b, _, w] if b == cache.batch && w == width)
            {
                let rhs = [cache.batch, 1, width].into();
                let rule = "q, k and v are [B, n, D] of the cache's batch and width";
                return Err(Error::ShapeMismatch { op: OP, lhs: input.shape(), rhs, rule });
            }
        }
        let end = at.saturating_add(q.dims()[1]);
        if end > capacity {
            return Err(Error::RangeOutOfBounds { op: OP, start: at, end, limit: capacity });
        }
        let (Some(keys), Some(values)) = (cache.keys.get(layer), cache.values.get(layer)) else {
            return Err(Error::IndexOutOfRange {
                op: OP,
                index: layer as i64,
                position: 0,
                limit: cache.keys.len(),
            });
        };
        let out = match self.backend() {
            Backend::Cpu => self.cpu_cached_attention([q, k, v], cache, [keys, values], at)?,
            Backend::Cuda(gpu) => self.gpu_cached_attention(&gpu, [q, k, v], cache, [keys, values], at)?,
        };
        Ok(self.push(out, q.shape(), self.float(), false))
    }

    fn cpu_cached_attention(
        &mut self,
        [q, k, v]: [Tensor; 3],
        cache: &KvCache,
        [keys, values]: [&Buffer; 2],
        past: usize,
    ) -> Result<Block> {
        let &KvCache { batch, heads, head_width: d, capacity, .. } = cache;
        let (tokens, width) = (q.dims()[1], heads * d);
        self.with_buffer_mut::<f32, _>(keys, |tape, keys| {
            let k = tape.f32(k);
            for (index, row) in k.chunks_exact(width).enumerate() {
                let (image, position) = (index / tokens, past + index % tokens);
                for (c, x) in row.iter().enumerate() {
                    keys[(image * width + c) * capacity + position] = *x;
                }
            }
        })?;
        self.with_buffer_mut::<f32, _>(values, |tape, values| {
            let v = tape.f32(v);
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
        let (qv, kv, vv) = (self.f32(q), self.f32(keys), self.f32(values));
        let task = |i: usize, part: &mut [f32], scores: &mut [f32]| {
            let (image, head) = (i / heads, i % heads);
            for (token, out) in part.chunks_exact_mut(d).enumerate() {
                let query = &qv[(image * tokens + token) * width + head * d..][..d];
                let scores = &mut scores[..past + token + 1];
                score(query, &kv[i * d * capacity..], capacity, scores);
                softmax(scores, 1.0 / (d as f32).sqrt());
                blend(scores, &vv[i * capacity * d..], out);
            }
        };
        let work = batch * tokens * (past + tokens) * width;
        cpu::chunks2_mut_of(work, (parts.f32_mut(), tokens * d), (scores.f32_mut(), capacity), task);
        let mut out = self.alloc(batch * tokens * width, DType::F32)?;
        for (i, part) in parts.f32().chunks_exact(tokens * d).enumerate() {
            let (image, head) = (i / heads, i % heads);
            for (token, part) in part.chunks_exact(d).enumerate() {
                let at = (image * tokens + token) * width + head * d;
                out.f32_mut()[at..at + d].copy_from_slice(part);
            }
        }
        self.give_back(parts);
        self.give_back(scores);
        Ok(out)
    }

    fn gpu_cached_attention(
        &mut self,
        gpu: &Gpu,
        [q, k, v]: [Tensor; 3],
        cache: &KvCache,
        [keys, values]: [&Buffer; 2],
        past: usize,
    ) -> Result<Block> {
        let &KvCache { batch, heads, head_width: d, capacity, .. } = cache;
        let (tokens, dtype) = (q.dims()[1], self.float());
        let [keys, values] = [keys, values].map(|buffer| self.buffer_at(buffer));
        let (keys, values) = (View::new(keys?, dtype), View::new(values?, dtype));
        let out = self.alloc(q.len(), dtype)?;
        let (n, k, v) = (q.len(), self.view(k), self.view(v));
        let grid = Grid::elements(gpu, n);
        kernels::cache_append(gpu, grid, keys, values, k, v, tokens, heads, d, capacity, past, n)?;
        // Whole vectors of shared memory: the compiler reads weights four at a time.
        let shared = 4 * (past + tokens).next_multiple_of(4);
        kernels::cache_attention(
            gpu,
            Grid { blocks: (batch * tokens * heads, 1), threads: 128, shared },
            View::new(out.at(), dtype),
            self.view(q),
            keys,
            values,
            tokens,
            heads,
            d,
            capacity,
            past,
            1.0 / (d as f32).sqrt(),
        )?;
        Ok(out)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use crate::{Key, Stepper};

    /// Appending tokens in any portions gives what attention over the whole sequence gives.
    #[test]
    fn any_portions_equal_the_whole_sequence() -> Result<()> {
        let (batch, time, heads, d) = (3, 23, 2, 6);
        let width = heads * d;
        let device = Device::under_test(2)?;
        let inputs = ["q", "k", "v"].map(|name| device.buffer::<f32>(name, [batch, time, width]).unwrap());
        for (i, input) in inputs.iter().enumerate() {
            input.write(&values(batch * time * width, i))?;
        }
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let whole = stepper.run(|tape| -> Result<Vec<f32>> {
            let [q, k, v] = [tape.buffer(&inputs[0])?, tape.buffer(&inputs[1])?, tape.buffer(&inputs[2])?];
            let out = tape.causal_attention(q, k, v, heads, 0.0)?;
            tape.read(out)
        })?;
        for portions in [vec![23], vec![1; 23], vec![5, 1, 16, 1]] {
            let cache = KvCache::new(&device, 2, batch, heads, d, time)?;
            let mut start = 0;
            for tokens in portions {
                let part = stepper.run(|tape| -> Result<Vec<f32>> {
                    let mut qkv = [0, 1, 2].map(|i| tape.buffer(&inputs[i]));
                    for x in &mut qkv {
                        *x = x.clone().and_then(|x| tape.slice(x, 1, start, start + tokens));
                    }
                    let [q, k, v] = qkv;
                    let out = tape.cached_attention(q?, k?, v?, &cache, 1, start)?;
                    tape.read(out)
                })?;
                for (i, got) in part.chunks_exact(width).enumerate() {
                    let at = (i / tokens * time + start + i % tokens) * width;
                    for (g, w) in got.iter().zip(&whole[at..]) {
                        assert!((g - w).abs() < 1e-5, "{g} against {w}");
                    }
                }
                start += tokens;
            }
        }
        Ok(())
    }

    #[test]
    fn a_full_cache_and_a_missing_layer_are_errors() -> Result<()> {
        let device = Device::under_test(1)?;
        let input = device.buffer::<f32>("x", [1, 3, 4])?;
        let cache = KvCache::new(&device, 1, 1, 2, 2, 4)?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let mut run = |layer, at| {
            stepper
                .run(|tape| {
                    let x = tape.buffer(&input)?;
                    tape.cached_attention(x, x, x, &cache, layer, at).map(|_| ())
                })
                .unwrap_err()
        };
        assert_eq!(run(0, 2).to_string(), "cached attention: range 2..5 is outside 0..4");
        assert!(matches!(run(0, usize::MAX), Error::RangeOutOfBounds { .. }));
        assert!(matches!(run(1, 0), Error::IndexOutOfRange { limit: 1, .. }));
        Ok(())
    }
}
