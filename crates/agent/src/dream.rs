//! A dream that is advanced one step at a time: watched, played in, forked and put back.

use engine::{Buffer, Device, Error, Key, Result, StepId, Stepper};

use crate::imagine::{Action, Details, Dreamer, State, copy_buffers};
use crate::picture::to_bytes;
use crate::world_model::ENDS;
use crate::{Agent, AgentId, Memory};
use crate::{RewardModel, Sees};

/// A batch of dreams in progress. Every step is the one that [`Dreamer::dream`] and training take, with the same random numbers; what is read here to
/// be looked at stays on the device there. There is no end: when the world model's context window is full, the dream goes on from the newest
/// half of it.
///
/// ```no_run
/// use agent::{Action, Agent, Asked, Dream};
/// use engine::{Device, Key};
///
/// fn two_steps(device: &Device, agent: &Agent, frame: Vec<u8>) -> engine::Result<()> {
///     let mut dream = Dream::from_frames(device, agent, &[frame], &[], 0, Key::new(0, 0))?;
///     let before = dream.snapshot(agent)?;
///     let given = dream.step(agent, Action::Given(&[1]), Asked::default())?;
///     dream.put_back(&before)?;
///     let chosen = dream.step(agent, Action::Policy { temperature: 1.0 }, Asked::default())?;
///     println!("end: {} or {}", given[0].end_probability, chosen[0].end_probability);
///     Ok(())
/// }
/// ```
pub struct Dream {
    dreamer: Dreamer,
    /// Steps that the world model remembers, and that are kept to remind it.
    step: usize,
    /// What the reward head's outputs mean.
    reward: RewardModel,
    details: Details,
    /// The newest frame of every dream, [B, H, W, 3] in [0, 1].
    frame: Buffer,
    /// Runs what is no part of the dream, so that its random numbers stay the same.
    aside: Stepper,
    watch: Option<Watch>,
}

/// What a step brought to one dream of the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    pub action: usize,
    /// The policy's, at temperature 1, whoever acted.
    pub action_probabilities: Vec<f32>,
    /// The discounted rewards that the critic expected before the action.
    pub value: f32,
    /// The imagined reward; a sign drawn by the world model, where it learns signs.
    pub reward: f32,
    /// Of a negative reward, of none, of a positive one.
    pub reward_probabilities: [f32; 3],
    /// Drawn by the world model.
    pub end: bool,
    pub end_probability: f32,
    /// The frame that follows. [`Dream::finish`] leaves it out.
    pub next: Option<Frame>,
    pub logits: Option<Logits>,
    pub attention: Option<Attention>,
}

/// A dreamt frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// RGB bytes, row by row.
    pub pixels: Vec<u8>,
    /// K, row by row.
    pub tokens: Vec<i32>,
}

/// What probabilities were computed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    pub actions: Vec<f32>,
    pub rewards: Vec<f32>,
    pub ends: Vec<f32>,
    /// Of every token of the next frame, [K, vocabulary].
    pub tokens: Vec<f32>,
}

/// How the positions of a step attended to those before them. Where a model reads single tokens, position p is token p % (K + 1) of step p / (K + 1) in the
/// context window, token K is the action, and the queries are the action and the K tokens of the frame that follows: query i predicts token i.
/// Where it reads whole frames of P patches, position p is place p % (P + 1) of step p / (P + 1), place 0 is the action and the others the patches of the frame
/// it was taken in; the queries are all of a step, of which a patch predicts the same patch of the frame that follows.
/// [`WorldModel::looked_at`](crate::WorldModel::looked_at) says the same of both.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub layers: usize,
    pub heads: usize,
    /// The last of the positions.
    pub queries: usize,
    /// All positions.
    pub keys: usize,
    /// [layers, heads, queries, keys]; a row sums to 1, positions that a query does not see have 0.
    pub weights: Vec<f32>,
}

impl Attention {
    /// The weights of one query, one for every position.
    pub fn of(&self, layer: usize, head: usize, query: usize) -> &[f32] {
        let row = (layer * self.heads + head) * self.queries + query;
        &self.weights[row * self.keys..(row + 1) * self.keys]
    }
}

