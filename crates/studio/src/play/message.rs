//! What pages say and hear: see the head of `play`.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::history::{Facts, Image, Moment};
use super::session::{Eyes, Session};
use crate::problem::Problem;

/// Numbers that a page can hold without loss.
const MOST_SEED: u64 = (1 << 53) - 1;
/// Steps per second.
const FASTEST: f64 = 240.0;
const HOTTEST: f32 = 100.0;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Message {
    Start(Start),
    Settings(Settings),
    /// A key is held down, or none.
    Hold {
        action: Option<usize>,
    },
    /// One step, by a person or the policy.
    Step {
        action: Option<usize>,
    },
    /// Looks at another step.
    Show {
        step: usize,
    },
    /// Puts reality back into the dream.
    Reality,
    /// Writes what was played by hand as episodes to learn from.
    Save {
        size: usize,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A run or an agent; none for the game alone.
    pub run: Option<String>,
    pub env: Option<String>,
    #[serde(default)]
    pub seed: u64,
    #[serde(default)]
    pub from: From,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum From {
    #[default]
    Evaluation,
    Training,
    /// A step of an episode of the run.
    Episode {
        episode: String,
        step: usize,
    },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Steps per second.
    pub rate: f64,
    /// Steps follow each other by themselves.
    pub auto: bool,
    /// Whether the policy acts where no key is held; nothing is done otherwise.
    pub policy: bool,
    pub eyes: Eyes,
    pub temperature: f32,
    pub horizon: usize,
}

impl Message {
    pub fn parse(text: &str) -> Result<Message, Problem> {
        let message: Message = serde_json::from_str(text)
            .map_err(|error| Problem::bad_request(format!("the page's message cannot be read: {error}")))?;
        match &message {
            Message::Start(start) if start.seed > MOST_SEED => {
                Err(Problem::bad_request(format!("seed is {}, but at most {MOST_SEED}", start.seed)))
            }
            Message::Settings(Settings { rate, .. }) if !(0.1..=FASTEST).contains(rate) => {
                Err(Problem::bad_request(format!("rate is {rate}, but must be from 0.1 to {FASTEST}")))
            }
            Message::Settings(Settings { temperature, .. }) if !(0.0..=HOTTEST).contains(temperature) => {
                Err(Problem::bad_request(format!(
                    "temperature is {temperature}, but must be from 0 to {HOTTEST}"
                )))
            }
            _ => Ok(message),
        }
    }
}

/// What a page hears when a session has begun.
pub fn session(id: &str, session: &Session, epoch: Option<usize>) -> String {
    json!({
        "type": "session",
        "id": id,
        "game": session.game().name,
        "rules": session.game().rules,
        "actions": session.names(),
        "size": session.size(),
        "dream": session.has_dream(),
        "real": session.has_game(),
        "epoch": epoch,
    })
    .to_string()
}

pub fn problem(problem: &Problem) -> String {
    json!({ "type": "problem", "message": problem.message }).to_string()
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    facts: &'a Facts,
    /// Steps that are kept.
    first: usize,
    last: usize,
}

/// A step as one binary message.
pub fn moment(moment: &Moment, (first, last): (usize, usize)) -> Result<Vec<u8>, Problem> {
    let facts = Shown { facts: &moment.facts, first, last };
    let facts = serde_json::to_vec(&facts).map_err(Problem::internal)?;
    let images =
        [moment.full.as_ref().or(moment.frame.as_ref()), moment.seen.as_ref(), moment.dream.as_ref()];
    let pixels = |image: &Option<&Image>| image.map_or(0, |image| image.pixels.len());
    let mut bytes = Vec::with_capacity(24 + facts.len() + images.iter().map(pixels).sum::<usize>());
    for number in [1, moment.facts.step, facts.len()] {
        bytes.extend((number as u32).to_le_bytes());
    }
    for image in images {
        let (height, width) = image.map_or((0, 0), |image| (image.height, image.width));
        bytes.extend([height as u16, width as u16].map(u16::to_le_bytes).as_flattened());
    }
    bytes.extend(facts);
    images.iter().flatten().for_each(|image| bytes.extend_from_slice(&image.pixels));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_messages_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "EOF"),
            ("[]", "the page's message cannot be read"),
            (r#"{"type":"nonsense"}"#, "unknown variant `nonsense`"),
            (r#"{"type":"step","action":-1}"#, "invalid value"),
            (r#"{"type":"hold","action":1,"more":2}"#, "unknown field `more`"),
            (r#"{"type":"start","seed":9007199254740992}"#, "seed is 9007199254740992, but at most"),
            (
                r#"{"type":"settings","rate":0,"auto":true,"policy":true,"eyes":"game","temperature":1,"horizon":0}"#,
                "rate is 0, but must be from 0.1 to 240",
            ),
            (
                r#"{"type":"settings","rate":15,"auto":true,"policy":true,"eyes":"game","temperature":-1,"horizon":0}"#,
                "temperature is -1",
            ),
            (r#"{"type":"start","from":{"kind":"episode","episode":"x","step":1e99}}"#, "cannot be read"),
        ] {
            let problem = Message::parse(text).unwrap_err();
            assert!(problem.message.contains(reason), "{text}: {}", problem.message);
        }
        let Message::Start(start) = Message::parse(r#"{"type":"start","run":"a"}"#).unwrap() else {
            panic!()
        };
        assert!(matches!((start.seed, start.from), (0, From::Evaluation)));
    }
}
