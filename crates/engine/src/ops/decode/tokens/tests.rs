//! Whole tokens against the single ops on a CPU.

use super::*;
use crate::testing::{Limits, assert_same, values};
use crate::{Device, Error, Init, Key, Param, Params, ParamsBuilder, StepId, Stepper};

const EPSILON: f32 = 1e-5;
const LAYERS: usize = 3;
const CAPACITY: usize = 430;

/// A transformer with a table of entries and a head.
struct Network {
    params: Params,
    blocks: Vec<Vec<Param>>,
    positions: Param,
    table: Param,
    head: Vec<Param>,
}

impl Network {
    /// Logits deviate by about `spread` from each other, entries by 1 from `mean`.
    fn new(device: &Device, spread: f32, mean: f32) -> Result<Network> {
        let mut builder = ParamsBuilder::new();
        let mut written = Vec::new();
        let mut norm = |builder: &mut ParamsBuilder, name: String| {
            written.push(name.clone());
            ["gain", "shift"].map(|what| builder.add(format!("{name}.{what}"), [WIDTH], Init::Constant(0.0)))
        };
        let linear =
            |builder: &mut ParamsBuilder, name: String, [outputs, inputs]: [usize; 2], scale: f32| {
                let bound = scale * (3.0 / inputs as f32).sqrt();
                [
                    builder.add(format!("{name}.weight"), [outputs, inputs], Init::Uniform(bound)),
                    builder.add(format!("{name}.bias"), [outputs], Init::Uniform(0.3 * scale)),
                ]
            };
        let blocks = (0..LAYERS).map(|layer| {
            let mut params = Vec::new();
            for i in 0..2 {
                params.extend(norm(&mut builder, format!("{layer}.norm{i}")));
            }
            let square = [WIDTH, WIDTH];
            let shapes = [square, square, square, square, [HIDDEN, WIDTH], [WIDTH, HIDDEN]];
            for (i, shape) in shapes.into_iter().enumerate() {
                params.extend(linear(&mut builder, format!("{layer}.{i}"), shape, 1.0));
            }
            params
        });
        let blocks = blocks.collect();
        let mut head = norm(&mut builder, "head".into()).to_vec();
        head.extend(linear(&mut builder, "hidden".into(), [WIDTH, WIDTH], 1.0));
        head.extend(linear(&mut builder, "last".into(), [VOCABULARY, WIDTH], spread));
        let positions = builder.add("positions", [CAPACITY, WIDTH], Init::Uniform(0.5));
        let table = builder.add("table", [VOCABULARY, WIDTH], Init::Constant(0.0));
        let params = builder.build(device, "transformer", 3)?;
        for (i, name) in written.iter().enumerate() {
            let gains: Vec<f32> = values(WIDTH, 2 * i).iter().map(|v| 1.0 + 0.4 * v).collect();
            params.set(&format!("{name}.gain"), &gains)?;
            params.set(&format!("{name}.shift"), &values(WIDTH, 2 * i + 1))?;
        }
        let entries = values(VOCABULARY * WIDTH, 77);
        params.set("table", &entries.iter().map(|v| mean + 1.7 * v).collect::<Vec<_>>())?;
        Ok(Network { params, blocks, positions, table, head })
    }

    fn tensors(&self, tape: &mut Tape, params: &[Param]) -> Result<Vec<[Tensor; 2]>> {
        let all: Vec<Tensor> =
            params.iter().map(|param| tape.param(&self.params, *param)).collect::<Result<_>>()?;
        Ok(all.as_chunks::<2>().0.to_vec())
    }

    fn blocks(&self, tape: &mut Tape) -> Result<Vec<DecodeBlock>> {
        let block = |params: &Vec<Param>| {
            let pairs = self.tensors(tape, params)?;
            let [attention_norm, mlp_norm, query, key, value, projection, expand, contract] = pairs[..]
            else {
                unreachable!()
            };
            Ok(DecodeBlock {
                attention_norm,
                query,
                key,
                value,
                projection,
                mlp_norm,
                expand,
                contract,
                epsilon: EPSILON,
            })
        };
        self.blocks.iter().map(block).collect()
    }

    fn head(&self, tape: &mut Tape) -> Result<DecodeHead> {
        let pairs = self.tensors(tape, &self.head)?;
        Ok(DecodeHead { norm: pairs[0], hidden: pairs[1], out: pairs[2], epsilon: EPSILON })
    }
}

#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    /// Positions before.
    at: usize,
    /// Tokens that are drawn.
    tokens: usize,
    spread: f32,
    mean: f32,
    /// Whether the blocks are not in the order of their parameters.
    reversed: bool,
}

