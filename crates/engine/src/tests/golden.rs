//! Ops against PyTorch, where a convention could differ: epsilon, padding, ties, gate order, ignored labels (`tests/golden/make_ops.py`).

use crate::{
    Activation, Adam, Device, Init, Key, Lstm, ParamsBuilder, Result, Shape, Stepper, Stride, Tape, Tensor,
};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/ops.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-6f32, |a, b| a.max(b.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= 2e-5 * scale, "{what}[{i}]: {g} for {e}");
    }
}

/// Runs a case's op on its inputs; checks the result and the gradient of sum(result * linspace(-1, 1)) for every input.
fn check(
    name: &str,
    inputs: &[(&str, &[usize])],
    op: impl Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Send + Sync,
) -> Result<()> {
    let golden = golden();
    let case = &golden["cases"][name];
    let device = Device::under_test(2)?;
    let mut builder = ParamsBuilder::new();
    let mut handles = Vec::new();
    for (input, shape) in inputs {
        handles.push(builder.add(*input, Shape::try_from(*shape)?, Init::Constant(0.0)));
    }
    let params = builder.build(&device, "inputs", 0)?;
    for (input, _) in inputs {
        params.set(input, &numbers(&case["inputs"][input]))?;
    }
    let expected = numbers(&case["out"]);
    let weights = device.buffer::<f32>("weights", [expected.len()])?;
    let steps = (expected.len().max(2) - 1) as f32;
    weights.write(&(0..expected.len()).map(|i| -1.0 + 2.0 * i as f32 / steps).collect::<Vec<_>>())?;
    let out = Stepper::new(&device, Key::new(0, 0)).run(|tape| -> Result<Vec<f32>> {
        let tensors = handles.iter().map(|&h| tape.param(&params, h)).collect::<Result<Vec<_>>>()?;
        let out = op(tape, &tensors)?;
        let flat = tape.reshape(out, [expected.len()])?;
        let weights = tape.buffer(&weights)?;
        let product = tape.mul(flat, weights)?;
        let mean = tape.mean(product)?;
        let sum = tape.affine(mean, expected.len() as f32, 0.0)?;
        tape.backward(sum)?;
        tape.read(out)
    })?;
    assert_close(name, &out, &expected);
    for (input, _) in inputs {
        let what = format!("gradient of {input} of {name}");
        assert_close(&what, &params.gradient(input)?, &numbers(&case["gradients"][input]));
    }
    Ok(())
}

#[test]
fn golden_activations_and_norms() -> Result<()> {
    check("gelu", &[("x", &[33, 1])], |tape, x| {
        // A 1x1 weight of 1: GELU alone.
        let one = tape.slice(x[0], 0, 0, 1)?;
        let one = tape.detach(one)?;
        let one = tape.affine(one, 0.0, 1.0)?;
        tape.linear(x[0], one, None, Activation::Gelu)
    })?;
    let norm: [(&str, &[usize]); 3] = [("x", &[2, 3, 2, 4]), ("gain", &[4]), ("shift", &[4])];
    check("group_norm", &norm, |tape, x| tape.group_norm(x[0], x[1], x[2], 2, 1e-6, false))?;
    check("group_norm_swish", &norm, |tape, x| tape.group_norm(x[0], x[1], x[2], 2, 1e-6, true))?;
    check("layer_norm", &[("x", &[3, 5]), ("gain", &[5]), ("shift", &[5])], |tape, x| {
        tape.layer_norm(x[0], x[1], x[2], 1e-5)
    })
}

#[test]
fn golden_image_ops() -> Result<()> {
    let conv: [(&str, &[usize]); 3] = [("x", &[2, 4, 6, 3]), ("w", &[5, 3, 3, 3]), ("b", &[5])];
    check("conv_stride_1", &conv, |tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::One))?;
    check("conv_stride_2", &conv, |tape, x| tape.conv3x3(x[0], x[1], x[2], Stride::Two))?;
    check("upsample", &[("x", &[1, 2, 3, 2])], |tape, x| tape.upsample(x[0]))?;
    check("max_pool", &[("x", &[1, 2, 4, 1])], |tape, x| tape.max_pool(x[0]))
}