/// What a step is to tell beside what it always tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub logits: bool,
    /// Computed in a second pass over the step.
    pub attention: bool,
}

/// A dream as it was at one moment: memory, policy state, randomness.
pub struct Snapshot {
    state: State,
    step: usize,
    key: Key,
}

/// Where attention is looked at.
struct Watch {
    /// A copy: the second pass leaves the dream's own memory alone.
    memory: Memory,
    /// The frame before the step and the one after it, [B, K] each.
    frames: [Buffer; 2],
    /// [layer][B, n, D]
    queries: Vec<Buffer>,
}

#[derive(Hash)]
struct LookStep {
    agent: AgentId,
}

impl Dream {
    /// Dreams that begin with the last frame of each row; the frames before it, `burn_in` at most, warm the policy up. Frames are RGB bytes, oldest
    /// first. `actions` are the newest of those before each row's last frame, for a policy that is given them: what is missing was no action.
    pub fn from_frames(
        device: &Device,
        agent: &Agent,
        frames: &[Vec<u8>],
        actions: &[Vec<usize>],
        burn_in: usize,
        key: Key,
    ) -> Result<Dream> {
        let (size, context) = (agent.config.tokenizer.frame_size, agent.config.world_model.context);
        let bytes = size * size * 3;
        let input = device.buffer::<u8>("frame", [1, size, size, 3])?;
        let mut stepper = Stepper::new(device, Key::new(0, 0));
        let mut tokens = Vec::with_capacity(frames.len());
        for row in frames {
            check_row("frames of a dream", row.len(), bytes)?;
            let mut codes = Vec::new();
            for frame in row.chunks_exact(bytes).rev().take(burn_in.max(context) + 1).rev() {
                codes.extend(encode(agent, &mut stepper, &input, frame)?);
            }
            tokens.push(codes);
        }
        Dream::from_tokens(device, agent, &tokens, actions, burn_in, key)
    }

    /// [`from_frames`](Dream::from_frames) with the tokens of frames, K each.
    pub fn from_tokens(
        device: &Device,
        agent: &Agent,
        tokens: &[Vec<i32>],
        actions: &[Vec<usize>],
        burn_in: usize,
        key: Key,
    ) -> Result<Dream> {
        let k = agent.config.tokenizer.tokens();
        let mut dream = Dream::new(device, agent, tokens.len(), burn_in, key)?;
        let start = dream.dreamer.start();
        if let Some(previous) = &start.previous {
            for (row, actions) in actions.iter().enumerate().take(tokens.len()) {
                let known = actions.len().min(burn_in + 1);
                let newest: Vec<i32> = actions[actions.len() - known..].iter().map(|a| *a as i32).collect();
                previous.write_at((row + 1) * (burn_in + 1) - known, &newest)?;
            }
        }
        if let Some(context) = &start.context {
            let count = context.actions.shape().last();
            for (row, codes) in tokens.iter().enumerate() {
                check_row("tokens of a dream", codes.len(), k)?;
                let (frames, actions) = (codes.len() / k - 1, actions.get(row).map_or(&[][..], |a| &a[..]));
                for back in 1..=count {
                    let frame = frames.saturating_sub(back);
                    let known = back <= frames && back <= actions.len();
                    let action = if known { actions[actions.len() - back] } else { 0 };
                    let at = (row + 1) * count - back;
                    context.tokens.write_at(at * k, &codes[frame * k..][..k])?;
                    context.actions.write_at(at, &[action as i32])?;
                }
            }
        }
        let pixels = agent.config.tokenizer.frame_size.pow(2) * 3;
        let code = device.buffer::<i32>("tokens of a frame", [1, k])?;
        let mut mask = vec![0; tokens.len() * burn_in];
        let mut first = Vec::with_capacity(tokens.len() * k);
        for (row, codes) in tokens.iter().enumerate() {
            check_row("tokens of a dream", codes.len(), k)?;
            let (before, last) = codes.split_at(codes.len() - k);
            first.extend_from_slice(last);
            let before = &before[before.len().saturating_sub(burn_in * k)..];
            let padding = burn_in - before.len() / k;
            for (i, codes) in before.chunks_exact(k).enumerate() {
                let at = row * burn_in + padding + i;
                mask[at] = 1;
                if agent.config.actor_critic.sees == Sees::Codes {
                    start.before.write_at(at * k, codes)?;
                    continue;
                }
                code.write(codes)?;
                let frame = dream.aside.infer(|tape| -> Result<Vec<f32>> {
                    let code = tape.buffer(&code)?;
                    let frame = agent.tokenizer.render(tape, code)?;
                    tape.read(frame)
                })?;
                start.before.write_at(at * pixels, &frame)?;
            }
        }
        start.mask.write(&mask)?;
        start.tokens.write(&first)?;
        dream.dreamer.begin(agent)?;
        Ok(dream)
    }

