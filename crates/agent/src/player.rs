//! Acting in real games: every frame goes through the tokenizer, as in the paper; the policy sees its reconstruction.

use engine::{Buffer, Device, Key, Lstm, Result, Stepper};
use envs::{EnvError, Game, Purpose, VectorEnv};

use crate::{Agent, mix};

/// Plays several games side by side with one policy.
pub struct Player {
    stepper: Stepper,
    frames: Buffer,
    hidden: Buffer,
    cell: Buffer,
    actions: Buffer,
    batch: usize,
    width: usize,
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
            batch,
            width,
        })
    }

    /// The randomness of the next actions.
    pub fn set_key(&mut self, key: Key) {
        self.stepper.set_key(key);
    }

    /// Forgets everything about one of the games.
    pub fn forget(&mut self, game: usize) -> Result<()> {
        let nothing = vec![0f32; self.width];
        self.hidden.write_at(game * self.width, &nothing)?;
        self.cell.write_at(game * self.width, &nothing)
    }

    /// Looks at the games' frames (RGB bytes, one after the other) and chooses actions.
    pub fn act(&mut self, agent: &Agent, frames: &[u8], temperature: f32) -> Result<Vec<i32>> {
        self.frames.write(frames)?;
        let Player { stepper, frames, hidden, cell, actions, .. } = self;
        let id = ("act", mix(agent.identity(), u64::from(temperature.to_bits())));
        stepper.infer_recorded(id, |tape| -> Result<()> {
            let seen = tape.buffer(frames)?;
            let (_, seen) = agent.tokenizer.reconstruct(tape, seen)?;
            let state = Lstm { hidden: tape.buffer(hidden)?, cell: tape.buffer(cell)? };
            let sight = agent.actor_critic.look(tape, seen)?;
            let state = agent.actor_critic.remember(tape, sight.gates, state)?;
            let policy = agent.actor_critic.decide(tape, state.hidden, sight.features)?;
            let chosen = tape.sample(policy.logits, temperature)?;
            tape.store(hidden, 0, state.hidden)?;
            tape.store(cell, 0, state.cell)?;
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
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Vec<f32>, PlayError> {
        self.set_key(key);
        let size = agent.config.tokenizer.frame_size;
        let places = self.batch.min(episodes);
        let games = (0..places).map(|_| game.make(Purpose::Evaluate, size)).collect::<Result<_, _>>()?;
        let mut games = VectorEnv::new(games);
        // Which episode each place plays; finished places take the next one.
        let mut playing: Vec<Option<usize>> = (0..places).map(Some).collect();
        let mut next = places;
        games.reset(&playing.iter().map(|e| e.map(|e| episode_seed(key.seed, e))).collect::<Vec<_>>());
        (0..places).try_for_each(|place| self.forget(place))?;
        let mut returns = vec![0.0; episodes];
        let mut frames = vec![0; self.frames.shape().len()];
        let mut finished = 0;
        while playing.iter().any(Option::is_some) {
            games.render(&mut frames);
            let actions = self.act(agent, &frames, temperature)?;
            let actions: Vec<Option<usize>> =
                playing.iter().zip(&actions).map(|(episode, a)| episode.map(|_| *a as usize)).collect();
            let mut seeds = vec![None; places];
            for (place, step) in games.step(&actions)?.into_iter().enumerate() {
                let (Some(episode), Some(step)) = (playing[place], step) else { continue };
                returns[episode] += step.reward;
                if step.done() {
                    finished += 1;
                    playing[place] = (next < episodes).then_some(next);
                    seeds[place] = playing[place].map(|e| episode_seed(key.seed, e));
                    next += 1;
                    self.forget(place)?;
                }
            }
            games.reset(&seeds);
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
