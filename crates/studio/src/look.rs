//! `/api/look`: what the networks make of a recorded frame.
//!
//! ```text
//! GET /api/look/{run}/{episode}/{step}                 u32 length of a JSON object, the object, RGB bytes of the frame and of its reconstruction
//! GET /api/look/{run}/{episode}/{step}/attention       u32 length of a JSON object, the object, f32 weights [layers, heads, K, keys]
//! GET /api/look/{run}/codebook?frames=256              how often each code is used in the newest frames of the replay
//! ```
//!
//! Row i of the attention is where the world model looked to predict token i. Key p is token p % (K + 1) of step p / (K + 1) of those that are remembered,
//! where token K is the action.

use std::sync::Arc;

use agent::Read;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Studio;
use crate::compute::Source;
use crate::episodes::Episodes;
use crate::problem::{Problem, blocking};
use crate::replay::{bytes, find, tokens};

/// Frames whose codes are counted.
const MOST_COUNTED: usize = 1024;

pub fn routes() -> Router<Arc<Studio>> {
    Router::new()
        .route("/api/look/{run}/codebook", get(codebook))
        .route("/api/look/{run}/{episode}/{step}", get(look))
        .route("/api/look/{run}/{episode}/{step}/attention", get(attention))
}

/// A frame and the steps before it that the world model remembers.
struct Seen {
    source: Source,
    size: usize,
    /// Its number among the steps that are remembered.
    at: usize,
    /// i32 [at + 1, K]
    tokens: Vec<i32>,
    /// One less, or more.
    actions: Vec<usize>,
    frame: Vec<u8>,
}

async fn see(studio: &Arc<Studio>, run: String, episode: String, step: usize) -> Result<Seen, Problem> {
    let source = Source::new(&studio.run(&run)?, None);
    let recorded = find(studio, run, episode).await?;
    let (size, window) = (recorded.size(), recorded.config().agent.world_model.steps);
    let first = (step + 1).saturating_sub(window);
    let actions = (first..step).map(|step| recorded.action(step)).collect();
    let frames = blocking(move || recorded.frames(first..step + 1)).await?;
    let frame = frames[(step - first) * size * size * 3..].to_vec();
    let tokens = tokens(studio, &source, frames, size).await?;
    Ok(Seen { source, size, at: step - first, tokens, actions, frame })
}

/// A JSON object and what follows it.
fn with_json(object: Value, rest: impl IntoIterator<Item = u8>) -> Response {
    let text = object.to_string();
    let mut all = (text.len() as u32).to_le_bytes().to_vec();
    all.extend(text.bytes());
    // Floats after it are aligned for the page.
    let aligned = all.len().next_multiple_of(4);
    all.resize(aligned, b' ');
    let length = (aligned - 4) as u32;
    all[..4].copy_from_slice(&length.to_le_bytes());
    all.extend(rest);
    bytes(all)
}

async fn look(
    State(studio): State<Arc<Studio>>,
    Path((run, episode, step)): Path<(String, String, usize)>,
) -> Result<Response, Problem> {
    let seen = see(&studio, run, episode, step).await?;
    studio
        .compute
        .ask(move |worker| {
            let device = worker.device.clone();
            let loaded = worker.load(&seen.source)?;
            let (pixels, _) =
                loaded.eye(&device)?.look(&loaded.agent, &seen.frame).map_err(Problem::internal)?;
            let read = Read { tokens: &seen.tokens, actions: &seen.actions };
            let expected = read.expectations(&device, &loaded.agent).map_err(Problem::internal)?.pop();
            let config = &loaded.agent.config;
            let k = loaded.agent.world_model.tokens;
            let surprises = expected.as_ref().map(|expected| expected.surprises().collect::<Vec<f32>>());
            let object = json!({
                "size": seen.size,
                "grid": config.tokenizer.grid(),
                "vocabulary": config.tokenizer.vocabulary,
                "layers": config.world_model.layers,
                "heads": config.world_model.heads,
                "before": seen.at,
                "tokens": seen.tokens[seen.at * k..],
                "probabilities": expected.as_ref().map(|expected| &expected.probabilities),
                "surprises": surprises,
                "likeliest": expected.as_ref().map(|expected| &expected.likeliest),
            });
            Ok(with_json(object, seen.frame.iter().copied().chain(pixels)))
        })
        .await
}

async fn attention(
    State(studio): State<Arc<Studio>>,
    Path((run, episode, step)): Path<(String, String, usize)>,
) -> Result<Response, Problem> {
    let seen = see(&studio, run, episode, step).await?;
    if seen.at == 0 {
        return Err(Problem::bad_request("nothing came before the first frame of an episode"));
    }
    studio
        .compute
        .ask(move |worker| {
            let device = worker.device.clone();
            let loaded = worker.load(&seen.source)?;
            let read = Read { tokens: &seen.tokens, actions: &seen.actions };
            let found = read.attention(&device, &loaded.agent).map_err(Problem::internal)?;
            let model = &loaded.agent.world_model;
            let k = model.tokens;
            let keys = seen.at * (k + 1) + k;
            let object = json!({
                "layers": found.layers, "heads": found.heads, "tokens": k, "keys": keys, "steps": seen.at + 1,
            });
            let rows = (0..found.layers).flat_map(|layer| (0..found.heads).map(move |head| (layer, head)));
            let weights = rows.flat_map(|(layer, head)| {
                let found = &found;
                (0..k)
                    .flat_map(move |token| model.looked_at(found, layer, head, token))
                    .flat_map(f32::to_le_bytes)
            });
            Ok(with_json(object, weights))
        })
        .await
}

#[derive(Debug, Deserialize)]
struct Newest {
    frames: Option<usize>,
}

async fn codebook(
    State(studio): State<Arc<Studio>>,
    Path(run): Path<String>,
    Query(newest): Query<Newest>,
) -> Result<Json<Value>, Problem> {
    let wanted = newest.frames.unwrap_or(256).clamp(1, MOST_COUNTED);
    let entry = studio.run(&run)?;
    let source = Source::new(&entry, None);
    let shared = studio.clone();
    let (frames, count, size, codes) = blocking(move || {
        let opened = Episodes::open(&shared, &entry)?.opened;
        let episodes = opened.replay.table().episodes.iter().rev();
        let records: Vec<usize> = episodes.flat_map(|episode| episode.records().rev()).take(wanted).collect();
        let tokenizer = &opened.config.agent.tokenizer;
        let size = tokenizer.frame_size;
        let mut frames = vec![0; records.len() * size * size * 3];
        opened.replay.frames(&records, &mut frames).map_err(Problem::internal)?;
        Ok((frames, records.len(), size, tokenizer.vocabulary))
    })
    .await?;
    let mut uses = vec![0usize; codes];
    for token in tokens(&studio, &source, frames, size).await? {
        if let Some(count) = usize::try_from(token).ok().and_then(|token| uses.get_mut(token)) {
            *count += 1;
        }
    }
    let used = uses.iter().filter(|count| **count > 0).count();
    Ok(Json(json!({ "frames": count, "uses": uses, "used": used })))
}
