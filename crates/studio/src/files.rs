//! The files of the page, which are part of the program.

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Path, media type and contents.
type File = (&'static str, &'static str, &'static [u8]);

macro_rules! files {
    ($($kind:ident $path:literal),* $(,)?) => {
        &[$(($path, $kind, include_bytes!(concat!("../page/", $path)))),*]
    };
}

const FILES: &[File] = files![
    HTML "index.html",
    CSS "style.css",
    CSS "play.css",
    SVG "icon.svg",
    SCRIPT "app.js",
    SCRIPT "about.js",
    SCRIPT "bars.js",
    SCRIPT "chart.js",
    SCRIPT "chooser.js",
    SCRIPT "compare.js",
    SCRIPT "curves.js",
    SCRIPT "keys.js",
    SCRIPT "live.js",
    SCRIPT "look.js",
    SCRIPT "parts.js",
    SCRIPT "pixels.js",
    SCRIPT "play.js",
    SCRIPT "replay.js",
    SCRIPT "runs.js",
    SCRIPT "session.js",
    SCRIPT "stage.js",
    SCRIPT "svg.js",
    SCRIPT "teach.js",
    SCRIPT "video.js",
    SCRIPT "words.js",
    SCRIPT "vendor/uplot/uPlot.iife.min.js",
    CSS "vendor/uplot/uPlot.min.css",
    TEXT "vendor/uplot/LICENSE",
];

pub async fn index() -> Response {
    answer("index.html")
}

pub async fn file(Path(path): Path<String>) -> Response {
    answer(&path)
}

fn answer(path: &str) -> Response {
    match FILES.iter().find(|(name, ..)| *name == path) {
        Some(&(_, kind, bytes)) => ([(header::CONTENT_TYPE, kind)], bytes).into_response(),
        None => Problem::not_found("there is no such page").into_response(),
    }
}
