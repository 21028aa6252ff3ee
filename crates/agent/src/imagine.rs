//! Imagination: the policy acts inside the world model (paper, section 2.3).

use engine::{Buffer, Device, Key, Lstm, Result, StepId, Stepper, Tape, Temperature, Tensor};

use crate::{Agent, AgentId, Memory};

/// Rolls dreams out, `batch` at a time. Each imagined step is one step of the engine: nothing goes through the host in between.
pub struct Dreamer {
    batch: usize,
    horizon: usize,
    burn_in: usize,
    stepper: Stepper,
    memory: Memory,
    /// Positions of the memory in use.
    positions: usize,
    start: Start,
    /// The frame being looked at, i32 [B, K].
    tokens: Buffer,
    /// The policy's LSTM, [B, hidden] each.
    hidden: Buffer,
    cell: Buffer,
    /// Actions that do not come from the policy, i32 [B].
    given: Buffer,
    /// Of the policy.
    temperature: Temperature,
    trajectories: Trajectories,
}

/// Who acts in a dream.
#[derive(Clone, Copy, Debug)]
pub enum Acting<'a> {
    /// The policy, sampling at this temperature.
    Policy { temperature: f32 },
    /// These actions, one per imagined step, in every dream of the batch.
    Given(&'a [usize]),
}

/// Where dreams start. Filled before [`Dreamer::dream`].
pub struct Start {
    /// Reconstructed frames before the first imagined one, [B, N, H, W, 3] in [0, 1].
    pub frames: Buffer,
    /// i32 [B, N]: 0 for padding.
    pub mask: Buffer,
    /// Tokens of the first frame, i32 [B, K].
    pub tokens: Buffer,
}

/// What was dreamt: everything the actor-critic's loss needs.
#[derive(Clone)]
pub struct Trajectories {
    /// What the policy saw, [B, T, H, W, 3] in [0, 1].
    pub frames: Buffer,
    /// The same as tokens, i32 [B, T, K].
    pub tokens: Buffer,
    /// i32 [B, T]
    pub actions: Buffer,
    /// The sign of the reward, [B, T].
    pub rewards: Buffer,
    /// i32 [B, T]
    pub ends: Buffer,
    /// The policy's LSTM before the first frame, [B, hidden] each.
    pub hidden: Buffer,
    pub cell: Buffer,
}

impl Dreamer {
    /// `horizon` imagined steps after `burn_in` frames that warm the policy's LSTM up.
    pub fn new(
        device: &Device,
        agent: &Agent,
        batch: usize,
        horizon: usize,
        burn_in: usize,
        key: Key,
    ) -> Result<Dreamer> {
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        let width = agent.config.actor_critic.hidden;
        let state = |name: &str| device.buffer::<f32>(name, [batch, width]);
        Ok(Dreamer {
            batch,
            horizon,
            burn_in,
            stepper: Stepper::new(device, key),
            memory: agent.world_model.memory(device, batch)?,
            positions: 0,
            start: Start {
                frames: device.buffer::<f32>("frames before the dream", [batch, burn_in, size, size, 3])?,
                mask: device.buffer::<i32>("mask before the dream", [batch, burn_in])?,
                tokens: device.buffer::<i32>("tokens of the first frame", [batch, k])?,
            },
            tokens: device.buffer::<i32>("dreamt tokens", [batch, k])?,
            hidden: state("hidden state")?,
            cell: state("cell state")?,
            given: device.buffer::<i32>("given actions", [batch])?,
            temperature: Temperature::new(device, 1.0)?,
            trajectories: Trajectories {
                frames: device.buffer::<f32>("dreamt frames", [batch, horizon, size, size, 3])?,
                tokens: device.buffer::<i32>("tokens of dreamt frames", [batch, horizon, k])?,
                actions: device.buffer::<i32>("dreamt actions", [batch, horizon])?,
                rewards: device.buffer::<f32>("dreamt rewards", [batch, horizon])?,
                ends: device.buffer::<i32>("dreamt ends", [batch, horizon])?,
                hidden: state("hidden state before the dream")?,
                cell: state("cell state before the dream")?,
            },
        })
    }

