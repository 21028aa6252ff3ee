//! The policy and the value function: a CNN and an LSTM over reconstructed frames (paper, section 2.3 and appendix A.3), or over their tokens' codes.

use std::hash::{Hash, Hasher};

use engine::{
    Activation, Device, Error, Init, Lstm, Param, Params, Result, RunningRange, Stride, Tape, Tensor,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layers::{Builder, Conv, Layout, Linear, LinearInit, Network, Norm};
use crate::rewards::{BINS, LARGEST};
use crate::{ActorCriticConfig, Sees, TokenizerConfig, TokenizerKind, ValueModel};

pub struct ActorCritic {
    pub config: ActorCriticConfig,
    pub network: Network,
    /// What codes go through before the convolutions; none where the policy sees frames.
    codes: Option<(Option<Norm>, Linear)>,
    convs: Vec<Conv>,
    dense: Option<(Linear, Norm)>,
    lstm: Linear,
    lstm_hidden: Linear,
    critic: Linear,
    actor: Linear,
    /// Shares of the LSTM's gates, [A + 1, 4 * hidden]: a row for each action, and one for none.
    previous: Option<Param>,
    /// Of the lambda-returns, where advantages are divided by it.
    pub(crate) return_range: RunningRange,
}

/// What the network is given.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// What [`Agent::view`](crate::Agent::view) makes of tokens: frames [.., H, W, 3] in [0, 1] or codes [.., h, w, E].
    pub view: Tensor,
    /// The action before each view, i32 [..], the number of actions for none; only where `previous_action` is set.
    pub previous: Option<Tensor>,
}

impl From<Tensor> for Seen {
    fn from(view: Tensor) -> Seen {
        Seen { view, previous: None }
    }
}

/// What the network makes of what it sees.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The LSTM's input, [N, F].
    pub features: Tensor,
    /// The input's share of the LSTM's gates, [N, 4 * hidden].
    pub gates: Tensor,
}

/// What the network says about what it sees.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// [.., A]
    pub logits: Tensor,
    /// [..]
    pub values: Tensor,
    /// What the values are expected from, [.., bins]; none where the network gives the values themselves.
    pub bins: Option<Tensor>,
}

#[derive(Clone, Copy, Debug)]
pub struct ActorCriticLosses {
    pub total: Tensor,
    pub actions: Tensor,
    pub values: Tensor,
    pub entropy: Tensor,
}

impl ActorCriticLosses {
    /// The names that the reference release logs, in the order of [`named`](ActorCriticLosses::named).
    pub const NAMES: [&'static str; 4] = [
        "actor_critic/train/total_loss",
        "actor_critic/train/loss_actions",
        "actor_critic/train/loss_values",
        "actor_critic/train/loss_entropy",
    ];

    /// The losses under the names that the reference release logs.
    pub fn named(&self) -> [(&'static str, Tensor); 4] {
        let [total, actions, values, entropy] = Self::NAMES;
        [(total, self.total), (actions, self.actions), (values, self.values), (entropy, self.entropy)]
    }
}

/// What the losses of imagined trajectories depend on. The defaults are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Returns {
    /// Discount factor per step.
    pub gamma: f32,
    /// Lambda of the lambda-returns: 0 for one-step returns, 1 for returns of the whole dream.
    pub lambda: f32,
    /// Weight of the entropy bonus.
    pub entropy_weight: f32,
    /// Ignore imagined steps after an imagined end, as in the paper; the reference release includes them.
    pub stop_at_end: bool,
    /// Scale of advantages: "none", as in the paper, or "percentiles" to divide them by the distance between the 5th and the 95th percentile of the
    /// lambda-returns, a moving average over updates, where it is above 1.
    pub scale: ReturnScale,
}

/// What advantages are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReturnScale {
    /// Nothing, as in the paper.
    #[default]
    None,
    /// max(1, P95 - P5) of the lambda-returns that count, as a moving average over updates.
    Percentiles,
}

impl Hash for Returns {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Returns { gamma, lambda, entropy_weight, stop_at_end, scale } = *self;
        [gamma, lambda, entropy_weight].map(f32::to_bits).hash(state);
        (stop_at_end, scale).hash(state);
    }
}

impl Default for Returns {
    fn default() -> Returns {
        Returns {
            gamma: 0.995,
            lambda: 0.95,
            entropy_weight: 0.001,
            stop_at_end: true,
            scale: ReturnScale::None,
        }
    }
}

impl ActorCritic {
    pub fn new(
        device: &Device,
        config: &ActorCriticConfig,
        tokenizer: &TokenizerConfig,
        actions: usize,
        seed: u64,
    ) -> Result<ActorCritic> {
        ActorCritic::within(device, config, tokenizer, actions, seed, usize::MAX)
    }