    fn new(device: &Device, agent: &Agent, batch: usize, burn_in: usize, key: Key) -> Result<Dream> {
        let size = agent.config.tokenizer.frame_size;
        let rows = |name: &str, width: usize| device.buffer::<f32>(name, [batch, width]);
        Ok(Dream {
            dreamer: Dreamer::new(device, agent, batch, agent.config.world_model.steps, burn_in, key)?,
            step: 0,
            reward: agent.config.world_model.reward,
            details: Details {
                action_logits: rows("action logits", agent.config.actions)?,
                values: device.buffer::<f32>("values", [batch])?,
                reward_logits: rows("reward logits", agent.config.world_model.reward.outputs())?,
                end_logits: rows("end logits", ENDS)?,
                token_logits: None,
                with_tokens: false,
            },
            frame: device.buffer::<f32>("newest frame", [batch, size, size, 3])?,
            aside: Stepper::new(device, Key::new(0, 0)),
            watch: None,
        })
    }

    /// How many dreams there are.
    pub fn batch(&self) -> usize {
        self.dreamer.batch()
    }

    /// Steps that the world model remembers. Fewer than before a step: its context window was full, and the older half was forgotten.
    pub fn remembered(&self) -> usize {
        self.step
    }

    /// The randomness of the next step.
    pub fn key(&self) -> Key {
        self.dreamer.stepper.key()
    }

    pub fn set_key(&mut self, key: Key) {
        self.dreamer.set_key(key);
    }

    /// The newest frame of every dream: what the policy will act on.
    pub fn look(&mut self, agent: &Agent) -> Result<Vec<Frame>> {
        let (tokens, frame) = (&self.dreamer.state.tokens, &self.frame);
        let id = StepId::new("look", &LookStep { agent: agent.identity() });
        self.aside.infer_captured(id, |tape| -> Result<()> {
            let tokens = tape.buffer(tokens)?;
            let seen = agent.tokenizer.render(tape, tokens)?;
            tape.store(frame, 0, seen)
        })?;
        let (pixels, tokens) = (frame.read::<f32>()?, tokens.read::<i32>()?);
        let rows = pixels.chunks_exact(pixels.len() / self.batch());
        let frames = rows.zip(tokens.chunks_exact(agent.config.tokenizer.tokens()));
        Ok(frames.map(|(p, tokens)| Frame { pixels: to_bytes(p), tokens: tokens.to_vec() }).collect())
    }

    /// Takes a step that really happened: what was done in each dream, and the frames (RGB bytes) that followed. The world model and the policy
    /// see them as if they had been dreamt. Returns the frames as the agent sees them.
    pub fn condition(&mut self, agent: &Agent, actions: &[usize], frames: &[Vec<u8>]) -> Result<Vec<Frame>> {
        let size = agent.config.tokenizer.frame_size;
        let input = self.frame.device().buffer::<u8>("frame", [1, size, size, 3])?;
        let mut next = Vec::with_capacity(frames.len() * agent.world_model.tokens);
        for frame in frames {
            next.extend(encode(agent, &mut self.aside, &input, frame)?);
        }
        self.dreamer.set_action(agent, Action::Given(actions))?;
        self.make_room(agent, false)?;
        self.dreamer.condition(agent, self.step, &next)?;
        self.step += 1;
        self.look(agent)
    }

    /// Lets the world model forget its older steps where the next one does not fit.
    fn make_room(&mut self, agent: &Agent, last: bool) -> Result<()> {
        let Dream { dreamer, aside, step, .. } = self;
        if let Some(kept) = dreamer.make_room(agent, *step, last)? {
            dreamer.state.keep_steps(*step - kept, kept, aside)?;
            *step = kept;
        }
        Ok(())
    }

