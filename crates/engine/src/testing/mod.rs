//! Numeric gradient checks, shared by the tests of all ops.

mod compare;

pub use compare::{Limits, assert_discerning, assert_same};

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
    Ok(evaluate(&Device::under_test(2)?, dims, (&inputs, false), &op, None)?.result)
}

/// A constant on the tape.
pub fn constant(tape: &mut Tape, values: &[f32], shape: impl Into<Shape>) -> Tensor {
    let mut block = tape.alloc(values.len(), DType::F32).unwrap();
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
    let mut block = tape.alloc(values.len(), DType::I32).unwrap();
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
    Ok(evaluate(&Device::under_test(2)?, dims, (&inputs, false), &op, Some(seed))?.gradients)
}

/// What an op computed.
pub struct Outcome {
    pub result: Vec<f32>,
    /// Elements of a row of the result.
    pub row: usize,
    /// Of every input; empty unless a gradient of the result was given.
    pub gradients: Vec<Vec<f32>>,
}

impl Outcome {
    /// The result and every gradient: a name, the values and the elements of a row.
    fn tensors<'a>(&'a self, dims: &'a [&[usize]]) -> impl Iterator<Item = (String, &'a [f32], usize)> {
        let gradients = self.gradients.iter().zip(dims).enumerate().map(move |(i, (gradient, shape))| {
            (format!("gradient of input {i} of {dims:?}"), &gradient[..], shape.last().copied().unwrap_or(1))
        });
        std::iter::once((format!("result of {dims:?}"), &self.result[..], self.row)).chain(gradients)
    }
}

/// The result of the op, and the gradients of its inputs for a given gradient of the result. The first input is stored as activations are
/// if that is asked for, else in f32 like the others.
pub fn evaluate(
    device: &Device,
    dims: &[&[usize]],
    (inputs, activations): (&[Vec<f32>], bool),
    op: Op,
    gradient: Option<&[f32]>,
) -> Result<Outcome> {
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
    let (result, row) = stepper.run(|tape| -> Result<(Vec<f32>, usize)> {
        let mut tensors: Vec<Tensor> =
            handles.iter().map(|&h| tape.param(&params, h)).collect::<Result<_>>()?;
        if activations {
            let zeros = tape.buffer(&device.float_buffer("zeros", tensors[0].shape())?)?;
            tensors[0] = tape.add(tensors[0], zeros)?;
        }
        let out = op(tape, &tensors)?;
        let values = tape.read(out)?;
        if let Some(gradient) = gradient {
            let mut block = tape.scratch(gradient.len())?;
            block.write(0, gradient)?;
            tape.backward_from(out, block, DType::F32, None)?;
        }
        Ok((values, out.shape().last()))
    })?;
    let gradients = (0..dims.len()).map(|i| params.gradient(&i.to_string())).collect::<Result<_>>()?;
    Ok(Outcome { result, row, gradients })
}

/// Checks an op's gradient with directional derivatives: for each input, along a random direction, the fourth-order central
/// difference of a random weighting of the result must equal the gradient's projection on it.
pub fn check_gradients(dims: &[&[usize]], op: impl Fn(&mut Tape, &[Tensor]) -> Result<Tensor> + Sync) {
    let inputs: Vec<Vec<f32>> = dims.iter().enumerate().map(|(i, d)| values(d.iter().product(), i)).collect();
    let device = Device::under_test(2).unwrap();
    let result = evaluate(&device, dims, (&inputs, false), &op, None).unwrap().result;
    let weights = values(result.len(), 1000);
    let outcome = evaluate(&device, dims, (&inputs, false), &op, Some(&weights)).unwrap();
    match device.is_gpu() {
        true => compare_with_cpu(dims, &inputs, &op, &outcome, &weights),
        // Without a GPU there is nothing to compare with, but the comparison's own test can run.
        false => assert_comparable(dims, &outcome),
    }
    if device.float() != DType::F32 {
        // Once more with what both devices can store, unless the op must not be given it.
        let mut inputs = inputs;
        inputs[0].iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xFFFF_0000));
        match evaluate(&device, dims, (&inputs, true), &op, Some(&weights)) {
            Err(Error::DTypeMismatch { .. }) => {}
            done => {
                compare_with_cpu(dims, &inputs, &op, &done.unwrap(), &weights);
            }
        }
        return;
    }
    for (i, gradient) in outcome.gradients.iter().enumerate() {
        let direction = values(gradient.len(), 2000 + i);
        let along: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        let at = |t: f32| -> f64 {
            let mut moved = inputs.clone();
            moved[i].iter_mut().zip(&direction).for_each(|(x, d)| *x += t * d);
            let out = evaluate(&device, dims, (&moved, false), &op, None).unwrap().result;
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
fn compare_with_cpu(dims: &[&[usize]], inputs: &[Vec<f32>], op: Op, got: &Outcome, weights: &[f32]) {
    let cpu = Device::cpu(Some(1)).unwrap();
    let expected = evaluate(&cpu, dims, (inputs, false), op, Some(weights)).unwrap();
    let limits = Limits::under_test();
    for ((_, got, _), (name, expected, row)) in got.tensors(dims).zip(expected.tensors(dims)) {
        assert_same(&name, got, expected, row, limits);
    }
}

/// Fails if the comparison of a GPU with these values would accept a wrong result or gradient.
fn assert_comparable(dims: &[&[usize]], expected: &Outcome) {
    for dtype in [DType::F32, DType::BF16] {
        for (name, expected, row) in expected.tensors(dims) {
            assert_discerning(&name, expected, row, Limits::of(dtype));
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
