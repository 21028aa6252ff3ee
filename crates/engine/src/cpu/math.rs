//! Elementary functions in plain arithmetic, so that loops over them vectorise. Each is checked against f64 below.

/// e^x, to about two units in the last place; 0 far below, +inf far above, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = if clamped > 89.0 { 89.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, the first exact in few bits.
    let r = clamped - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * (r * r) + r + 1.0;
    // 2^n in two factors, so that the ends of the range neither overflow nor vanish early.
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    p * power(half) * power(n - half)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// The error function, as a rational function of degree 9 over 12 on the range where it differs from +-1 in f32.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let x = if x > 3.743_921_2 { 3.743_921_2 } else { x };
    let x = if x < -3.743_921_2 { -3.743_921_2 } else { x };
    let s = x * x;
    let p = 0.000_229_050_66;
    let p = p * s + 0.003_408_291;
    let p = p * s + 0.050_955_694;
    let p = p * s + 0.185_208_32;
    let p = p * s + std::f32::consts::FRAC_2_SQRT_PI;
    let q = -1.179_160_3e-7;
    let q = q * s + 0.000_023_547_966;
    let q = q * s + 0.001_017_962_5;
    let q = q * s + 0.014_070_47;
    let q = q * s + 0.110_985_05;
    let q = q * s + 0.497_469_25;
    let q = q * s + 1.0;
    x * p / q
}

/// Exact GELU: x * Phi(x).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Phi(x) + x * phi(x)
#[inline(always)]
pub(crate) fn gelu_derivative(x: f32) -> f32 {
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)) + x * INV_SQRT_TAU * exp(-0.5 * x * x)
}

/// Natural logarithm of a positive, normal number.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2))
    let bits = x.to_bits() as i32;
    let e = (bits - 0x3F35_04F3) >> 23;
    let m = f32::from_bits((bits - (e << 23)) as u32);
    let t = m - 1.0;
    let p = 7.037_683_6e-2;
    let p = p * t - 1.151_461e-1;
    let p = p * t + 1.167_699_9e-1;
    let p = p * t - 1.242_014_1e-1;
    let p = p * t + 1.424_932_3e-1;
    let p = p * t - 1.666_805_8e-1;
    let p = p * t + 2.000_071_5e-1;
    let p = p * t - 2.499_999_4e-1;
    let p = p * t + 3.333_333e-1;
    let e = e as f32;
    t + (t * t * (p * t - 0.5) + e * -2.121_944_4e-4) + e * 0.693_359_4
}

/// The sum of f(0) to f(len - 1), in sixteen lanes so that it vectorises.
#[inline(always)]
pub(crate) fn lane_sum(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    for i in 0..len / 16 {
        for l in 0..16 {
            lanes[l] += f(16 * i + l);
        }
    }
    lanes.iter().sum::<f32>() + (len / 16 * 16..len).map(f).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (0..=100_000).map(move |i| low + (high - low) * (i as f32 / 100_000.0))
    }

    /// erf in f64 by its Taylor series, or the continued fraction of erfc far out.
    fn erf64(x: f64) -> f64 {
        if x.abs() > 3.0 {
            let mut f = 0.0;
            for k in (1..200).rev() {
                f = f64::from(k) / 2.0 / (x.abs() + f);
            }
            let tail = (-x * x).exp() / std::f64::consts::PI.sqrt() / (x.abs() + f);
            return x.signum() * (1.0 - tail);
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn exp_is_accurate_everywhere() {
        for x in sweep(-87.0, 88.0) {
            let (got, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / expected - 1.0).abs() < 3e-7, "{x}: {got} against {expected}");
        }
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_gelu_and_tanh_are_accurate_everywhere() {
        for x in sweep(-8.0, 8.0) {
            let wide = f64::from(x);
            assert!((f64::from(erf(x)) - erf64(wide)).abs() < 6e-7, "erf {x}");
            let phi = 0.5 * (1.0 + erf64(wide / 2f64.sqrt()));
            assert!((f64::from(gelu(x)) - wide * phi).abs() < 1e-6, "gelu {x}");
            let density = (-0.5 * wide * wide).exp() / std::f64::consts::TAU.sqrt();
            assert!((f64::from(gelu_derivative(x)) - (phi + wide * density)).abs() < 1e-6, "gelu' {x}");
            assert!((f64::from(tanh(x)) - wide.tanh()).abs() < 3e-7, "tanh {x}");
        }
        assert!(erf(f32::NAN).is_nan() && gelu(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_accurate() {
        for x in sweep(1e-7, 1.0).chain(sweep(1.0, 1e6)) {
            let error = (f64::from(ln(x)) - f64::from(x).ln()).abs();
            assert!(error < 1e-6, "{x}: {error}");
        }
    }
}
