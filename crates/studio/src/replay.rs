//! `/api/replay`: everything that a run has seen.
//!
//! ```text
//! GET /api/replay/{run}                                      its episodes
//! GET /api/replay/{run}/{episode}                            actions, rewards and ends of an episode
//! GET /api/replay/{run}/{episode}/frames?from=0&count=16     RGB bytes of frames, one after the other
//! GET /api/replay/{run}/{episode}/dream?from=0&count=16      the same stretch dreamt with the recorded actions: RGB bytes
//! GET /api/replay/{run}/{episode}/surprise?from=0&count=64   how surprised the world model was by each frame
//! ```

use std::sync::Arc;

use agent::picture::Cell;
use agent::{Acting, Read, Rollout, Stretch};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use engine::Key;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Studio;
use crate::compute::Source;
use crate::episodes::{Episodes, Recorded, Summary};
use crate::problem::{Problem, blocking};

/// Frames of one answer.
const MOST_FRAMES: usize = 128;
/// Steps of one answer about surprise.
const MOST_SURPRISES: usize = 512;
/// Frames that are encoded while others wait.
const AT_ONCE: usize = 8;

pub fn routes() -> Router<Arc<Studio>> {
    Router::new()
        .route("/api/replay/{run}", get(list))
        .route("/api/replay/{run}/{episode}", get(episode))
        .route("/api/replay/{run}/{episode}/frames", get(frames))
        .route("/api/replay/{run}/{episode}/dream", get(dream))
        .route("/api/replay/{run}/{episode}/surprise", get(surprise))
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    from: usize,
    count: usize,
    /// Of a dream.
    #[serde(default)]
    seed: u64,
}

impl Part {
    fn check(&self, most: usize) -> Result<(), Problem> {
        match (1..=most).contains(&self.count) {
            true => Ok(()),
            false => Err(Problem::bad_request(format!(
                "{} steps were asked for, but an answer has from 1 to {most}",
                self.count
            ))),
        }
    }
}

async fn list(
    State(studio): State<Arc<Studio>>,
    Path(run): Path<String>,
) -> Result<Json<Vec<Summary>>, Problem> {
    blocking(move || Ok(Json(Episodes::open(&studio, &studio.run(&run)?)?.list()?))).await
}

/// Finds an episode of a run.
pub async fn find(studio: &Arc<Studio>, run: String, episode: String) -> Result<Arc<Recorded>, Problem> {
    let studio = studio.clone();
    blocking(move || Ok(Arc::new(Episodes::open(&studio, &studio.run(&run)?)?.find(&episode)?))).await
}