    pub fn start(&self) -> &Start {
        &self.start
    }

    /// What the next dream is written into.
    pub fn trajectories(&self) -> &Trajectories {
        &self.trajectories
    }

    /// Sets the randomness of the next dream.
    pub fn set_key(&mut self, key: Key) {
        self.stepper.set_key(key);
    }

    /// Positions of the world model's memory that the last dream used.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Dreams from [`start`](Dreamer::start). The world model samples at temperature 1. A dream longer than the world model's memory goes on from the newest
    /// half of what it remembers.
    pub fn dream(&mut self, agent: &Agent, acting: Acting) -> Result<&Trajectories> {
        if let Acting::Policy { temperature } = acting {
            self.temperature.set(temperature)?;
        }
        self.warm_up(agent)?;
        for t in 0..self.horizon {
            let last = t + 1 == self.horizon;
            self.make_room(agent, t, last)?;
            if let Acting::Given(actions) = acting {
                let action = actions.get(t).copied().unwrap_or_default();
                self.given.write(&vec![action as i32; self.batch])?;
            }
            let Dreamer {
                stepper,
                memory,
                tokens,
                hidden,
                cell,
                given,
                temperature,
                trajectories,
                positions: at,
                ..
            } = self;
            let at = *at;
            let by_policy = matches!(acting, Acting::Policy { .. });
            let id = StepId::new("dream", &DreamStep { agent: agent.identity(), t, at, by_policy, last });
            stepper.infer_captured(id, |tape| -> Result<()> {
                // The policy looks at the decoded frame and acts.
                let seen = tape.buffer(tokens)?;
                tape.store_step(&trajectories.tokens, t, seen)?;
                let frame = agent.tokenizer.render(tape, seen)?;
                tape.store_step(&trajectories.frames, t, frame)?;
                let state = load_state(tape, hidden, cell)?;
                let sight = agent.actor_critic.look(tape, frame)?;
                let state = agent.actor_critic.remember(tape, sight.gates, state)?;
                let action = match by_policy {
                    false => tape.buffer(given)?,
                    true => {
                        let logits = agent.actor_critic.decide(tape, state.hidden, sight.features)?.logits;
                        tape.sample_at(logits, temperature)?
                    }
                };
                tape.store_step(&trajectories.actions, t, action)?;
                tape.store(hidden, 0, state.hidden)?;
                tape.store(cell, 0, state.cell)?;
                // The world model answers with reward, end and, unless the dream is over, the next frame.
                let thought = agent.world_model.see_action(tape, memory, at, action)?;
                let (reward, end) = agent.world_model.consequences(tape, thought)?;
                let reward = tape.sample(reward, 1.0)?;
                let reward = tape.integers(reward, 1.0, -1.0)?;
                tape.store_step(&trajectories.rewards, t, reward)?;
                let end = tape.sample(end, 1.0)?;
                tape.store_step(&trajectories.ends, t, end)?;
                if !last {
                    next_frame(tape, agent, memory, at + 1, thought, tokens)?;
                }
                Ok(())
            })?;
            self.positions = at + 1 + if last { 0 } else { agent.world_model.tokens };
        }
        Ok(&self.trajectories)
    }

