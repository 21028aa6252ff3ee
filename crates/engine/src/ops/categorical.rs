//! Categorical distributions given by logits: log-probability, entropy, draws.

use super::{Backward, launches};
use crate::backend::Backend;
use crate::cpu::{math, multiversion};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::rng::{Site, open_unit};
use crate::tape::Grad;
use crate::{Buffer, DType, Device, Error, Result, Tape, Tensor};

/// Log-probability of given choices.
pub(crate) struct LogProb {
    logits: Tensor,
    choices: Tensor,
    /// softmax(logits); on a GPU the logarithm of its denominator.
    probabilities: Tensor,
    out: Tensor,
}

/// Entropy of the distribution.
pub(crate) struct Entropy {
    logits: Tensor,
    probabilities: Tensor,
    out: Tensor,
}

const LOG_PROB: &str = "log-probability";
const SAMPLE: &str = "sample";

/// A sampling temperature in device memory: a captured step reads it when it runs, so that it can be replayed at another temperature. It is
/// set between steps.
pub struct Temperature {
    buffer: Buffer,
}

impl Temperature {
    /// A temperature on a device.
    pub fn new(device: &Device, value: f32) -> Result<Temperature> {
        let temperature = Temperature { buffer: device.buffer::<f32>("temperature", [1])? };
        temperature.set(value)?;
        Ok(temperature)
    }

    /// 0 takes the most likely choice.
    pub fn set(&self, value: f32) -> Result<()> {
        check_temperature(value)?;
        self.buffer.write(&[value])
    }
}

fn check_temperature(value: f32) -> Result<()> {
    match value >= 0.0 && value.is_finite() {
        true => Ok(()),
        false => {
            let value = f64::from(value);
            Err(Error::BadArgument { op: SAMPLE, name: "temperature", value, rule: "0 or more" })
        }
    }
}

/// Where a draw finds its temperature.
#[derive(Clone, Copy)]
enum Heat<'a> {
    Constant(f32),
    OnDevice(&'a Temperature),
}

impl Tape {
    /// log softmax(logits)`[choice]`: logits [.., A], choices [..] -> [..]
    pub fn log_prob(&mut self, logits: Tensor, choices: Tensor) -> Result<Tensor> {
        self.check_f32(LOG_PROB, &[logits])?;
        self.check_not_empty(LOG_PROB, &[logits])?;
        self.check(LOG_PROB, choices, DType::I32)?;
        if logits.shape().rank() == 0 || choices.shape() != logits.shape().without_last() {
            let rule = "logits are [.., A] and choices [..]";
            return Err(Error::ShapeMismatch {
                op: LOG_PROB,
                lhs: logits.shape(),
                rhs: choices.shape(),
                rule,
            });
        }
        let (out, probabilities) = match self.backend() {
            Backend::Cpu => self.cpu_log_prob(logits, choices)?,
            Backend::Cuda(gpu) => self.gpu_log_prob(&gpu, logits, choices)?,
        };
        let needs_grad = self.needs_grad(logits);
        let out = self.push(out, choices.shape(), DType::F32, needs_grad);
        if needs_grad {
            self.record(LogProb { logits, choices, probabilities, out });
        }
        Ok(out)
    }

    fn cpu_log_prob(&mut self, logits: Tensor, choices: Tensor) -> Result<(Block, Tensor)> {
        let actions = logits.shape().last();
        super::embedding::check_indices(LOG_PROB, self.i32(choices), actions)?;
        let probabilities = self.probabilities(logits)?;
        let mut out = self.alloc(choices.len(), DType::F32)?;
        let (p, choices, logits) = (self.f32(probabilities), self.i32(choices), self.f32(logits));
        for (i, out) in out.f32_mut().iter_mut().enumerate() {
            // From the logits, not from log(p): exact also for choices of vanishing probability.
            let line = &logits[i * actions..(i + 1) * actions];
            let best = argmax(line);
            *out = (line[choices[i] as usize] - line[best]) + p[i * actions + best].ln();
        }
        Ok((out, probabilities))
    }

