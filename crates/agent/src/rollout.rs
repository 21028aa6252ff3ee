//! Dreams that begin with steps that were really played, as rows of cells for pictures.

use engine::{Device, Key, Result};
use envs::{Env, Game, Purpose};

use crate::picture::Cell;
use crate::{Acting, Action, Agent, Asked, Dream, Moment, PlayError, Player, episode_seed, evaluation_seed};

/// Steps of one episode, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    pub cells: Vec<Cell>,
    /// One for each cell.
    pub actions: Vec<usize>,
    /// Steps before the start: they only warm the policy up.
    pub before: usize,
    /// The action before the first cell, if there was one.
    pub previous: Option<usize>,
}

impl Stretch {
    /// Plays the game that `iris eval` begins with for this seed, at most `steps` steps of it.
    pub fn play(
        device: &Device,
        agent: &Agent,
        game: &Game,
        temperature: f32,
        seed: u64,
        steps: usize,
    ) -> Result<Stretch, PlayError> {
        let (mut env, mut player, seed) = seated(device, agent, game, Purpose::Evaluate, seed)?;
        env.reset(episode_seed(seed, 0))?;
        let mut played = Stretch::default();
        while played.cells.len() < steps && played.cells.last().is_none_or(|cell| !cell.end) {
            played.step(agent, env.as_mut(), &mut player, temperature)?;
        }
        Ok(played)
    }

    /// Plays `steps` steps of a game that no run with this seed collects, by training's rules: in Atari a lost life ends an episode. Returns the episodes.
    pub fn play_episodes(
        device: &Device,
        agent: &Agent,
        game: &Game,
        temperature: f32,
        seed: u64,
        steps: usize,
    ) -> Result<Vec<Stretch>, PlayError> {
        let (mut env, mut player, seed) = seated(device, agent, game, Purpose::Train, seed)?;
        let mut episodes: Vec<Stretch> = Vec::new();
        for _ in 0..steps {
            if episodes.last().is_none_or(|episode| episode.cells.last().is_some_and(|cell| cell.end)) {
                env.reset(episode_seed(seed, episodes.len()))?;
                player.forget(0)?;
                episodes.push(Stretch::default());
            }
            let Some(episode) = episodes.last_mut() else { break };
            episode.step(agent, env.as_mut(), &mut player, temperature)?;
        }
        Ok(episodes)
    }

    /// The policy's next step.
    fn step(
        &mut self,
        agent: &Agent,
        env: &mut dyn Env,
        player: &mut Player,
        temperature: f32,
    ) -> Result<(), PlayError> {
        let size = agent.config.tokenizer.frame_size;
        let mut frame = vec![0; size * size * 3];
        env.render(&mut frame);
        let action = player.act(agent, &frame, temperature)?[0] as usize;
        let step = env.step(action)?;
        self.cells.push(Cell { frame, reward: step.reward, end: step.done(), given: false });
        self.actions.push(action);
        Ok(())
    }

    /// At most `steps` steps from `start` on, and at most `burn_in` before it.
    pub fn from(&self, start: usize, steps: usize, burn_in: usize) -> Stretch {
        let start = start.min(self.cells.len());
        let before = start.min(burn_in);
        let taken = start - before..(start + steps).min(self.cells.len());
        let previous = match taken.start.checked_sub(1) {
            Some(last) => self.actions.get(last).copied(),
            None => self.previous,
        };
        let (cells, actions) = (self.cells[taken.clone()].to_vec(), self.actions[taken].to_vec());
        Stretch { cells, actions, before, previous }
    }

    /// What was done before the start.
    pub fn actions_before(&self) -> Vec<usize> {
        self.previous.iter().chain(self.actions.iter().take(self.before)).copied().collect()
    }

    /// The steps from the start on.
    pub fn followed(&self) -> (&[Cell], &[usize]) {
        (&self.cells[self.before..], &self.actions[self.before..])
    }

    /// The cells from the start on, of which the first `context` are marked as given.
    pub fn marked(&self, context: usize) -> Vec<Cell> {
        let mark = |(i, cell): (usize, &Cell)| Cell { given: i < context, ..cell.clone() };
        self.followed().0.iter().enumerate().map(mark).collect()
    }
}

/// A game, who plays it, and the seed of its episodes: none that a run with this seed collects.
fn seated(
    device: &Device,
    agent: &Agent,
    game: &Game,
    purpose: Purpose,
    seed: u64,
) -> Result<(Box<dyn Env>, Player, u64), PlayError> {
    let env = game.make(purpose, agent.config.tokenizer.frame_size)?;
    let mut player = Player::new(device, agent, 1)?;
    let seed = evaluation_seed(seed);
    player.set_key(Key::new(seed, 1));
    Ok((env, player, seed))
}

