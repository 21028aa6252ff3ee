//! Whole tokens on a GPU with clusters: one launch, whose clusters own a few sequences each.

use super::{DecodeBlock, DecodeHead, Decoder, WIDTH};
use crate::cuda::{CLUSTER, Gpu, Grid, View, kernels};
use crate::{Buffer, DType, Result, Tape, Tensor};

/// Warps and threads of a block.
const WARPS: usize = 16;
const THREADS: usize = 32 * WARPS;
/// The most sequences of a cluster, and the kernels that take as many: eight fill one tile of the tensor cores; with ten, the seven clusters that
/// an H200 runs at the same time hold 64 sequences.
const KERNELS: [(usize, &str); 2] = [(8, "decode_tokens_8"), (10, "decode_tokens_10")];
/// Tiles of 16 positions that a warp attends to at once.
const TILES: usize = 3;

/// Where the parameters of the first block lie. Those of every other block lie `stride` elements behind the block's before.
pub(super) struct Stack {
    weights: [u64; 6],
    biases: [u64; 6],
    norms: [u64; 4],
    stride: usize,
}

/// How the sequences are dealt out.
pub(super) struct Plan {
    /// The most sequences that the kernel takes in a cluster.
    most: usize,
    /// Sequences of a cluster.
    each: usize,
    clusters: usize,
    /// Positions of a sequence for which there is shared memory.
    room: usize,
    shared: usize,
}

/// What a launch does for every sequence.
struct Work {
    tokens: u64,
    stride: usize,
    given: u64,
    start: View,
    out: u64,
    head: [u64; 6],
    head_epsilon: f32,
    passes: usize,
    site: usize,
}

/// None if the GPU cannot run the kernels.
pub(super) fn plan(gpu: &Gpu, batch: usize) -> Option<Plan> {
    let plans = KERNELS.map(|(most, kernel)| {
        let resident = gpu.resident_clusters(kernel, THREADS);
        let room = room(most, gpu.shared_memory()).filter(|_| resident > 0)?;
        // Larger batches take turns.
        let turns = batch.div_ceil(most * resident);
        let each = batch.div_ceil(turns * resident);
        let shared = fixed_memory(most) + cached_memory(most, room);
        Some((turns, Plan { most, each, clusters: batch.div_ceil(each), room, shared }))
    });
    // The smaller kernel, unless it takes more turns.
    let best = plans.into_iter().flatten().min_by_key(|(turns, plan)| (*turns, plan.most));
    best.map(|(_, plan)| plan)
}

/// Bytes of shared memory beside that of keys and values, as `Plan` in tokens_parts.cu has them.
fn fixed_memory(most: usize) -> usize {
    let (residuals, activations) = (2 * 4 * WIDTH, 2 * (2 * WIDTH + 64) + (2 * 4 * WIDTH + 64));
    let shares = WARPS * 4 * (most.div_ceil(8) * 8 * 20 + 16);
    let (stage, query, candidates, norms) = (128, most.div_ceil(4) * 128, 8 * CLUSTER, 6 * 4 * WIDTH);
    let fixed = 128 + most * (residuals + activations + stage + candidates) + shares + query + norms;
    fixed.next_multiple_of(128)
}

fn cached_memory(most: usize, room: usize) -> usize {
    most.div_ceil(4) * 2 * room * 128
}

/// The positions for which a block of so much memory has room. Warps need two tiles each to hold the positions that have no room, and one more
/// holds the newest position.
fn room(most: usize, memory: usize) -> Option<usize> {
    let warps = WARPS / most.div_ceil(4);
    let rows = memory.checked_sub(fixed_memory(most))? / cached_memory(most, 1);
    let room = (rows / 16 * 16).min(TILES * warps * 16);
    (room >= (2 * warps + 1) * 16).then_some(room)
}

impl Tape {
    /// Where the blocks' parameters lie, if each block's lie as far behind the one's before.
    pub(super) fn stacked(&self, blocks: &[DecodeBlock]) -> Option<Stack> {
        // A block copies keys and values that the pass before has left, at the earliest a layer after it has written its own.
        let [first, second, ..] = blocks else { return None };
        let addresses = |block: &DecodeBlock| -> Option<Vec<[u64; 2]>> {
            let (linear, norms) = block.layers();
            // With the bytes of an element.
            let at = |tensor, dtype: DType| Some([self.at_as(tensor, dtype)?, dtype.size() as u64]);
            let weights = linear.iter().map(|layer| at(layer[0], DType::BF16));
            let biases = linear.iter().map(|layer| at(layer[1], DType::F32));
            weights.chain(biases).chain(norms.iter().flatten().map(|norm| at(*norm, DType::F32))).collect()
        };
        let (start, behind) = (addresses(first)?, addresses(second)?);
        let stride = behind[0][0].checked_sub(start[0][0])? / start[0][1];
        for (layer, block) in blocks.iter().enumerate() {
            let expected = start.iter().map(|[at, size]| at + layer as u64 * stride * size);
            if !addresses(block)?.iter().map(|[at, _]| *at).eq(expected) {
                return None;
            }
        }
        let part = |from: usize| std::array::from_fn(|i| start[from + i][0]);
        let norms = std::array::from_fn(|i| start[12 + i][0]);
        Some(Stack { weights: part(0), biases: part(6), norms, stride: stride as usize })
    }