    fn gpu_log_prob(&mut self, gpu: &Gpu, logits: Tensor, choices: Tensor) -> Result<(Block, Tensor)> {
        let (rows, actions) = (choices.len(), logits.shape().last());
        launches::check_indices(self, gpu, LOG_PROB, choices, 0, actions)?;
        let normaliser = launches::row_normalisers(self, gpu, logits)?;
        let out = self.alloc(rows, DType::F32)?;
        let (grid, logits, choices) = (Grid::elements(gpu, rows), self.view(logits), self.at(choices));
        kernels::log_prob(gpu, grid, out.at(), logits, choices, self.at(normaliser), actions, rows)?;
        Ok((out, normaliser))
    }

    /// - sum p log p: logits [.., A] -> [..]
    pub fn entropy(&mut self, logits: Tensor) -> Result<Tensor> {
        const OP: &str = "entropy";
        self.check_f32(OP, &[logits])?;
        self.check_not_empty(OP, &[logits])?;
        let mut out = self.alloc(logits.shape().rows(), DType::F32)?;
        let probabilities = match self.backend() {
            Backend::Cpu => self.cpu_entropy(logits, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_entropy(&gpu, logits, &out)?,
        };
        let needs_grad = self.needs_grad(logits);
        let out = self.push(out, logits.shape().without_last(), DType::F32, needs_grad);
        if needs_grad {
            self.record(Entropy { logits, probabilities, out });
        }
        Ok(out)
    }

    fn cpu_entropy(&mut self, logits: Tensor, out: &mut Block) -> Result<Tensor> {
        let probabilities = self.probabilities(logits)?;
        let lines = self.f32(probabilities).chunks_exact(logits.shape().last());
        for (out, line) in out.f32_mut().iter_mut().zip(lines) {
            *out = -line.iter().map(|&p| p * log_or_zero(p)).sum::<f32>();
        }
        Ok(probabilities)
    }

    fn gpu_entropy(&mut self, gpu: &Gpu, logits: Tensor, out: &Block) -> Result<Tensor> {
        let (rows, actions) = (logits.shape().rows(), logits.shape().last());
        let normaliser = launches::row_normalisers(self, gpu, logits)?;
        let (grid, at) = (Grid::elements(gpu, rows), self.at(normaliser));
        kernels::entropy(gpu, grid, out.at(), self.view(logits), at, actions, rows)?;
        Ok(normaliser)
    }

    /// One draw per row from softmax(logits / temperature): logits [.., A] -> i32 [..]. Temperature 0 takes the largest.
    pub fn sample(&mut self, logits: Tensor, temperature: f32) -> Result<Tensor> {
        self.sample_op(logits, Heat::Constant(temperature), None)
    }

    /// [`sample`](Tape::sample) at a temperature that is read when the step runs.
    pub fn sample_at(&mut self, logits: Tensor, temperature: &Temperature) -> Result<Tensor> {
        self.sample_op(logits, Heat::OnDevice(temperature), None)
    }

    /// The same for logits [B, .., A], with the draws also written as step `t` of a buffer i32 [B, T].
    pub fn sample_into(
        &mut self,
        logits: Tensor,
        temperature: f32,
        buffer: &Buffer,
        t: usize,
    ) -> Result<Tensor> {
        let rows = logits.shape().rows();
        let &[batch, time] = buffer.shape().dims() else {
            return Err(Error::BadShape { op: SAMPLE, shape: buffer.shape(), rule: "the buffer is [B, T]" });
        };
        if buffer.dtype() != DType::I32 || batch != rows || t >= time {
            let rule = "draws of logits [B, .., A] go to a step of an i32 buffer [B, T]";
            return Err(Error::ShapeMismatch { op: SAMPLE, lhs: logits.shape(), rhs: buffer.shape(), rule });
        }
        self.sample_op(logits, Heat::Constant(temperature), Some((buffer, t)))
    }

    fn sample_op(&mut self, logits: Tensor, heat: Heat, copies: Option<(&Buffer, usize)>) -> Result<Tensor> {
        self.check_f32(SAMPLE, &[logits])?;
        self.check_not_empty(SAMPLE, &[logits])?;
        if let Heat::Constant(temperature) = heat {
            check_temperature(temperature)?;
        }
        if let Some((buffer, _)) = copies {
            self.writable(buffer, logits)?;
        }
        let site = self.next_site();
        let mut out = self.alloc(logits.shape().rows(), DType::I32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_sample(logits, heat, copies, site, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_sample(&gpu, logits, heat, copies, site, &out)?,
        }
        Ok(self.push(out, logits.shape().without_last(), DType::I32, false))
    }

    fn cpu_sample(
        &mut self,
        logits: Tensor,
        heat: Heat,
        copies: Option<(&Buffer, usize)>,
        site: Site,
        out: &mut Block,
    ) -> Result<()> {
        let temperature = match heat {
            Heat::Constant(value) => value,
            Heat::OnDevice(temperature) => {
                let value = self.buffer(&temperature.buffer)?;
                self.f32(value)[0]
            }
        };
        let actions = logits.shape().last();
        let mut bits = self.alloc(logits.len(), DType::I32)?;
        let mut noisy = self.scratch(actions)?;
        site.fill(0, bits.all_mut::<u32>());
        let logits = self.f32(logits);
        for (i, out) in out.all_mut::<i32>().iter_mut().enumerate() {
            let range = i * actions..(i + 1) * actions;
            add_gumbel(&logits[range.clone()], &bits.all::<u32>()[range], temperature, noisy.f32_mut());
            *out = argmax(noisy.f32()) as i32;
        }
        self.give_back(bits);
        self.give_back(noisy);
        if let Some((buffer, t)) = copies {
            let time = buffer.shape().last();
            self.with_buffer_mut::<i32, _>(buffer, |_, all| {
                out.all::<i32>().iter().enumerate().for_each(|(b, drawn)| all[b * time + t] = *drawn);
            })?;
        }
        Ok(())
    }

    /// A temperature on the device is read by the kernel.
    fn gpu_sample(
        &mut self,
        gpu: &Gpu,
        logits: Tensor,
        heat: Heat,
        copies: Option<(&Buffer, usize)>,
        site: Site,
        out: &Block,
    ) -> Result<()> {
        let (constant, on_device) = match heat {
            Heat::Constant(value) => (value, 0),
            Heat::OnDevice(temperature) => (0.0, self.buffer_at(&temperature.buffer)?),
        };
        let (at, stride) = match copies {
            Some((buffer, t)) => (self.buffer_at(buffer)? + 4 * t as u64, buffer.shape().last()),
            None => (0, 0),
        };
        let (rows, actions) = (logits.shape().rows(), logits.shape().last());
        let threads = if actions > 128 { 128 } else { 32 };
        kernels::sample(
            gpu,
            Grid { threads, ..Grid::blocks(rows) },
            out.at(),
            at,
            stride,
            self.view(logits),
            actions,
            constant,
            on_device,
            self.state(),
            site.number() as usize,
        )
    }

    fn probabilities(&mut self, logits: Tensor) -> Result<Tensor> {
        let mut block = self.alloc(logits.len(), DType::F32)?;
        block.f32_mut().copy_from_slice(self.f32(logits));
        for line in block.f32_mut().chunks_exact_mut(logits.shape().last().max(1)) {
            super::attention::softmax(line, 1.0);
        }
        Ok(self.push(block, logits.shape(), DType::F32, false))
    }
}

fn log_or_zero(p: f32) -> f32 {
    if p > 0.0 { p.ln() } else { 0.0 }
}

/// The first of the largest.
pub(super) fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best
}

multiversion! {
    /// The largest of logit / temperature + Gumbel noise is a draw from the softmax; scaled by the temperature, so that 0 is allowed.
    pub(super) fn add_gumbel(logits: &[f32], bits: &[u32], temperature: f32, out: &mut [f32]) {
        for ((o, l), b) in out.iter_mut().zip(logits).zip(bits) {
            *o = l - temperature * math::ln(-math::ln(open_unit(*b)));
        }
    }
}

impl Backward for LogProb {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.logits),
            |tape, dy, grad| self.cpu_gradient(tape, dy, grad),
            |tape, gpu, dy, grad| self.gpu_gradient(tape, gpu, dy, grad),
        )
    }
}

