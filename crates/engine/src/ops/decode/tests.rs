//! Blocks and heads against the single ops.

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

struct Case {
    width: usize,
    hidden: usize,
    batch: usize,
    /// How many tokens go in at a time.
    portions: Vec<usize>,
    /// Whether the first block sees x as precise as activations are.
    float: bool,
}

/// The results of every portion. A GPU runs the sequence again to capture its steps, and again to replay them.
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
    let expected = run(&Device::cpu(Some(2))?, &case, Tape::composed_block)?.remove(0);
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
            [|tape, x, b, cache, layer, at| tape.decode_block(x, b, cache, layer, at), Tape::composed_block];
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
    assert_eq!(got, gradient(Tape::composed_block)?);
    Ok(())
}
