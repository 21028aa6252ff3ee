//! Acting in real games: every frame goes through the tokenizer, as in the paper; the policy sees its reconstruction, or its codes.

use engine::{Buffer, Device, Error, Key, Lstm, Result, StepId, Stepper, Temperature};
use envs::{EnvError, Game, Purpose, VectorEnv};

use crate::dream::softmax;
use crate::imagine::previous_actions;
use crate::picture::to_bytes;
use crate::{Agent, Frame, Seen, Sees};

/// Plays several games side by side with one policy.
pub struct Player {
    stepper: Stepper,
    frames: Buffer,
    hidden: Buffer,
    cell: Buffer,
    actions: Buffer,
    /// The newest actions, i32 [B], where the policy is given them.
    previous: Option<Buffer>,
    /// The action that is none.
    none: i32,
    /// Where they are asked for.
    details: Option<Details>,
    temperature: Temperature,
    batch: usize,
    width: usize,
}

/// What a player keeps of its newest look beside the actions.
struct Details {
    /// [B]
    values: Buffer,
    /// [B, A]
    logits: Buffer,
    /// The reconstructed frames, [B, H, W, 3] in [0, 1].
    seen: Buffer,
    /// i32 [B, K]
    tokens: Buffer,
}

/// What one game looked like to a player, and what it thought of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Thought {
    pub seen: Frame,
    /// At temperature 1.
    pub action_probabilities: Vec<f32>,
    /// The discounted rewards that the critic expected before the action.
    pub value: f32,
}

/// A player as it was at one moment: memory and randomness.
#[derive(Clone, Debug)]
pub struct PlayerState {
    hidden: Vec<f32>,
    cell: Vec<f32>,
    previous: Vec<i32>,
    key: Key,
}

impl Player {
    /// A player of `batch` games at once.
    pub fn new(device: &Device, agent: &Agent, batch: usize) -> engine::Result<Player> {
        let (size, width) = (agent.config.tokenizer.frame_size, agent.config.actor_critic.hidden);
        Ok(Player {
            stepper: Stepper::new(device, Key::new(0, 0)),
            frames: device.buffer::<u8>("frames", [batch, size, size, 3])?,
            hidden: device.buffer::<f32>("hidden state", [batch, width])?,
            cell: device.buffer::<f32>("cell state", [batch, width])?,
            actions: device.buffer::<i32>("actions", [batch])?,
            previous: previous_actions(device, agent, [batch])?,
            none: agent.config.actions as i32,
            details: None,
            temperature: Temperature::new(device, 1.0)?,
            batch,
            width,
        })
    }

    /// A player that also keeps what it saw and expected: see [`thoughts`](Player::thoughts).
    pub fn with_thoughts(device: &Device, agent: &Agent, batch: usize) -> engine::Result<Player> {
        let (size, k) = (agent.config.tokenizer.frame_size, agent.config.tokenizer.tokens());
        let details = Details {
            values: device.buffer::<f32>("values", [batch])?,
            logits: device.buffer::<f32>("action logits", [batch, agent.config.actions])?,
            seen: device.buffer::<f32>("seen frames", [batch, size, size, 3])?,
            tokens: device.buffer::<i32>("tokens of seen frames", [batch, k])?,
        };
        Ok(Player { details: Some(details), ..Player::new(device, agent, batch)? })
    }

    /// What the player saw before the last actions and thought of it, for each game; nothing for a player without thoughts.
    pub fn thoughts(&self) -> Result<Vec<Thought>> {
        let Some(Details { values, logits, seen, tokens }) = &self.details else { return Ok(Vec::new()) };
        let (values, logits) = (values.read::<f32>()?, logits.read::<f32>()?);
        let (seen, tokens) = (seen.read::<f32>()?, tokens.read::<i32>()?);
        let row = |len: usize, game: usize| game * len / self.batch..(game + 1) * len / self.batch;
        let thought = |game: usize| Thought {
            seen: Frame {
                pixels: to_bytes(&seen[row(seen.len(), game)]),
                tokens: tokens[row(tokens.len(), game)].to_vec(),
            },
            action_probabilities: softmax(&logits[row(logits.len(), game)]),
            value: values[game],
        };
        Ok((0..self.batch).map(thought).collect())
    }

