//! Imagination: the policy acts inside the world model (paper, section 2.3).

mod state;

use engine::{Buffer, Device, Error, Key, Lstm, Result, StepId, Stepper, Tape, Temperature, Tensor};

use crate::gallery::Gallery;
use crate::world_model::Thought;
use crate::{Agent, AgentId, Memory, Seen, Sees, Sight};
pub(crate) use state::{State, copy_buffers, previous_actions};

/// Rolls dreams out, `batch` at a time. Each imagined step is one step of the engine: nothing goes through the host in between.
pub struct Dreamer {
    batch: usize,
    horizon: usize,
    burn_in: usize,
    pub(crate) stepper: Stepper,
    pub(crate) state: State,
    start: Start,
    /// Actions that do not come from the policy, i32 [B].
    given: Buffer,
    /// Of the policy.
    temperature: Temperature,
    /// Where frames are looked up before they are rendered.
    gallery: Option<Gallery>,
    trajectories: Trajectories,
}

/// Who acts in a whole dream.
#[derive(Clone, Copy, Debug)]
pub enum Acting<'a> {
    /// The policy, sampling at this temperature.
    Policy { temperature: f32 },
    /// These actions, one per imagined step, in every dream of the batch.
    Given(&'a [usize]),
}

/// Who chooses the action of one step.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// The policy, sampling at this temperature.
    Policy { temperature: f32 },
    /// These actions, one for each dream of the batch.
    Given(&'a [usize]),
}

/// Where dreams start. Filled before [`Dreamer::dream`].
pub struct Start {
    /// What the policy saw before the first imagined frame: reconstructed frames [B, N, H, W, 3] in [0, 1], or the tokens i32 [B, N, K] where it sees codes.
    pub before: Buffer,
    /// i32 [B, N]: 0 for padding.
    pub mask: Buffer,
    /// Tokens of the first frame, i32 [B, K].
    pub tokens: Buffer,
    /// The actions before each of these N frames and before the first of the dream, i32 [B, N + 1], the number of actions for none; where the policy is
    /// given them.
    pub previous: Option<Buffer>,
    /// Where the world model is shown steps before the dream.
    pub context: Option<Context>,
}

/// The newest steps before a dream, as many as [`WorldModelConfig::context`](crate::WorldModelConfig::context) says. In an episode that has not as many,
/// its first frame stands still before it.
pub struct Context {
    /// i32 [B, C, K]
    pub tokens: Buffer,
    /// What was done in each, i32 [B, C].
    pub actions: Buffer,
}

/// What was dreamt: everything the actor-critic's loss needs.
#[derive(Clone)]
pub struct Trajectories {
    /// What the policy saw, [B, T, H, W, 3] in [0, 1]; where it sees codes, nothing is rendered.
    pub frames: Option<Buffer>,
    /// The same as tokens, i32 [B, T, K].
    pub tokens: Buffer,
    /// The action before each step, i32 [B, T], where the policy is given it.
    pub previous: Option<Buffer>,
    /// i32 [B, T]
    pub actions: Buffer,
    /// [B, T]; their signs, where the world model learns signs.
    pub rewards: Buffer,
    /// i32 [B, T]
    pub ends: Buffer,
    /// The policy's LSTM before the first frame, [B, hidden] each.
    pub hidden: Buffer,
    pub cell: Buffer,
}

impl Trajectories {
    /// Room for `batch` dreams of `horizon` steps.
    pub fn new(device: &Device, agent: &Agent, batch: usize, horizon: usize) -> Result<Trajectories> {
        let tokens = [batch, horizon, agent.config.tokenizer.tokens()];
        let tokens = device.buffer::<i32>("tokens of dreamt frames", tokens)?;
        let actions = device.buffer::<i32>("dreamt actions", [batch, horizon])?;
        Trajectories::of(device, agent, [batch, horizon], tokens, actions)
    }

