//! Comparisons of results and gradients that can fail: each proves on the spot that it refuses typical mistakes.

use crate::{DType, Device};

/// How far one tensor may be from another.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Root-mean-square of the error over that of the expected values.
    relative: f64,
    /// Error of one element over the largest expected magnitude of the same tensor.
    element: f64,
    /// What may be left where values in [-1, 1] cancel out.
    cancelled: f64,
}

impl Limits {
    /// Limits for a device that stores activations as `dtype`.
    pub fn of(dtype: DType) -> Limits {
        match dtype {
            DType::F32 => Limits { relative: 1e-4, element: 1e-4, cancelled: 1e-6 },
            _ => Limits { relative: 3e-2, element: 2e-2, cancelled: 1e-2 },
        }
    }

    /// Limits for the device under test.
    pub fn under_test() -> Limits {
        Limits::of(Device::under_test(1).unwrap().float())
    }
}

/// Inputs of checks lie in [-1, 1]. A tensor of the CPU's that is smaller than this everywhere is zero but for rounding: its terms cancelled
/// out, as for the gradient of a softmax over one value.
const ROUNDING: f64 = 1e-6;

fn largest(x: &[f32]) -> f64 {
    x.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

/// What is wrong with `got`, if anything. Each tensor is measured by its own scale.
fn difference(got: &[f32], expected: &[f32], limits: Limits) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} values instead of {}", got.len(), expected.len()));
    }
    let largest = largest(expected);
    if largest < ROUNDING {
        let at = got.iter().position(|g| g.is_nan() || f64::from(g.abs()) > limits.cancelled)?;
        return Some(format!("element {at} is {}, where everything cancels out", got[at]));
    }
    let errors = || got.iter().zip(expected).map(|(g, e)| f64::from(*g) - f64::from(*e));
    if let Some(at) = errors().position(|error| error.is_nan() || error.abs() > limits.element * largest) {
        return Some(format!(
            "element {at} is {} instead of {}; the largest is {largest:e}",
            got[at], expected[at]
        ));
    }
    let (error, scale) = (norm(errors()), norm(expected.iter().map(|e| f64::from(*e))));
    (error > limits.relative * scale).then(|| format!("a relative RMS error of {:e}", error / scale))
}

/// Fails unless `got` is `expected` within the limits, and unless the comparison would have refused zeros, the negated and the halved
/// values, and values shifted by one row of `row` elements.
pub fn assert_same(what: &str, got: &[f32], expected: &[f32], row: usize, limits: Limits) {
    if let Some(wrong) = difference(got, expected, limits) {
        panic!("{what}: {wrong}");
    }
    assert_discerning(what, expected, row, limits);
}

/// Fails if a comparison with these values would accept any of four typical mistakes.
pub fn assert_discerning(what: &str, expected: &[f32], row: usize, limits: Limits) {
    let mut shifted = expected.to_vec();
    shifted.rotate_right(row % expected.len().max(1));
    let mistakes = [
        ("zeros", vec![0.0; expected.len()]),
        ("negated values", expected.iter().map(|e| -e).collect()),
        ("halved values", expected.iter().map(|e| 0.5 * e).collect()),
        ("values shifted by a row", shifted),
    ];
    for (mistake, wrong) in mistakes {
        // What is zero everywhere has no halves, and what is the same in every row cannot be shifted.
        let is_mistake = wrong != expected && largest(expected) >= ROUNDING;
        if is_mistake && difference(&wrong, expected, limits).is_none() {
            panic!("{what}: the comparison accepts {mistake}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradients of one op can differ by orders of magnitude; the small ones count as much as the large ones.
    #[test]
    fn every_tensor_is_measured_by_its_own_scale() {
        let small: Vec<f32> = (0..64).map(|i| 1e-3 * (i as f32 - 20.0)).collect();
        for limits in [Limits::of(DType::F32), Limits::of(DType::BF16)] {
            assert_eq!(difference(&small, &small, limits), None);
            assert_discerning("small values", &small, 8, limits);
            assert!(difference(&[f32::NAN; 64], &small, limits).is_some());
            assert!(difference(&small[1..], &small, limits).is_some());
            let mut outlier = small.clone();
            outlier[3] += 0.03 * 43e-3;
            assert!(difference(&outlier, &small, limits).unwrap().starts_with("element 3 is"));
        }
        // Two values that cancel out leave what rounding makes of them.
        assert_eq!(difference(&[0.0, 3e-8], &[-1e-8, 2e-8], Limits::of(DType::F32)), None);
        assert!(difference(&[0.0, 3e-3], &[-1e-8, 2e-8], Limits::of(DType::F32)).is_some());
        assert!(difference(&[0.0, 3e-2], &[-1e-8, 2e-8], Limits::of(DType::BF16)).is_some());
        // Rounded to bf16, values pass where activations are stored as that, and only there.
        let rounded: Vec<f32> = small.iter().map(|x| f32::from_bits(x.to_bits() & 0xFFFF_0000)).collect();
        assert_eq!(difference(&rounded, &small, Limits::of(DType::BF16)), None);
        assert!(difference(&rounded, &small, Limits::of(DType::F32)).is_some());
    }

    #[test]
    #[should_panic(expected = "accepts values shifted by a row")]
    fn a_comparison_that_cannot_fail_is_refused() {
        let nearly_constant: Vec<f32> = (0..100).map(|i| 1.0 + 1e-4 * i as f32).collect();
        assert_discerning("nearly constant", &nearly_constant, 1, Limits::of(DType::BF16));
    }
}