    /// Acts once and dreams the next frame. One moment for each dream of the batch, also for those that have ended: what follows an end means nothing.
    pub fn step(&mut self, agent: &Agent, action: Action, asked: Asked) -> Result<Vec<Moment>> {
        self.advance(agent, action, asked, false)
    }

    /// The last step: like [`step`](Dream::step) without the frame that follows, so that it fits where the next frame would not.
    pub fn finish(mut self, agent: &Agent, action: Action, asked: Asked) -> Result<Vec<Moment>> {
        self.advance(agent, action, asked, true)
    }

    fn advance(&mut self, agent: &Agent, action: Action, asked: Asked, last: bool) -> Result<Vec<Moment>> {
        self.dreamer.set_action(agent, action)?;
        self.make_room(agent, last)?;
        let Dream { dreamer, details, step, .. } = self;
        details.with_tokens = asked.logits && !last;
        if details.with_tokens && details.token_logits.is_none() {
            let shape = [dreamer.batch(), agent.world_model.tokens, agent.config.tokenizer.vocabulary];
            details.token_logits = Some(self.frame.device().buffer::<f32>("token logits", shape)?);
        }
        let (t, at) = (*step, dreamer.state.positions);
        let before = asked.attention.then(|| dreamer.state.tokens.read::<i32>()).transpose()?;
        dreamer.step(agent, t, matches!(action, Action::Policy { .. }), last, Some(details))?;
        *step += 1;
        let mut moments = self.moments(t, asked.logits)?;
        if !last {
            for (moment, frame) in moments.iter_mut().zip(self.look(agent)?) {
                moment.next = Some(frame);
            }
        }
        if let Some(before) = before {
            for (moment, attention) in moments.iter_mut().zip(self.attention(agent, t, at, &before, last)?) {
                moment.attention = Some(attention);
            }
        }
        Ok(moments)
    }

    /// What step `t` left behind.
    fn moments(&self, t: usize, with_logits: bool) -> Result<Vec<Moment>> {
        let (dreamt, details) = (self.dreamer.trajectories(), &self.details);
        let (actions, rewards, ends) =
            (dreamt.actions.read::<i32>()?, dreamt.rewards.read::<f32>()?, dreamt.ends.read::<i32>()?);
        let steps = actions.len() / self.batch();
        let values = details.values.read::<f32>()?;
        let read = |buffer: &Buffer| buffer.read::<f32>();
        let action_logits = read(&details.action_logits)?;
        let (reward_logits, end_logits) = (read(&details.reward_logits)?, read(&details.end_logits)?);
        let token_logits = details.token_logits.as_ref().filter(|_| details.with_tokens);
        let token_logits = token_logits.map(read).transpose()?.unwrap_or_default();
        let row = |all: &[f32], b: usize| {
            let width = all.len() / self.batch();
            all[b * width..(b + 1) * width].to_vec()
        };
        let moment = |b: usize| {
            let logits = Logits {
                actions: row(&action_logits, b),
                rewards: row(&reward_logits, b),
                ends: row(&end_logits, b),
                tokens: row(&token_logits, b),
            };
            let reward_probabilities = self.reward.signs(&logits.rewards, softmax);
            Moment {
                action: actions[b * steps + t] as usize,
                action_probabilities: softmax(&logits.actions),
                value: values[b],
                reward: rewards[b * steps + t],
                reward_probabilities,
                end: ends[b * steps + t] == 1,
                end_probability: softmax(&logits.ends)[1],
                next: None,
                logits: with_logits.then_some(logits),
                attention: None,
            }
        };
        Ok((0..self.batch()).map(moment).collect())
    }

