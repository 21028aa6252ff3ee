//! Rewards as the world model learns and imagines them.

use engine::{Error, Result, Tape, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the world model's reward head predicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RewardModel {
    /// A distribution over negative, zero and positive rewards, as in the reference release. Dreams draw from it.
    #[default]
    Sign,
    /// The reward itself by squared error, as in the paper's section 2.2. Dreams use the prediction.
    Mse,
    /// A distribution over bins of symlog(reward) = sign(reward) ln(1 + |reward|). Dreams use what it expects.
    SymlogBins,
}

/// Bins of symlog rewards, one of them at 0, and the largest symlog reward: about 22,000 as a reward.
pub(crate) const BINS: usize = 81;
pub(crate) const LARGEST: f32 = 10.0;

impl RewardModel {
    /// Outputs of the reward head.
    pub fn outputs(self) -> usize {
        match self {
            RewardModel::Sign => 3,
            RewardModel::Mse => 1,
            RewardModel::SymlogBins => BINS,
        }
    }

    /// Classes of a step in [`WorldModelBatch`](crate::WorldModelBatch).
    pub(crate) fn classes(self) -> usize {
        if self == RewardModel::SymlogBins { 2 } else { 1 }
    }

    /// Whether a batch has amounts beside the classes.
    pub(crate) fn has_amounts(self) -> bool {
        self != RewardModel::Sign
    }

    /// The classes of a reward, and the amount that belongs to each: for squared errors the reward, for bins how much of the reward is in the bin.
    pub(crate) fn target(self, reward: f32) -> ([i32; 2], [f32; 2]) {
        match self {
            RewardModel::Sign | RewardModel::Mse => {
                // The sign of the reward, plus one.
                let class = 1 + i32::from(reward > 0.0) - i32::from(reward < 0.0);
                ([class; 2], [reward; 2])
            }
            RewardModel::SymlogBins => {
                let symlog = reward.abs().ln_1p().copysign(reward).clamp(-LARGEST, LARGEST);
                let place = (symlog + LARGEST) * ((BINS - 1) as f32 / (2.0 * LARGEST));
                let low = place.floor().min((BINS - 2) as f32);
                ([low as i32, low as i32 + 1], [1.0 - (place - low), place - low])
            }
        }
    }

    /// The loss of outputs [B, L, R] over steps with mask 1. Classes are i32 [B, L], amounts [B, L]; for bins both are [B, L, 2].
    pub(crate) fn loss(
        self,
        tape: &mut Tape,
        outputs: Tensor,
        classes: Tensor,
        amounts: Option<Tensor>,
        mask: Tensor,
    ) -> Result<Tensor> {
        if self == RewardModel::Sign {
            let labels = tape.mask_labels(classes, mask)?;
            return tape.cross_entropy(outputs, labels);
        }
        let Some(amounts) = amounts else {
            return Err(Error::BadConfig { reason: "the batch has no amounts of rewards".into() });
        };
        let weights = tape.integers(mask, 1.0, 0.0)?;
        if self == RewardModel::Mse {
            let predicted = tape.reshape(outputs, mask.shape())?;
            let negative = tape.affine(amounts, -1.0, 0.0)?;
            let apart = tape.add(predicted, negative)?;
            let squared = tape.mul(apart, apart)?;
            return tape.weighted_mean(squared, weights);
        }
        let mut likelihood = |bin: usize| {
            let class = tape.slice(classes, 2, bin, bin + 1)?;
            let class = tape.reshape(class, mask.shape())?;
            let amount = tape.slice(amounts, 2, bin, bin + 1)?;
            let amount = tape.reshape(amount, mask.shape())?;
            let log_prob = tape.log_prob(outputs, class)?;
            tape.mul(log_prob, amount)
        };
        let (low, high) = (likelihood(0)?, likelihood(1)?);
        let likelihood = tape.add(low, high)?;
        let mean = tape.weighted_mean(likelihood, weights)?;
        tape.affine(mean, -1.0, 0.0)
    }

    /// Rewards [B, n] of a dream from outputs [B, n, R].
    pub(crate) fn imagine(self, tape: &mut Tape, outputs: Tensor) -> Result<Tensor> {
        match self {
            RewardModel::Sign => {
                let class = tape.sample(outputs, 1.0)?;
                tape.integers(class, 1.0, -1.0)
            }
            RewardModel::Mse => tape.reshape(outputs, outputs.shape().without_last()),
            RewardModel::SymlogBins => tape.symexp_mean(outputs, LARGEST),
        }
    }

    /// A reward as pictures show it: an expected one that is nearer to 0 than to 1 is none.
    pub fn shown(self, reward: f32) -> f32 {
        if self.has_amounts() && reward.abs() < 0.5 { 0.0 } else { reward }
    }

