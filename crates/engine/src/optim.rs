//! Adam and AdamW over a network's flat buffer, with the gradient clipped by its global norm: one pass each.

use std::hash::{Hash, Hasher};

use crate::backend::Backend;
use crate::cpu::{self, multiversion};
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::params::Training;
use crate::{Buffer, DType, Error, Params, Result, Tape, Tensor};

/// How parameters are updated. The learning rate is not among the settings: it lies in a buffer, so that a captured step can be replayed at
/// another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the gradient's running mean.
    pub beta1: f32,
    /// Decay of the running mean of its square.
    pub beta2: f32,
    /// Added to the root of that mean before dividing by it.
    pub epsilon: f32,
    /// Decoupled (AdamW), only for parameters declared as decayed.
    pub weight_decay: f32,
    /// The gradient is scaled down to this global norm if it is longer.
    pub max_grad_norm: f32,
}

impl Default for Adam {
    fn default() -> Adam {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, max_grad_norm: 10.0 }
    }
}

impl Hash for Adam {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Adam { beta1, beta2, epsilon, weight_decay, max_grad_norm } = *self;
        [beta1, beta2, epsilon, weight_decay, max_grad_norm].map(f32::to_bits).hash(state);
    }
}

/// Elements per task, and summed in f32 before they join an f64 total.
const CHUNK: usize = 4096;

impl Tape {
    /// Updates `params` from the gradients of the last [`backward`](Tape::backward), at the learning rate in `rate` (f32 `[1]`). Returns the
    /// gradient's global norm before clipping. A norm that is not finite changes nothing and is an error.
    pub fn adam(&mut self, params: &Params, rate: &Buffer, adam: &Adam) -> Result<Tensor> {
        let Some(training) = &params.training else {
            return Err(Error::Frozen { name: params.name().to_string() });
        };
        if rate.dtype() != DType::F32 || rate.shape().len() != 1 {
            let rule = "a learning rate is one f32";
            return Err(Error::BadShape { op: "adam", shape: rate.shape(), rule });
        }
        if !self.use_gradients(params) {
            return Err(Error::NoGradient { op: "adam" });
        }
        let norm = match self.backend() {
            Backend::Cpu => self.cpu_adam(params, training, rate, adam)?,
            Backend::Cuda(gpu) => self.gpu_adam(&gpu, params, training, rate, adam)?,
        };
        Ok(self.push(norm, [], DType::F32, false))
    }

    fn cpu_adam(
        &mut self,
        params: &Params,
        training: &Training,
        rate: &Buffer,
        adam: &Adam,
    ) -> Result<Block> {
        let learning_rate = self.buffer(rate)?;
        let learning_rate = self.f32(learning_rate)[0];
        let mut parts = self.scratch(training.gradients.shape().len().div_ceil(CHUNK))?;
        let gradients = self.buffer(&training.gradients)?;
        let g = self.f32(gradients);
        cpu::chunks_mut_of(g.len(), parts.f32_mut(), 1, |i, part| {
            part[0] = sum_of_squares(&g[i * CHUNK..g.len().min((i + 1) * CHUNK)]);
        });
        let norm = parts.f32().iter().map(|&p| f64::from(p)).sum::<f64>().sqrt() as f32;
        self.give_back(parts);
        if !norm.is_finite() {
            return Err(Error::NotFinite { what: "the gradient's norm", value: norm });
        }
        let clip = (adam.max_grad_norm / (norm + 1e-6)).min(1.0);

        let updates = self.with_buffer_mut::<i32, _>(&training.updates, |_, updates| {
            updates[0] += 1;
            updates[0]
        })?;
        let correction1 = 1.0 - f64::from(adam.beta1).powi(updates);
        let correction2 = 1.0 - f64::from(adam.beta2).powi(updates);
        let factors = Factors {
            step: (f64::from(learning_rate) / correction1) as f32,
            root: (1.0 / correction2.sqrt()) as f32,
            epsilon: adam.epsilon,
            keep: 1.0,
        };
        let decayed = Factors { keep: 1.0 - learning_rate * adam.weight_decay, ..factors };

        self.with_buffer_mut::<f32, _>(&training.first_moments, |tape, first| {
            let g = tape.f32(gradients);
            cpu::chunks_mut(first, CHUNK, |i, m| blend(&g[i * CHUNK..], clip, adam.beta1, m));
        })?;
        self.with_buffer_mut::<f32, _>(&training.second_moments, |tape, second| {
            let g = tape.f32(gradients);
            cpu::chunks_mut(second, CHUNK, |i, v| blend_squares(&g[i * CHUNK..], clip, adam.beta2, v));
        })?;
        let (first, second) = (self.buffer(&training.first_moments)?, self.buffer(&training.second_moments)?);
        self.with_buffer_mut::<f32, _>(&params.values, |tape, values| {
            let (m, v) = (tape.f32(first), tape.f32(second));
            for spec in params.specs() {
                let factors = if spec.decay { &decayed } else { &factors };
                let range = spec.offset..spec.offset + spec.shape.len();
                let (m, v) = (&m[range.clone()], &v[range.clone()]);
                cpu::chunks_mut(&mut values[range], CHUNK, |i, p| {
                    update(&m[i * CHUNK..], &v[i * CHUNK..], factors, p);
                });
            }
        })?;
        let mut out = self.alloc(1, DType::F32)?;
        out.f32_mut()[0] = norm;
        Ok(out)
    }

