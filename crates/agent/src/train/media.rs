//! Pictures of a run: what the tokenizer keeps of a frame, what the world model dreams, how the agent plays.

use std::ops::Range;
use std::path::Path;

use engine::Rng;
use rayon::prelude::*;

use super::ended::Ended;
use super::held_out::HeldOut;
use super::phase::Stream;
use super::{Result, TrainError};
use crate::animation::{Pace, write_animation};
use crate::files::{FileError, failed};
use crate::picture::{Cell, Picture, Row};
use crate::scenes::{SceneError, Scenes};
use crate::{Acting, Dreamt, Rollout, Stretch};

/// Frames of a strip of reconstructions.
const FRAMES: usize = 10;
/// Frames that `foresight.png` conditions on, as in the paper's figure 3.
const CONTEXT: usize = 2;
/// Dreams in a picture.
const DREAMS: usize = 4;
/// Steps of an episode that are shown.
const EPISODE: usize = 200;
const PACE: Pace = Pace { seconds: 1, pictures: 5 };

/// What the drawn networks have shown.
pub(super) struct Drawn {
    /// Whether the tokenizer can tell frames apart: false if several that differ have the same tokens, all of them.
    pub tells_apart: bool,
    /// Those of `dream.png`.
    pub dreams: Vec<Dreamt>,
}

impl Ended<'_> {
    /// Draws the epoch that just ended, where there is something to see. The first and the third picture show games of its evaluation, which no network
    /// has learnt from:
    ///
    /// - `reconstructions.png`: frames above what is left of them after encoding and decoding
    /// - `episode.gif`: the newest finished episode of training beside what the agent saw of it
    /// - `foresight.png`: a stretch of a game above the world model's dream of it, from its first two frames and its actions alone
    /// - `dream.png`, `dream.gif`: the policy acting in dreams that begin at steps of the replay
    pub fn draw(&self, folder: &Path, evaluated: &[(f32, HeldOut)]) -> Result<Drawn> {
        let epoch = self.number();
        let mut drawn = Drawn { tells_apart: true, dreams: Vec::new() };
        if self.config.tokenizer.schedule.start_after > epoch || self.replay.steps() == 0 {
            return Ok(drawn);
        }
        std::fs::create_dir_all(folder).map_err(|e| save(failed("create", folder)(e)))?;
        let scenes = Scenes {
            device: self.device,
            agent: self.agent,
            replay: self.replay,
            burn_in: self.config.actor_critic.burn_in,
        };
        let size = self.config.agent.tokenizer.frame_size;
        let key = self.key(Stream::Media, self.epoch);
        let mut rng = Rng::new(key);
        let strip =
            |name: &str, rows: &[Row]| Picture::strip(rows, size).write_png(&folder.join(name)).map_err(save);
        let animation = |name: &str, rows: &[Row]| {
            write_animation(Picture::animation(rows, size), PACE, &folder.join(name)).map_err(save)
        };

        let mut chosen = |steps: usize| {
            let (held_out, step) = HeldOut::choose(evaluated, steps, &mut rng)?;
            Some((held_out, step..step + steps))
        };
        let single: Vec<_> = (0..FRAMES).filter_map(|_| chosen(1)).collect();
        // A game is played from its first step for each.
        let game = self.game;
        let play = |(held_out, steps): (&HeldOut, Range<usize>)| held_out.steps(game, size, steps);
        let played: Result<Vec<Stretch>> =
            self.device.on_host_threads(|| single.into_par_iter().map(play).collect());
        let frames: Vec<Cell> = played?.into_iter().flat_map(|stretch| stretch.cells).collect();
        let (seen, tokens) = scenes.reconstructed(&frames)?;
        let differ = frames.iter().any(|cell| cell.frame != frames[0].frame);
        let mut views = tokens.chunks_exact(self.config.agent.tokenizer.tokens());
        let first = views.next();
        drawn.tells_apart = !differ || views.any(|view| Some(view) != first);
        strip(
            "reconstructions.png",
            &[Row::new("evaluation games", frames), Row::new("reconstructed", seen)],
        )?;

        if let Some(episode) = self.replay.table().episodes.iter().rfind(|e| e.ended) {
            let played = scenes.recorded(episode.start, episode.len.min(EPISODE))?;
            let seen = scenes.reconstructed(&played)?.0;
            animation("episode.gif", &[Row::new("played", played), Row::new("seen by agent", seen)])?;
        }

        if self.config.world_model.schedule.start_after <= epoch {
            let horizon = self.config.agent.world_model.steps;
            if let Some((game, step)) = HeldOut::choose(evaluated, horizon, &mut rng) {
                let stretch = game.steps(self.game, size, step..step + horizon)?;
                let (steps, context) = (stretch.cells.len(), CONTEXT.min(stretch.cells.len()).max(1));
                // Nobody asks the policy, so it need not be warmed up.
                let cold =
                    Rollout { device: self.device, agent: self.agent, burn_in: 0, context: Some(context) };
                let actions = stretch.actions.get(context - 1..).unwrap_or_default();
                let mut rows = vec![Row::new("evaluation game", stretch.marked(context))];
                let starts = std::slice::from_ref(&stretch);
                let dreamt = cold.dreams(starts, steps, Acting::Given(actions), key, |_| {})?;
                let caption = "dreamt from the given frames and all actions";
                rows.extend(dreamt.into_iter().map(|dream| Row::new(caption, dream.cells)));
                strip("foresight.png", &rows)?;
            }
            let starts: Vec<usize> = (0..DREAMS).map(|_| self.replay.sample_step(&mut rng)).collect();
            let acting = Acting::Policy { temperature: 1.0 };
            drawn.dreams = scenes.dreams(&starts, horizon, acting, key, |_| {})?;
            let row = |(dream, i): (&Dreamt, usize)| Row::new(format!("dream {i}"), dream.cells.clone());
            let rows: Vec<Row> = drawn.dreams.iter().zip(1..).map(row).collect();
            strip("dream.png", &rows)?;
            animation("dream.gif", &rows)?;
        }
        Ok(drawn)
    }
}

impl From<SceneError> for TrainError {
    fn from(error: SceneError) -> TrainError {
        match error {
            SceneError::Engine(error) => error.into(),
            SceneError::Replay(error) => error.into(),
        }
    }
}

fn save(error: FileError) -> TrainError {
    TrainError::Save(error.into())
}
