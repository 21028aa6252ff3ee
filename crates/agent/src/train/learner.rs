//! Training steps: the losses over a batch, their gradient, Adam. Training runs them, `iris bench` times them, `iris selftest` compares them.

use std::hash::Hash;

use engine::{Adam, Buffer, Device, Key, StepId, Stepper, Tape, Tensor};

use super::{Epoch, Phase, Result};
use crate::layers::Network;

/// What a network is trained for: a batch in buffers of the device, and the losses over it.
pub trait Objective: Sync {
    const PHASE: Phase;
    type Model: Sync;
    /// Everything that the losses depend on beside the model and the contents of buffers.
    type Settings: Hash;

    /// The parameters that are trained.
    fn network(model: &Self::Model) -> &Network;

    fn settings(&self) -> Self::Settings;

    /// Names of the metrics, in the order of [`Losses::named`].
    fn names(&self) -> Vec<&'static str>;

    fn losses(&self, tape: &mut Tape, model: &Self::Model) -> engine::Result<Losses>;
}

/// The losses of one update.
pub struct Losses {
    /// The one that is minimised.
    pub total: Tensor,
    /// Scalars to report, by the names of their metrics.
    pub named: Vec<(&'static str, Tensor)>,
}

/// Everything that an update depends on beside the contents of buffers. The learner's own buffers stay the same as long as it lives.
#[derive(Hash)]
struct UpdateStep<Settings> {
    /// Of the network's parameters.
    parameters: u64,
    adam: Adam,
    part: Part,
    settings: Settings,
}

/// Which of the batches of one update.
#[derive(Clone, Copy, Hash)]
struct Part {
    first: bool,
    last: bool,
    /// Batches per update.
    of: usize,
}

/// Trains a network: the batch, the optimiser, the sums of the losses, and the step, which a GPU captures once.
pub struct Learner<O> {
    /// Its buffers are filled before each update.
    pub objective: O,
    adam: Adam,
    /// Where captured steps read it, f32 [1].
    learning_rate: Buffer,
    stepper: Stepper,
    sums: Sums,
}

impl<O: Objective> Learner<O> {
    pub fn new(device: &Device, objective: O, adam: Adam, learning_rate: f32) -> engine::Result<Learner<O>> {
        let names = objective.names();
        let buffer = device.buffer::<f32>("losses", [names.len()])?;
        Ok(Learner {
            objective,
            adam,
            learning_rate: device.scalar("learning rate", learning_rate)?,
            stepper: Stepper::new(device, Key::new(0, 0)),
            sums: Sums { buffer, names, batches: 0 },
        })
    }

    /// The randomness of the next update, such as dropout.
    pub fn set_key(&mut self, key: Key) {
        self.stepper.set_key(key);
    }

    /// The learning rate of the next updates.
    pub fn set_learning_rate(&self, rate: f32) -> engine::Result<()> {
        self.learning_rate.write(&[rate])
    }

    /// One update with the batch that is in the buffers.
    pub fn update(&mut self, model: &O::Model) -> engine::Result<()> {
        self.batch(model, Part { first: true, last: true, of: 1 })
    }

    /// Gradients of the batch that is in the buffers, and the update after the last one.
    fn batch(&mut self, model: &O::Model, part: Part) -> engine::Result<()> {
        let Learner { objective, adam, learning_rate, stepper, sums } = self;
        let params = &O::network(model).params;
        let step = UpdateStep {
            parameters: params.values().identity(),
            adam: *adam,
            part,
            settings: objective.settings(),
        };
        sums.batches += 1;
        let sums = &*sums;
        stepper.run_captured(StepId::new(O::PHASE.name(), &step), |tape| -> engine::Result<()> {
            let losses = objective.losses(tape, model)?;
            let total = match part.of {
                1 => losses.total,
                batches => tape.affine(losses.total, 1.0 / batches as f32, 0.0)?,
            };
            match part.first {
                true => tape.backward(total)?,
                false => tape.backward_adding(total, params)?,
            }
            if part.last {
                tape.adam(params, learning_rate, adam)?;
            }
            sums.add(tape, &losses.named)
        })
    }

    /// Means of the losses over the batches since the last call, by name.
    pub fn take_losses(&mut self) -> engine::Result<Vec<(&'static str, f32)>> {
        self.sums.take()
    }

    /// One update with the mean of the gradients of several batches, each made by `fill`.
    pub(super) fn accumulated<E: From<engine::Error>>(
        &mut self,
        model: &O::Model,
        batches: usize,
        fill: &mut impl FnMut(&O) -> Result<(), E>,
    ) -> Result<(), E> {
        for batch in 0..batches {
            fill(&self.objective)?;
            self.batch(model, Part { first: batch == 0, last: batch + 1 == batches, of: batches })?;
        }
        Ok(())
    }

