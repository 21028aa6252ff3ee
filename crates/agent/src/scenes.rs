//! What the networks make of recorded frames, as rows of cells for pictures.

use engine::{Buffer, Device, Key, Rng, Stepper};

use crate::picture::{Cell, to_bytes};
use crate::rollout::{Dreamt, Rollout, Stretch};
use crate::{Acting, Agent, Episode, Replay, ReplayError};

/// Why a scene cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

type Result<T, E = SceneError> = std::result::Result<T, E>;

/// Shows what is left of frames after encoding and decoding.
pub struct Eye {
    stepper: Stepper,
    frame: Buffer,
}

impl Eye {
    pub fn new(device: &Device, agent: &Agent) -> engine::Result<Eye> {
        let size = agent.config.tokenizer.frame_size;
        Ok(Eye {
            stepper: Stepper::new(device, Key::new(0, 0)),
            frame: device.buffer::<u8>("frame", [1, size, size, 3])?,
        })
    }

    /// A frame as the agent sees it, and its tokens.
    pub fn look(&mut self, agent: &Agent, frame: &[u8]) -> engine::Result<(Vec<u8>, Vec<i32>)> {
        let (pixels, tokens) = self.reconstruct(agent, frame)?;
        Ok((to_bytes(&pixels), tokens))
    }

    /// The same in [0, 1], as the networks have it.
    pub fn reconstruct(&mut self, agent: &Agent, frame: &[u8]) -> engine::Result<(Vec<f32>, Vec<i32>)> {
        self.frame.write(frame)?;
        let input = &self.frame;
        self.stepper.infer(|tape| -> engine::Result<(Vec<f32>, Vec<i32>)> {
            let x = tape.buffer(input)?;
            let (tokens, pixels) = agent.tokenizer.reconstruct(tape, x)?;
            Ok((tape.read(pixels)?, tape.read(tokens)?))
        })
    }
}

/// An agent and the replay it is shown.
pub struct Scenes<'a> {
    pub device: &'a Device,
    pub agent: &'a Agent,
    pub replay: &'a Replay,
    /// Frames that warm the policy up before a dream.
    pub burn_in: usize,
}

impl Scenes<'_> {
    fn frame_size(&self) -> usize {
        self.agent.config.tokenizer.frame_size
    }

    /// A record chosen at random, of those that are tried one with as many of `steps` steps after it as can be.
    pub fn choose_start(&self, rng: &mut Rng, steps: usize) -> usize {
        const TRIES: usize = 32;
        let future = |record: usize| self.episode(record).map_or(0, |(e, step)| e.len - step).min(steps);
        let mut best = self.replay.sample_step(rng);
        for _ in 1..TRIES {
            if future(best) == steps {
                break;
            }
            let other = self.replay.sample_step(rng);
            best = if future(other) > future(best) { other } else { best };
        }
        best
    }

    /// The episode of a record, and which of its steps it is.
    fn episode(&self, record: usize) -> Option<(&Episode, usize)> {
        self.replay.table().episodes.iter().find_map(|e| Some((e, e.step_of(record)?)))
    }

    /// Records of an episode, from `record` to at most its end.
    fn following(&self, record: usize, steps: usize) -> impl Iterator<Item = usize> {
        let episode = self.episode(record);
        episode.into_iter().flat_map(move |(e, step)| e.records().skip(step).take(steps))
    }

    /// Recorded steps, from `record` to at most the end of its episode.
    pub fn recorded(&self, record: usize, steps: usize) -> Result<Vec<Cell>> {
        let cell = |record: usize| {
            let mut frame = vec![0; self.frame_size().pow(2) * 3];
            self.replay.frame(record, &mut frame)?;
            let step = self.replay.record(record)?;
            Ok(Cell { frame, reward: step.reward, end: step.ended(), given: false })
        };
        self.following(record, steps).map(cell).collect()
    }

    /// The same steps as the tokenizer sees them, with the tokens of each.
    pub fn reconstructed(&self, cells: &[Cell]) -> Result<(Vec<Cell>, Vec<i32>)> {
        let mut eye = Eye::new(self.device, self.agent)?;
        let (mut out, mut tokens) = (Vec::with_capacity(cells.len()), Vec::new());
        for cell in cells {
            let (frame, codes) = eye.look(self.agent, &cell.frame)?;
            out.push(Cell { frame, ..*cell });
            tokens.extend(codes);
        }
        Ok((out, tokens))
    }

    /// A dream from each of the records, `horizon` steps long or until it ends. `progress` hears how many steps are done.
    pub fn dreams(
        &self,
        records: &[usize],
        horizon: usize,
        acting: Acting,
        key: Key,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Dreamt>> {
        let starts = records.iter().map(|record| self.stretch(*record, 1)).collect::<Result<Vec<_>>>()?;
        let rollout =
            Rollout { device: self.device, agent: self.agent, burn_in: self.burn_in, context: None };
        Ok(rollout.dreams(&starts, horizon, acting, key, &mut progress)?)
    }

    /// At most `steps` recorded steps from `record` on, and those before it that warm the policy up.
    pub fn stretch(&self, record: usize, steps: usize) -> Result<Stretch> {
        let (before, first) = self.before(record);
        let cells = self.recorded(first, before + steps)?;
        let actions = self.recorded_actions(first, before + steps)?;
        let previous = self.episode(first).and_then(|(episode, _)| episode.before(first));
        let previous = previous.map(|record| self.replay.record(record)).transpose()?;
        Ok(Stretch { cells, actions, before, previous: previous.map(|record| record.action as usize) })
    }

    /// Steps of the episode before a record, at most as many as the policy is warmed up with, and the record of the first.
    fn before(&self, record: usize) -> (usize, usize) {
        self.episode(record).map_or((0, record), |(e, step)| {
            let before = step.min(self.burn_in);
            (before, e.record(step - before))
        })
    }

    /// The actions recorded from `record` on, as many as there are.
    pub fn recorded_actions(&self, record: usize, steps: usize) -> Result<Vec<usize>> {
        self.following(record, steps).map(|r| Ok(self.replay.record(r)?.action as usize)).collect()
    }
}