    /// The player as it is now, to [`put back`](Player::put_back) later.
    pub fn state(&self) -> Result<PlayerState> {
        let previous =
            self.previous.as_ref().map(|previous| previous.read()).transpose()?.unwrap_or_default();
        Ok(PlayerState {
            hidden: self.hidden.read()?,
            cell: self.cell.read()?,
            previous,
            key: self.stepper.key(),
        })
    }

    /// Goes back to where this player was: the same frames lead to the same actions again.
    pub fn put_back(&mut self, state: &PlayerState) -> Result<()> {
        self.hidden.write(&state.hidden)?;
        self.cell.write(&state.cell)?;
        if let Some(previous) = &self.previous {
            previous.write(&state.previous)?;
        }
        self.set_key(state.key);
        Ok(())
    }

    /// The randomness of the next actions.
    pub fn set_key(&mut self, key: Key) {
        self.stepper.set_key(key);
    }

    /// Forgets everything about one of the games.
    pub fn forget(&mut self, game: usize) -> Result<()> {
        let nothing = vec![0f32; self.width];
        self.hidden.write_at(game * self.width, &nothing)?;
        self.cell.write_at(game * self.width, &nothing)?;
        match &self.previous {
            Some(previous) => previous.write_at(game, &[self.none]),
            None => Ok(()),
        }
    }

    /// Says what was done in one of the games, where that was not what [`act`](Player::act) chose.
    pub fn took(&mut self, game: usize, action: usize) -> Result<()> {
        let limit = self.none as usize;
        if action >= limit {
            return Err(Error::IndexOutOfRange { op: "play", index: action as i64, position: game, limit });
        }
        match &self.previous {
            Some(previous) => previous.write_at(game, &[action as i32]),
            None => Ok(()),
        }
    }

    /// Looks at the games' frames (RGB bytes, one after the other) and chooses actions.
    pub fn act(&mut self, agent: &Agent, frames: &[u8], temperature: f32) -> Result<Vec<i32>> {
        self.frames.write(frames)?;
        self.temperature.set(temperature)?;
        let Player { stepper, frames, hidden, cell, actions, previous, details, temperature, .. } = self;
        let previous = previous.as_ref();
        // The player's own buffers stay the same as long as it lives.
        stepper.infer_captured(StepId::new("act", &agent.identity()), |tape| -> Result<()> {
            let frames = tape.buffer(frames)?;
            let tokens = agent.tokenizer.tokenise(tape, frames)?;
            let view = agent.view(tape, tokens)?;
            let before = previous.map(|actions| tape.buffer(actions)).transpose()?;
            let state = Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? };
            let sight = agent.actor_critic.look(tape, Seen { view, previous: before })?;
            let state = agent.actor_critic.remember(tape, sight.gates, state)?;
            let policy = agent.actor_critic.decide(tape, state.hidden, sight.features)?;
            let chosen = tape.sample_at(policy.logits, temperature)?;
            tape.store(hidden, 0, state.hidden)?;
            tape.store(cell, 0, state.cell)?;
            if let Some(previous) = previous {
                tape.store(previous, 0, chosen)?;
            }
            if let Some(details) = &*details {
                tape.store(&details.values, 0, policy.values)?;
                tape.store(&details.logits, 0, policy.logits)?;
                let seen = match agent.config.actor_critic.sees {
                    Sees::Frames => view,
                    Sees::Codes => agent.tokenizer.render(tape, tokens)?,
                };
                tape.store(&details.seen, 0, seen)?;
                tape.store(&details.tokens, 0, tokens)?;
            }
            tape.store(actions, 0, chosen)
        })?;
        self.actions.read()
    }

    /// Returns of `episodes` whole games. Game number n is the same whoever plays beside it: no bias towards short games. After every step
    /// `go_on` hears how many are over, and may stop it.
    pub fn evaluate(
        &mut self,
        agent: &Agent,
        game: &Game,
        episodes: usize,
        temperature: f32,
        key: Key,
        go_on: impl FnMut(usize) -> bool,
    ) -> Result<Vec<f32>, PlayError> {
        self.evaluate_watched(agent, game, episodes, temperature, key, |_, _| {}, go_on)
    }

    /// The same; `watch` hears the number of the game and the action of every step.
    pub(crate) fn evaluate_watched(
        &mut self,
        agent: &Agent,
        game: &Game,
        episodes: usize,
        temperature: f32,
        key: Key,
        mut watch: impl FnMut(usize, usize),
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Vec<f32>, PlayError> {
        self.set_key(key);
        let size = agent.config.tokenizer.frame_size;
        let places = self.batch.min(episodes);
        let games = (0..places).map(|_| game.make(Purpose::Evaluate, size)).collect::<Result<_, _>>()?;
        let mut games = VectorEnv::new(games);
        let device = self.frames.device().clone();
        // Which episode each place plays; finished places take the next one.
        let mut playing: Vec<Option<usize>> = (0..places).map(Some).collect();
        let mut next = places;
        let seeds: Vec<_> = playing.iter().map(|e| e.map(|e| episode_seed(key.seed, e))).collect();
        device.on_host_threads(|| games.reset(&seeds))?;
        (0..places).try_for_each(|place| self.forget(place))?;
        let mut returns = vec![0.0; episodes];
        let mut frames = vec![0; self.frames.shape().len()];
        let mut finished = 0;
        while playing.iter().any(Option::is_some) {
            device.on_host_threads(|| games.render(&mut frames));
            let actions = self.act(agent, &frames, temperature)?;
            let actions: Vec<Option<usize>> =
                playing.iter().zip(&actions).map(|(episode, a)| episode.map(|_| *a as usize)).collect();
            let mut seeds = vec![None; places];
            for (place, step) in device.on_host_threads(|| games.step(&actions))?.into_iter().enumerate() {
                let (Some(episode), Some(step), Some(action)) = (playing[place], step, actions[place]) else {
                    continue;
                };
                watch(episode, action);
                returns[episode] += step.reward;
                if step.done() {
                    finished += 1;
                    playing[place] = (next < episodes).then_some(next);
                    seeds[place] = playing[place].map(|e| episode_seed(key.seed, e));
                    next += 1;
                    self.forget(place)?;
                }
            }
            device.on_host_threads(|| games.reset(&seeds))?;
            if !go_on(finished) {
                return Err(PlayError::Stopped);
            }
        }
        Ok(returns)
    }
}

