//! Tests of attention to a cache.

use super::*;
use crate::testing::{constant, values};
use crate::{Activation, Key, Stepper};

/// Results [B, tokens, width] of new tokens are those from `start` on of whole sequences [B, time, width].
fn assert_part(
    part: &[f32],
    whole: &[f32],
    (time, width): (usize, usize),
    (start, tokens): (usize, usize),
    limit: f32,
) {
    for (i, got) in part.chunks_exact(width).enumerate() {
        let at = (i / tokens * time + start + i % tokens) * width;
        for (g, w) in got.iter().zip(&whole[at..]) {
            assert!(
                (g - w).abs() < limit,
                "{g} against {w}: row {i} of {tokens} tokens from {start} on, width {width}"
            );
        }
    }
}

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
    let limit = if device.float_size() == 2 { 2e-2 } else { 1e-5 };
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
            assert_part(&part, &whole, (time, width), (start, tokens), limit);
            start += tokens;
        }
    }
    Ok(())
}

/// The same for blocks of positions, with shapes that have kernels of their own on a GPU and with others.
#[test]
fn blocks_equal_the_whole_sequence() -> Result<()> {
    let device = Device::under_test(2)?;
    for (batch, heads, d, block, count) in
        [(3, 2, 6, 3, 5), (2, 3, 64, 17, 7), (1, 1, 64, 2, 9), (2, 1, 64, 33, 3)]
    {
        let (time, width) = (block * count, heads * d);
        let inputs = ["q", "k", "v"].map(|name| device.float_buffer(name, [batch, time, width]).unwrap());
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        stepper.run(|tape| -> Result<()> {
            for (i, input) in inputs.iter().enumerate() {
                let x = constant(tape, &values(batch * time * width, i), [batch, time, width]);
                let x = tape.affine(x, 2.0, 0.0)?;
                tape.store(input, 0, x)?;
            }
            Ok(())
        })?;
        let whole = stepper.run(|tape| -> Result<Vec<f32>> {
            let [q, k, v] = [tape.buffer(&inputs[0])?, tape.buffer(&inputs[1])?, tape.buffer(&inputs[2])?];
            let out = tape.block_causal_attention(q, k, v, heads, block, 0.0)?;
            tape.read(out)
        })?;
        for portions in [vec![count], vec![1; count], vec![1, count - 2, 1]] {
            let cache = KvCache::new(&device, 1, batch, heads, d, time + 5)?.in_blocks(block);
            let mut start = 0;
            for blocks in portions {
                let tokens = blocks * block;
                let part = stepper.run(|tape| -> Result<Vec<f32>> {
                    let mut part = |i: usize| {
                        let x = tape.buffer(&inputs[i])?;
                        tape.slice(x, 1, start, start + tokens)
                    };
                    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
                    let out = tape.cached_attention(q, k, v, &cache, 0, start)?;
                    tape.read(out)
                })?;
                let limit = if device.float_size() == 2 { 2e-2 } else { 1e-5 };
                assert_part(&part, &whole, (time, width), (start, tokens), limit);
                start += tokens;
            }
        }
    }
    Ok(())
}

/// Queries, keys and values of one input, on a GPU one product.
#[test]
fn new_tokens_attend_to_themselves_and_the_cache() -> Result<()> {
    let device = Device::under_test(2)?;
    for (batch, heads, d, block, count) in [(3, 2, 6, 3, 3), (2, 3, 64, 17, 4), (1, 2, 64, 40, 2)] {
        let (time, width) = (block * count, heads * d);
        let x = device.float_buffer("x", [batch, time, width])?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        let scaled = |length: usize, i: usize, by: f32| -> Vec<f32> {
            values(length, i).iter().map(|x| x * by).collect()
        };
        let layers = |tape: &mut Tape| {
            [1, 2, 3].map(|i| {
                let weight = scaled(width * width, i, 2.0 / (width as f32).sqrt());
                [constant(tape, &weight, [width, width]), constant(tape, &scaled(width, i, 0.1), [width])]
            })
        };
        let whole = stepper.infer(|tape| -> Result<Vec<f32>> {
            let input = constant(tape, &values(batch * time * width, 0), [batch, time, width]);
            tape.store(&x, 0, input)?;
            let x = tape.buffer(&x)?;
            let [q, k, v] = layers(tape).map(|[w, b]| tape.linear(x, w, Some(b), Activation::None));
            let out = tape.block_causal_attention(q?, k?, v?, heads, block, 0.0)?;
            tape.read(out)
        })?;
        let cache = KvCache::new(&device, 2, batch, heads, d, time + 3)?.in_blocks(block);
        let limit = if device.float_size() == 2 { 3e-2 } else { 1e-5 };
        let mut start = 0;
        for blocks in [1, count - 1] {
            let tokens = blocks * block;
            let part = stepper.infer(|tape| -> Result<Vec<f32>> {
                let x = tape.buffer(&x)?;
                let x = tape.slice(x, 1, start, start + tokens)?;
                let layers = layers(tape);
                let out = tape.cached_self_attention(x, layers, &cache, 1, start)?;
                tape.read(out)
            })?;
            assert_part(&part, &whole, (time, width), (start, tokens), limit);
            start += tokens;
        }
    }
    Ok(())
}