impl LogProb {
    fn cpu_gradient(&self, tape: &Tape, dy: &Block, grad: &mut Grad) {
        let (actions, accumulate) = (self.logits.shape().last(), grad.accumulate);
        let (p, choices) = (tape.f32(self.probabilities), tape.i32(self.choices));
        for (i, d) in grad.slice().iter_mut().enumerate() {
            let row = i / actions;
            let hit = if choices[row] as usize == i % actions { 1.0 } else { 0.0 };
            let value = dy.f32()[row] * (hit - p[i]);
            *d = if accumulate { *d + value } else { value };
        }
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (n, actions) = (self.logits.len(), self.logits.shape().last());
        let (grid, dy, add) = (Grid::elements(gpu, n), View::new(dy.at(), DType::F32), grad.accumulate);
        let (logits, choices) = (tape.view(self.logits), tape.at(self.choices));
        let normaliser = tape.at(self.probabilities);
        kernels::log_prob_gradient(gpu, grid, grad.view(), logits, choices, normaliser, dy, actions, n, add)
    }
}

impl Backward for Entropy {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.logits),
            |tape, dy, grad| self.cpu_gradient(tape, dy, grad),
            |tape, gpu, dy, grad| self.gpu_gradient(tape, gpu, dy, grad),
        )
    }
}