/// A dream and what was done in it, one of each for every step.
#[derive(Clone, Debug, Default)]
pub struct Dreamt {
    /// Rewards and frames as pictures show them.
    pub cells: Vec<Cell>,
    pub actions: Vec<usize>,
    /// As they were imagined.
    pub rewards: Vec<f32>,
}

impl Dreamt {
    fn push(&mut self, cell: Cell, action: usize, reward: f32) {
        self.cells.push(cell);
        self.actions.push(action);
        self.rewards.push(reward);
    }

    fn ended(&self) -> bool {
        self.cells.last().is_some_and(|cell| cell.end)
    }
}

/// How dreams begin.
pub struct Rollout<'a> {
    pub device: &'a Device,
    pub agent: &'a Agent,
    /// Frames before the start that warm the policy up.
    pub burn_in: usize,
    /// Frames from the start on that the world model and the policy see, with the actions between them; they are marked in the rows. Without it the dream
    /// begins with the first frame, unmarked.
    pub context: Option<usize>,
}

impl Rollout<'_> {
    /// A dream from each start, `horizon` steps long with those of the context, or until it ends. Given actions count from the last frame of the
    /// context on. A start with fewer steps than the context gives what all starts have. `progress` hears how many steps are done.
    pub fn dreams(
        &self,
        starts: &[Stretch],
        horizon: usize,
        acting: Acting,
        key: Key,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Dreamt>> {
        let shortest = starts.iter().map(|start| start.followed().0.len()).min().unwrap_or(0);
        let context = self.context.unwrap_or(1).min(shortest).min(horizon).max(1);
        let first = |start: &Stretch| {
            start.cells.iter().take(start.before + 1).flat_map(|cell| cell.frame.clone()).collect()
        };
        let frames: Vec<Vec<u8>> = starts.iter().map(first).collect();
        let actions: Vec<Vec<usize>> = starts.iter().map(Stretch::actions_before).collect();
        let mut rows = vec![Dreamt::default(); starts.len()];
        let mut dream = Dream::from_frames(self.device, self.agent, &frames, &actions, self.burn_in, key)?;
        let mut seen: Vec<Vec<u8>> = dream.look(self.agent)?.into_iter().map(|frame| frame.pixels).collect();
        for t in 0..context - 1 {
            let actions: Vec<usize> = starts.iter().map(|start| start.followed().1[t]).collect();
            let next: Vec<Vec<u8>> = starts.iter().map(|s| s.followed().0[t + 1].frame.clone()).collect();
            let frames = dream.condition(self.agent, &actions, &next)?;
            for (((row, start), frame), next) in rows.iter_mut().zip(starts).zip(&mut seen).zip(frames) {
                let frame = std::mem::replace(frame, next.pixels);
                let cell = Cell { frame, given: true, ..start.followed().0[t].clone() };
                let reward = cell.reward;
                row.push(cell, start.followed().1[t], reward);
            }
            progress(t + 1);
        }
        let mut unfinished = Some(dream);
        for t in context - 1..horizon {
            let given;
            let action = match acting {
                Acting::Policy { temperature } => Action::Policy { temperature },
                Acting::Given(actions) => {
                    let action = actions.get(t + 1 - context).copied().unwrap_or_default();
                    given = vec![action; starts.len()];
                    Action::Given(&given)
                }
            };
            let moments = match (t + 1 == horizon, unfinished.take()) {
                (false, Some(mut dream)) => {
                    let moments = dream.step(self.agent, action, Asked::default())?;
                    unfinished = Some(dream);
                    moments
                }
                (true, Some(dream)) => dream.finish(self.agent, action, Asked::default())?,
                (_, None) => Vec::new(),
            };
            for (row, (moment, frame)) in rows.iter_mut().zip(moments.into_iter().zip(&mut seen)) {
                let Moment { action, reward, end, next, .. } = moment;
                let frame = std::mem::replace(frame, next.map_or(Vec::new(), |next| next.pixels));
                if !row.ended() {
                    let given = self.context.is_some() && t + 1 == context;
                    let shown = self.agent.config.world_model.reward.shown(reward);
                    row.push(Cell { frame, reward: shown, end, given }, action, reward);
                }
            }
            progress(t + 1);
            if rows.iter().all(Dreamt::ended) {
                break;
            }
        }
        Ok(rows)
    }
}
