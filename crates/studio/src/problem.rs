//! What went wrong with a request, as the page shows it.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The answer to a request that cannot be fulfilled: `{"error": "..."}`.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub message: String,
}

impl Problem {
    pub fn new(status: StatusCode, message: impl ToString) -> Problem {
        Problem { status, message: message.to_string() }
    }

    pub fn bad_request(message: impl ToString) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn not_found(message: impl ToString) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, message)
    }

    /// Something of this machine failed.
    pub fn internal(message: impl ToString) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}

/// Runs `work`, which reads files, on a thread where it may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(Problem::internal(error)))
}