    /// Probabilities of a negative reward, of none, and of a positive one. A prediction by squared error is certain of the nearest whole number.
    pub(crate) fn signs(self, outputs: &[f32], softmax: impl Fn(&[f32]) -> Vec<f32>) -> [f32; 3] {
        match self {
            RewardModel::Mse => {
                let predicted = outputs.first().map_or(0.0, |reward| reward.round());
                [predicted < 0.0, predicted == 0.0, predicted > 0.0].map(|is| if is { 1.0 } else { 0.0 })
            }
            RewardModel::Sign | RewardModel::SymlogBins => {
                let probabilities = softmax(outputs);
                let middle = probabilities.len() / 2;
                let sum = |part: &[f32]| part.iter().sum();
                let (negative, rest) = probabilities.split_at(middle);
                [
                    sum(negative),
                    rest.first().copied().unwrap_or_default(),
                    sum(rest.get(1..).unwrap_or_default()),
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::{Adam, Device, Key, Stepper};

    use super::*;
    use crate::fuzzing::tiny_agent;
    use crate::train::{ActorCriticObjective, Learner, WorldModelObjective};
    use crate::{Acting, Agent, AgentConfig, Dreamer, ReturnScale, Returns, Sees, ValueModel};

    #[test]
    fn a_reward_lies_between_two_bins() {
        let width = 2.0 * LARGEST / (BINS - 1) as f32;
        for reward in [0.0, 1.0, -1.0, 10.0, -0.25, 437.0, 22000.0] {
            let (classes, amounts) = RewardModel::SymlogBins.target(reward);
            let mean: f32 = (0..2).map(|i| amounts[i] * (classes[i] as f32 * width - LARGEST)).sum();
            let back = mean.abs().exp_m1().copysign(mean);
            assert!((back - reward).abs() <= 1e-4 * reward.abs().max(1.0), "{back} for {reward}");
            assert!(amounts.iter().all(|a| (0.0..=1.0).contains(a)) && classes[1] == classes[0] + 1);
        }
        assert_eq!(RewardModel::SymlogBins.target(0.0), ([40, 41], [1.0, 0.0]));
        assert_eq!(RewardModel::SymlogBins.target(1e30), ([79, 80], [0.0, 1.0]));
        assert_eq!(RewardModel::SymlogBins.target(-1e30), ([0, 1], [1.0, 0.0]));
        assert_eq!(RewardModel::Sign.target(-7.0).0[0], 0);
        assert_eq!(RewardModel::Mse.target(-7.0).1[0], -7.0);
    }

    /// By hand, with a padded step that must not count.
    #[test]
    fn losses_match_the_definition() -> Result<()> {
        let device = Device::under_test(1)?;
        let floats = |shape: &[usize], values: &[f32]| {
            let buffer = device.buffer::<f32>("numbers", engine::Shape::try_from(shape)?)?;
            buffer.write(values)?;
            Ok::<_, Error>(buffer)
        };
        let integers = |shape: &[usize], values: &[i32]| {
            let buffer = device.buffer::<i32>("integers", engine::Shape::try_from(shape)?)?;
            buffer.write(values)?;
            Ok::<_, Error>(buffer)
        };
        let mask = integers(&[1, 3], &[1, 1, 0])?;
        let (outputs, amounts) = (floats(&[1, 3, 1], &[1.0, 3.0, 9.0])?, floats(&[1, 3], &[2.0, 6.0, 0.0])?);
        let classes = integers(&[1, 3], &[2, 2, 1])?;
        let logits: Vec<f32> = (0..3 * BINS).map(|i| (i as f32).sin()).collect();
        let bins = floats(&[1, 3, BINS], &logits)?;
        let (low, shares) = (
            integers(&[1, 3, 2], &[3, 4, 70, 71, 0, 1])?,
            floats(&[1, 3, 2], &[0.25, 0.75, 1.0, 0.0, 1.0, 0.0])?,
        );
        Stepper::new(&device, Key::new(0, 0)).run(|tape| -> Result<()> {
            let mask = tape.buffer(&mask)?;
            let (x, y, c) = (tape.buffer(&outputs)?, tape.buffer(&amounts)?, tape.buffer(&classes)?);
            let mse = RewardModel::Mse.loss(tape, x, c, Some(y), mask)?;
            assert!((tape.read::<f32>(mse)?[0] - (1.0 + 9.0) / 2.0).abs() < 1e-5);
            let (x, y, c) = (tape.buffer(&bins)?, tape.buffer(&shares)?, tape.buffer(&low)?);
            let loss = RewardModel::SymlogBins.loss(tape, x, c, Some(y), mask)?;
            let log_prob = |step: usize, bin: usize| {
                let line = &logits[step * BINS..(step + 1) * BINS];
                f64::from(line[bin]) - line.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln()
            };
            let expected = -(0.25 * log_prob(0, 3) + 0.75 * log_prob(0, 4) + log_prob(1, 70)) / 2.0;
            assert!((f64::from(tape.read::<f32>(loss)?[0]) - expected).abs() < 1e-4);
            assert!(RewardModel::Mse.loss(tape, x, c, None, mask).is_err());
            Ok(())
        })
    }

    /// A world model that has learnt a game without pictures in which action 0 is rewarded with 1 and action 1 with 10.
    fn trained(
        device: &Device,
        model: RewardModel,
        options: bool,
    ) -> Result<(Agent, Learner<WorldModelObjective>)> {
        let mut config: AgentConfig = tiny_agent(device)?.config;
        let (w, p) = (&mut config.world_model, &mut config.actor_critic);
        if options {
            (p.sees, p.previous_action, p.values) = (Sees::Codes, true, ValueModel::SymlogBins);
        }
        (w.reward, w.steps, w.width, w.init_std) = (model, 4, 16, 0.1);
        (w.embedding_dropout, w.attention_dropout, w.residual_dropout) = (0.0, 0.0, 0.0);
        p.hidden = 8;
        let agent = Agent::new(device, &config, 0)?;
        let batch = WorldModelObjective::new(device, &config, 4)?;
        let actions: Vec<i32> = (0..16).map(|i| ((i / 4) >> (i % 2)) & 1).collect();
        let targets: Vec<_> =
            actions.iter().map(|a| model.target(if *a == 0 { 1.0 } else { 10.0 })).collect();
        let classes = model.classes();
        batch.actions.write(&actions)?;
        batch.rewards.write(&targets.iter().flat_map(|t| t.0[..classes].to_vec()).collect::<Vec<_>>())?;
        if let Some(amounts) = &batch.amounts {
            amounts.write(&targets.iter().flat_map(|t| t.1[..classes].to_vec()).collect::<Vec<_>>())?;
        }
        batch.mask.write(&[1i32; 16])?;
        let mut learner = Learner::new(device, batch, Adam::default(), 5e-3)?;
        (0..400).try_for_each(|_| learner.update(&agent.world_model))?;
        Ok((agent, learner))
    }

    /// Whoever learns amounts can tell the actions apart, and learns in dreams to take the better one.
    #[test]
    fn a_larger_reward_is_preferred_where_amounts_are_learnt() -> Result<()> {
        let device = Device::under_test(1)?;
        for (model, options) in [
            (RewardModel::Sign, false),
            (RewardModel::Mse, false),
            (RewardModel::SymlogBins, false),
            (RewardModel::SymlogBins, true),
        ] {
            let (agent, learner) = trained(&device, model, options)?;
            let batch = &learner.objective;
            let imagined = Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
                let (tokens, actions) = (tape.buffer(&batch.tokens)?, tape.buffer(&batch.actions)?);
                let output = agent.world_model.forward(tape, tokens, actions, false)?;
                let rewards = model.imagine(tape, output.rewards)?;
                tape.read(rewards)
            })?;
            for (action, got) in batch.actions.read::<i32>()?.iter().zip(imagined) {
                let expected = if *action == 0 || model == RewardModel::Sign { 1.0 } else { 10.0 };
                assert!((got - expected).abs() < 0.1 * expected + 0.1, "{model:?}: {got} for {expected}");
            }

            let mut dreamer = Dreamer::new(&device, &agent, 32, 4, 0, Key::new(1, 0))?;
            let mut returns = Returns { gamma: 0.9, entropy_weight: 0.05, ..Returns::default() };
            if options {
                // Returns differ by tens: what they are divided by makes the entropy's weight count more.
                (returns.scale, returns.entropy_weight) = (ReturnScale::Percentiles, 0.001);
            }
            let objective = ActorCriticObjective::new(dreamer.trajectories().clone(), returns);
            let mut learner = Learner::new(&device, objective, Adam::default(), 1e-2)?;
            for _ in 0..150 {
                dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
                learner.update(&agent)?;
            }
            let actions =
                dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?.actions.read::<i32>()?;
            let better = actions.iter().filter(|action| **action == 1).count() as f32 / actions.len() as f32;
            match model {
                RewardModel::Sign => assert!((0.1..0.9).contains(&better), "{better}"),
                _ => assert!(better > 0.95, "{model:?}, options {options}: {better}"),
            }
        }
        Ok(())
    }
}
