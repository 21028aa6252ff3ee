//! What tells runs apart, in a few words.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::summary::Settings;

/// Settings that a label names.
const MOST_NAMED: usize = 3;

/// For each run its game, and the settings in which runs of that game differ, but for the seed. None for a run without a game.
pub fn labels(runs: &[Arc<Settings>]) -> Vec<Option<String>> {
    runs.iter()
        .map(|settings| {
            let game = settings.get("env")?;
            let rivals: Vec<&Arc<Settings>> =
                runs.iter().filter(|other| other.get("env") == Some(game)).collect();
            let keys: BTreeSet<&String> = rivals.iter().flat_map(|rival| rival.keys()).collect();
            let differs = |key: &&String| {
                *key != "seed" && rivals.iter().any(|rival| rival.get(*key) != settings.get(*key))
            };
            let differing: Vec<&String> = keys.into_iter().filter(differs).collect();
            let values = differing.iter().take(MOST_NAMED).map(|key| {
                let value = settings.get(*key).map_or_else(|| "–".into(), plain);
                format!("{}={value}", short(key, &differing))
            });
            let more =
                (differing.len() > MOST_NAMED).then(|| format!("{} more", differing.len() - MOST_NAMED));
            Some([plain(game)].into_iter().chain(values).chain(more).collect::<Vec<_>>().join(", "))
        })
        .collect()
}

/// The end of a dotted key where no other of the keys ends so.
fn short<'a>(key: &'a str, keys: &[&String]) -> &'a str {
    let end = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
    match keys.iter().filter(|other| other.rsplit('.').next() == Some(end(key))).count() {
        1 => end(key),
        _ => key,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_name_what_differs_within_a_game() {
        let run = |value: Value| Arc::new(value.as_object().unwrap().clone());
        let found = labels(&[
            run(json!({ "env": "catch", "seed": 1, "a.rate": 1, "b.rate": 2, "c.reward": "sign" })),
            run(json!({ "env": "catch", "seed": 2, "a.rate": 1, "b.rate": 2, "c.reward": "mse" })),
            run(json!({ "env": "pong", "seed": 2, "a.rate": 7, "b.rate": 8 })),
            run(json!({ "env": "pong", "seed": 3, "a.rate": 9, "b.rate": 9, "d": 1, "e": 2 })),
            run(json!({})),
        ]);
        let text: Vec<_> = found.iter().map(|label| label.as_deref().unwrap_or_default()).collect();
        assert_eq!(
            text,
            [
                "catch, reward=sign",
                "catch, reward=mse",
                "pong, a.rate=7, b.rate=8, d=–, 1 more",
                "pong, a.rate=9, b.rate=9, d=1, 1 more",
                ""
            ]
        );
    }
}
