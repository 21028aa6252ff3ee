//! `state.json`: what a checkpoint holds beside the networks, with the checksums of all its files.

use serde::{Deserialize, Serialize};

use super::super::TrainConfig;
use super::lines::Mark;
use crate::ConfigError;
use crate::player::episode_seed;
use crate::replay::{Table, TableError};

/// Version 1 had no checksums.
const VERSION: u32 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// Finished epochs.
    pub epoch: usize,
    pub config: TrainConfig,
    pub replay: Table,
    /// Length of the metrics file: lines after it belong to an epoch that was not finished.
    pub metrics_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksums: Option<Checksums>,
    /// Of the file of episodes. Older programs did not write one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episodes: Option<Mark>,
}

/// CRC-32 of the other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checksums {
    pub agent: u32,
    pub optimisers: u32,
    /// Of the first `metrics_bytes`.
    pub metrics: u32,
}

/// One variant per way a state can be bad.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("its text does not have its checksum: it is damaged or was edited")]
    Checksum,
    #[error("the checksum of its text is missing: it is damaged or was edited")]
    NoChecksum,
    #[error("it cannot be understood: {0}")]
    Json(String),
    #[error("it has format version {0}; this program reads up to {VERSION}: use a newer one")]
    TooNew(u32),
    #[error("it is of epoch {found}, but lies in the folder of epoch {folder}")]
    WrongFolder { found: usize, folder: usize },
    #[error("it is of epoch {epoch}, but its config has {epochs}")]
    BeyondTheEnd { epoch: usize, epochs: usize },
    #[error("its config is invalid: {0}")]
    Config(#[from] ConfigError),
    #[error("its table of episodes is inconsistent: {0}")]
    Table(#[from] TableError),
    #[error("it counts {found} recorded steps, but {expected} are played in {epoch} epochs")]
    Records { found: usize, expected: usize, epoch: usize },
    #[error("episode {episode} of the replay has the seed of another")]
    Seed { episode: usize },
    #[error("its config has networks of other sizes than the file with their weights")]
    OtherAgent,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// What the text begins with; eight digits, [`AFTER`] and the text that they are the checksum of follow.
const BEFORE: &[u8] = b"{\"crc32\":\"";
const AFTER: &[u8] = b"\",";

impl State {
    pub fn new(
        epoch: usize,
        config: TrainConfig,
        replay: Table,
        metrics_bytes: u64,
        checksums: Checksums,
    ) -> State {
        let (checksums, episodes) = (Some(checksums), None);
        State { version: VERSION, epoch, config, replay, metrics_bytes, checksums, episodes }
    }

    /// JSON whose first key is the checksum of the text after it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StateError> {
        let json = serde_json::to_vec(self).map_err(|e| StateError::Json(e.to_string()))?;
        Ok(State::signed(&json))
    }

    /// An object's text with its checksum as the first key, instead of the one it may have.
    pub(crate) fn signed(json: &[u8]) -> Vec<u8> {
        let text = split(json).map_or(json.strip_prefix(b"{").unwrap_or_default(), |(_, text)| text);
        let checksum = format!("{:08x}", crc32fast::hash(text));
        [BEFORE, checksum.as_bytes(), AFTER, text].concat()
    }

    /// Reads what [`to_bytes`](State::to_bytes) wrote, or the JSON of version 1, and refuses what no run can have written.
    pub fn parse(bytes: &[u8]) -> Result<State, StateError> {
        let json = |e: serde_json::Error| StateError::Json(e.to_string());
        let state: State = match split(bytes) {
            Some((checksum, text)) => {
                if format!("{:08x}", crc32fast::hash(text)).as_bytes() != checksum {
                    return Err(StateError::Checksum);
                }
                let text = [b"{", text].concat();
                // The version first: a newer state may not be readable.
                let Version { version } = serde_json::from_slice(&text).map_err(json)?;
                if version > VERSION {
                    return Err(StateError::TooNew(version));
                }
                serde_json::from_slice(&text).map_err(json)?
            }
            None => {
                let Version { version } = serde_json::from_slice(bytes).map_err(json)?;
                if version > 1 {
                    return Err(StateError::NoChecksum);
                }
                serde_json::from_slice(bytes).map_err(json)?
            }
        };
        if state.version > 1 && state.checksums.is_none() {
            return Err(StateError::NoChecksum);
        }
        state.check()?;
        Ok(state)
    }

    fn check(&self) -> Result<(), StateError> {
        self.config.validate()?;
        let (epoch, epochs) = (self.epoch, self.config.epochs);
        if epoch > epochs {
            return Err(StateError::BeyondTheEnd { epoch, epochs });
        }
        let collection = &self.config.collection;
        let expected = collection.steps.saturating_mul(epoch.min(collection.epochs));
        // Episodes that the replay began with count, too.
        let found = self.replay.records;
        if found < expected || (found > expected && self.config.replay.from.is_empty()) {
            return Err(StateError::Records { found, expected, epoch });
        }
        self.replay.check(collection.envs)?;
        if found > 0 && self.replay.episodes.is_empty() {
            return Err(TableError::NoEpisodes { records: found }.into());
        }
        let seed = |start: usize| episode_seed(self.config.seed, start);
        match self.replay.episodes.iter().position(|e| e.seed != seed(e.start)) {
            Some(episode) => Err(StateError::Seed { episode }),
            None => Ok(()),
        }
    }
}

/// The checksum and the text it belongs to.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (checksum, rest) = bytes.strip_prefix(BEFORE)?.split_at_checked(8)?;
    Some((checksum, rest.strip_prefix(AFTER)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Episode;

    fn state() -> State {
        let mut config = TrainConfig { epochs: 9, ..TrainConfig::default() };
        config.collection.steps = 30;
        let episode = |start: usize, len: usize, ended: bool| Episode {
            seed: episode_seed(config.seed, start),
            checksum: Some(7),
            ..Episode::plain(start, len, ended)
        };
        let table = Table { episodes: vec![episode(0, 40, true), episode(40, 20, false)], records: 60 };
        let checksums = Checksums { agent: 1, optimisers: 2, metrics: 3 };
        State::new(2, config, table, 1234, checksums)
    }

    #[test]
    fn a_state_comes_back_and_no_changed_bit_goes_unnoticed() {
        let bytes = state().to_bytes().unwrap();
        assert_eq!(State::parse(&bytes), Ok(state()));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((json["version"].as_u64(), json["epoch"].as_u64()), (Some(2), Some(2)));
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(State::parse(&changed).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(State::parse(&bytes[..len]).is_err(), "cut off at {len}");
        }
    }

    /// Numbers that cannot be are refused also where no checksum protects them.
    #[test]
    fn wrong_numbers_of_version_1_are_refused() {
        let mut old = state();
        (old.version, old.checksums) = (1, None);
        old.replay.episodes.iter_mut().for_each(|e| e.checksum = None);
        let text = serde_json::to_string(&old).unwrap();
        assert_eq!(State::parse(text.as_bytes()), Ok(old));
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            State::parse(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
        };
        for (from, to, answer) in [
            (r#""version":1"#, r#""version":2"#, "the checksum of its text is missing"),
            (r#""records":60"#, r#""records":1099511627776"#, "counts 1099511627776 recorded steps, but 60"),
            (r#""records":60"#, r#""records":59"#, "counts 59 recorded steps"),
            (r#""epoch":2"#, r#""epoch":0"#, "counts 60 recorded steps, but 0 are played in 0 epochs"),
            (r#""epoch":2"#, r#""epoch":14"#, "is of epoch 14, but its config has 9"),
            (r#""len":40"#, r#""len":41"#, "episode 1 of the replay starts at step 40"),
            (r#""len":20"#, r#""len":10"#, "ends at step 50, but 60 were recorded"),
            (r#""start":40"#, r#""start":41"#, "goes beyond the 60 recorded steps"),
            (r#""start":0"#, r#""start":4"#, "starts at step 40, inside"),
            (r#""seed":40"#, r#""seed":41"#, "episode 1 of the replay has the seed of another"),
            (
                r#""envs":1"#,
                r#""envs":2"#,
                "episode 0 of the replay has the stride 1, but 2 games were played",
            ),
            (r#""batch":256"#, r#""batch":0"#, "tokenizer.schedule.batch is 0, but must be at least 1"),
            (r#""resolutions":5"#, r#""resolutions":0"#, "agent.tokenizer.resolutions is 0"),
            (r#""frame_size":64"#, r#""frame_size":65"#, "agent.tokenizer.frame_size is 65"),
            (r#""learning_rate":0.0001"#, r#""learning_rate":1e300"#, "number out of range"),
        ] {
            let reason = refused(from, to);
            assert!(reason.contains(answer), "{from} -> {to}: {reason}");
        }
    }
}