    /// [`new`](ActorCritic::new) with at most `limit` parameters.
    pub(crate) fn within(
        device: &Device,
        config: &ActorCriticConfig,
        tokenizer: &TokenizerConfig,
        actions: usize,
        seed: u64,
        limit: usize,
    ) -> Result<ActorCritic> {
        let mut b = Builder::new(LinearInit::Uniform);
        let (codes, mut inputs, size, channels) = match (config.sees, config.channels.split_first()) {
            (Sees::Codes, Some((&width, rest))) => {
                // Entries of a codebook start near 0 and grow while it learns; levels lie between -1 and 1.
                let norm = match tokenizer.kind {
                    TokenizerKind::Vq => Some(b.norm("codes_norm", tokenizer.embedding)?),
                    TokenizerKind::Fsq => None,
                };
                let codes = (norm, b.linear("codes", tokenizer.embedding, width)?);
                (Some(codes), width, tokenizer.grid(), rest)
            }
            _ => (None, 3, tokenizer.frame_size >> config.channels.len(), &config.channels[..]),
        };
        let mut convs = Vec::new();
        for (i, &channels) in channels.iter().enumerate() {
            convs.push(b.conv3x3(&format!("conv{}", i + 1), inputs, channels)?);
            inputs = channels;
        }
        let (pixels, hidden) = (size * size * inputs, config.hidden);
        let flattened = Layout::Flattened { height: size, width: size, channels: inputs };
        let dense = match config.dense {
            0 => None,
            width => Some((b.linear_with("dense", pixels, width, flattened)?, b.norm("dense_norm", width)?)),
        };
        let (features, layout) =
            if dense.is_some() { (config.dense, Layout::Same) } else { (pixels, flattened) };
        let init = Init::Uniform(1.0 / (hidden as f32).sqrt());
        let mut lstm_param = |name: &str, shape: &[usize], layout| -> Result<Param> {
            b.within("lstm", |b| b.param(name, shape, init, layout))
        };
        let weight_ih = lstm_param("weight_ih", &[4 * hidden, features], layout)?;
        let weight_hh = lstm_param("weight_hh", &[4 * hidden, hidden], Layout::Same)?;
        let bias_ih = lstm_param("bias_ih", &[4 * hidden], Layout::Same)?;
        let bias_hh = lstm_param("bias_hh", &[4 * hidden], Layout::Same)?;
        let seen = if config.skip { hidden + features } else { hidden };
        let critic = b.linear("critic_linear", seen, config.values.outputs())?;
        let actor = b.linear("actor_linear", seen, actions)?;
        let previous = match config.previous_action {
            true => Some(b.embedding("previous_action", actions + 1, 4 * hidden, init)?),
            false => None,
        };
        Ok(ActorCritic {
            config: config.clone(),
            network: b.finish(device, "actor_critic", seed, limit)?,
            codes,
            convs,
            dense,
            lstm: Linear { weight: weight_ih, bias: bias_ih },
            lstm_hidden: Linear { weight: weight_hh, bias: bias_hh },
            critic,
            actor,
            previous,
            return_range: RunningRange::new(device)?,
        })
    }

    fn params(&self) -> &Params {
        &self.network.params
    }

    /// Frames [N, H, W, 3] in [0, 1] or codes [N, h, w, E] -> [N, h, w, C]
    fn convolve(&self, tape: &mut Tape, view: Tensor) -> Result<Tensor> {
        if let Some((norm, linear)) = &self.codes {
            let mut x = match norm {
                Some(norm) => norm.layer(tape, self.params(), view)?,
                None => view,
            };
            x = linear.activated(tape, self.params(), x, Activation::Relu)?;
            for conv in &self.convs {
                x = conv.relu(tape, self.params(), x)?;
            }
            return Ok(x);
        }
        let mut x = tape.affine(view, 2.0, -1.0)?;
        for conv in &self.convs {
            x = conv.forward(tape, self.params(), x, Stride::One)?;
            x = tape.max_pool(x)?;
            x = tape.relu(x)?;
        }
        Ok(x)
    }