    /// Forgets the older half of what the world model remembers, or more if it must, when step `t` does not fit any more.
    fn make_room(&mut self, agent: &Agent, t: usize, last: bool) -> Result<()> {
        let (steps, k) = (agent.config.world_model.steps, agent.world_model.tokens);
        if self.positions + 1 + if last { 0 } else { k } <= steps * (k + 1) {
            return Ok(());
        }
        let Dreamer { stepper, memory, tokens, trajectories, .. } = self;
        self.positions = stepper.infer(|tape| -> Result<usize> {
            let (frames, actions) = (tape.buffer(&trajectories.tokens)?, tape.buffer(&trajectories.actions)?);
            // This step and the one it leads to must fit.
            let kept = (steps / 2).min(steps.saturating_sub(2)).min(t);
            let mut at = 0;
            for past in t - kept..t {
                let frame = step_of(tape, frames, past)?;
                agent.world_model.see_tokens(tape, memory, at, frame)?;
                let action = step_of(tape, actions, past)?;
                agent.world_model.see_action(tape, memory, at + k, action)?;
                at += k + 1;
            }
            let now = tape.buffer(tokens)?;
            agent.world_model.see_tokens(tape, memory, at, now)?;
            Ok(at + k)
        })?;
        Ok(())
    }

    /// Shows the burn-in frames to the policy and the first frame's tokens to the world model.
    fn warm_up(&mut self, agent: &Agent) -> Result<()> {
        let (batch, burn_in, width) = (self.batch, self.burn_in, agent.config.actor_critic.hidden);
        self.hidden.write(&vec![0f32; batch * width])?;
        self.cell.write(&vec![0f32; batch * width])?;
        let Dreamer { stepper, memory, start, tokens, hidden, cell, trajectories, .. } = self;
        // The dreamer's own buffers stay the same as long as it lives.
        let id = StepId::new("dream start", &agent.identity());
        stepper.infer_captured(id, |tape| -> Result<()> {
            let mut state = load_state(tape, hidden, cell)?;
            if burn_in > 0 {
                let frames = tape.buffer(&start.frames)?;
                let mask = tape.buffer(&start.mask)?;
                state = agent.actor_critic.burn_in(tape, frames, mask, state)?;
            }
            for (buffer, part) in [(&trajectories.hidden, state.hidden), (&trajectories.cell, state.cell)] {
                tape.store(buffer, 0, part)?;
            }
            if burn_in > 0 {
                tape.store(hidden, 0, state.hidden)?;
                tape.store(cell, 0, state.cell)?;
            }
            let first = tape.buffer(&start.tokens)?;
            tape.store(tokens, 0, first)?;
            agent.world_model.see_tokens(tape, memory, 0, first)?;
            Ok(())
        })?;
        self.positions = agent.world_model.tokens;
        Ok(())
    }
}

/// Everything that an imagined step depends on beside the contents of buffers. The dreamer's own buffers stay the same as long as it lives.
#[derive(Hash)]
struct DreamStep {
    agent: AgentId,
    /// The step of the trajectory that it writes.
    t: usize,
    /// Its first position in the world model's memory.
    at: usize,
    by_policy: bool,
    last: bool,
}

fn load_state(tape: &mut Tape, hidden: &Buffer, cell: &Buffer) -> Result<Lstm> {
    Ok(Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? })
}

/// Step `t` of [B, T, ...], as [B, ...].
fn step_of(tape: &mut Tape, x: Tensor, t: usize) -> Result<Tensor> {
    let step = tape.slice(x, 1, t, t + 1)?;
    let dims: Vec<usize> = step.dims().iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, d)| *d).collect();
    tape.reshape(step, engine::Shape::try_from(dims.as_slice())?)
}

/// Samples the K tokens of the next frame one after the other into `next`, each from what came before, and remembers all of them from position
/// `at` on.
fn next_frame(
    tape: &mut Tape,
    agent: &Agent,
    memory: &Memory,
    at: usize,
    mut thought: Tensor,
    next: &Buffer,
) -> Result<()> {
    let batch = thought.dims()[0];
    for i in 0..agent.world_model.tokens {
        let logits = agent.world_model.next_token(tape, thought)?;
        let token = tape.sample_into(logits, 1.0, next, i)?;
        let token = tape.reshape(token, [batch, 1])?;
        thought = agent.world_model.see_tokens(tape, memory, at + i, token)?;
    }
    Ok(())
}
