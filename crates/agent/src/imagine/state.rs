//! The state of dreams: what is copied when one is forked or put back.

use engine::{Buffer, Device, Error, Result, Stepper};

use super::{Context, step_of};
use crate::{Agent, Memory};

/// Everything that the rest of a dream depends on, beside the networks and the random numbers.
pub(crate) struct State {
    pub memory: Memory,
    /// Positions of the memory in use.
    pub positions: usize,
    /// The frame being looked at, i32 [B, K].
    pub tokens: Buffer,
    /// The policy's LSTM, [B, hidden] each.
    pub hidden: Buffer,
    pub cell: Buffer,
    /// The action before the frame, i32 [B], where the policy is given it.
    pub previous: Option<Buffer>,
    /// Steps so far, i32 [B, T, K] and [B, T], which the memory is refilled from. Those of [`Trajectories`].
    pub past_tokens: Buffer,
    pub past_actions: Buffer,
}

impl State {
    /// For dreams of which up to `steps` steps are kept.
    pub fn new(device: &Device, agent: &Agent, batch: usize, steps: usize) -> Result<State> {
        let (k, width) = (agent.config.tokenizer.tokens(), agent.config.actor_critic.hidden);
        Ok(State {
            memory: agent.world_model.memory(device, batch)?,
            positions: 0,
            tokens: device.buffer::<i32>("dreamt tokens", [batch, k])?,
            hidden: device.buffer::<f32>("hidden state", [batch, width])?,
            cell: device.buffer::<f32>("cell state", [batch, width])?,
            previous: previous_actions(device, agent, [batch])?,
            past_tokens: device.buffer::<i32>("tokens of dreamt frames", [batch, steps, k])?,
            past_actions: device.buffer::<i32>("dreamt actions", [batch, steps])?,
        })
    }

    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let State { memory, tokens, hidden, cell, previous, past_tokens, past_actions, positions: _ } = self;
        memory.buffers().chain([tokens, hidden, cell, past_tokens, past_actions]).chain(previous)
    }

    /// Becomes a copy of another state of the same shape.
    pub fn copy_from(&mut self, other: &State, stepper: &mut Stepper) -> Result<()> {
        copy_buffers(stepper, other.buffers().zip(self.buffers()))?;
        self.positions = other.positions;
        Ok(())
    }

    /// Moves steps `from..from + count` to the beginning of what is kept.
    pub fn keep_steps(&mut self, from: usize, count: usize, stepper: &mut Stepper) -> Result<()> {
        let State { past_tokens, past_actions, .. } = self;
        stepper.infer(|tape| -> Result<()> {
            for buffer in [past_tokens, past_actions] {
                let all = tape.buffer(buffer)?;
                for t in 0..count {
                    let step = step_of(tape, all, from + t)?;
                    tape.store_step(buffer, t, step)?;
                }
            }
            Ok(())
        })
    }
}

impl Context {
    /// Room for what the world model is shown before dreams; none where that is nothing.
    pub(super) fn new(device: &Device, agent: &Agent, batch: usize) -> Result<Option<Context>> {
        let (steps, k) = (agent.config.world_model.context, agent.config.tokenizer.tokens());
        if steps == 0 {
            return Ok(None);
        }
        Ok(Some(Context {
            tokens: device.buffer::<i32>("tokens of the context", [batch, steps, k])?,
            actions: device.buffer::<i32>("actions of the context", [batch, steps])?,
        }))
    }
}

/// A buffer for actions that the policy is given, which are none so far; none where it is given none.
pub(crate) fn previous_actions(
    device: &Device,
    agent: &Agent,
    shape: impl Into<engine::Shape>,
) -> Result<Option<Buffer>> {
    if !agent.config.actor_critic.previous_action {
        return Ok(None);
    }
    let buffer = device.buffer::<i32>("previous actions", shape)?;
    buffer.write(&vec![agent.config.actions as i32; buffer.shape().len()])?;
    Ok(Some(buffer))
}

/// Copies buffers of the same shape on their device: (from, to).
pub(crate) fn copy_buffers<'a>(
    stepper: &mut Stepper,
    pairs: impl Iterator<Item = (&'a Buffer, &'a Buffer)>,
) -> Result<()> {
    let pairs: Vec<_> = pairs.collect();
    if let Some((from, to)) = pairs.iter().find(|(from, to)| from.shape() != to.shape()) {
        let rule = "a dream is copied to one of the same shape";
        return Err(Error::ShapeMismatch { op: "dream", lhs: from.shape(), rhs: to.shape(), rule });
    }
    stepper.infer(|tape| -> Result<()> {
        for (from, to) in pairs {
            let x = tape.buffer(from)?;
            tape.store(to, 0, x)?;
        }
        Ok(())
    })
}
