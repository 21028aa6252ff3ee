//! `/api/runs`: every run and agent under the studio's folder, and `/api/live`: what has changed since.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde_json::json;

use crate::Studio;
use crate::index::{Kind, RunEntry, hash};
use crate::problem::{Problem, blocking};
use crate::summary::Summary;

/// How often files are looked at for a page that is open.
const EVERY: Duration = Duration::from_secs(1);

/// Runs that one page can show at once.
const MOST_RUNS: usize = 500;

pub fn routes() -> Router<Arc<Studio>> {
    Router::new().route("/api/runs", get(list)).route("/api/live", get(live))
}

async fn list(State(studio): State<Arc<Studio>>) -> Result<Json<Vec<Summary>>, Problem> {
    blocking(move || Ok(Json(studio.summaries().to_vec()))).await
}

/// `?runs=ID,ID` of the requests about several runs.
#[derive(Deserialize)]
pub struct Chosen {
    #[serde(default)]
    pub runs: String,
}

impl Chosen {
    /// Those that are there and have metrics; runs may be deleted while they are shown.
    pub fn find(&self, studio: &Studio) -> Result<Vec<RunEntry>, Problem> {
        let ids: Vec<&str> = self.runs.split(',').filter(|id| !id.is_empty()).collect();
        if ids.len() > MOST_RUNS {
            return Err(Problem::bad_request(format!("{} runs are more than {MOST_RUNS}", ids.len())));
        }
        let entries = ids.iter().filter_map(|id| studio.index.find(id));
        Ok(entries.filter(|entry| entry.kind == Kind::Run).collect())
    }
}

/// What a page has seen: a mark of the list of runs, and the bytes of metrics of each run that it shows.
struct Seen {
    list: String,
    runs: Vec<(String, u64)>,
}

impl Seen {
    /// As the id of an event, which a browser sends back when it connects again: `list;run:bytes,run:bytes`.
    fn id(&self) -> String {
        let runs: Vec<String> = self.runs.iter().map(|(id, bytes)| format!("{id}:{bytes}")).collect();
        format!("{};{}", self.list, runs.join(","))
    }

    fn bytes(&self, id: &str) -> Option<u64> {
        self.runs.iter().find(|(run, _)| run == id).map(|(_, bytes)| *bytes)
    }

    fn parse(id: &str) -> Option<Seen> {
        let (list, runs) = id.split_once(';')?;
        let run =
            |text: &str| text.split_once(':').and_then(|(id, bytes)| Some((id.into(), bytes.parse().ok()?)));
        Some(Seen { list: list.into(), runs: runs.split(',').filter_map(run).collect() })
    }

    fn now(studio: &Studio, chosen: &Chosen) -> Result<Seen, Problem> {
        let list = serde_json::to_string(&studio.summaries().iter().map(marked).collect::<Vec<_>>());
        let length = |entry: RunEntry| {
            let bytes = entry.path.join("metrics.jsonl").metadata().map_or(0, |file| file.len());
            (entry.id, bytes)
        };
        let runs = chosen.find(studio)?.into_iter().map(length).collect();
        Ok(Seen { list: hash(&list.map_err(Problem::internal)?), runs })
    }
}

/// A summary without what changes by itself.
fn marked(summary: &Summary) -> Summary {
    Summary { seconds_left: None, ..summary.clone() }
}

/// Server-sent events: `runs` when the list has changed, `metrics` with the ids of shown runs whose metrics have.
async fn live(
    State(studio): State<Arc<Studio>>,
    Query(chosen): Query<Chosen>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let chosen = Arc::new(chosen);
    let now = {
        let (studio, chosen) = (studio.clone(), chosen.clone());
        blocking(move || Seen::now(&studio, &chosen)).await?
    };
    let last = headers.get("last-event-id").and_then(|id| Seen::parse(id.to_str().ok()?));
    // The first event gives a new page its place, and one that comes back what it has missed.
    let first =
        changes(last.as_ref().unwrap_or(&now), &now).unwrap_or_else(|| Event::default().event("here"));
    let first = first.id(now.id());
    let events = stream::unfold((Some(first), now), move |(first, seen)| {
        let (studio, chosen) = (studio.clone(), chosen.clone());
        async move {
            if let Some(first) = first {
                return Some((Ok(first), (None, seen)));
            }
            loop {
                tokio::time::sleep(EVERY).await;
                let (studio, chosen) = (studio.clone(), chosen.clone());
                let now = blocking(move || Seen::now(&studio, &chosen)).await.ok()?;
                if let Some(event) = changes(&seen, &now) {
                    return Some((Ok(event.id(now.id())), (None, now)));
                }
            }
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// What a page has to hear.
fn changes(seen: &Seen, now: &Seen) -> Option<Event> {
    let grown = |(id, bytes): &&(String, u64)| seen.bytes(id) != Some(*bytes);
    let mut runs: Vec<&str> = now.runs.iter().filter(grown).map(|(id, _)| id.as_str()).collect();
    let gone = seen.runs.iter().filter(|(id, _)| now.bytes(id).is_none());
    runs.extend(gone.map(|(id, _)| id.as_str()));
    let list = seen.list != now.list;
    (list || !runs.is_empty())
        .then(|| Event::default().event("changed").data(json!({ "list": list, "runs": runs }).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_comes_back_hears_what_it_has_missed() {
        let seen = |list: &str, runs: &[(&str, u64)]| Seen {
            list: list.into(),
            runs: runs.iter().map(|(id, bytes)| (id.to_string(), *bytes)).collect(),
        };
        let before = Seen::parse(&seen("a", &[("one", 10), ("two", 20)]).id()).unwrap();
        let says = |now: &Seen| changes(&before, now).map(|event| format!("{event:?}"));
        assert!(says(&before).is_none());
        let grown = says(&seen("a", &[("one", 10), ("two", 30)])).unwrap();
        assert!(grown.contains("two") && !grown.contains("one"), "{grown}");
        assert!(says(&seen("b", &[("one", 10), ("two", 20)])).unwrap().contains("true"));
        // Cut back when a run is continued, or deleted.
        assert!(says(&seen("a", &[("one", 5), ("two", 20)])).unwrap().contains("one"));
        assert!(says(&seen("a", &[("one", 10)])).unwrap().contains("two"));
        assert!(Seen::parse("nonsense").is_none());
        assert!(Seen::parse(";a:b,:,c").unwrap().runs.is_empty());
    }
}
