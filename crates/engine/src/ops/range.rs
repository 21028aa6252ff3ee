//! Division by the running range of numbers: the distance between two of their percentiles, followed by a moving average.

use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{Buffer, DType, Device, Error, Result, Tape, Tensor};

const OP: &str = "over range";

/// Numbers whose percentiles can be taken: one block of a GPU sorts them in its shared memory.
pub const MOST_RANGED: usize = 4096;

/// The percentiles, as shares.
const LOW: f32 = 0.05;
const HIGH: f32 = 0.95;
/// Share of the average that stays from one step to the next.
const DECAY: f32 = 0.99;

/// The average so far, in device memory.
pub struct RunningRange {
    /// [range, 1 once there is one]
    buffer: Buffer,
}

impl RunningRange {
    /// One that has seen nothing.
    pub fn new(device: &Device) -> Result<RunningRange> {
        Ok(RunningRange { buffer: device.buffer::<f32>("running range", [2])? })
    }

    /// Where it is kept, f32 `[2]`: the range, and 1 once there is one.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Tape {
    /// x / max(1, range), where the range is the moving average of the distance between the 5th and the 95th percentile of `of`, which takes in this step's
    /// first. Steps whose `alive` is 0 do not count. Without gradient: x, of, alive [..] -> [..]
    pub fn over_range(
        &mut self,
        x: Tensor,
        of: Tensor,
        alive: Tensor,
        range: &RunningRange,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[x, of])?;
        self.check_exact(OP, &[alive])?;
        for other in [of, alive] {
            if other.shape() != x.shape() {
                let rule = "all three have the same shape";
                return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: other.shape(), rule });
            }
        }
        if !(1..=MOST_RANGED).contains(&x.len()) {
            return Err(Error::BadShape {
                op: OP,
                shape: x.shape(),
                rule: "there are from 1 to 4096 numbers",
            });
        }
        let mut out = self.alloc(x.len(), DType::F32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_over_range(x, of, alive, range, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_over_range(&gpu, x, of, alive, range, &out)?,
        }
        Ok(self.push(out, x.shape(), DType::F32, false))
    }

    fn cpu_over_range(
        &mut self,
        x: Tensor,
        of: Tensor,
        alive: Tensor,
        range: &RunningRange,
        out: &mut Block,
    ) -> Result<()> {
        let mut sorted = self.scratch(of.len())?;
        let live = self.f32(of).iter().zip(self.f32(alive)).filter(|(_, alive)| **alive != 0.0);
        let mut count = 0;
        for (place, (value, _)) in sorted.f32_mut().iter_mut().zip(live) {
            *place = *value;
            count += 1;
        }
        let sorted_live = &mut sorted.f32_mut()[..count];
        sorted_live.sort_unstable_by(f32::total_cmp);
        let scale = self.with_buffer_mut::<f32, _>(&range.buffer, |_, state| {
            if !sorted_live.is_empty() {
                let now = percentile(sorted_live, HIGH) - percentile(sorted_live, LOW);
                state[0] = if state[1] != 0.0 { DECAY * state[0] + (1.0 - DECAY) * now } else { now };
                state[1] = 1.0;
            }
            state[0].max(1.0)
        })?;
        self.give_back(sorted);
        out.f32_mut().iter_mut().zip(self.f32(x)).for_each(|(out, x)| *out = x / scale);
        Ok(())
    }

    fn gpu_over_range(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        of: Tensor,
        alive: Tensor,
        range: &RunningRange,
        out: &Block,
    ) -> Result<()> {
        let (n, size) = (x.len(), x.len().next_power_of_two());
        let state = self.buffer_at(&range.buffer)?;
        let grid = Grid { threads: size.clamp(32, 1024), shared: 4 * size, ..Grid::blocks(1) };
        let (to, x, of, alive) = (out.at(), self.view(x), self.view(of), self.at(alive));
        kernels::over_range(gpu, grid, to, state, x, of, alive, n, size, LOW, HIGH, DECAY)
    }
}

/// Of sorted numbers, interpolated between the two nearest.
fn percentile(sorted: &[f32], share: f32) -> f32 {
    let place = share * (sorted.len() - 1) as f32;
    let below = place.floor();
    let (low, high) = (below as usize, (below as usize + 1).min(sorted.len() - 1));
    sorted[low] + (sorted[high] - sorted[low]) * (place - below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{constant, values};
    use crate::{Key, Stepper};

    /// The distance between the percentiles of numbers, by its definition.
    fn distance(numbers: &[f32]) -> f64 {
        let mut sorted: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            sorted[low] + (sorted[(low + 1).min(sorted.len() - 1)] - sorted[low]) * part
        };
        at(0.95) - at(0.05)
    }

    #[test]
    fn numbers_are_divided_by_their_running_range() -> Result<()> {
        let device = Device::under_test(1)?;
        for n in [1, 2, 7, 32, 100, 1280, 4096] {
            let range = RunningRange::new(&device)?;
            let mut stepper = Stepper::new(&device, Key::new(0, 0));
            let mut expected = None;
            // The second is wider, the third has fewer live numbers.
            for (step, width) in [3.0, 40.0, 5.0].into_iter().enumerate() {
                let (x, mut of) = (values(n, 0), values(n, step + 1));
                of.iter_mut().for_each(|value| *value *= width);
                let alive: Vec<f32> =
                    (0..n).map(|i| if step == 2 && i % 3 == 1 { 0.0 } else { 1.0 }).collect();
                let live: Vec<f32> =
                    of.iter().zip(&alive).filter(|(_, a)| **a != 0.0).map(|(v, _)| *v).collect();
                let now = distance(&live);
                let average = expected.map_or(now, |before: f64| 0.99 * before + 0.01 * now);
                expected = Some(average);
                let got = stepper.run(|tape| -> Result<Vec<f32>> {
                    let (x, of) = (constant(tape, &x, [n]), constant(tape, &of, [n]));
                    let alive = constant(tape, &alive, [n]);
                    let out = tape.over_range(x, of, alive, &range)?;
                    tape.read(out)
                })?;
                let scale = average.max(1.0);
                for (x, got) in x.iter().zip(got) {
                    let expected = f64::from(*x) / scale;
                    assert!((f64::from(got) - expected).abs() < 1e-4, "{n}: {got} for {expected}");
                }
                let state = range.buffer().read::<f32>()?;
                assert!((f64::from(state[0]) - average).abs() < 1e-3 && state[1] == 1.0, "{state:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_is_nearly_alike_is_not_blown_up() -> Result<()> {
        let device = Device::under_test(1)?;
        let range = RunningRange::new(&device)?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let x = constant(tape, &[0.5, -0.25], [2]);
            let of = constant(tape, &[0.1, 0.2], [2]);
            let alive = constant(tape, &[1.0, 1.0], [2]);
            let out = tape.over_range(x, of, alive, &range)?;
            assert_eq!(tape.read::<f32>(out)?, [0.5, -0.25]);
            let short = constant(tape, &[1.0], [1]);
            assert!(tape.over_range(x, short, alive, &range).is_err());
            let many = vec![0.0; MOST_RANGED + 1];
            let many = constant(tape, &many, [many.len()]);
            let error = tape.over_range(many, many, many, &range).unwrap_err().to_string();
            assert!(error.contains("from 1 to 4096"), "{error}");
            Ok(())
        })
    }
}
