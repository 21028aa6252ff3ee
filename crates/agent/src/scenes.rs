//! What the networks make of recorded frames, as rows of cells for pictures.

use engine::{Buffer, Device, Key, Rng, Stepper};

use crate::picture::{Cell, to_bytes};
use crate::{Acting, Action, Agent, Asked, Dream, Episode, Replay, ReplayError};

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
        self.frame.write(frame)?;
        let input = &self.frame;
        let (pixels, tokens) = self.stepper.infer(|tape| -> engine::Result<(Vec<f32>, Vec<i32>)> {
            let x = tape.buffer(input)?;
            let (tokens, pixels) = agent.tokenizer.reconstruct(tape, x)?;
            Ok((tape.read(pixels)?, tape.read(tokens)?))
        })?;
        Ok((to_bytes(&pixels), tokens))
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
        let future = |record: usize| {
            let episode = self.episode(record);
            episode.map_or(0, |e| e.start + e.len - record).min(steps)
        };
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

    fn episode(&self, record: usize) -> Option<&Episode> {
        self.replay.table().episodes.iter().find(|e| (e.start..e.start + e.len).contains(&record))
    }

    /// Recorded steps, from `record` to at most the end of its episode.
    pub fn recorded(&self, record: usize, steps: usize) -> Result<Vec<Cell>> {
        let episode = self.episode(record);
        let end = episode.map_or(record, |e| e.start + e.len).min(record + steps);
        let cell = |record: usize| {
            let mut frame = vec![0; self.frame_size().pow(2) * 3];
            self.replay.frame(record, &mut frame)?;
            let step = self.replay.record(record)?;
            Ok(Cell { frame, reward: step.reward, end: step.ended() })
        };
        (record..end).map(cell).collect()
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
    ) -> Result<Vec<Vec<Cell>>> {
        let mut frames = Vec::with_capacity(records.len());
        for &record in records {
            let before = self.before(record);
            let cells = self.recorded(record - before, before + 1)?;
            frames.push(cells.into_iter().flat_map(|cell| cell.frame).collect());
        }
        let mut rows: Vec<Vec<Cell>> = vec![Vec::new(); records.len()];
        let mut dream = Dream::from_frames(self.device, self.agent, &frames, self.burn_in, key)?;
        let mut seen: Vec<Vec<u8>> = dream.look(self.agent)?.into_iter().map(|frame| frame.pixels).collect();
        let mut unfinished = Some(dream);
        for t in 0..horizon {
            let given;
            let action = match acting {
                Acting::Policy { temperature } => Action::Policy { temperature },
                Acting::Given(actions) => {
                    given = vec![actions.get(t).copied().unwrap_or_default(); records.len()];
                    Action::Given(&given)
                }
            };
            let last = t + 1 == horizon;
            let moments = match (last, unfinished.take()) {
                (false, Some(mut dream)) => {
                    let moments = dream.step(self.agent, action, Asked::default())?;
                    unfinished = Some(dream);
                    moments
                }
                (true, Some(dream)) => dream.finish(self.agent, action, Asked::default())?,
                (_, None) => Vec::new(),
            };
            let rewards = self.agent.config.world_model.reward;
            for (row, (moment, frame)) in rows.iter_mut().zip(moments.into_iter().zip(&mut seen)) {
                let next = moment.next.map_or(Vec::new(), |next| next.pixels);
                let frame = std::mem::replace(frame, next);
                if row.last().is_none_or(|cell| !cell.end) {
                    row.push(Cell { frame, reward: rewards.shown(moment.reward), end: moment.end });
                }
            }
            progress(t + 1);
            if rows.iter().all(|row| row.last().is_some_and(|cell| cell.end)) {
                break;
            }
        }
        Ok(rows)
    }

    /// Steps of the episode before a record, at most as many as the policy is warmed up with.
    fn before(&self, record: usize) -> usize {
        let episode = self.episode(record);
        episode.map_or(0, |e| record - e.start).min(self.burn_in)
    }

    /// The actions recorded from `record` on, as many as there are.
    pub fn recorded_actions(&self, record: usize, steps: usize) -> Result<Vec<usize>> {
        let count = self.recorded(record, steps)?.len();
        (record..record + count).map(|r| Ok(self.replay.record(r)?.action as usize)).collect()
    }
}