    /// The updates of an epoch, of `accumulate` batches each; `fill` makes a batch.
    pub(super) fn learn(
        &mut self,
        model: &O::Model,
        (updates, accumulate): (usize, usize),
        epoch: &mut Epoch,
        mut fill: impl FnMut(&O) -> Result<()>,
    ) -> Result<()> {
        for update in 0..updates {
            self.accumulated(model, accumulate, &mut fill)?;
            epoch.progress(O::PHASE, update + 1, updates)?;
        }
        for (name, mean) in self.take_losses()? {
            epoch.made.metrics.add(name, mean);
        }
        match updates {
            0 => Ok(()),
            // A GPU was still at work when the last update had been handed to it; now it is not.
            _ => epoch.progress(O::PHASE, updates, updates),
        }
    }
}

/// Losses added up on the device and read once.
struct Sums {
    buffer: Buffer,
    names: Vec<&'static str>,
    /// Summed so far.
    batches: usize,
}

impl Sums {
    /// Part of captured steps, so that it changes nothing but the buffer.
    fn add(&self, tape: &mut Tape, named: &[(&'static str, Tensor)]) -> engine::Result<()> {
        debug_assert!(named.iter().map(|(name, _)| name).eq(&self.names));
        named.iter().enumerate().try_for_each(|(i, (_, loss))| tape.accumulate(&self.buffer, i, *loss))
    }

    fn take(&mut self) -> engine::Result<Vec<(&'static str, f32)>> {
        let batches = std::mem::take(&mut self.batches);
        if batches == 0 {
            return Ok(Vec::new());
        }
        let sums = self.buffer.read::<f32>()?;
        self.buffer.write(&vec![0f32; sums.len()])?;
        Ok(self.names.iter().copied().zip(sums).map(|(name, sum)| (name, sum / batches as f32)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::tiny_agent;
    use crate::{Agent, ErrorWeights, Tokenizer};

    /// So many losses, each the number of its place.
    struct Counted {
        losses: usize,
        frames: Buffer,
    }

    const NAMES: [&str; 12] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];

    impl Objective for Counted {
        const PHASE: Phase = Phase::Tokenizer;
        type Model = Tokenizer;
        type Settings = ();

        fn network(model: &Tokenizer) -> &Network {
            &model.network
        }

        fn settings(&self) {}

        fn names(&self) -> Vec<&'static str> {
            NAMES[..self.losses].to_vec()
        }

        fn losses(&self, tape: &mut Tape, model: &Tokenizer) -> engine::Result<Losses> {
            let x = tape.buffer(&self.frames)?;
            let total = model.loss(tape, x, None, ErrorWeights::default())?.total;
            let place = |place: usize| Ok((NAMES[place], tape.affine(total, 0.0, place as f32)?));
            let named: engine::Result<Vec<_>> = (0..self.losses).map(place).collect();
            Ok(Losses { total, named: named? })
        }
    }

    #[test]
    fn any_number_of_losses_is_averaged() -> engine::Result<()> {
        let device = Device::under_test(1)?;
        let Agent { tokenizer, .. } = tiny_agent(&device)?;
        for losses in [1, 8, 9, 12] {
            let frames = device.buffer::<f32>("frames", [1, 8, 8, 3])?;
            let mut learner = Learner::new(&device, Counted { losses, frames }, Adam::default(), 1e-4)?;
            assert_eq!(learner.take_losses()?, []);
            for updates in [3, 1] {
                (0..updates).try_for_each(|_| learner.update(&tokenizer))?;
                let expected: Vec<_> = (0..losses).map(|place| (NAMES[place], place as f32)).collect();
                assert_eq!(learner.take_losses()?, expected);
            }
        }
        Ok(())
    }

    /// The gradient of four batches is that of one batch with all their frames.
    #[test]
    fn batches_are_accumulated_to_a_larger_one() -> engine::Result<()> {
        let device = Device::under_test(1)?;
        let pixels: Vec<f32> = (0..4 * 192).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
        // Adam without momentum and with a large epsilon makes steps in proportion to the gradient.
        let adam = Adam { beta1: 0.0, beta2: 0.0, epsilon: 1e3, ..Adam::default() };
        let trained = |batch: usize, parts: &[usize]| -> engine::Result<Vec<f32>> {
            let Agent { tokenizer, .. } = tiny_agent(&device)?;
            let before = tokenizer.network.params.values().read::<f32>()?;
            let frames = device.buffer::<f32>("frames", [batch, 8, 8, 3])?;
            let mut learner = Learner::new(&device, Counted { losses: 1, frames }, adam, 1e3)?;
            let mut coming = parts.iter();
            learner.accumulated(&tokenizer, parts.len(), &mut |objective: &Counted| {
                let start = coming.next().copied().unwrap_or_default() * 192;
                objective.frames.write(&pixels[start..start + batch * 192])
            })?;
            let after = tokenizer.network.params.values().read::<f32>()?;
            Ok(after.iter().zip(before).map(|(after, before)| after - before).collect())
        };
        let (whole, parts) = (trained(4, &[0])?, trained(1, &[0, 1, 2, 3])?);
        let largest = whole.iter().fold(0f32, |most, x| most.max(x.abs()));
        let apart = whole.iter().zip(&parts).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(largest > 1e-3 && apart < 1e-3 * largest, "{apart} of {largest}");
        let fewer = trained(1, &[0, 1, 2])?;
        let apart = whole.iter().zip(&fewer).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart > 1e-2 * largest, "{apart} of {largest}");
        Ok(())
    }
}