impl Case {
    /// Draws that the noise alone decides, but for a few hundredths: results that differ by rounding draw the same.
    fn new(batch: usize, at: usize, tokens: usize) -> Case {
        Case { batch, at, tokens, spread: 0.02, mean: 0.0, reversed: false }
    }
}

#[derive(PartialEq)]
struct Outcome {
    /// After the given entry.
    thought: Vec<f32>,
    tokens: Vec<i32>,
    /// A draw of each sequence after all tokens.
    after: Vec<i32>,
    /// Keys and values of the new positions, [layer, B, heads, position, 64].
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Where element (row of layers, batch and heads; position; channel) of the keys or values lies.
fn place(device: &Device, keys: bool, row: usize, position: usize, channel: usize) -> usize {
    match keys && !device.is_gpu() {
        true => (row * HEAD + channel) * CAPACITY + position,
        false => (row * CAPACITY + position) * HEAD + channel,
    }
}

/// A given entry, then drawn ones. A GPU does it three times: op by op, captured and replayed.
fn run(device: &Device, case: Case) -> Result<Outcome> {
    let Case { batch, at, tokens, spread, mean, reversed } = case;
    let network = Network::new(device, spread, mean)?;
    let cache = KvCache::new(device, LAYERS, batch, HEADS, HEAD, CAPACITY)?;
    let rows = LAYERS * batch * HEADS;
    for (i, buffer) in [&cache.keys, &cache.values].into_iter().enumerate() {
        let past = values(rows * at * HEAD, 50 + i);
        let mut all = vec![0.0; rows * CAPACITY * HEAD];
        for (j, value) in past.iter().enumerate() {
            let (row, position, channel) = (j / HEAD / at, j / HEAD % at, j % HEAD);
            all[place(device, i == 0, row, position, channel)] = 1.7 * value;
        }
        buffer.write(&all)?;
    }
    let entries = device.buffer::<i32>("entries", [batch, 1])?;
    entries.write(&(0..batch).map(|b| (b * 37 + 5) as i32 % VOCABULARY as i32).collect::<Vec<_>>())?;
    let thought = device.buffer::<f32>("thought", [batch, 1, WIDTH])?;
    let next = device.buffer::<i32>("next", [batch, tokens])?;
    let after = device.buffer::<i32>("after", [batch])?;
    let even = device.buffer::<f32>("even", [batch, 9])?;
    let mut stepper = Stepper::new(device, Key::new(0, 0));
    let mut last: Option<Outcome> = None;
    for _ in 0..if device.is_gpu() { 3 } else { 1 } {
        next.write(&vec![-1; batch * tokens])?;
        stepper.set_key(Key::new(5, 3));
        stepper.infer_captured(StepId::new("tokens", &()), |tape| -> Result<()> {
            let (table, positions) = (
                tape.param(&network.params, network.table)?,
                tape.param(&network.params, network.positions)?,
            );
            let mut blocks = network.blocks(tape)?;
            if reversed {
                blocks.reverse();
            }
            let decoder = Decoder { blocks: &blocks, positions, cache: &cache };
            let given = tape.buffer(&entries)?;
            let x = tape.decode_entries(table, given, &decoder, at)?;
            tape.store(&thought, 0, x)?;
            let head = network.head(tape)?;
            tape.decode_tokens(x, &head, table, &decoder, at + 1, &next)?;
            let even = tape.buffer(&even)?;
            let drawn = tape.sample(even, 1.0)?;
            tape.store(&after, 0, drawn)
        })?;
        let new = |keys: bool| -> Result<Vec<f32>> {
            let all = if keys { &cache.keys } else { &cache.values }.read::<f32>()?;
            let count = tokens + 1;
            let element =
                |j: usize| all[place(device, keys, j / HEAD / count, at + j / HEAD % count, j % HEAD)];
            Ok((0..rows * count * HEAD).map(element).collect())
        };
        let outcome = Outcome {
            thought: thought.read()?,
            tokens: next.read()?,
            after: after.read()?,
            keys: new(true)?,
            values: new(false)?,
        };
        if let Some(before) = &last {
            assert!(*before == outcome, "the same step has other results");
        }
        last = Some(outcome);
    }
    Ok(last.unwrap())
}

fn check(case: Case) -> Result<()> {
    let device = Device::under_test(2)?;
    let (got, expected) = (run(&device, case)?, run(&Device::cpu(Some(2))?, case)?);
    let what = |name: &str| format!("{name}, batch {}, at {}", case.batch, case.at);
    let limits = Limits::under_test();
    assert_same(&what("thought"), &got.thought, &expected.thought, WIDTH, limits);
    assert_eq!(got.tokens, expected.tokens, "{}", what("tokens"));
    assert_eq!(got.after, expected.after, "{}", what("the draw after them"));
    assert_same(&what("keys"), &got.keys, &expected.keys, HEAD, limits);
    assert_same(&what("values"), &got.values, &expected.values, HEAD, limits);
    Ok(())
}

// The smallest, for the memory checker.
#[test]
fn two_tokens_of_one_sequence() -> Result<()> {
    check(Case::new(1, 5, 2))
}

#[test]
fn tokens_of_few_sequences() -> Result<()> {
    check(Case::new(3, 0, 4))?;
    check(Case::new(17, 16, 3))?;
    check(Case::new(30, 40, 2))
}

#[test]
fn tokens_of_64_and_65_sequences() -> Result<()> {
    check(Case::new(52, 17, 2))?;
    check(Case::new(64, 17, 5))?;
    check(Case::new(65, 100, 3))
}

/// More than run at the same time.
#[test]
fn tokens_of_150_sequences() -> Result<()> {
    check(Case::new(150, 20, 2))
}

/// Around and beyond the positions for which there is shared memory.
#[test]
fn tokens_at_far_positions() -> Result<()> {
    check(Case::new(64, 186, 8))?;
    check(Case::new(64, 330, 2))?;
    check(Case::new(9, 315, 7))?;
    check(Case::new(2, 425, 4))
}

#[test]
fn rows_with_a_large_mean() -> Result<()> {
    check(Case { mean: 20.0, ..Case::new(10, 30, 2) })?;
    check(Case { mean: -60.0, ..Case::new(70, 9, 1) })
}

/// Not for the kernel.
#[test]
fn blocks_in_another_order() -> Result<()> {
    check(Case { reversed: true, ..Case::new(4, 6, 3) })
}

/// Where logits weigh as much as the noise or more, nearly all draws are those of the CPU; other logits would draw others.
#[test]
fn draws_follow_the_logits() -> Result<()> {
    let device = Device::under_test(2)?;
    for spread in [1.0, 4.0] {
        let case = Case { spread, ..Case::new(64, 12, 1) };
        let (got, expected) = (run(&device, case)?.tokens, run(&Device::cpu(Some(2))?, case)?.tokens);
        let other = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert!(other <= 4, "{other} of 64 draws differ at {spread}");
        let even = run(&device, Case { spread: 1e-3, ..case })?.tokens;
        let other = got.iter().zip(&even).filter(|(a, b)| a != b).count();
        assert!(other >= 16, "without logits only {other} of 64 draws would differ at {spread}");
    }
    Ok(())
}

#[test]
fn errors_are_those_of_the_ops() -> Result<()> {
    let device = Device::under_test(1)?;
    let network = Network::new(&device, 1.0, 0.0)?;
    let batch = 3;
    let cache = KvCache::new(&device, LAYERS, batch, HEADS, HEAD, 8)?;
    let mut stepper = Stepper::new(&device, Key::new(0, 0));
    let mut error = |fused: bool, entry: i32, at: usize, width: usize| {
        let entries = device.buffer::<i32>("entries", [batch, 1]).unwrap();
        entries.write(&[1, entry, 2]).unwrap();
        let thought = device.buffer::<f32>("thought", [batch, 1, width]).unwrap();
        let next = device.buffer::<i32>("next", [batch, 2]).unwrap();
        let failed = stepper.infer(|tape| -> Result<()> {
            let (table, positions) = (
                tape.param(&network.params, network.table)?,
                tape.param(&network.params, network.positions)?,
            );
            let (blocks, head) = (network.blocks(tape)?, network.head(tape)?);
            let decoder = Decoder { blocks: &blocks, positions, cache: &cache };
            let (given, x) = (tape.buffer(&entries)?, tape.buffer(&thought)?);
            let y = match fused {
                true => tape.decode_entries(table, given, &decoder, at)?,
                false => tape.composed_entries(table, given, &decoder, at)?,
            };
            tape.read::<f32>(y)?;
            match fused {
                true => tape.decode_tokens(x, &head, table, &decoder, at, &next),
                false => tape.composed_tokens(x, &head, table, &decoder, at, &next),
            }
        });
        failed.unwrap_err()
    };
    let mut check = |entry: i32, at: usize, width: usize| {
        let (got, expected) = (error(true, entry, at, width), error(false, entry, at, width));
        assert_eq!(got, expected);
        got
    };
    let outside = check(512, 0, WIDTH);
    assert_eq!(outside.to_string(), "embedding: index 512 at position 1 is outside 0..512");
    check(-1, 0, WIDTH);
    assert!(matches!(check(0, 8, WIDTH), Error::RangeOutOfBounds { limit: 8, .. }));
    // The second token has no position.
    assert!(matches!(check(0, 7, WIDTH), Error::RangeOutOfBounds { limit: 8, .. }));
    check(0, 0, 128);
    Ok(())
}
