//! A transformer block and the heads over one new token per sequence: fused kernels on a GPU, the single ops elsewhere.

use super::linear::Activation;
use crate::cuda::{Grid, View, kernels};
use crate::{DType, KvCache, Result, Tape, Tensor};

/// The parameters of a pre-norm transformer block, as tensors of the current step.
#[derive(Clone, Copy, Debug)]
pub struct DecodeBlock {
    /// Gain and shift `[D]` of the layer-norm before attention.
    pub attention_norm: [Tensor; 2],
    /// Weight [D, D] and bias `[D]`.
    pub query: [Tensor; 2],
    pub key: [Tensor; 2],
    pub value: [Tensor; 2],
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
        match self.takes_fused(x, block, cache, layer, at) {
            true => self.fused_block(x, block, cache, layer, at),
            // Invalid input takes this path too: the single ops report the error.
            false => self.composed_block(x, block, cache, layer, at),
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
        if let Some(gpu) = self.gpu() {
            let rows = batch.div_ceil(SEQUENCES);
            let (capacity, past, x) = (cache.capacity, at, self.view(x));
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
            let grid =
                Grid { blocks: (batch * cache.heads, 1), threads: 128, shared: positions * 2 * 2 * HEAD };
            let scale = 1.0 / (HEAD as f32).sqrt();
            kernels::decode_attention(gpu, grid, attended.at(), q.at(), keys, values, capacity, past, scale)?;

            let grid =
                |warps| Grid { blocks: (width / 16, rows), threads: 32 * warps, shared: warps * SHARE };
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
        }
        for operand in operands {
            self.release(operand);
        }
        for scratch in [q, attended, expanded, between] {
            self.give_back(scratch);
        }
        Ok(self.push(out, x.shape(), DType::F32, false))
    }