    /// One pass of given entries.
    pub(super) fn pass_entries(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        stack: &Stack,
        table: Tensor,
        entries: Tensor,
        decoder: &Decoder,
        at: usize,
    ) -> Result<Tensor> {
        let batch = decoder.cache.batch;
        let out = self.alloc(batch * WIDTH, DType::F32)?;
        let [gain, shift, ..] = stack.norms;
        let work = Work {
            tokens: 0,
            stride: 0,
            given: self.at(entries),
            start: View::NOTHING,
            out: out.at(),
            // Nothing is drawn, so any head will do.
            head: [gain, shift, 0, 0, 0, 0],
            head_epsilon: 0.0,
            passes: 1,
            site: 0,
        };
        self.launch_tokens(gpu, plan, stack, &work, table, decoder, at)?;
        Ok(self.push(out, [batch, 1, WIDTH], DType::F32, false))
    }

    /// A pass for every step of `next`. What comes out of the last is not needed.
    pub(super) fn draw_tokens(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        stack: &Stack,
        (thought, head): (Tensor, &DecodeHead),
        table: Tensor,
        decoder: &Decoder,
        at: usize,
        next: &Buffer,
    ) -> Result<()> {
        self.writable(next, thought)?;
        let passes = next.shape().last();
        // One draw for each token.
        let site = self.next_site().number() as usize;
        for _ in 1..passes {
            self.next_site();
        }
        let mut operands = Vec::with_capacity(2);
        for weight in [head.hidden[0], head.out[0]] {
            operands.push(self.gpu_operand(gpu, weight, DType::BF16)?);
        }
        let (norm, hidden, last) = (head.norm, operands[0].at, operands[1].at);
        let work = Work {
            tokens: self.buffer_at(next)?,
            stride: passes,
            given: 0,
            start: self.view(thought),
            out: 0,
            head: [
                self.at(norm[0]),
                self.at(norm[1]),
                hidden,
                last,
                self.at(head.hidden[1]),
                self.at(head.out[1]),
            ],
            head_epsilon: head.epsilon,
            passes,
            site,
        };
        self.launch_tokens(gpu, plan, stack, &work, table, decoder, at)?;
        for operand in operands {
            self.release(operand);
        }
        Ok(())
    }

    fn launch_tokens(
        &mut self,
        gpu: &Gpu,
        plan: &Plan,
        stack: &Stack,
        work: &Work,
        table: Tensor,
        decoder: &Decoder,
        at: usize,
    ) -> Result<()> {
        let Decoder { blocks, positions, cache } = *decoder;
        let &Plan { most, each, clusters, room, shared } = plan;
        let &Work { tokens, stride, given, start, out, head, head_epsilon, passes, site } = work;
        let [keys, values] = self.cache_at(cache, 0)?;
        let ([query, key, value, projection, expand, contract], biases) = (stack.weights, stack.biases);
        let [query_bias, key_bias, value_bias, projection_bias, expand_bias, contract_bias] = biases;
        let [gain1, shift1, gain2, shift2] = stack.norms;
        let [head_gain, head_shift, hidden, last, hidden_bias, last_bias] = head;
        let launch = match most {
            8 => kernels::decode_tokens_8,
            _ => kernels::decode_tokens_10,
        };
        launch(
            gpu,
            Grid { blocks: (clusters * CLUSTER, 1), threads: THREADS, shared },
            tokens,
            stride,
            given,
            start,
            out,
            self.at(table),
            table.dims()[0],
            self.at(positions) + (4 * at * WIDTH) as u64,
            keys,
            values,
            cache.layer_len(),
            query,
            key,
            value,
            projection,
            expand,
            contract,
            query_bias,
            key_bias,
            value_bias,
            projection_bias,
            expand_bias,
            contract_bias,
            gain1,
            shift1,
            gain2,
            shift2,
            stack.stride,
            head_gain,
            head_shift,
            hidden,
            last,
            hidden_bias,
            last_bias,
            blocks.len(),
            passes,
            cache.batch,
            each,
            cache.capacity,
            at,
            room,
            blocks[0].epsilon,
            head_epsilon,
            self.state(),
            site,
            gpu.op("embedding"),
            gpu.fault(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_that_of_the_kernels() {
        // An H200's blocks have 227 KiB.
        let memory = 227 << 10;
        for (most, fixed, positions) in [(8, 62_336, 320), (10, 83_840, 192)] {
            assert_eq!((fixed_memory(most), room(most, memory)), (fixed, Some(positions)));
            assert!(fixed_memory(most) + cached_memory(most, positions) <= memory);
        }
        // A consumer card's have 99.
        assert_eq!(room(10, 99 << 10), None);
        assert_eq!(room(8, 16 << 10), None);
    }
}
