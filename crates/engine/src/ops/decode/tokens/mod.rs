//! Whole imagined tokens, from the embedding of one to the draw of the next: one launch for all of them on a GPU with clusters, op by op
//! elsewhere.

mod cuda;
#[cfg(test)]
mod tests;

use super::{DecodeBlock, DecodeHead, HEAD, maps};
use crate::backend::Backend;
use crate::ops::launches;
use crate::{Buffer, DType, KvCache, Result, Tape, Tensor};

/// What a new token passes through.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    /// The transformer's.
    pub blocks: &'a [DecodeBlock],
    /// Embeddings of positions [P, D].
    pub positions: Tensor,
    /// Of as many layers as there are blocks.
    pub cache: &'a KvCache,
}

/// Shapes that the kernel is written for.
const HEADS: usize = 4;
const WIDTH: usize = HEADS * HEAD;
const HIDDEN: usize = 4 * WIDTH;
const VOCABULARY: usize = 512;

impl Tape {
    /// Entries i32 [B, n] of a table [V, D] at positions `at` to `at + n`, passed through all blocks -> [B, n, D]. Writes keys and values into
    /// the cache.
    pub fn decode_entries(
        &mut self,
        table: Tensor,
        entries: Tensor,
        decoder: &Decoder,
        at: usize,
    ) -> Result<Tensor> {
        if let Backend::Cuda(gpu) = self.backend()
            && entries.dims() == [decoder.cache.batch, 1]
            && self.check("embedding", entries, DType::I32).is_ok()
            && let Some(stack) = self.stack(table, decoder, at, 1)
            && let Some(plan) = cuda::plan(&gpu, decoder.cache.batch)
        {
            return self.pass_entries(&gpu, &plan, &stack, table, entries, decoder, at);
        }
        // Invalid input takes this path too: the single ops report the error.
        self.composed_entries(table, entries, decoder, at)
    }

    fn composed_entries(
        &mut self,
        table: Tensor,
        entries: Tensor,
        decoder: &Decoder,
        at: usize,
    ) -> Result<Tensor> {
        let mut x = self.embedding_at(table, entries, decoder.positions, at)?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            x = self.decode_block(x, block, decoder.cache, layer, at)?;
        }
        Ok(x)
    }

    /// Draws the steps of `next` i32 [B, K] one after the other: each from the head's logits for what came out of the last block, which is `thought`
    /// [B, 1, D] for the first. Every drawn entry of the table [N, D] is passed through all blocks, at positions `at` to `at + K`.
    pub fn decode_tokens(
        &mut self,
        thought: Tensor,
        head: &DecodeHead,
        table: Tensor,
        decoder: &Decoder,
        at: usize,
        next: &Buffer,
    ) -> Result<()> {
        let tokens = next.shape().last();
        if let Backend::Cuda(gpu) = self.backend()
            && self.draws_fused(thought, head, table, decoder, next)
            && let Some(stack) = self.stack(table, decoder, at, tokens)
            && let Some(plan) = cuda::plan(&gpu, decoder.cache.batch)
        {
            return self.draw_tokens(&gpu, &plan, &stack, (thought, head), table, decoder, at, next);
        }
        self.composed_tokens(thought, head, table, decoder, at, next)
    }

    fn composed_tokens(
        &mut self,
        mut thought: Tensor,
        head: &DecodeHead,
        table: Tensor,
        decoder: &Decoder,
        at: usize,
        next: &Buffer,
    ) -> Result<()> {
        for i in 0..next.shape().last() {
            let logits = self.decode_head(thought, head)?;
            let token = self.sample_into(logits, 1.0, next, i)?;
            let token = self.reshape(token, [token.len(), 1])?;
            thought = self.composed_entries(table, token, decoder, at + i)?;
        }
        Ok(())
    }

    /// Whether head, table and buffer are as the kernel takes them.
    fn draws_fused(
        &self,
        thought: Tensor,
        head: &DecodeHead,
        table: Tensor,
        decoder: &Decoder,
        next: &Buffer,
    ) -> bool {
        let batch = decoder.cache.batch;
        launches::fuses(self, thought, &[head.norm, head.hidden, head.out].concat())
            && thought.dims() == [batch, 1, WIDTH]
            && head.norm.iter().all(|tensor| tensor.dims() == [WIDTH])
            && maps(head.hidden, WIDTH, WIDTH)
            && maps(head.out, WIDTH, VOCABULARY)
            && table.dims() == [VOCABULARY, WIDTH]
            && next.dtype() == DType::I32
            && matches!(next.shape().dims(), &[rows, tokens] if rows == batch && tokens > 0)
    }

    /// Where the blocks' parameters lie, if everything that `count` tokens pass through is as the kernel takes it.
    fn stack(&self, table: Tensor, decoder: &Decoder, at: usize, count: usize) -> Option<cuda::Stack> {
        let Decoder { blocks, positions, cache } = *decoder;
        let end = at.saturating_add(count);
        let mut tensors = vec![positions];
        for block in blocks {
            let (linear, norms) = block.layers();
            tensors.extend(linear.concat());
            tensors.extend(norms.concat());
        }
        let fits = launches::fuses(self, table, &tensors)
            && self.is_bound(table)
            && matches!(table.dims(), &[entries, WIDTH] if entries > 0)
            && matches!(positions.dims(), &[limit, WIDTH] if end <= limit)
            && self.check_exact("embedding", &[table, positions]).is_ok()
            && blocks.len() == cache.layers
            && cache.heads == HEADS
            && cache.head_width == HEAD
            && cache.batch > 0
            && cache.block == 1
            && end <= cache.capacity
            && blocks.iter().all(|block| block.is_of(WIDTH, HIDDEN) && block.epsilon == blocks[0].epsilon);
        if fits { self.stacked(blocks) } else { None }
    }
}

/// Whether the kernel for whole tokens is written for blocks of these shapes.
pub(crate) fn takes_blocks(width: usize, head_width: usize, hidden: usize) -> bool {
    (width, head_width, hidden) == (WIDTH, HEAD, HIDDEN)
}
