//! Pictures of a run: what the tokenizer keeps of a frame, what the world model dreams, how the agent plays.

use std::path::Path;

use engine::Rng;

use super::phase::Stream;
use super::{Result, TrainError, Trainer};
use crate::files::{FileError, failed};
use crate::picture::{Picture, Row, write_gif};
use crate::scenes::{SceneError, Scenes};
use crate::{Acting, Rollout};

/// Frames of a strip of reconstructions.
const FRAMES: usize = 10;
/// Frames that `foresight.png` conditions on, as in the paper's figure 3.
const CONTEXT: usize = 2;
/// Dreams in a picture.
const DREAMS: usize = 4;
/// Steps of an episode that are shown.
const EPISODE: usize = 200;
/// Hundredths of a second per step.
const DELAY: u16 = 20;

impl Trainer {
    /// Draws the epoch that just ended, where there is something to see:
    ///
    /// - `reconstructions.png`: frames of the replay above what is left of them after encoding and decoding
    /// - `episode.gif`: the newest finished episode beside what the agent saw of it
    /// - `foresight.png`: a recorded stretch above the world model's dream of it, from its first two frames and its actions alone
    /// - `dream.png`, `dream.gif`: the policy acting in dreams
    ///
    /// Whether the tokenizer can tell frames apart: false if several that differ have the same tokens, all of them.
    pub(super) fn draw(&self, folder: &Path) -> Result<bool> {
        let epoch = self.epoch.saturating_sub(1);
        if self.config.tokenizer.schedule.start_after > epoch || self.replay.steps() == 0 {
            return Ok(true);
        }
        std::fs::create_dir_all(folder).map_err(|e| save(failed("create", folder)(e)))?;
        let scenes = Scenes {
            device: &self.device,
            agent: &self.agent,
            replay: &self.replay,
            burn_in: self.config.actor_critic.burn_in,
        };
        let size = self.config.agent.tokenizer.frame_size;
        let key = self.key(Stream::Media);
        let mut rng = Rng::new(key);
        let strip =
            |name: &str, rows: &[Row]| Picture::strip(rows, size).write_png(&folder.join(name)).map_err(save);
        let animation = |name: &str, rows: &[Row]| {
            write_gif(Picture::animation(rows, size), DELAY, &folder.join(name)).map_err(save)
        };

        let mut frames = Vec::new();
        for _ in 0..FRAMES {
            frames.extend(scenes.recorded(self.replay.sample_step(&mut rng), 1)?);
        }
        let (seen, tokens) = scenes.reconstructed(&frames)?;
        let differ = frames.iter().any(|cell| cell.frame != frames[0].frame);
        let mut views = tokens.chunks_exact(self.config.agent.tokenizer.tokens());
        let first = views.next();
        let tells_apart = !differ || views.any(|view| Some(view) != first);
        strip("reconstructions.png", &[Row::new("recorded", frames), Row::new("reconstructed", seen)])?;

        if let Some(episode) = self.replay.table().episodes.iter().rfind(|e| e.ended) {
            let played = scenes.recorded(episode.start, episode.len.min(EPISODE))?;
            let seen = scenes.reconstructed(&played)?.0;
            animation("episode.gif", &[Row::new("played", played), Row::new("seen by agent", seen)])?;
        }

        if self.config.world_model.schedule.start_after <= epoch {
            let horizon = self.config.agent.world_model.steps;
            let start = scenes.choose_start(&mut rng, horizon);
            let stretch = scenes.stretch(start, horizon)?;
            let (followed, actions) = stretch.followed();
            let (steps, context) = (followed.len(), CONTEXT.min(followed.len()).max(1));
            // Nobody asks the policy, so it need not be warmed up.
            let cold =
                Rollout { device: &self.device, agent: &self.agent, burn_in: 0, context: Some(context) };
            let acting = Acting::Given(actions.get(context - 1..).unwrap_or_default());
            let starts = [stretch.from(stretch.before, steps, 0)];
            let dreamt = cold.dreams(&starts, steps, acting, key, |_| {})?;
            let mut rows = vec![Row::new("recorded", stretch.marked(context))];
            let caption = "dreamt from the given frames and all actions";
            rows.extend(dreamt.into_iter().map(|cells| Row::new(caption, cells)));
            strip("foresight.png", &rows)?;
            let starts: Vec<usize> = (0..DREAMS).map(|_| self.replay.sample_step(&mut rng)).collect();
            let dreams = scenes.dreams(&starts, horizon, Acting::Policy { temperature: 1.0 }, key, |_| {})?;
            let rows: Vec<Row> =
                dreams.into_iter().zip(1..).map(|(cells, i)| Row::new(format!("dream {i}"), cells)).collect();
            strip("dream.png", &rows)?;
            animation("dream.gif", &rows)?;
        }
        Ok(tells_apart)
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