    /// The attention of step `t`, which began at position `at` with the frame `before`.
    fn attention(
        &mut self,
        agent: &Agent,
        t: usize,
        at: usize,
        before: &[i32],
        last: bool,
    ) -> Result<Vec<Attention>> {
        let (batch, model) = (self.batch(), &agent.world_model);
        let width = model.config.width;
        let device = self.frame.device().clone();
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => {
                let frame = || device.buffer::<i32>("frame looked at", [batch, model.tokens]);
                none.insert(Watch {
                    memory: model.memory(&device, batch)?,
                    frames: [frame()?, frame()?],
                    queries: (0..model.config.layers)
                        .map(|_| device.buffer::<f32>("queries", [batch, model.positions_per_step(), width]))
                        .collect::<Result<_>>()?,
                })
            }
        };
        let state = &self.dreamer.state;
        copy_buffers(&mut self.aside, state.memory.buffers().zip(watch.memory.buffers()))?;
        watch.frames[0].write(before)?;
        watch.frames[1].write(&state.tokens.read::<i32>()?)?;
        self.aside.infer(|tape| -> Result<()> {
            let actions = tape.buffer(&state.past_actions)?;
            let actions = tape.slice(actions, 1, t, t + 1)?;
            let [before, after] = &watch.frames;
            let before = tape.buffer(before)?;
            let after = if last { None } else { Some(tape.buffer(after)?) };
            model.watch(tape, &watch.memory, at, actions, (before, after), &watch.queries)
        })?;
        let queries = model.watched(last);
        let (layers, heads, keys) = (model.config.layers, model.config.heads, at + queries);
        let mut rows = vec![Vec::with_capacity(layers * heads * queries * keys); batch];
        for (layer, buffer) in watch.queries.iter().enumerate() {
            let asking = buffer.read_range::<f32>(0, batch * queries * width)?;
            let weights = watch.memory.attention_weights(layer, &asking, at)?;
            for (row, weights) in rows.iter_mut().zip(weights.chunks_exact(heads * queries * keys)) {
                row.extend_from_slice(weights);
            }
        }
        Ok(rows.into_iter().map(|weights| Attention { layers, heads, queries, keys, weights }).collect())
    }

    /// The dream as it is now, to [`put back`](Dream::put_back) later.
    pub fn snapshot(&mut self, agent: &Agent) -> Result<Snapshot> {
        let device = self.frame.device().clone();
        let mut state = State::new(&device, agent, self.batch(), agent.config.world_model.steps)?;
        state.copy_from(&self.dreamer.state, &mut self.aside)?;
        Ok(Snapshot { state, step: self.step, key: self.key() })
    }

    /// Goes back to where this or another dream of the same agent and batch was: the same actions have the same consequences again.
    pub fn put_back(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.dreamer.state.copy_from(&snapshot.state, &mut self.aside)?;
        self.step = snapshot.step;
        self.set_key(snapshot.key);
        Ok(())
    }

    /// A dream of its own that goes on from here.
    pub fn fork(&mut self, agent: &Agent) -> Result<Dream> {
        let device = self.frame.device().clone();
        let mut fork = Dream::new(&device, agent, self.batch(), 0, self.key())?;
        fork.dreamer.state.copy_from(&self.dreamer.state, &mut self.aside)?;
        fork.step = self.step;
        Ok(fork)
    }
}

/// The tokens of a frame (RGB bytes), which goes through the buffer `input`.
fn encode(agent: &Agent, stepper: &mut Stepper, input: &Buffer, frame: &[u8]) -> Result<Vec<i32>> {
    input.write(frame)?;
    stepper.infer(|tape| -> Result<Vec<i32>> {
        let x = tape.buffer(input)?;
        let x = crate::tokenizer::from_bytes(tape, x)?;
        let y = agent.tokenizer.encode(tape, x)?;
        let found = agent.tokenizer.quantise(tape, y)?.tokens;
        tape.read(found)
    })
}

/// A row of frames or their tokens: at least one, and whole ones.
fn check_row(name: &str, len: usize, frame: usize) -> Result<()> {
    match len > 0 && len.is_multiple_of(frame) {
        true => Ok(()),
        false => Err(Error::WrongLength {
            name: name.into(),
            expected: len.div_ceil(frame).max(1) * frame,
            got: len,
        }),
    }
}

pub(crate) fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let raised: Vec<f64> = logits.iter().map(|l| f64::from(l - largest).exp()).collect();
    let sum: f64 = raised.iter().sum();
    raised.iter().map(|r| (r / sum) as f32).collect()
}