    /// With room for the rest; the steps [B, T] are `shape`.
    fn of(
        device: &Device,
        agent: &Agent,
        shape: [usize; 2],
        tokens: Buffer,
        actions: Buffer,
    ) -> Result<Trajectories> {
        let ([batch, horizon], policy) = (shape, &agent.config.actor_critic);
        let size = agent.config.tokenizer.frame_size;
        let frames = || device.buffer::<f32>("dreamt frames", [batch, horizon, size, size, 3]);
        let before = |name: &str| device.buffer::<f32>(name, [batch, policy.hidden]);
        Ok(Trajectories {
            frames: (policy.sees == Sees::Frames).then(frames).transpose()?,
            tokens,
            previous: previous_actions(device, agent, shape)?,
            actions,
            rewards: device.buffer::<f32>("dreamt rewards", shape)?,
            ends: device.buffer::<i32>("dreamt ends", shape)?,
            hidden: before("hidden state before the dream")?,
            cell: before("cell state before the dream")?,
        })
    }
}

/// Where a step leaves what it computed on the way, for whoever asks for it.
pub(crate) struct Details {
    /// [B, A]
    pub action_logits: Buffer,
    /// [B]
    pub values: Buffer,
    /// [B, R]
    pub reward_logits: Buffer,
    /// [B, 2]
    pub end_logits: Buffer,
    /// [B, K, N], and whether it is asked for.
    pub token_logits: Option<Buffer>,
    pub with_tokens: bool,
}