#[test]
fn parts_of_blocks_are_errors() -> Result<()> {
    let device = Device::under_test(1)?;
    let input = device.buffer::<f32>("x", [1, 3, 4])?;
    let cache = KvCache::new(&device, 1, 1, 2, 2, 12)?.in_blocks(3);
    let mut stepper = Stepper::new(&device, Key::new(0, 0));
    let mut run = |at, tokens| {
        stepper.run(|tape| {
            let x = tape.buffer(&input)?;
            let x = tape.slice(x, 1, 0, tokens)?;
            tape.cached_attention(x, x, x, &cache, 0, at).map(|_| ())
        })
    };
    assert_eq!(run(3, 3), Ok(()));
    let error = run(4, 3).unwrap_err().to_string();
    assert_eq!(
        error,
        "cached attention: the first new position is 4, but must be a multiple of the cache's block"
    );
    assert!(run(3, 2).unwrap_err().to_string().contains("the number of new tokens is 2"));
    assert!(cache.attention_weights(0, &[0.0; 8], 3).is_err());
    let weights = cache.attention_weights(0, &[0.5; 12], 3)?;
    assert!(weights.iter().all(|w| *w > 0.0) && weights.len() == 2 * 3 * 6);
    Ok(())
}

/// The weights that can be looked at are those that the op blends values with.
#[test]
fn weights_times_values_are_the_result() -> Result<()> {
    let (batch, time, heads, d, at) = (2, 9, 3, 4, 5);
    let width = heads * d;
    let device = Device::under_test(2)?;
    let cache = KvCache::new(&device, 1, batch, heads, d, time)?;
    let inputs = ["q", "k", "v"].map(|name| device.buffer::<f32>(name, [batch, time, width]).unwrap());
    for (i, input) in inputs.iter().enumerate() {
        input.write(&values(batch * time * width, i))?;
    }
    let mut stepper = Stepper::new(&device, Key::new(0, 0));
    let mut portion = |from: usize, to: usize| {
        stepper.infer(|tape| -> Result<[Vec<f32>; 3]> {
            let mut part = |i: usize| {
                let x = tape.buffer(&inputs[i])?;
                tape.slice(x, 1, from, to)
            };
            let (q, k, v) = (part(0)?, part(1)?, part(2)?);
            let out = tape.cached_attention(q, k, v, &cache, 0, from)?;
            Ok([tape.read(q)?, tape.read(v)?, tape.read(out)?])
        })
    };
    let before = portion(0, at)?;
    let [queries, after, out] = portion(at, time)?;
    let weights = cache.attention_weights(0, &queries, at)?;
    let tokens = time - at;
    assert_eq!(weights.len(), batch * heads * tokens * time);
    for (row, weights) in weights.chunks_exact(time).enumerate() {
        let (image, head, token) = (row / (heads * tokens), row / tokens % heads, row % tokens);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert!(weights[at + token + 1..].iter().all(|w| *w == 0.0) && weights[at + token] > 0.0);
        for c in head * d..(head + 1) * d {
            let value = |position: usize| match position < at {
                true => before[1][(image * at + position) * width + c],
                false => after[(image * tokens + position - at) * width + c],
            };
            let sum: f32 = weights.iter().enumerate().map(|(p, w)| w * value(p)).sum();
            let got = out[(image * tokens + token) * width + c];
            let limit = if device.float_size() == 2 { 2e-2 } else { 1e-5 };
            assert!((sum - got).abs() < limit, "{sum} for {got}");
        }
    }
    assert!(cache.attention_weights(1, &queries, at).is_err());
    assert!(cache.attention_weights(0, &queries, at + 1).is_err());
    assert!(cache.attention_weights(0, &queries[1..], at).is_err());
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
