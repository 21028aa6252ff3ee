//! Numeric gradient checks, shared by the tests of all ops.

use crate::rng::{Key, Rng};
use crate::{DType, Device, Error, Init, ParamsBuilder, Result, Shape, Stepper, Tape, Tensor};

/// The values that input number `index` of a check has.
pub fn values(len: usize, index: usize) -> Vec<f32> {
    let mut rng = Rng::new(Key::new(42, index as u32));
    (0..len).map(|_| 2.0 * rng.uniform() - 1.0).collect()
}

type Op<'a> = &'a (dyn Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync);

/// Runs an op on inputs with [`values`] and returns its result.
pub fn on_tape(
    dims: &[&[usize]],
    op: impl Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync,
) -> Result<Vec<f32>> {
    let inputs: Vec<Vec<f32>> = dims.iter().enumerate().map(|(i, d)| values(d.iter().product(), i)).collect();
    Ok(evaluate(&Device::under_test(2)?, dims, (&inputs, false), &op, None)?.0)
}

/// A constant on the tape.
pub fn constant(tape: &mut Tape, values: &[f32], shape: impl Into<Shape>) -> Tensor {
    let mut block = tape.alloc(values.len(), DType::F32);
    block.write(0, values).unwrap();
    tape.push(block, shape, DType::F32, false)
}

/// x [N] moved far up or down in turns: the biases of a layer whose ReLU no step width of a check can switch.
pub fn spread(tape: &mut Tape, x: Tensor) -> Result<Tensor> {
    let far: Vec<f32> = (0..x.len()).map(|i| if i % 3 == 1 { -90.0 } else { 90.0 }).collect();
    let far = constant(tape, &far, x.shape());
    tape.add(x, far)
}

/// A row of integers on the tape.
pub fn integers(tape: &mut Tape, values: &[i32]) -> Tensor {
    let mut block = tape.alloc(values.len(), DType::I32);
    block.write(0, values).unwrap();
    tape.push(block, [values.len()], DType::I32, false)
}

/// The gradients of an op's inputs at [`values`], for the gradient `seed` of its result.
pub fn gradients(
    dims: &[&[usize]],
    seed: &[f32],
    op: impl Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync,
) -> Result<Vec<Vec<f32>>> {
    let inputs: Vec<Vec<f32>> = dims.iter().enumerate().map(|(i, d)| values(d.iter().product(), i)).collect();
    Ok(evaluate(&Device::under_test(2)?, dims, (&inputs, false), &op, Some(seed))?.1)
}

/// The result of the op, and the gradients of its inputs for a given gradient of the result. The first input is stored as activations are if that is asked
/// for, else in f32 like the others.
fn evaluate(
    device: &Device,
    dims: &[&[usize]],
    (inputs, activations): (&[Vec<f32>], bool),
    op: Op,
    gradient: Option<&[f32]>,
) -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
    let mut builder = ParamsBuilder::new();
    let handles: Vec<_> = dims
        .iter()
        .enumerate()
        .map(|(i, d)| Ok(builder.add(i.to_string(), Shape::try_from(*d)?, Init::Constant(0.0))))
        .collect::<Result<_>>()?;
    let params = builder.build(device, "inputs", 0)?;
    for (i, values) in inputs.iter().enumerate() {
        params.set(&i.to_string(), values)?;
    }
    let mut stepper = Stepper::new(device, Key::new(9, 9));
    let out = stepper.run(|tape| -> Result<Vec<f32>> {
        let mut tensors: Vec<Tensor> =
            handles.iter().map(|&h| tape.param(&params, h)).collect::<Result<_>>()?;
        if activations {
            let zeros = tape.buffer(&device.float_buffer("zeros", tensors[0].shape()))?;
            tensors[0] = tape.add(tensors[0], zeros)?;
        }
        let out = op(tape, &tensors)?;
        let values = tape.read(out)?;
        if let Some(gradient) = gradient {
            let mut block = tape.scratch(gradient.len());
            block.write(0, gradient)?;
            tape.backward_from(out, block, DType::F32)?;
        }
        Ok(values)
    })?;
    let gradients = (0..dims.len()).map(|i| params.gradient(&i.to_string())).collect::<Result<_>>()?;
    Ok((out, gradients))
}