/// Everything that an imagined step depends on beside the contents of buffers. The dreamer's own buffers stay the same as long as it lives, and so do
/// those of the details.
#[derive(Hash)]
struct DreamStep {
    agent: AgentId,
    /// The step of the trajectory that it writes.
    t: usize,
    /// Its first position in the world model's memory.
    at: usize,
    by_policy: bool,
    /// Whether the next frame is left out.
    last: bool,
    /// Whether there are details, and logits of tokens among them.
    details: Option<bool>,
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
        let state = State::new(device, agent, batch, horizon)?;
        let (tokens, actions) = (state.past_tokens.clone(), state.past_actions.clone());
        let trajectories = Trajectories::of(device, agent, [batch, horizon], tokens, actions)?;
        let frames = |name: &str| device.buffer::<f32>(name, [batch, burn_in, size, size, 3]);
        let sees_frames = agent.config.actor_critic.sees == Sees::Frames;
        Ok(Dreamer {
            batch,
            horizon,
            burn_in,
            stepper: Stepper::new(device, key),
            start: Start {
                before: match sees_frames {
                    true => frames("frames before the dream")?,
                    false => device.buffer::<i32>("tokens before the dream", [batch, burn_in, k])?,
                },
                mask: device.buffer::<i32>("mask before the dream", [batch, burn_in])?,
                tokens: device.buffer::<i32>("tokens of the first frame", [batch, k])?,
                previous: previous_actions(device, agent, [batch, burn_in + 1])?,
                context: Context::new(device, agent, batch)?,
            },
            given: device.buffer::<i32>("given actions", [batch])?,
            temperature: Temperature::new(device, 1.0)?,
            gallery: if sees_frames { Gallery::new(device, agent, batch)? } else { None },
            trajectories,
            state,
        })
    }

    pub fn start(&self) -> &Start {
        &self.start
    }

    pub(crate) fn batch(&self) -> usize {
        self.batch
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
        self.state.positions
    }

    /// Dreams from [`start`](Dreamer::start). The world model samples at temperature 1. A dream longer than the world model's context window goes
    /// on from the newest half of it.
    pub fn dream(&mut self, agent: &Agent, acting: Acting) -> Result<&Trajectories> {
        if let Acting::Policy { temperature } = acting {
            self.temperature.set(temperature)?;
        }
        self.begin(agent)?;
        for t in 0..self.horizon {
            let last = t + 1 == self.horizon;
            self.make_room(agent, t, last)?;
            if let Acting::Given(actions) = acting {
                let action = actions.get(t).copied().unwrap_or_default();
                self.given.write(&vec![action as i32; self.batch])?;
            }
            let by_policy = matches!(acting, Acting::Policy { .. });
            self.step(agent, t, by_policy, last, None)?;
        }
        Ok(&self.trajectories)
    }

    /// Says who acts in the next step.
    pub(crate) fn set_action(&mut self, agent: &Agent, action: Action) -> Result<()> {
        let actions = match action {
            Action::Policy { temperature } => return self.temperature.set(temperature),
            Action::Given(actions) => actions,
        };
        let limit = agent.config.actions;
        if let Some((position, &index)) = actions.iter().enumerate().find(|(_, action)| **action >= limit) {
            let index = index as i64;
            return Err(Error::IndexOutOfRange { op: "dream", index, position, limit });
        }
        self.given.write(&actions.iter().map(|action| *action as i32).collect::<Vec<_>>())
    }

    /// One imagined step, which becomes step `t` of the trajectory. It fits into memory: see [`make_room`](Dreamer::make_room). The last step of a
    /// dream ends with the consequences of its action.
    pub(crate) fn step(
        &mut self,
        agent: &Agent,
        t: usize,
        by_policy: bool,
        last: bool,
        details: Option<&Details>,
    ) -> Result<()> {
        let Dreamer { stepper, state, given, temperature, gallery, trajectories, .. } = self;
        let State { memory, tokens, hidden, cell, previous, positions: at, .. } = &*state;
        let at = *at;
        let id = StepId::new(
            "dream",
            &DreamStep {
                agent: agent.identity(),
                t,
                at,
                by_policy,
                last,
                details: details.map(|details| details.with_tokens),
            },
        );
        let shown = gallery.as_mut().map(|gallery| gallery.show(agent, tokens)).transpose()?;
        stepper.infer_captured(id, |tape| -> Result<()> {
            // The policy looks at the decoded frame, or at its codes, and acts.
            let sight = look(tape, agent, t, (state, trajectories), shown)?;
            let lstm = Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? };
            let lstm = agent.actor_critic.remember(tape, sight.gates, lstm)?;
            let policy = match details {
                Some(_) => Some(agent.actor_critic.decide(tape, lstm.hidden, sight.features)?),
                None => None,
            };
            let action = match (by_policy, policy) {
                (false, _) => tape.buffer(given)?,
                (true, Some(policy)) => tape.sample_at(policy.logits, temperature)?,
                (true, None) => {
                    let logits = agent.actor_critic.act(tape, lstm.hidden, sight.features)?;
                    tape.sample_at(logits, temperature)?
                }
            };
            tape.store_step(&trajectories.actions, t, action)?;
            tape.store(hidden, 0, lstm.hidden)?;
            tape.store(cell, 0, lstm.cell)?;
            if let Some(previous) = previous {
                tape.store(previous, 0, action)?;
            }
            // The world model answers with reward, end and, unless the dream is over, the next frame.
            let now = tape.buffer(tokens)?;
            let thought = agent.world_model.see_step(tape, memory, at, now, action)?;
            let (rewards, ends) = agent.world_model.consequences(tape, thought.action)?;
            let reward = agent.config.world_model.reward.imagine(tape, rewards)?;
            tape.store_step(&trajectories.rewards, t, reward)?;
            let end = tape.sample(ends, 1.0)?;
            tape.store_step(&trajectories.ends, t, end)?;
            if let (Some(details), Some(policy)) = (details, policy) {
                tape.store(&details.action_logits, 0, policy.logits)?;
                tape.store(&details.values, 0, policy.values)?;
                tape.store(&details.reward_logits, 0, rewards)?;
                tape.store(&details.end_logits, 0, ends)?;
            }
            if !last {
                let logits = details.filter(|d| d.with_tokens).and_then(|d| d.token_logits.as_ref());
                next_frame(tape, agent, memory, at + 1, thought, tokens, logits)?;
            }
            Ok(())
        })?;
        state.positions = at + positions_of_step(agent, last);
        Ok(())
    }

    /// A step that really happened, which becomes step `t` of the trajectory: the policy looks at the newest frame, and the world model sees the
    /// action that was set and the tokens i32 [B, K] of the frame that followed. Nothing is sampled. It fits into memory, like a [`step`](Dreamer::step).
    pub(crate) fn condition(&mut self, agent: &Agent, t: usize, next: &[i32]) -> Result<()> {
        self.start.tokens.write(next)?;
        let Dreamer { stepper, state, given, start, gallery, trajectories, .. } = self;
        let State { memory, tokens, hidden, cell, previous, positions: at, .. } = &*state;
        let shown = gallery.as_mut().map(|gallery| gallery.show(agent, tokens)).transpose()?;
        stepper.infer(|tape| -> Result<()> {
            let sight = look(tape, agent, t, (state, trajectories), shown)?;
            let lstm = Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? };
            let lstm = agent.actor_critic.remember(tape, sight.gates, lstm)?;
            tape.store(hidden, 0, lstm.hidden)?;
            tape.store(cell, 0, lstm.cell)?;
            let action = tape.buffer(given)?;
            tape.store_step(&trajectories.actions, t, action)?;
            if let Some(previous) = previous {
                tape.store(previous, 0, action)?;
            }
            let now = tape.buffer(tokens)?;
            agent.world_model.see_step(tape, memory, *at, now, action)?;
            let next = tape.buffer(&start.tokens)?;
            agent.world_model.see_frame(tape, memory, at + positions_of_step(agent, true), next)?;
            tape.store(tokens, 0, next)
        })?;
        state.positions += agent.world_model.positions_per_step();
        Ok(())
    }

    /// Forgets the older half of what the world model remembers, or more if it must, when step `t` does not fit any more. Returns how many of the
    /// steps before `t` are remembered from then on, if it did.
    pub(crate) fn make_room(&mut self, agent: &Agent, t: usize, last: bool) -> Result<Option<usize>> {
        let (steps, each) = (agent.config.world_model.steps, agent.world_model.positions_per_step());
        let Dreamer { stepper, state, .. } = self;
        if state.positions + positions_of_step(agent, last) <= steps * each {
            return Ok(None);
        }
        // This step and the one it leads to must fit.
        let kept = (steps / 2).min(steps.saturating_sub(2)).min(t);
        let State { memory, tokens, past_tokens, past_actions, .. } = &*state;
        stepper.infer(|tape| -> Result<()> {
            let (frames, actions) = (tape.buffer(past_tokens)?, tape.buffer(past_actions)?);
            if kept > 0 {
                let frames = tape.slice(frames, 1, t - kept, t)?;
                let actions = tape.slice(actions, 1, t - kept, t)?;
                agent.world_model.see_steps(tape, memory, 0, frames, actions)?;
            }
            let now = tape.buffer(tokens)?;
            agent.world_model.see_frame(tape, memory, kept * each, now)
        })?;
        state.positions = kept * each + agent.world_model.positions_ahead();
        Ok(Some(kept))
    }

    /// Shows what was before the dream to the policy and the first frame's tokens to the world model.
    pub(crate) fn begin(&mut self, agent: &Agent) -> Result<()> {
        let (batch, burn_in, width) = (self.batch, self.burn_in, agent.config.actor_critic.hidden);
        self.state.hidden.write(&vec![0f32; batch * width])?;
        self.state.cell.write(&vec![0f32; batch * width])?;
        if let Some(gallery) = &mut self.gallery {
            gallery.enter(agent)?;
        }
        let Dreamer { stepper, state, start, trajectories, .. } = self;
        let State { memory, tokens, hidden, cell, previous, .. } = &*state;
        let known = agent.config.world_model.context * agent.world_model.positions_per_step();
        // The dreamer's own buffers stay the same as long as it lives.
        let id = StepId::new("dream start", &agent.identity());
        stepper.infer_captured(id, |tape| -> Result<()> {
            let mut lstm = Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? };
            let actions = start.previous.as_ref().map(|actions| tape.buffer(actions)).transpose()?;
            if burn_in > 0 {
                let before = tape.buffer(&start.before)?;
                let view = match agent.config.actor_critic.sees {
                    Sees::Frames => before,
                    Sees::Codes => agent.view_over_time(tape, before)?,
                };
                let previous = actions.map(|actions| tape.slice(actions, 1, 0, burn_in)).transpose()?;
                let mask = tape.buffer(&start.mask)?;
                lstm = agent.actor_critic.burn_in(tape, Seen { view, previous }, mask, lstm)?;
            }
            if let Some((previous, actions)) = previous.as_ref().zip(actions) {
                let newest = step_of(tape, actions, burn_in)?;
                tape.store(previous, 0, newest)?;
            }
            for (buffer, part) in [(&trajectories.hidden, lstm.hidden), (&trajectories.cell, lstm.cell)] {
                tape.store(buffer, 0, part)?;
            }
            if burn_in > 0 {
                tape.store(hidden, 0, lstm.hidden)?;
                tape.store(cell, 0, lstm.cell)?;
            }
            let first = tape.buffer(&start.tokens)?;
            tape.store(tokens, 0, first)?;
            if let Some(Context { tokens, actions }) = &start.context {
                let (tokens, actions) = (tape.buffer(tokens)?, tape.buffer(actions)?);
                agent.world_model.see_steps(tape, memory, 0, tokens, actions)?;
            }
            agent.world_model.see_frame(tape, memory, known, first)
        })?;
        state.positions = known + agent.world_model.positions_ahead();
        Ok(())
    }
}