    /// out(relu(hidden(norm(x)))): x [B, n, D] -> [B, n, N]
    pub fn decode_head(&mut self, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
        if self.takes_fused_head(x, head) {
            return self.fused_head(x, head);
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
    fn fused_head(&mut self, x: Tensor, head: &DecodeHead) -> Result<Tensor> {
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
        if let Some(gpu) = self.gpu() {
            let (rows, warps) = (batch.div_ceil(SEQUENCES), width / 32);
            let (x, h, epsilon) = (self.view(x), between.at(), head.epsilon);
            let ([gain, shift], [w, b]) = (norm, hidden);
            let grid = Grid { blocks: (width / 64, rows), threads: width, shared: norm_shared(width, 4) };
            kernels::decode_head(gpu, grid, h, x, gain, shift, w, b, batch, width, width, epsilon)?;

            let ([w, b], start) = (last, View::NOTHING);
            let grid = Grid { blocks: (outputs / 16, rows), threads: width, shared: warps * SHARE };
            kernels::decode_project(gpu, grid, out.at(), start, h, w, b, batch, outputs, width)?;
        }
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
mod tests {
    use super::*;
    use crate::testing::{Limits, assert_same, values};
    use crate::{Device, Error, Init, Key, Param, Params, ParamsBuilder, StepId, Stepper};

    const EPSILON: f32 = 1e-5;

    /// Two blocks, one after the other.
    struct Network {
        params: Params,
        blocks: [Handles; 2],
    }

    /// In the order of [`DecodeBlock::layers`].
    struct Handles {
        linear: [[Param; 2]; 6],
        norms: [[Param; 2]; 2],
    }

    impl Network {
        fn new(device: &Device, width: usize, hidden: usize) -> Result<Network> {
            let mut builder = ParamsBuilder::new();
            let mut norm_names = Vec::new();
            let blocks = [0, 1].map(|block| Handles {
                linear: [0, 1, 2, 3, 4, 5].map(|layer| {
                    let (outputs, inputs) = match layer {
                        4 => (hidden, width),
                        5 => (width, hidden),
                        _ => (width, width),
                    };
                    let name = format!("{block}.{layer}");
                    let bound = (3.0 / inputs as f32).sqrt();
                    [
                        builder.add(format!("{name}.weight"), [outputs, inputs], Init::Uniform(bound)),
                        builder.add(format!("{name}.bias"), [outputs], Init::Uniform(0.3)),
                    ]
                }),
                norms: [0, 1].map(|norm| {
                    let names = ["gain", "shift"].map(|what| format!("{block}.{norm}.{what}"));
                    norm_names.push(names.clone());
                    names.map(|name| builder.add(name, [width], Init::Constant(0.0)))
                }),
            });
            let params = builder.build(device, "blocks", 3)?;
            for (i, [gain, shift]) in norm_names.iter().enumerate() {
                let gains: Vec<f32> = values(width, 2 * i).iter().map(|v| 1.0 + 0.4 * v).collect();
                params.set(gain, &gains)?;
                params.set(shift, &values(width, 2 * i + 1))?;
            }
            Ok(Network { params, blocks })
        }

        fn block(&self, tape: &mut Tape, index: usize) -> Result<DecodeBlock> {
            let mut tensors = |[a, b]: [Param; 2]| -> Result<[Tensor; 2]> {
                Ok([tape.param(&self.params, a)?, tape.param(&self.params, b)?])
            };
            let Handles { linear, norms } = &self.blocks[index];
            Ok(DecodeBlock {
                attention_norm: tensors(norms[0])?,
                query: tensors(linear[0])?,
                key: tensors(linear[1])?,
                value: tensors(linear[2])?,
                projection: tensors(linear[3])?,
                mlp_norm: tensors(norms[1])?,
                expand: tensors(linear[4])?,
                contract: tensors(linear[5])?,
                epsilon: EPSILON,
            })
        }
    }

    type Pass = fn(&mut Tape, Tensor, &DecodeBlock, &KvCache, usize, usize) -> Result<Tensor>;

    fn composed(
        tape: &mut Tape,
        x: Tensor,
        b: &DecodeBlock,
        cache: &KvCache,
        layer: usize,
        at: usize,
    ) -> Result<Tensor> {
        let h = tape.layer_norm(x, b.attention_norm[0], b.attention_norm[1], b.epsilon)?;
        let q = tape.linear(h, b.query[0], Some(b.query[1]), Activation::None)?;
        let k = tape.linear(h, b.key[0], Some(b.key[1]), Activation::None)?;
        let v = tape.linear(h, b.value[0], Some(b.value[1]), Activation::None)?;
        let h = tape.cached_attention(q, k, v, cache, layer, at)?;
        let x = tape.linear_residual(h, b.projection[0], Some(b.projection[1]), x)?;
        let h = tape.layer_norm(x, b.mlp_norm[0], b.mlp_norm[1], b.epsilon)?;
        let h = tape.linear(h, b.expand[0], Some(b.expand[1]), Activation::Gelu)?;
        tape.linear_residual(h, b.contract[0], Some(b.contract[1]), x)
    }

    struct Case {
        width: usize,
        hidden: usize,
        batch: usize,
        /// How many tokens go in at a time.
        portions: Vec<usize>,
        /// Whether the first block sees x as precise as activations are.
        float: bool,
    }

    /// The results of every portion. A GPU runs the sequence again to record its steps, and again to replay them.
    fn run(device: &Device, case: &Case, pass: Pass) -> Result<Vec<Vec<Vec<f32>>>> {
        let Case { width, hidden, batch, ref portions, float } = *case;
        let network = Network::new(device, width, hidden)?;
        let mut stepper = Stepper::new(device, Key::new(0, 0));
        let capacity = portions.iter().sum::<usize>() + 3;
        let cache = KvCache::new(device, 2, batch, width / HEAD, HEAD, capacity)?;
        let passes = if device.is_gpu() { 3 } else { 1 };
        let mut all = Vec::new();
        let buffers: Vec<_> = portions
            .iter()
            .map(|&n| {
                let shape = [batch, n, width];
                let input = match float {
                    true => device.float_buffer("x", shape).unwrap(),
                    false => device.buffer::<f32>("x", shape).unwrap(),
                };
                (input, device.buffer::<f32>("y", shape).unwrap())
            })
            .collect();
        for _ in 0..passes {
            let mut at = 0;
            let mut results = Vec::new();
            for (i, (&tokens, (input, output))) in portions.iter().zip(&buffers).enumerate() {
                let x = values(batch * tokens * width, 100 + i);
                input.write(&x.iter().map(|v| 2.0 * v + 0.5).collect::<Vec<_>>())?;
                stepper.infer_captured(StepId::new("portion", &(i, at)), |tape| -> Result<()> {
                    let mut x = tape.buffer(input)?;
                    for layer in 0..2 {
                        let block = network.block(tape, layer)?;
                        x = pass(tape, x, &block, &cache, layer, at)?;
                    }
                    tape.store(output, 0, x)
                })?;
                at += tokens;
                results.push(output.read::<f32>()?);
            }
            all.push(results);
        }
        Ok(all)
    }

    fn check(case: Case) -> Result<()> {
        let device = Device::under_test(2)?;
        let got = run(&device, &case, |tape, x, block, cache, layer, at| {
            tape.decode_block(x, block, cache, layer, at)
        })?;
        let expected = run(&Device::cpu(Some(2))?, &case, composed)?.remove(0);
        let Case { width, hidden, batch, .. } = case;
        for (pass, got) in got.iter().enumerate() {
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let what = format!("D {width}, M {hidden}, batch {batch}, pass {pass}, portion {i}");
                assert_same(&what, got, expected, width, Limits::under_test());
                if !device.is_gpu() {
                    assert_eq!(got, expected);
                }
            }
        }
        Ok(())
    }

    /// Tokens one at a time, between others that come together: what these see in the cache is what those have left there.
    fn check_between_others(batch: usize) -> Result<()> {
        for (width, hidden) in [(256, 1024), (128, 512)] {
            let portions = vec![1, 1, 3, 1, 1, 1, 9, 1, 1, 1, 30, 1, 1, 4];
            check(Case { width, hidden, batch, portions, float: batch.is_multiple_of(2) })?;
        }
        Ok(())
    }

    // A test for each batch: together they take the race detector longer than anyone waits.
    #[test]
    fn one_token_at_a_time_is_the_composition() -> Result<()> {
        check_between_others(1)
    }

    #[test]
    fn one_token_of_3_sequences_is_the_composition() -> Result<()> {
        check_between_others(3)
    }

    #[test]
    fn one_token_of_17_sequences_is_the_composition() -> Result<()> {
        check_between_others(17)
    }

    #[test]
    fn one_token_of_64_sequences_is_the_composition() -> Result<()> {
        check_between_others(64)
    }

    /// More positions than attention holds at a time, and shapes that leave something over everywhere.
    #[test]
    fn long_sequences_and_odd_shapes() -> Result<()> {
        let odd =
            |width, hidden, batch| Case { width, hidden, batch, portions: vec![1, 14, 1, 1, 2], float: true };
        check(odd(64, 64, 2))?;
        check(odd(192, 320, 9))?;
        check(odd(512, 1856, 5))?;
        // Not for the fused kernels: too wide, and a remainder of 32.
        check(odd(576, 128, 2))?;
        check(odd(64, 96, 2))?;
        let portions = vec![382, 1, 1, 1, 1, 300, 1, 90, 1, 1, 2];
        check(Case { width: 128, hidden: 256, batch: 2, portions, float: false })
    }

    #[test]
    fn errors_are_those_of_the_ops() -> Result<()> {
        let device = Device::under_test(1)?;
        let (width, hidden, batch) = (128, 256, 3);
        let network = Network::new(&device, width, hidden)?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let mut error = |tokens: [usize; 3], used: usize, layer: usize, change: fn(&mut DecodeBlock)| {
            let input = device.buffer::<f32>("x", tokens).unwrap();
            let cache = KvCache::new(&device, 2, batch, width / HEAD, HEAD, 4).unwrap();
            let passes: [Pass; 2] =
                [|tape, x, b, cache, layer, at| tape.decode_block(x, b, cache, layer, at), composed];
            let [got, expected] = passes.map(|pass| {
                stepper
                    .infer(|tape| -> Result<()> {
                        let x = tape.buffer(&input)?;
                        let mut block = network.block(tape, 0)?;
                        change(&mut block);
                        pass(tape, x, &block, &cache, layer, used).map(|_| ())
                    })
                    .unwrap_err()
            });
            assert_eq!(got, expected);
            got
        };
        let fits = [batch, 1, width];
        let full = error(fits, 4, 0, |_| ());
        assert_eq!(full.to_string(), "cached attention: range 4..5 is outside 0..4");
        assert!(matches!(error(fits, 0, 2, |_| ()), Error::IndexOutOfRange { limit: 2, .. }));
        error([batch + 1, 1, width], 0, 0, |_| ());
        error([batch, 1, width / 2], 0, 0, |_| ());
        error([batch, 5, width], 0, 0, |_| ());
        error(fits, 0, 0, |block| block.expand = block.contract);
        error(fits, 0, 0, |block| block.contract[1] = block.expand[1]);
        error(fits, 0, 0, |block| block.mlp_norm[1] = block.expand[1]);
        error(fits, 0, 0, |block| block.value = block.expand);
        Ok(())
    }

    /// Nothing but the chain of kernels.
    #[test]
    fn only_one_token_at_a_time_is_the_composition() -> Result<()> {
        check(Case { width: 128, hidden: 512, batch: 9, portions: vec![1; 40], float: true })?;
        check(Case { width: 256, hidden: 1024, batch: 64, portions: vec![1; 9], float: false })
    }

    /// In shapes that the fused kernels take.
    #[test]
    fn heads_are_the_composition() -> Result<()> {
        check_heads(&[(64, 1, 256, 512, false), (3, 1, 64, 16, true), (9, 1, 512, 48, false)])
    }

    /// In shapes that they do not.
    #[test]
    fn other_heads_are_the_composition() -> Result<()> {
        check_heads(&[(2, 3, 128, 64, true), (2, 1, 96, 3, true)])
    }

    type Head = (usize, usize, usize, usize, bool);

    fn check_heads(cases: &[Head]) -> Result<()> {
        let results =
            |device: &Device, (batch, tokens, width, outputs, float): (usize, usize, usize, usize, bool)| {
                let mut builder = ParamsBuilder::new();
                let bound = (3.0 / width as f32).sqrt();
                let handles = [
                    builder.add("gain", [width], Init::Uniform(1.0)),
                    builder.add("shift", [width], Init::Uniform(1.0)),
                    builder.add("hidden.weight", [width, width], Init::Uniform(bound)),
                    builder.add("hidden.bias", [width], Init::Uniform(0.3)),
                    builder.add("out.weight", [outputs, width], Init::Uniform(bound)),
                    builder.add("out.bias", [outputs], Init::Uniform(0.3)),
                ];
                let params = builder.build(device, "head", 5)?;
                let shape = [batch, tokens, width];
                let input = match float {
                    true => device.float_buffer("x", shape)?,
                    false => device.buffer::<f32>("x", shape)?,
                };
                input.write(&values(batch * tokens * width, 3))?;
                Stepper::new(device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
                    let x = tape.buffer(&input)?;
                    let mut tensors = Vec::new();
                    for handle in handles {
                        tensors.push(tape.param(&params, handle)?);
                    }
                    let [norm, hidden, out] = [0, 2, 4].map(|i| [tensors[i], tensors[i + 1]]);
                    let y = tape.decode_head(x, &DecodeHead { norm, hidden, out, epsilon: EPSILON })?;
                    assert_eq!(y.dims(), [batch, tokens, outputs]);
                    tape.read(y)
                })
            };
        let device = Device::under_test(2)?;
        for &case in cases {
            let (got, expected) = (results(&device, case)?, results(&Device::cpu(Some(2))?, case)?);
            assert_same(&format!("{case:?}"), &got, &expected, case.3, Limits::under_test());
        }
        Ok(())
    }

    /// Steps that record gradients get them.
    #[test]
    fn gradients_are_those_of_the_ops() -> Result<()> {
        let device = Device::under_test(1)?;
        let (width, hidden, batch) = (64, 128, 2);
        let gradient = |pass: Pass| -> Result<Vec<f32>> {
            let network = Network::new(&device, width, hidden)?;
            let cache = KvCache::new(&device, 2, batch, 1, HEAD, 4)?;
            let input = device.buffer::<f32>("x", [batch, 1, width])?;
            input.write(&values(batch * width, 0))?;
            Stepper::new(&device, Key::new(0, 0)).run(|tape| -> Result<()> {
                let x = tape.buffer(&input)?;
                let block = network.block(tape, 0)?;
                let y = pass(tape, x, &block, &cache, 0, 0)?;
                let y = tape.squared_error(y, x)?;
                tape.backward(y)
            })?;
            network.params.gradient("0.4.weight")
        };
        let got = gradient(|tape, x, block, cache, layer, at| tape.decode_block(x, block, cache, layer, at))?;
        assert!(got.iter().any(|g| g.abs() > 1e-6));
        assert_eq!(got, gradient(composed)?);
        Ok(())
    }
}
