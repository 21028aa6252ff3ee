//! `/api/compare`: in which settings runs differ, and how their final scores compare.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use agent::train::TrainConfig;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use report::{Estimate, Rng, Settings};
use serde::Serialize;
use serde_json::Value;

use crate::Studio;
use crate::problem::{Problem, blocking};
use crate::runs::Chosen;
use crate::summary::Summary;

/// As many as `iris report` takes for its profiles.
const SCORES: Settings = Settings { replicates: 2000, seed: 0, rng: Rng::Fast };

pub fn routes() -> Router<Arc<Studio>> {
    Router::new().route("/api/compare", get(compare))
}

#[derive(Serialize)]
struct Comparison {
    runs: Vec<Summary>,
    settings: Vec<Setting>,
    groups: Vec<Group>,
}

/// A config key and its value in every run.
#[derive(Debug, PartialEq, Serialize)]
struct Setting {
    key: String,
    meaning: Option<&'static str>,
    differs: bool,
    values: Vec<Option<Value>>,
}

/// The newest evaluations of runs that differ in their seed alone.
#[derive(Serialize)]
struct Group {
    id: String,
    game: Option<String>,
    runs: Vec<String>,
    scores: Vec<f64>,
    /// Mean return; missing where no run was evaluated.
    score: Option<Estimate>,
    /// The same from random (0) to skilled play (1).
    progress: Option<Estimate>,
}

async fn compare(
    State(studio): State<Arc<Studio>>,
    Query(chosen): Query<Chosen>,
) -> Result<Json<Comparison>, Problem> {
    blocking(move || {
        let entries = chosen.find(&studio)?;
        let settings: Vec<_> = entries.iter().map(|entry| studio.known.settings(entry)).collect();
        let runs = studio.known.of(&entries);
        Ok(Json(Comparison { settings: differences(&settings), groups: groups(&runs)?, runs }))
    })
    .await
}

fn differences(settings: &[Arc<crate::summary::Settings>]) -> Vec<Setting> {
    static MEANINGS: LazyLock<BTreeMap<String, String>> = LazyLock::new(TrainConfig::key_docs);
    let keys: BTreeSet<&String> = settings.iter().flat_map(|settings| settings.keys()).collect();
    let setting = |key: &String| {
        let values: Vec<Option<Value>> = settings.iter().map(|settings| settings.get(key).cloned()).collect();
        Setting {
            key: key.clone(),
            meaning: MEANINGS.get(key).map(String::as_str),
            differs: values.iter().any(|value| *value != values[0]),
            values,
        }
    };
    keys.into_iter().map(setting).collect()
}

fn groups(runs: &[Summary]) -> Result<Vec<Group>, Problem> {
    let mut members: Vec<(String, Vec<&Summary>)> = Vec::new();
    for run in runs {
        match members.iter_mut().find(|(id, _)| *id == run.group) {
            Some((_, runs)) => runs.push(run),
            None => members.push((run.group.clone(), vec![run])),
        }
    }
    let group = |(id, runs): (String, Vec<&Summary>)| {
        let of = |value: fn(&Summary) -> Option<f64>| -> Vec<f64> {
            runs.iter().filter_map(|run| value(run)).filter(|value| value.is_finite()).collect()
        };
        let estimate = |values: &[f64]| match values.is_empty() {
            true => Ok(None),
            false => Estimate::of_mean(values, &id, SCORES).map(Some).map_err(Problem::internal),
        };
        let scores = of(|run| run.score);
        Ok(Group {
            game: runs[0].game.clone(),
            runs: runs.iter().map(|run| run.entry.id.clone()).collect(),
            score: estimate(&scores)?,
            progress: estimate(&of(|run| run.progress))?,
            scores,
            id,
        })
    };
    members.into_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_that_differ_are_marked() {
        let settings = |value: Value| Arc::new(value.as_object().unwrap().clone());
        let found = differences(&[
            settings(json!({ "env": "arcade/catch", "seed": 1 })),
            settings(json!({ "env": "arcade/catch", "seed": 2, "epochs": 3 })),
        ]);
        let marked: Vec<_> = found.iter().map(|setting| (setting.key.as_str(), setting.differs)).collect();
        assert_eq!(marked, [("env", false), ("epochs", true), ("seed", true)]);
        assert_eq!(found[1].values, [None, Some(json!(3))]);
        assert!(found[2].meaning.unwrap().contains("Seed"), "{:?}", found[2].meaning);
        assert_eq!(differences(&[]), []);
    }
}