async fn episode(
    State(studio): State<Arc<Studio>>,
    Path((run, episode)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let names = {
        let (studio, run) = (studio.clone(), run.clone());
        blocking(move || {
            let opened = Episodes::open(&studio, &studio.run(&run)?)?.opened;
            let size = opened.config.agent.tokenizer.frame_size;
            let game = opened.config.game(None).map_err(Problem::bad_request)?;
            let env = game.make(envs::Purpose::Train, size);
            // A game that cannot be played here still has episodes.
            Ok(env.map_or(Vec::new(), |env| env.action_names()))
        })
        .await?
    };
    let recorded = find(&studio, run, episode).await?;
    let records = &recorded.records;
    Ok(Json(json!({
        "size": recorded.size(),
        "names": names,
        "actions": records.iter().map(|record| record.action).collect::<Vec<_>>(),
        "rewards": records.iter().map(|record| record.reward).collect::<Vec<_>>(),
        "terminated": records.last().is_some_and(|record| record.terminated),
        "truncated": records.last().is_some_and(|record| record.truncated),
    })))
}

pub fn bytes(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
}

async fn frames(
    State(studio): State<Arc<Studio>>,
    Path((run, episode)): Path<(String, String)>,
    Query(part): Query<Part>,
) -> Result<Response, Problem> {
    part.check(MOST_FRAMES)?;
    let recorded = find(&studio, run, episode).await?;
    let wanted = part.from..part.from.saturating_add(part.count);
    Ok(bytes(blocking(move || recorded.frames(wanted)).await?))
}

/// What `iris dream RUN --from N --actions recorded` shows, one future of it.
async fn dream(
    State(studio): State<Arc<Studio>>,
    Path((run, episode)): Path<(String, String)>,
    Query(part): Query<Part>,
) -> Result<Response, Problem> {
    part.check(MOST_FRAMES)?;
    let entry = studio.run(&run)?;
    let recorded = find(&studio, run, episode).await?;
    let (size, burn_in) = (recorded.size(), recorded.config().actor_critic.burn_in);
    let first = part.from.saturating_sub(burn_in);
    let (stretch, actions) = blocking(move || {
        let frames = recorded.frames(first..part.from.saturating_add(1))?;
        let cells = frames.chunks_exact(size * size * 3);
        let cells: Vec<Cell> = cells.map(|frame| Cell { frame: frame.to_vec(), ..Cell::default() }).collect();
        let steps = first..first + cells.len();
        let end = part.from.saturating_add(part.count).min(recorded.records.len());
        let followed: Vec<usize> = (part.from..end).map(|step| recorded.action(step)).collect();
        let actions = steps.map(|step| recorded.action(step)).collect();
        let previous = first.checked_sub(1).map(|step| recorded.action(step));
        Ok((Stretch { cells, actions, before: part.from - first, previous }, followed))
    })
    .await?;
    let dreamt = studio.compute.ask(move |worker| {
        let device = worker.device.clone();
        let loaded = worker.load(&Source::new(&entry, None))?;
        let rollout = Rollout { device: &device, agent: &loaded.agent, burn_in, context: None };
        let key = Key::new(part.seed, 0);
        let dreams = rollout.dreams(&[stretch], actions.len(), Acting::Given(&actions), key, |_| {});
        Ok(dreams.map_err(Problem::internal)?.pop().unwrap_or_default().cells)
    });
    Ok(bytes(dreamt.await?.into_iter().flat_map(|cell| cell.frame).collect()))
}

/// The tokens of some frames (RGB bytes), a few at a time so that others get their turn.
pub async fn tokens(
    studio: &Arc<Studio>,
    source: &Source,
    frames: Vec<u8>,
    size: usize,
) -> Result<Vec<i32>, Problem> {
    let frames = Arc::new(frames);
    let frame = size * size * 3;
    let mut tokens = Vec::new();
    for first in (0..frames.len() / frame).step_by(AT_ONCE) {
        let (source, frames) = (source.clone(), frames.clone());
        let some = studio.compute.ask(move |worker| {
            let device = worker.device.clone();
            let loaded = worker.load(&source)?;
            let mut eye = loaded.eye(&device)?;
            let mut tokens = Vec::new();
            for frame in frames.chunks_exact(frame).skip(first).take(AT_ONCE) {
                tokens.extend(eye.look(&loaded.agent, frame).map_err(Problem::internal)?.1);
            }
            Ok(tokens)
        });
        tokens.extend(some.await?);
    }
    Ok(tokens)
}

/// Cross-entropy per token in nats; null for the first frame of an episode. Every frame is judged with at least half of the context window before it,
/// where the episode has so many.
async fn surprise(
    State(studio): State<Arc<Studio>>,
    Path((run, episode)): Path<(String, String)>,
    Query(part): Query<Part>,
) -> Result<Json<Value>, Problem> {
    part.check(MOST_SURPRISES)?;
    let entry = studio.run(&run)?;
    let recorded = find(&studio, run, episode).await?;
    let (size, window) = (recorded.size(), recorded.config().agent.world_model.steps);
    let end = part.from.saturating_add(part.count).min(recorded.records.len());
    let first = part.from.saturating_sub(window - 1);
    let seen = recorded.clone();
    let frames = blocking(move || seen.frames(first..end)).await?;
    let source = Source::new(&entry, None);
    let tokens = Arc::new(tokens(&studio, &source, frames, size).await?);
    let k = tokens.len() / (end - first).max(1);
    let actions: Arc<Vec<usize>> = Arc::new((first..end).map(|step| recorded.action(step)).collect());
    let mut found: Vec<Option<f32>> = vec![None; usize::from(part.from == 0)];
    let stride = (window / 2).max(1);
    let mut next = part.from.max(1);
    while next < end {
        let last = (next + stride).min(end);
        let (source, tokens, actions) = (source.clone(), tokens.clone(), actions.clone());
        let surprises = studio.compute.ask(move |worker| {
            let device = worker.device.clone();
            let loaded = worker.load(&source)?;
            let start = last.saturating_sub(window).max(first) - first;
            let read = Read {
                tokens: &tokens[start * k..(last - first) * k],
                actions: &actions[start..last - first],
            };
            let expected = read.expectations(&device, &loaded.agent).map_err(Problem::internal)?;
            let wanted = expected.len().saturating_sub(last - next);
            Ok(expected[wanted..].iter().map(|expected| Some(expected.surprise())).collect::<Vec<_>>())
        });
        found.extend(surprises.await?);
        next = last;
    }
    Ok(Json(json!({ "from": part.from, "surprise": found })))
}
