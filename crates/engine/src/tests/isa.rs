//! The kernels of every instruction set the machine has compute the same, up to the order in which matrix products are summed.

use crate::cpu::Isa;
use crate::testing::{constant, integers, values};
use crate::{
    Activation, Adam, Device, Init, Key, KvCache, Lstm, ParamsBuilder, Result, Shape, Stepper, Stride, Tape,
    Tensor,
};

type Op<'a> = &'a (dyn Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync);

/// What an op computes and what its gradients do to its inputs, by name: the result, the inputs' gradients, the inputs after an update.
fn outcome(device: &Device, dims: &[&[usize]], op: Op) -> Result<Vec<(String, Vec<f32>)>> {
    let mut builder = ParamsBuilder::new();
    let mut handles = Vec::new();
    for (i, &d) in dims.iter().enumerate() {
        handles.push(builder.add_decayed(i.to_string(), Shape::try_from(d)?, Init::Constant(0.0)));
    }
    let params = builder.build(device, "inputs", 0)?;
    for (i, d) in dims.iter().enumerate() {
        params.set(&i.to_string(), &values(d.iter().product(), i))?;
    }
    let rate = device.scalar("learning rate", 0.1)?;
    let mut stepper = Stepper::new(device, Key::new(9, 9));
    let result = stepper.run(|tape| -> Result<Vec<f32>> {
        let inputs = handles.iter().map(|&h| tape.param(&params, h)).collect::<Result<Vec<_>>>()?;
        let out = op(tape, &inputs)?;
        let result = tape.read(out)?;
        // A random weighting of the result, so that every element has a gradient of its own.
        let weights = constant(tape, &values(out.len(), 1000), out.shape());
        let weighted = tape.mul(out, weights)?;
        let loss = tape.mean(weighted)?;
        tape.backward(loss)?;
        tape.adam(&params, &rate, &Adam { weight_decay: 0.1, ..Adam::default() })?;
        Ok(result)
    })?;
    let mut all = vec![("result".to_string(), result)];
    for i in 0..dims.len() {
        all.push((format!("gradient {i}"), params.gradient(&i.to_string())?));
        all.push((format!("updated {i}"), params.get(&i.to_string())?));
    }
    Ok(all)
}

fn compare(name: &str, isa: Isa, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(largest > 0.0 && largest.is_finite(), "{name}: nothing to compare");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let equal = if tolerance == 0.0 { g == e } else { (g - e).abs() <= tolerance * largest };
        assert!(equal, "{name} with {}, element {i}: {g} instead of {e}", isa.name());
    }
}

/// Sums of a few hundred products of values up to 1 differ by this much of the largest.
const ROUNDING: f32 = 1e-5;

/// For ops without matrix products: their loops fix the order of every sum.
const EXACT: f32 = 0.0;

/// Checks an op with every instruction set against the baseline.
fn check(name: &str, tolerance: f32, dims: &[&[usize]], op: Op) -> Result<()> {
    let expected = outcome(&Device::cpu_with(Isa::Baseline, 2), dims, op)?;
    for &isa in Isa::available() {
        let device = Device::cpu_with(isa, 2);
        for ((part, got), (_, expected)) in outcome(&device, dims, op)?.iter().zip(&expected) {
            // Adam's first update is the sign of the gradient: rounding matters where that is near zero.
            if tolerance == EXACT || !part.starts_with("updated") {
                compare(&format!("{name} {dims:?}, {part},"), isa, got, expected, tolerance);
            }
        }
    }
    Ok(())
}

#[test]
fn products_agree() -> Result<()> {
    for activation in [Activation::None, Activation::Relu, Activation::Gelu] {
        // Few rows and many, every tail of a vector, more than one block along K.
        for (rows, k, n) in
            [(1, 257, 50), (3, 64, 129), (16, 100, 7), (17, 33, 65), (130, 600, 31), (101, 48, 200)]
        {
            check("linear", ROUNDING, &[&[rows, k], &[n, k], &[n]], &move |tape, x| {
                tape.linear(x[0], x[1], Some(x[2]), activation)
            })?;
        }
    }
    check("matmul", ROUNDING, &[&[2, 37, 70], &[2, 70, 90]], &|tape, x| tape.matmul(x[0], x[1]))?;
    check("lstm", ROUNDING, &[&[5, 4 * 36], &[5, 36], &[5, 36], &[4 * 36, 36], &[4 * 36]], &|tape, x| {
        Ok(tape.lstm_cell(x[0], Lstm { hidden: x[1], cell: x[2] }, x[3], x[4])?.hidden)
    })
}