/// The policy looks at the newest frame, which becomes step `t` of the trajectory. Frames are rendered, unless they were looked up.
fn look(
    tape: &mut Tape,
    agent: &Agent,
    t: usize,
    (state, trajectories): (&State, &Trajectories),
    shown: Option<&Buffer>,
) -> Result<Sight> {
    let tokens = tape.buffer(&state.tokens)?;
    tape.store_step(&trajectories.tokens, t, tokens)?;
    let view = match shown {
        Some(shown) => tape.buffer(shown)?,
        None => agent.view(tape, tokens)?,
    };
    if let Some(frames) = &trajectories.frames {
        tape.store_step(frames, t, view)?;
    }
    let previous = state.previous.as_ref().map(|action| tape.buffer(action)).transpose()?;
    if let Some((kept, previous)) = trajectories.previous.as_ref().zip(previous) {
        tape.store_step(kept, t, previous)?;
    }
    agent.actor_critic.look(tape, Seen { view, previous })
}

/// Step `t` of [B, T, ...], as [B, ...].
fn step_of(tape: &mut Tape, x: Tensor, t: usize) -> Result<Tensor> {
    let step = tape.slice(x, 1, t, t + 1)?;
    let dims: Vec<usize> = step.dims().iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, d)| *d).collect();
    tape.reshape(step, engine::Shape::try_from(dims.as_slice())?)
}