    /// Looks at views [N, ..], each after the action i32 `[N]` before it.
    pub fn look(&self, tape: &mut Tape, seen: impl Into<Seen>) -> Result<Sight> {
        let Seen { view, previous } = seen.into();
        let x = self.convolve(tape, view)?;
        let &[batch, _, _, _] = view.dims() else {
            let rule = "frames are [N, H, W, 3] and codes [N, h, w, E]";
            return Err(Error::BadShape { op: "look", shape: view.shape(), rule });
        };
        let width = x.shape().len() / batch;
        let mut features = tape.reshape(x, [batch, width])?;
        if let Some((linear, norm)) = &self.dense {
            features = linear.forward(tape, self.params(), features)?;
            features = norm.layer(tape, self.params(), features)?;
            features = tape.relu(features)?;
        }
        let mut gates = self.lstm.forward(tape, self.params(), features)?;
        match (self.previous, previous) {
            (Some(table), Some(previous)) => {
                let table = tape.param(self.params(), table)?;
                let shares = tape.embedding(table, previous)?;
                gates = tape.add(gates, shares)?;
            }
            (None, None) => {}
            _ => {
                let reason = "previous actions are given exactly where previous_action is set";
                return Err(Error::BadConfig { reason: reason.into() });
            }
        }
        Ok(Sight { features, gates })
    }

    /// One step of the LSTM: gates [B, 4 * hidden] from [`look`](ActorCritic::look).
    pub fn remember(&self, tape: &mut Tape, gates: Tensor, state: Lstm) -> Result<Lstm> {
        let weight = tape.param(self.params(), self.lstm_hidden.weight)?;
        let bias = tape.param(self.params(), self.lstm_hidden.bias)?;
        tape.lstm_cell(gates, state, weight, bias)
    }

    /// [`remember`](ActorCritic::remember) for the rows whose mask (i32 [B]) is not 0; the others keep their state. Without gradient.
    fn remember_masked(&self, tape: &mut Tape, gates: Tensor, state: Lstm, mask: Tensor) -> Result<Lstm> {
        let after = self.remember(tape, gates, state)?;
        Ok(Lstm {
            hidden: tape.select_rows(mask, after.hidden, state.hidden)?,
            cell: tape.select_rows(mask, after.cell, state.cell)?,
        })
    }

    /// What actor and critic look at.
    fn seen(&self, tape: &mut Tape, hidden: Tensor, features: Tensor) -> Result<Tensor> {
        match self.config.skip {
            true => tape.concat(&[hidden, features], hidden.shape().rank() - 1),
            false => Ok(hidden),
        }
    }

    /// Hidden state [.., hidden], features [.., F] -> action logits [.., A], without the critic.
    pub fn act(&self, tape: &mut Tape, hidden: Tensor, features: Tensor) -> Result<Tensor> {
        let seen = self.seen(tape, hidden, features)?;
        self.actor.forward(tape, self.params(), seen)
    }

    /// The same with the values [..].
    pub fn decide(&self, tape: &mut Tape, hidden: Tensor, features: Tensor) -> Result<Policy> {
        let seen = self.seen(tape, hidden, features)?;
        let logits = self.actor.forward(tape, self.params(), seen)?;
        let values = self.critic.forward(tape, self.params(), seen)?;
        match self.config.values {
            ValueModel::Mse => {
                let values = tape.reshape(values, hidden.shape().without_last())?;
                Ok(Policy { logits, values, bins: None })
            }
            ValueModel::SymlogBins => {
                Ok(Policy { logits, values: tape.symexp_mean(values, LARGEST)?, bins: Some(values) })
            }
        }
    }

    /// Looks at a whole sequence [B, T, ..] at once -> features [B, T, F] and gates [B, T, 4 * hidden].
    fn look_over_time(&self, tape: &mut Tape, seen: Seen) -> Result<Sight> {
        let &[batch, time, height, width, channels] = seen.view.dims() else {
            let (op, rule) = ("actor-critic", "frames are [B, T, H, W, 3] and codes [B, T, h, w, E]");
            return Err(Error::BadShape { op, shape: seen.view.shape(), rule });
        };
        let view = tape.reshape(seen.view, [batch * time, height, width, channels])?;
        let previous = seen.previous.map(|actions| tape.reshape(actions, [batch * time])).transpose()?;
        let Sight { features, gates } = self.look(tape, Seen { view, previous })?;
        Ok(Sight {
            features: tape.reshape(features, [batch, time, features.shape().last()])?,
            gates: tape.reshape(gates, [batch, time, gates.shape().last()])?,
        })
    }

    /// The state after a sequence [B, T, ..] of which some steps are padding: mask i32 [B, T]. Without gradient.
    pub fn burn_in(
        &self,
        tape: &mut Tape,
        seen: impl Into<Seen>,
        mask: Tensor,
        mut state: Lstm,
    ) -> Result<Lstm> {
        let gates = self.look_over_time(tape, seen.into())?.gates;
        for t in 0..gates.dims()[1] {
            let now = at_step(tape, gates, t)?;
            let real = tape.slice(mask, 1, t, t + 1)?;
            let real = tape.reshape(real, [now.dims()[0]])?;
            state = self.remember_masked(tape, now, state, real)?;
        }
        Ok(state)
    }