#[test]
fn convolutions_agree() -> Result<()> {
    // [B, H, W, I], outputs. The third and the fourth go by Winograd's way, the last sums its weight gradient over all images at once.
    let sizes = [
        ([2, 7, 9, 3], 20),
        ([1, 6, 6, 70], 65),
        ([2, 16, 16, 16], 48),
        ([4, 10, 10, 64], 80),
        ([1, 4, 4, 132], 130),
    ];
    for ([batch, height, width, inputs], outputs) in sizes {
        let dims: &[&[usize]] = &[&[batch, height, width, inputs], &[outputs, 3, 3, inputs], &[outputs]];
        check("convolution", ROUNDING, dims, &|tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::One))?;
        if height % 2 == 0 {
            check("stride 2", ROUNDING, dims, &|tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::Two))?;
        }
        let residual = [batch, height, width, outputs];
        let dims: &[&[usize]] = &[dims[0], dims[1], dims[2], &residual];
        check("convolution and residual", ROUNDING, dims, &|tape, x| {
            tape.conv3x3_residual(x[0], x[1], x[2], x[3])
        })?;
    }
    Ok(())
}

#[test]
fn attention_agrees() -> Result<()> {
    for (batch, time, width, heads) in [(2, 5, 12, 3), (2, 70, 64, 2), (1, 130, 40, 1)] {
        let input: &[usize] = &[batch, time, width];
        let dims = &[input; 3];
        check("causal attention", ROUNDING, dims, &|tape, x| {
            tape.causal_attention(x[0], x[1], x[2], heads, 0.1)
        })?;
        check("spatial attention", ROUNDING, dims, &|tape, x| tape.spatial_attention(x[0], x[1], x[2]))?;
    }
    let results = Isa::available().iter().map(|&isa| -> Result<Vec<f32>> {
        let device = Device::cpu_with(isa, 2);
        let cache = KvCache::new(&device, 1, 2, 3, 20, 40)?;
        let mut at = 0;
        let mut all = Vec::new();
        for (step, tokens) in [7, 1, 1].into_iter().enumerate() {
            all.extend(Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
                let new = |i| values(2 * tokens * 60, 10 * step + i);
                let [q, k, v] = [0, 1, 2].map(|i| constant(tape, &new(i), [2, tokens, 60]));
                let out = tape.cached_attention(q, k, v, &cache, 0, at)?;
                tape.read(out)
            })?);
            at += tokens;
        }
        Ok(all)
    });
    let results = results.collect::<Result<Vec<_>>>()?;
    for (result, &isa) in results.iter().zip(Isa::available()) {
        compare("cached attention", isa, result, &results[0], ROUNDING);
    }
    Ok(())
}

/// Loops that are plain Rust have the same bits however they are compiled.
#[test]
fn loops_agree_to_the_bit() -> Result<()> {
    let image: &[usize] = &[2, 9, 7, 40];
    let rows: &[usize] = &[33, 77];
    for swish in [false, true] {
        check("group-norm", EXACT, &[image, &[40], &[40]], &move |tape, x| {
            tape.group_norm(x[0], x[1], x[2], 8, 1e-6, swish)
        })?;
    }
    check("layer-norm", EXACT, &[rows, &[77], &[77]], &|tape, x| tape.layer_norm(x[0], x[1], x[2], 1e-5))?;
    check("perceptual distance", EXACT, &[image, image], &|tape, x| {
        let weights = constant(tape, &values(40, 7), [40]);
        tape.perceptual_distance(x[0], x[1], weights, 0.1)
    })?;
    check("dropout", EXACT, &[rows, rows], &|tape, x| tape.dropout_residual(x[0], 0.3, x[1]))?;
    let labels: Vec<i32> = (0..33).map(|i| i * 7 % 77).collect();
    check("cross-entropy", EXACT, &[rows], &|tape, x| {
        let labels = integers(tape, &labels);
        tape.cross_entropy(x[0], labels)
    })?;
    check("log-probability", EXACT, &[rows], &|tape, x| {
        let labels = integers(tape, &labels);
        tape.log_prob(x[0], labels)
    })?;
    check("entropy", EXACT, &[rows], &|tape, x| tape.entropy(x[0]))
}

/// All of the engine's tests with every instruction set but the one they run with anyway. `scripts/test` asks for it.
#[test]
#[ignore = "runs all other tests again, once per instruction set"]
fn every_instruction_set_passes_the_tests() {
    for isa in &Isa::available()[1..] {
        let program = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(program);
        let status =
            command.env("IRIS_ISA", isa.name()).args(["--quiet", "--skip", "cuda::"]).status().unwrap();
        assert!(status.success(), "IRIS_ISA={} fails", isa.name());
    }
}
