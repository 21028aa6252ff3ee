//! `/api/play/{session}/recording.gif`, `.png` and `.npz`: what was played, as a file.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent::animation::{Pace, write_animation};
use agent::npz::{Dtype, Npz};
use agent::picture::{Cell, Picture, Row};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::history::{Facts, Image, Moment};
use crate::Studio;
use crate::problem::{Problem, blocking};

/// Steps in one file: pictures of more take long, and strips of more are too wide.
const MOST_ANIMATED: usize = 1000;
const MOST_STRIP: usize = 200;
/// Pictures per second of a GIF.
const PACE: u16 = 15;

/// Which steps; all that are kept unless told otherwise.
#[derive(Debug, Deserialize)]
pub struct Asked {
    from: Option<usize>,
    to: Option<usize>,
    pace: Option<u16>,
}

/// A step without what it takes to come back to it.
struct Shot {
    facts: Facts,
    game: Option<Image>,
    seen: Option<Image>,
    dream: Option<Image>,
}

/// One of the pictures of a step.
type Pick = fn(&Shot) -> &Option<Image>;

impl Shot {
    fn new(moment: &Moment) -> Shot {
        let Moment { facts, frame, seen, dream, .. } = moment;
        Shot { facts: facts.clone(), game: frame.clone(), seen: seen.clone(), dream: dream.clone() }
    }
}

pub async fn recording(
    State(studio): State<Arc<Studio>>,
    Path((session, file)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let id = u64::from_str_radix(&session, 16)
        .map_err(|_| Problem::not_found(format!("there is no session {session}")))?;
    let (kind, most) = match file.as_str() {
        "recording.gif" => ("image/gif", MOST_ANIMATED),
        "recording.png" => ("image/png", MOST_STRIP),
        "recording.npz" => ("application/octet-stream", usize::MAX),
        _ => return Err(Problem::not_found("recordings are recording.gif, recording.png and recording.npz")),
    };
    let (from, to) = (asked.from.unwrap_or(0), asked.to.unwrap_or(usize::MAX));
    let shots = studio.compute.ask(move |worker| {
        let history = worker.session(id)?.history();
        Ok(history.range(from, to).map(Shot::new).collect::<Vec<_>>())
    });
    let shots = shots.await?;
    if shots.is_empty() || shots.len() > most {
        return Err(Problem::bad_request(format!(
            "{} steps were chosen, but a file of this kind has from 1 to {most}",
            shots.len()
        )));
    }
    let name = format!("attachment; filename=\"{file}\"");
    let bytes = blocking(move || make(&shots, &file, asked.pace.unwrap_or(PACE))).await?;
    Ok(([(header::CONTENT_TYPE, kind.to_string()), (header::CONTENT_DISPOSITION, name)], bytes)
        .into_response())
}

/// The file's bytes: the writers of this program write to files.
fn make(shots: &[Shot], file: &str, pace: u16) -> Result<Vec<u8>, Problem> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = Temporary(std::env::temp_dir().join(format!("iris-{}-{number}-{file}", std::process::id())));
    let size = shots[0].game.as_ref().or(shots[0].dream.as_ref()).map_or(0, |image| image.width);
    let written = match file {
        "recording.gif" => {
            let pace = Pace { seconds: 1, pictures: pace.clamp(1, 50) };
            write_animation(Picture::animation(&rows(shots), size), pace, &path.0)
        }
        "recording.png" => Picture::strip(&rows(shots), size).write_png(&path.0),
        _ => write_arrays(shots, size, &path.0),
    };
    written.map_err(Problem::internal)?;
    std::fs::read(&path.0).map_err(Problem::internal)
}

/// A file that is removed again.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Game, reconstruction and dream. Pictures mark what the step *from* a frame brought, facts what led to it.
fn rows(shots: &[Shot]) -> Vec<Row> {
    let row = |caption: &str, image: Pick, brought: fn(&Facts) -> (f32, bool, bool)| {
        let cell = |(i, shot): (usize, &Shot)| {
            let frame = image(shot).as_ref()?.pixels.to_vec();
            let next = shots.get(i + 1).filter(|next| next.facts.action.is_some());
            let (reward, end, _) = next.map_or((0.0, false, false), |next| brought(&next.facts));
            Some(Cell { frame, reward, end, given: brought(&shot.facts).2 })
        };
        Row::new(caption, shots.iter().enumerate().filter_map(cell).collect())
    };
    let game = |facts: &Facts| facts.game.as_ref().map_or((0.0, false, false), |g| (g.reward, g.over, false));
    let dream =
        |facts: &Facts| facts.dream.as_ref().map_or((0.0, false, false), |d| (d.reward, d.over, d.given));
    let mut rows = vec![
        row("game", |shot| &shot.game, game),
        row("what is left", |shot| &shot.seen, game),
        row("dream", |shot| &shot.dream, dream),
    ];
    rows.retain(|row| !row.cells.is_empty());
    rows
}

/// Arrays of the steps T: frames u8 [T, H, W, 3], and the action that led to each (-1 at the beginning of a game) with what it brought.
fn write_arrays(shots: &[Shot], size: usize, path: &FilePath) -> Result<(), agent::FileError> {
    let mut npz = Npz::create(path)?;
    let images: [(&str, Pick); 3] =
        [("game", |shot| &shot.game), ("reconstruction", |shot| &shot.seen), ("dream", |shot| &shot.dream)];
    for (name, image) in images {
        if shots.iter().all(|shot| image(shot).is_some()) {
            npz.array(name, Dtype::U8, &[shots.len(), size, size, 3])?;
            for image in shots.iter().filter_map(|shot| image(shot).as_ref()) {
                npz.write(&image.pixels)?;
            }
        }
    }
    let game = |facts: &Facts| facts.game.as_ref().map_or((0.0, false), |game| (game.reward, game.over));
    let dream = |facts: &Facts| facts.dream.as_ref().map_or((0.0, false), |dream| (dream.reward, dream.over));
    let mut array = |name: &str, dtype: Dtype, bytes: &dyn Fn(&Facts) -> Vec<u8>| {
        npz.array(name, dtype, &[shots.len()])?;
        shots.iter().try_for_each(|shot| npz.write(&bytes(&shot.facts)))
    };
    array("steps", Dtype::I64, &|facts| (facts.step as i64).to_le_bytes().to_vec())?;
    array("actions", Dtype::I32, &|facts| facts.action.map_or(-1, |a| a as i32).to_le_bytes().to_vec())?;
    array("rewards", Dtype::F32, &|facts| game(facts).0.to_le_bytes().to_vec())?;
    array("ends", Dtype::Bool, &|facts| vec![u8::from(game(facts).1)])?;
    array("dreamt_rewards", Dtype::F32, &|facts| dream(facts).0.to_le_bytes().to_vec())?;
    array("dreamt_ends", Dtype::Bool, &|facts| vec![u8::from(dream(facts).1)])?;
    npz.finish()
}