/// A seed whose games are none of those that a run with this seed collects.
pub fn evaluation_seed(seed: u64) -> u64 {
    seed ^ 0xE7A1
}

/// The seed of an episode: far apart for neighbouring runs.
pub fn episode_seed(seed: u64, episode: usize) -> u64 {
    seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(episode as u64)
}

#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error("stopped")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use envs::arcade::Catch;
    use envs::{Env, Step};

    use super::*;
    use crate::AgentConfig;
    use crate::fuzzing::tiny_agent;

    /// Names of the threads that games were played on.
    static PLAYED_ON: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    fn note_thread() {
        let name = std::thread::current().name().unwrap_or("a thread without a name").to_string();
        PLAYED_ON.lock().unwrap().insert(name);
    }

    struct Watched(Catch);

    impl Env for Watched {
        fn action_names(&self) -> Vec<String> {
            self.0.action_names()
        }

        fn frame_size(&self) -> (usize, usize) {
            self.0.frame_size()
        }

        fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
            note_thread();
            self.0.reset(seed)
        }

        fn step(&mut self, action: usize) -> Result<Step, EnvError> {
            note_thread();
            self.0.step(action)
        }

        fn render(&self, frame: &mut [u8]) {
            note_thread();
            self.0.render(frame);
        }
    }

    #[test]
    fn games_are_played_on_the_threads_of_the_device() {
        envs::register(Game {
            name: "test/watched".into(),
            make: Arc::new(|_| Ok(Box::new(Watched(Catch::new())))),
            ..Game::find("arcade/catch").unwrap()
        });
        let device = Device::cpu(Some(1)).unwrap();
        let config = AgentConfig { actions: 3, ..tiny_agent(&device).unwrap().config };
        let agent = Agent::new(&device, &config, 0).unwrap();
        let mut player = Player::new(&device, &agent, 16).unwrap();
        let game = Game::find("test/watched").unwrap();
        let returns = player.evaluate(&agent, &game, 20, 1.0, Key::new(0, 0), |_| true).unwrap();
        assert_eq!(returns.len(), 20);
        assert_eq!(*PLAYED_ON.lock().unwrap(), BTreeSet::from(["engine-0".to_string()]));
    }
}