/// Positions that a step takes in the world model's memory, beside those that its frame took before: of the action and, unless it is the last, the next
/// frame.
fn positions_of_step(agent: &Agent, last: bool) -> usize {
    let (each, ahead) = (agent.world_model.positions_per_step(), agent.world_model.positions_ahead());
    each - if last { ahead } else { 0 }
}

/// Samples the K tokens of the next frame into `next`: all at once or, where the world model reads single tokens, one after the other, each from what came
/// before, and then remembers all of them from position `at` on. The logits go to a buffer [B, K, N], if there is one.
fn next_frame(
    tape: &mut Tape,
    agent: &Agent,
    memory: &Memory,
    at: usize,
    thought: Thought,
    next: &Buffer,
    all_logits: Option<&Buffer>,
) -> Result<()> {
    if let Some(frame) = thought.frame {
        let (drawn, logits) = agent.world_model.draw_frame(tape, frame, all_logits.is_some())?;
        if let Some((all, logits)) = all_logits.zip(logits) {
            tape.store(all, 0, logits)?;
        }
        return tape.store(next, 0, drawn);
    }
    let mut thought = thought.action;
    let Some(all_logits) = all_logits else {
        return agent.world_model.imagine_tokens(tape, memory, at, thought, next);
    };
    let batch = thought.dims()[0];
    for i in 0..agent.world_model.tokens {
        let logits = agent.world_model.next_token(tape, thought)?;
        let token = tape.sample_into(logits, 1.0, next, i)?;
        let logits = tape.reshape(logits, [batch, logits.shape().last()])?;
        tape.store_step(all_logits, i, logits)?;
        let token = tape.reshape(token, [batch, 1])?;
        thought = agent.world_model.see_tokens(tape, memory, at + i, token)?;
    }
    Ok(())
}
