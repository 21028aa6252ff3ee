//! Gradients that a GPU joins at the end of a backward pass: of parameters that are used several times, of more of them than one launch takes, summed
//! up over several passes, in replayed steps, and those that come with the gradient of a norm.

use crate::testing::{Limits, assert_same, check_gradients, values};
use crate::{
    Activation, Device, Init, Key, Param, Params, ParamsBuilder, Result, StepId, Stepper, Stride, Tape,
    Tensor,
};

/// More layers than the table of one launch has entries.
const LAYERS: usize = 70;
const WIDTH: usize = 24;

/// Linear layers and layer-norms, some of which share their parameters.
struct Net {
    params: Params,
    weight: Param,
    shared: Param,
    single: Vec<[Param; 2]>,
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let mut b = ParamsBuilder::new();
        let (one, normal) = (Init::Constant(1.0), Init::Normal(0.2));
        let norm = |b: &mut ParamsBuilder, i| {
            [b.add(format!("gain {i}"), [WIDTH], one), b.add(format!("shift {i}"), [WIDTH], normal)]
        };
        Ok(Net {
            weight: b.add("weight", [WIDTH, WIDTH], normal),
            shared: b.add("shared", [WIDTH], normal),
            single: (0..LAYERS).map(|i| norm(&mut b, i)).collect(),
            params: b.build(device, "net", 7)?,
        })
    }

    fn loss(&self, tape: &mut Tape, x: Tensor) -> Result<Tensor> {
        let param = |tape: &mut Tape, param| tape.param(&self.params, param);
        let (weight, shared) = (param(tape, self.weight)?, param(tape, self.shared)?);
        // The bias of many rows, of one row, and a factor, whose gradient is written at once, between them.
        let x = tape.linear(x, weight, Some(shared), Activation::Gelu)?;
        let row = tape.reshape(shared, [1, WIDTH])?;
        let row = tape.linear(row, weight, Some(shared), Activation::None)?;
        let row = tape.reshape(row, [WIDTH])?;
        let mut total = tape.mul(row, shared)?;
        total = tape.mean(total)?;
        let mut h = tape.linear(x, weight, Some(shared), Activation::None)?;
        for (i, [gain, shift]) in self.single.iter().enumerate() {
            let (gain, shift) = (param(tape, *gain)?, param(tape, *shift)?);
            // Norms of the same rows, so that no gradient fades on its way; each counts differently.
            let y = tape.layer_norm(x, gain, shift, 1e-5)?;
            let y = tape.affine(y, 0.5 + i as f32 / LAYERS as f32, 0.0)?;
            h = tape.add(h, y)?;
        }
        let squares = tape.mul(h, x)?;
        let mean = tape.mean(squares)?;
        tape.add(total, mean)
    }
}

/// A loss's gradient for a network's parameters.
type Backward = fn(&mut Tape, Tensor, &Params) -> Result<()>;

/// Gradients of a pass, and of a second one added to it, `times` times in the same way.
fn gradients(device: &Device, captured: bool) -> Result<Vec<Vec<f32>>> {
    let net = Net::new(device)?;
    let inputs = [0, 1].map(|i| -> Result<_> {
        let buffer = device.buffer::<f32>("rows", [37 + 300 * i, WIDTH])?;
        buffer.write(&values((37 + 300 * i) * WIDTH, i))?;
        Ok(buffer)
    });
    let [first, second] = inputs;
    let (first, second) = (first?, second?);
    let mut stepper = Stepper::new(device, Key::new(0, 0));
    let steps: [(&str, Backward, _); 2] = [
        ("first", |tape, loss, _| tape.backward(loss), &first),
        ("second", |tape, loss, params| tape.backward_adding(loss, params), &second),
    ];
    let mut found = Vec::new();
    // The second round is captured, the third replayed.
    for _ in 0..if captured { 3 } else { 1 } {
        found.clear();
        for (name, backward, rows) in &steps {
            let step = |tape: &mut Tape| -> Result<()> {
                let rows = tape.buffer(rows)?;
                let loss = net.loss(tape, rows)?;
                backward(tape, loss, &net.params)
            };
            match captured {
                true => stepper.run_captured(StepId::new(name, &()), step)?,
                false => stepper.run(step)?,
            }
            for spec in net.params.specs() {
                found.push(net.params.gradient(&spec.name)?);
            }
        }
    }
    Ok(found)
}

#[test]
fn many_gradients_are_joined_and_added_to_those_before() -> Result<()> {
    let expected = gradients(&Device::cpu(Some(1))?, false)?;
    let device = Device::under_test(1)?;
    let found = gradients(&device, false)?;
    assert_eq!(found.len(), 2 * (2 + 2 * LAYERS));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_same(&format!("gradient {i}"), found, expected, WIDTH, Limits::under_test());
    }
    assert_eq!(gradients(&device, false)?, found);
    assert_eq!(gradients(&device, true)?, found);
    Ok(())
}

/// The bias of a convolution or linear layer before a group-norm, whose gradient comes with that of the norm: alone, added to what is there, changed
/// afterwards by another use of the same image.
#[test]
fn biases_before_norms() {
    // Images for one block and for clusters of them.
    for [height, width] in [[3, 5], [24, 20], [64, 64]] {
        let dims: [&[usize]; 5] = [&[2, height, width, 3], &[64, 3, 3, 3], &[64], &[64], &[64]];
        let norm = |tape: &mut Tape, x: Tensor, p: &[Tensor]| tape.group_norm(x, p[3], p[4], 8, 1e-6, true);
        check_gradients(&dims, |tape, p| {
            let y = tape.conv3x3(p[0], p[1], p[2], Stride::One)?;
            norm(tape, y, p)
        });
        check_gradients(&dims, |tape, p| {
            let y = tape.conv3x3(p[0], p[1], p[2], Stride::One)?;
            let z = norm(tape, y, p)?;
            tape.add(y, z)
        });
        check_gradients(&dims, |tape, p| {
            let y = tape.conv3x3(p[0], p[1], p[2], Stride::One)?;
            let other = tape.affine(y, 0.5, 0.0)?;
            let z = norm(tape, y, p)?;
            tape.add(other, z)
        });
        let dims: [&[usize]; 5] = [&[2, height * width, 33], &[64, 33], &[64], &[64], &[64]];
        check_gradients(&dims, |tape, p| {
            let y = tape.linear(p[0], p[1], Some(p[2]), Activation::None)?;
            let y = tape.reshape(y, [2, height, width, 64])?;
            norm(tape, y, p)
        });
    }
}