#[test]
fn golden_lstm() -> Result<()> {
    let inputs: [(&str, &[usize]); 7] = [
        ("x", &[2, 3]),
        ("h", &[2, 2]),
        ("c", &[2, 2]),
        ("w_ih", &[8, 3]),
        ("w_hh", &[8, 2]),
        ("b_ih", &[8]),
        ("b_hh", &[8]),
    ];
    check("lstm", &inputs, |tape, x| {
        let mut state = Lstm { hidden: x[1], cell: x[2] };
        for _ in 0..2 {
            let gates = tape.linear(x[0], x[3], Some(x[5]), Activation::None)?;
            state = tape.lstm_cell(gates, state, x[4], x[6])?;
        }
        tape.concat(&[state.hidden, state.cell], 1)
    })
}

#[test]
fn golden_categoricals() -> Result<()> {
    let device = Device::under_test(1)?;
    let labels = device.buffer::<i32>("labels", [3])?;
    labels.write(&[2, -100, 0])?;
    check("cross_entropy", &[("x", &[3, 4])], |tape, x| {
        let labels = tape.buffer(&labels)?;
        tape.cross_entropy(x[0], labels)
    })?;
    let choices = device.buffer::<i32>("choices", [3])?;
    choices.write(&[2, 3, 0])?;
    check("log_prob", &[("x", &[3, 4])], |tape, x| {
        let choices = tape.buffer(&choices)?;
        tape.log_prob(x[0], choices)
    })?;
    check("entropy", &[("x", &[3, 4])], |tape, x| tape.entropy(x[0]))
}

#[test]
fn golden_optimisers() -> Result<()> {
    let golden = golden();
    let device = Device::under_test(1)?;
    let slope = device.buffer::<f32>("slope", [3])?;
    slope.write(&[12.0f32, -5.0, 0.0])?;
    for (name, weight_decay) in [("adam", 0.0), ("adamw", 0.1)] {
        let mut builder = ParamsBuilder::new();
        let decayed = builder.add_decayed("p", [3], Init::Constant(0.0));
        let plain = builder.add("q", [3], Init::Constant(0.0));
        let params = builder.build(&device, "net", 0)?;
        params.set("p", &[1.0, -2.0, 3.0])?;
        params.set("q", &[1.0, -2.0, 3.0])?;
        let adam = Adam { weight_decay, ..Adam::default() };
        let rate = device.scalar("learning rate", 0.01)?;
        let mut stepper = Stepper::new(&device, Key::new(0, 0));
        for _ in 0..5 {
            let norm = stepper.run(|tape| -> Result<f32> {
                let (p, slope) = (tape.param(&params, decayed)?, tape.buffer(&slope)?);
                tape.param(&params, plain)?;
                let product = tape.mul(p, slope)?;
                let mean = tape.mean(product)?;
                let sum = tape.affine(mean, 3.0, 0.0)?;
                tape.backward(sum)?;
                let norm = tape.adam(&params, &rate, &adam)?;
                Ok(tape.read::<f32>(norm)?[0])
            })?;
            assert!((norm - 13.0).abs() < 1e-5);
        }
        assert_close(name, &params.get("p")?, &numbers(&golden["optimisers"][name]));
        // A parameter the loss does not depend on, and that decay does not apply to, stays.
        assert_eq!(params.get("q")?, [1.0, -2.0, 3.0]);
    }
    Ok(())
}

/// Shares of 20,000 draws against PyTorch's softmax at that temperature.
#[test]
fn golden_temperatures() -> Result<()> {
    let golden = golden();
    let rows = 20_000;
    let logits = numbers(&golden["logits"]);
    let device = Device::under_test(2)?;
    let buffer = device.buffer::<f32>("logits", [rows, 4])?;
    buffer.write(&logits.repeat(rows))?;
    let mut stepper = Stepper::new(&device, Key::new(1, 0));
    for (temperature, expected) in golden["temperatures"].as_object().unwrap() {
        let draws: Vec<i32> = stepper.run(|tape| -> Result<_> {
            let logits = tape.buffer(&buffer)?;
            let draws = tape.sample(logits, temperature.parse().unwrap())?;
            tape.read(draws)
        })?;
        for (action, expected) in numbers(expected).into_iter().enumerate() {
            let share = draws.iter().filter(|&&d| d == action as i32).count() as f32 / rows as f32;
            assert!((share - expected).abs() < 0.012, "{action} at {temperature}: {share} for {expected}");
        }
    }
    Ok(())
}
