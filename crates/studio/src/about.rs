//! `/api/about`: what this program is, and the machine it runs on.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::Studio;
use crate::problem::{Problem, blocking};

pub fn routes() -> Router<Arc<Studio>> {
    Router::new().route("/api/about", get(about))
}

async fn about(State(studio): State<Arc<Studio>>) -> Result<Json<Value>, Problem> {
    blocking(move || {
        let (device, games) = (&studio.device, envs::all_games());
        let game = |game: &envs::Game| json!({ "name": game.name, "built": game.is_built() });
        Ok(Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "folder": studio.index.root(),
            "device": device.name(),
            "gpu": device.is_gpu(),
            "threads": device.threads(),
            "instructions": engine::instructions(),
            "system": format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH),
            "memory": memory(),
            "games": games.iter().map(game).collect::<Vec<_>>(),
        })))
    })
    .await
}

/// Bytes of memory that this process has and that are free, on Linux.
fn memory() -> Option<Value> {
    let bytes = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    };
    Some(json!({
        "used": bytes("/proc/self/status", "VmRSS")?,
        "free": bytes("/proc/meminfo", "MemAvailable")?,
        "total": bytes("/proc/meminfo", "MemTotal")?,
    }))
}