/// Checks an op's gradient with directional derivatives: for each input, along a random direction, the fourth-order central
/// difference of a random weighting of the result must equal the gradient's projection on it.
pub fn check_gradients(dims: &[&[usize]], op: impl Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync) {
    let inputs: Vec<Vec<f32>> = dims.iter().enumerate().map(|(i, d)| values(d.iter().product(), i)).collect();
    let device = Device::under_test(2).unwrap();
    let (out, _) = evaluate(&device, dims, (&inputs, false), &op, None).unwrap();
    let weights = values(out.len(), 1000);
    let (_, gradients) = evaluate(&device, dims, (&inputs, false), &op, Some(&weights)).unwrap();
    if device.is_gpu() {
        compare_with_cpu(&device, dims, &inputs, &op, (&out, &gradients), &weights);
    }
    if device.float() != DType::F32 {
        // Once more with what both devices can store, unless the op must not be given it.
        let mut inputs = inputs;
        inputs[0].iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xFFFF_0000));
        match evaluate(&device, dims, (&inputs, true), &op, Some(&weights)) {
            Err(Error::DTypeMismatch { .. }) => {}
            done => {
                let (out, gradients) = done.unwrap();
                compare_with_cpu(&device, dims, &inputs, &op, (&out, &gradients), &weights);
            }
        }
        return;
    }
    for (i, gradient) in gradients.iter().enumerate() {
        let direction = values(gradient.len(), 2000 + i);
        let along: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        let at = |t: f32| -> f64 {
            let mut moved = inputs.clone();
            moved[i].iter_mut().zip(&direction).for_each(|(x, d)| *x += t * d);
            let (out, _) = evaluate(&device, dims, (&moved, false), &op, None).unwrap();
            out.iter().zip(&weights).map(|(o, w)| f64::from(*o) * f64::from(*w)).sum()
        };
        // Kinks (ReLU, max) spoil single step widths, rounding small ones: the best of three must agree.
        let estimate = |h: f32| {
            let slope = 8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h));
            slope / (12.0 * f64::from(h))
        };
        let scale = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()
            * (direction.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>() / direction.len() as f64).sqrt();
        let errors = [3e-2, 1e-2, 2e-3].map(|h| (estimate(h) - along).abs());
        let error = errors.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            error <= 3e-3 * scale + 1e-5,
            "input {i} of {dims:?}: gradient along a direction {along}, off by {errors:?}"
        );
    }
}

/// Fails unless a GPU's results and gradients are those of the CPU, up to what its precision allows.
fn compare_with_cpu(
    device: &Device,
    dims: &[&[usize]],
    inputs: &[Vec<f32>],
    op: Op,
    (out, gradients): (&[f32], &[Vec<f32>]),
    weights: &[f32],
) {
    let tolerance = if device.float() == DType::F32 { 1e-4 } else { 2e-2 };
    let cpu = Device::cpu(Some(1)).unwrap();
    let (expected, expected_gradients) = evaluate(&cpu, dims, (inputs, false), op, Some(weights)).unwrap();
    let names = std::iter::once("result".to_string())
        .chain((0..dims.len()).map(|i| format!("gradient of input {i}")));
    let pairs = std::iter::once((out, &expected[..]))
        .chain(gradients.iter().zip(&expected_gradients).map(|(a, b)| (&a[..], &b[..])));
    let largest = |x: &[f32]| x.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    let steepest = expected_gradients.iter().fold(1e-3f32, |m, g| m.max(largest(g)));
    for (name, (got, expected)) in names.zip(pairs) {
        // A gradient that cancels out is as exact as what it cancelled from.
        let scale = if name == "result" { largest(expected) } else { steepest };
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            assert!(
                (g - e).abs() <= tolerance * scale,
                "{name} of {dims:?}, element {i}: {g} against the CPU's {e}"
            );
        }
    }
}

/// Fails unless the values are equal, up to what the device under test can represent.
pub fn assert_close(got: &[f32], expected: &[f32]) {
    let exact = Device::under_test(1).unwrap().float() == DType::F32;
    let tolerance = if exact { 1e-6 } else { 1e-2 };
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() <= tolerance * e.abs().max(1.0), "{got:?} against {expected:?}");
    }
}