    /// A whole sequence [B, T, ..] from a given state -> logits [B, T, A], values [B, T]. The CNN runs over all steps at once, gradients flow
    /// through the LSTM over time.
    pub fn follow(&self, tape: &mut Tape, seen: impl Into<Seen>, mut state: Lstm) -> Result<Policy> {
        let Sight { features, gates } = self.look_over_time(tape, seen.into())?;
        let mut states = Vec::with_capacity(gates.dims()[1]);
        for t in 0..gates.dims()[1] {
            let now = at_step(tape, gates, t)?;
            state = self.remember(tape, now, state)?;
            states.push(tape.reshape(state.hidden, [now.dims()[0], 1, self.config.hidden])?);
        }
        let all = tape.concat(&states, 1)?;
        self.decide(tape, all, features)
    }

    /// How far values are from the returns that they predict, [B, T - 1], weighted.
    fn value_loss(
        &self,
        tape: &mut Tape,
        policy: Policy,
        returns: Tensor,
        weights: Tensor,
    ) -> Result<Tensor> {
        let steps = returns.shape().last();
        let Some(bins) = policy.bins else {
            let values = tape.slice(policy.values, 1, 0, steps)?;
            let negative = tape.affine(returns, -1.0, 0.0)?;
            let error = tape.add(values, negative)?;
            let squared = tape.mul(error, error)?;
            return tape.weighted_mean(squared, weights);
        };
        let bins = tape.slice(bins, 1, 0, steps)?;
        let place = tape.symlog_place(returns, BINS, LARGEST)?;
        let [low, high] = [0, 1].map(|i| -> Result<Tensor> {
            let log_prob = tape.log_prob(bins, place.values[i])?;
            tape.mul(log_prob, place.shares[i])
        });
        let likelihood = tape.add(low?, high?)?;
        let mean = tape.weighted_mean(likelihood, weights)?;
        tape.affine(mean, -1.0, 0.0)
    }

    /// REINFORCE with a baseline, value regression and an entropy bonus over an imagined trajectory: policy over T steps, and what it did
    /// (actions i32, rewards f32, ends i32, all [B, T]). The last step's value is the bootstrap; losses are over the steps before it.
    pub fn loss(
        &self,
        tape: &mut Tape,
        policy: Policy,
        actions: Tensor,
        rewards: Tensor,
        ends: Tensor,
        config: &Returns,
    ) -> Result<ActorCriticLosses> {
        let &[_, time @ (2..)] = actions.dims() else {
            let rule = "actions are [B, T] with at least two steps";
            return Err(Error::BadShape { op: "actor-critic loss", shape: actions.shape(), rule });
        };
        let steps = time - 1;
        let values = tape.detach(policy.values)?;
        let returns = tape.lambda_returns(rewards, ends, values, config.gamma, config.lambda)?;
        let before_last = |tape: &mut Tape, x: Tensor| tape.slice(x, 1, 0, steps);
        let returns = before_last(tape, returns)?;
        let baseline = before_last(tape, values)?;
        let actions = before_last(tape, actions)?;
        let logits = before_last(tape, policy.logits)?;
        let mut weights = tape.alive(ends)?;
        if !config.stop_at_end {
            weights = tape.affine(weights, 0.0, 1.0)?;
        }
        let weights = before_last(tape, weights)?;

        let baseline = tape.affine(baseline, -1.0, 0.0)?;
        let mut advantage = tape.add(returns, baseline)?;
        if config.scale == ReturnScale::Percentiles {
            advantage = tape.over_range(advantage, returns, weights, &self.return_range)?;
        }
        let log_probs = tape.log_prob(logits, actions)?;
        let gain = tape.mul(log_probs, advantage)?;
        let gain = tape.weighted_mean(gain, weights)?;
        let loss_actions = tape.affine(gain, -1.0, 0.0)?;

        let loss_values = self.value_loss(tape, policy, returns, weights)?;

        let entropy = tape.entropy(logits)?;
        let entropy = tape.weighted_mean(entropy, weights)?;
        let loss_entropy = tape.affine(entropy, -config.entropy_weight, 0.0)?;

        let total = tape.add(loss_actions, loss_values)?;
        let total = tape.add(total, loss_entropy)?;
        Ok(ActorCriticLosses { total, actions: loss_actions, values: loss_values, entropy: loss_entropy })
    }
}

/// Step t of a sequence: [B, T, N] -> [B, N]
fn at_step(tape: &mut Tape, x: Tensor, t: usize) -> Result<Tensor> {
    let now = tape.slice(x, 1, t, t + 1)?;
    tape.reshape(now, [x.dims()[0], x.shape().last()])
}