    /// Without the host: a kernel computes the factors of the update from the norm.
    fn gpu_adam(
        &mut self,
        gpu: &Gpu,
        params: &Params,
        training: &Training,
        rate: &Buffer,
        adam: &Adam,
    ) -> Result<Block> {
        let n = params.values.shape().len();
        let count = Grid::parts(gpu, n);
        let (sums, factors) = (self.scratch(2 * count)?, self.scratch(5)?);
        let norm = self.alloc(1, DType::F32)?;
        let [values, gradients, first, second, updates, decayed] = [
            &params.values,
            &training.gradients,
            &training.first_moments,
            &training.second_moments,
            &training.updates,
            &training.decayed,
        ]
        .map(|buffer| self.buffer_at(buffer));
        let (gradients, updates, rate) = (gradients?, updates?, self.buffer_at(rate)?);
        let narrow = params.narrow.as_ref().map(|copy| self.buffer_at(copy)).transpose()?;
        kernels::squares(gpu, Grid::blocks(count), gradients, sums.at(), n)?;
        kernels::adam_factors(
            gpu,
            Grid::blocks(1),
            sums.at(),
            count,
            updates,
            norm.at(),
            factors.at(),
            rate,
            adam.beta1,
            adam.beta2,
            adam.weight_decay,
            adam.max_grad_norm,
            gpu.op("the gradient's norm"),
            gpu.fault(),
        )?;
        kernels::adam(
            gpu,
            Grid::elements(gpu, n),
            values?,
            narrow.unwrap_or(0),
            gradients,
            first?,
            second?,
            decayed?,
            factors.at(),
            adam.beta1,
            adam.beta2,
            adam.epsilon,
            n,
        )?;
        self.give_back(sums);
        self.give_back(factors);
        Ok(norm)
    }
}

/// The numbers of one update.
#[derive(Clone, Copy)]
struct Factors {
    /// Learning rate over the first bias correction.
    step: f32,
    /// One over the root of the second bias correction.
    root: f32,
    epsilon: f32,
    /// What weight decay leaves of a parameter.
    keep: f32,
}

multiversion! {
    fn sum_of_squares(g: &[f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (chunks, rest) = g.as_chunks::<16>();
        for chunk in chunks {
            for l in 0..16 {
                lanes[l] += chunk[l] * chunk[l];
            }
        }
        lanes.iter().sum::<f32>() + rest.iter().map(|g| g * g).sum::<f32>()
    }
}

multiversion! {
    fn blend(g: &[f32], clip: f32, beta: f32, m: &mut [f32]) {
        for (m, g) in m.iter_mut().zip(g) {
            *m = beta * *m + (1.0 - beta) * (g * clip);
        }
    }
}

multiversion! {
    fn blend_squares(g: &[f32], clip: f32, beta: f32, v: &mut [f32]) {
        for (v, g) in v.iter_mut().zip(g) {
            *v = beta * *v + (1.0 - beta) * ((g * clip) * (g * clip));
        }
    }
}

multiversion! {
    fn update(m: &[f32], v: &[f32], factors: &Factors, p: &mut [f32]) {
        let f = *factors;
        for ((p, m), v) in p.iter_mut().zip(m).zip(v) {
            *p = *p * f.keep - f.step * m / (v.sqrt() * f.root + f.epsilon);
        }
    }
}