impl Entropy {
    fn cpu_gradient(&self, tape: &Tape, dy: &Block, grad: &mut Grad) {
        let (actions, accumulate) = (self.logits.shape().last(), grad.accumulate);
        let (p, entropy) = (tape.f32(self.probabilities), tape.f32(self.out));
        for (i, d) in grad.slice().iter_mut().enumerate() {
            let row = i / actions;
            let value = -dy.f32()[row] * p[i] * (log_or_zero(p[i]) + entropy[row]);
            *d = if accumulate { *d + value } else { value };
        }
    }

    fn gpu_gradient(&self, tape: &Tape, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (n, actions) = (self.logits.len(), self.logits.shape().last());
        let (grid, dy, add) = (Grid::elements(gpu, n), View::new(dy.at(), DType::F32), grad.accumulate);
        let (logits, entropy) = (tape.view(self.logits), tape.at(self.out));
        let normaliser = tape.at(self.probabilities);
        kernels::entropy_gradient(gpu, grid, grad.view(), logits, normaliser, entropy, dy, actions, n, add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, integers, values};
    use crate::{Key, StepId, Stepper};

    #[test]
    fn gradients() {
        for (rows, actions) in [(1, 1), (3, 5), (7, 18)] {
            check_gradients(&[&[rows, actions]], |tape, x| {
                let choices: Vec<i32> = (0..rows).map(|i| (i * 7 % actions) as i32).collect();
                let choices = integers(tape, &choices);
                tape.log_prob(x[0], choices)
            });
            check_gradients(&[&[rows, actions]], |tape, x| tape.entropy(x[0]));
        }
    }

    #[test]
    fn log_probabilities_of_unlikely_choices_are_exact() -> Result<()> {
        let device = Device::under_test(1)?;
        let logits = device.buffer::<f32>("logits", [1, 3])?;
        logits.write(&[0.0f32, -300.0, 1.0])?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let logits = tape.buffer(&logits)?;
            let choice = integers(tape, &[1]);
            let got = tape.log_prob(logits, choice)?;
            let expected = -300.0 - (1.0f64.exp() + 1.0).ln();
            assert!((f64::from(tape.read::<f32>(got)?[0]) - expected).abs() < 1e-4);
            Ok(())
        })
    }

    #[test]
    fn draws_follow_the_softmax_at_any_temperature() -> Result<()> {
        let device = Device::under_test(2)?;
        let rows = 20_000;
        let logits = [0.3f32, -1.0, 1.2, 0.0];
        let buffer = device.buffer::<f32>("logits", [rows, 4])?;
        buffer.write(&logits.repeat(rows))?;
        let mut stepper = Stepper::new(&device, Key::new(5, 0));
        for temperature in [1.0, 0.5, 2.0, 0.0] {
            let draws: Vec<i32> = stepper.run(|tape| {
                let logits = tape.buffer(&buffer)?;
                let draws = tape.sample(logits, temperature)?;
                tape.read(draws)
            })?;
            for action in 0..4 {
                let share = draws.iter().filter(|&&d| d == action as i32).count() as f32 / rows as f32;
                let expected = match temperature {
                    0.0 => [0.0, 0.0, 1.0, 0.0][action],
                    t => (logits[action] / t).exp() / logits.iter().map(|l| (l / t).exp()).sum::<f32>(),
                };
                assert!(
                    (share - expected).abs() < 0.015,
                    "at {temperature}, {action}: {share} for {expected}"
                );
            }
        }
        Ok(())
    }

    /// A captured step follows the temperature; on the CPU it is any step.
    #[test]
    fn a_temperature_on_the_device_is_read_when_the_step_runs() -> Result<()> {
        let device = Device::under_test(2)?;
        let rows = 64;
        let (logits, drawn) =
            (device.buffer::<f32>("logits", [rows, 4])?, device.buffer::<i32>("draws", [rows])?);
        logits.write(&values(rows * 4, 0))?;
        let temperature = Temperature::new(&device, 1.0)?;
        let mut stepper = Stepper::new(&device, Key::new(5, 0));
        let mut seen = Vec::new();
        // Twice until it is replayed.
        for heat in [1.0, 1.0, 1.0, 3.0, 0.0, 1.0] {
            temperature.set(heat)?;
            stepper.set_key(Key::new(5, 0));
            stepper.infer_captured(StepId::new("draw", &()), |tape| -> Result<()> {
                let logits = tape.buffer(&logits)?;
                let draws = tape.sample_at(logits, &temperature)?;
                tape.store(&drawn, 0, draws)
            })?;
            let got = drawn.read::<i32>()?;
            stepper.set_key(Key::new(5, 0));
            let expected = stepper.infer(|tape| -> Result<Vec<i32>> {
                let logits = tape.buffer(&logits)?;
                let draws = tape.sample(logits, heat)?;
                tape.read(draws)
            })?;
            assert_eq!(got, expected, "at {heat}");
            seen.push(got);
        }
        assert_eq!(seen[0], seen[5]);
        assert!(seen[3] != seen[0] && seen[4] != seen[0]);
        for wrong in [-1.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(temperature.set(wrong), Err(Error::BadArgument { .. })));
        }
        Ok(())
    }

    #[test]
    fn bad_choices_and_temperatures_are_errors() -> Result<()> {
        let device = Device::under_test(1)?;
        let buffer = device.buffer::<f32>("logits", [2, 3])?;
        buffer.write(&values(6, 0))?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let logits = tape.buffer(&buffer)?;
            let choices = integers(tape, &[1, 3]);
            assert_eq!(
                tape.log_prob(logits, choices).and_then(|p| tape.read::<f32>(p)).unwrap_err().to_string(),
                "log-probability: index 3 at position 1 is outside 0..3"
            );
            assert!(matches!(tape.sample(logits, -1.0), Err(Error::BadArgument { .. })));
            assert!(matches!(tape.sample(logits, f32::NAN), Err(Error::BadArgument { .. })));
            Ok(())
        })
    }
}
