//! Networks of a new run that start from those of an agent or another run.

use std::path::{Path, PathBuf};

use engine::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Phase, Run, RunError};
use crate::{Agent, ConfigError, Network};

/// Where a run's networks come from. A run that is continued reads its own checkpoints, not these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InitConfig {
    /// Folder of an agent or a run whose parameters the networks start from, with fresh optimisers; "" starts from random parameters. Short: `--init`.
    pub from: String,
    /// Networks that start from there, separated by commas; the others start from random parameters. Short: `--init-parts`.
    pub parts: String,
    /// CRC-32 of these parameters, as eight hexadecimal digits. `train` fills it in; if it is given, other parameters are refused.
    pub crc32: String,
}

impl Default for InitConfig {
    fn default() -> InitConfig {
        let parts = NETWORKS.map(|phase| phase.name()).join(",");
        InitConfig { from: String::new(), parts, crc32: String::new() }
    }
}

const NETWORKS: [Phase; 3] = [Phase::Tokenizer, Phase::WorldModel, Phase::ActorCritic];

/// Why networks cannot start from others.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("init.from: {0}")]
    Source(Box<RunError>),
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error("init.from: `{name}` has shape {found:?} in {path}, but {expected:?} in this run")]
    WrongShape { path: PathBuf, network: Phase, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("init.from: `{name}` is not in both {path} and this run")]
    Missing { path: PathBuf, network: Phase, name: String },
    #[error(
        "init.from: agent.{key} is {found} in {path}, but {expected} in this run: the same parameters would compute something else"
    )]
    OtherKey { path: PathBuf, key: &'static str, found: usize, expected: usize },
    #[error(
        "init.from: the parameters in {path} have CRC-32 {found}, but init.crc32 is {expected}: they have changed since"
    )]
    OtherParameters { path: PathBuf, found: String, expected: String },
}

impl InitConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let names = NETWORKS.map(|phase| phase.name());
        let parts: Vec<&str> = self.parts.split(',').map(str::trim).collect();
        let twice = parts.iter().enumerate().any(|(i, part)| parts[..i].contains(part));
        if twice || parts.iter().any(|part| !names.contains(part)) {
            let rule =
                format!("but must be one or more of {}, each once, separated by commas", names.join(", "));
            return Err(ConfigError::new("parts", format!("{:?}", self.parts), rule));
        }
        let digits = self.crc32.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self.crc32.is_empty() || digits && self.crc32.len() == 8 {
            true => Ok(()),
            false => {
                let rule = "but must be eight hexadecimal digits or nothing";
                Err(ConfigError::new("crc32", format!("{:?}", self.crc32), rule))
            }
        }
    }

    /// The networks that are copied.
    fn networks<'a>(&self, agent: &'a Agent) -> Vec<(Phase, &'a Network)> {
        let parts: Vec<&str> = self.parts.split(',').map(str::trim).collect();
        let networks = [&agent.tokenizer.network, &agent.world_model.network, &agent.actor_critic.network];
        NETWORKS.into_iter().zip(networks).filter(|(phase, _)| parts.contains(&phase.name())).collect()
    }

    fn source(&self, device: &Device, warn: impl FnMut(String)) -> Result<Agent, InitError> {
        let path = Path::new(&self.from);
        let loaded = match Agent::is_in(path) {
            true => Agent::load(device, path).map(|(agent, _)| agent).map_err(RunError::from),
            false => Run::newest_agent(device, path, warn).map(|(_, agent)| agent),
        };
        loaded.map_err(|error| InitError::Source(Box::new(error)))
    }

    /// Fills in the checksum of the parameters that the run will start from.
    pub fn resolve(&mut self, device: &Device, warn: impl FnMut(String)) -> Result<(), InitError> {
        if !self.from.is_empty() && self.crc32.is_empty() {
            let source = self.source(device, warn)?;
            self.crc32 = checksum(&self.networks(&source))?;
        }
        Ok(())
    }

    /// Copies the parameters into fresh networks. Either all of them are copied or none.
    pub(super) fn apply(
        &self,
        device: &Device,
        agent: &Agent,
        warn: impl FnMut(String),
    ) -> Result<(), InitError> {
        if self.from.is_empty() {
            return Ok(());
        }
        let source = self.source(device, warn)?;
        let (from, to) = (self.networks(&source), self.networks(agent));
        let path = || PathBuf::from(&self.from);
        for ((network, from), (_, to)) in from.iter().zip(&to) {
            let (network, mut theirs) = (*network, from.params.specs().iter());
            for spec in to.params.specs() {
                // Layers come in the same order: the first name that differs is of a layer that one side lacks.
                let name = spec.name.clone();
                let Some(found) = theirs.next().filter(|found| found.name == name) else {
                    return Err(InitError::Missing { path: path(), network, name });
                };
                if found.shape != spec.shape {
                    let (found, expected) = (found.shape.dims().to_vec(), spec.shape.dims().to_vec());
                    return Err(InitError::WrongShape { path: path(), network, name, found, expected });
                }
            }
            if let Some(more) = theirs.next() {
                return Err(InitError::Missing { path: path(), network, name: more.name.clone() });
            }
            // Sizes that no shape shows.
            let [found, expected] = [&source.config, &agent.config].map(|config| match network {
                Phase::Tokenizer => ("tokenizer.groups", config.tokenizer.groups),
                Phase::WorldModel => ("world_model.heads", config.world_model.heads),
                _ => ("actor_critic.hidden", config.actor_critic.hidden),
            });
            if found != expected {
                let (key, found, expected) = (found.0, found.1, expected.1);
                return Err(InitError::OtherKey { path: path(), key, found, expected });
            }
        }
        let found = checksum(&from)?;
        if !self.crc32.is_empty() && !found.eq_ignore_ascii_case(&self.crc32) {
            let expected = self.crc32.clone();
            return Err(InitError::OtherParameters { path: path(), found, expected });
        }
        for ((_, from), (_, to)) in from.iter().zip(&to) {
            for spec in to.params.specs() {
                to.params.set(&spec.name, &from.params.get(&spec.name)?)?;
            }
        }
        Ok(())
    }
}

/// CRC-32 of the parameters of networks, one after the other.
fn checksum(networks: &[(Phase, &Network)]) -> Result<String, InitError> {
    let mut hasher = crc32fast::Hasher::new();
    for (_, network) in networks {
        for spec in network.params.specs() {
            for value in network.params.get(&spec.name)? {
                hasher.update(&value.to_le_bytes());
            }
        }
    }
    Ok(format!("{:08x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AgentConfig;
    use crate::fuzzing::tiny_agent;
    use crate::testing::Scratch;

    fn values(network: &Network) -> Vec<f32> {
        network.params.values().read::<f32>().unwrap()
    }

    #[test]
    fn parts_are_copied_and_other_shapes_are_named() {
        let device = Device::cpu(Some(1)).unwrap();
        let scratch = Scratch::new("init");
        let source = tiny_agent(&device).unwrap();
        source.save(None, &scratch.0).unwrap();
        let from = scratch.0.to_str().unwrap().to_string();
        let mut init = InitConfig { from, parts: "tokenizer".into(), ..InitConfig::default() };
        init.resolve(&device, |_| {}).unwrap();
        assert_eq!(init.crc32.len(), 8);

        // The tokenizer knows no actions: it may go to a game with other ones.
        let more = AgentConfig { actions: source.config.actions + 1, ..source.config.clone() };
        let other = Agent::new(&device, &more, 7).unwrap();
        let before = values(&other.world_model.network);
        init.apply(&device, &other, |_| {}).unwrap();
        assert_eq!(values(&other.tokenizer.network), values(&source.tokenizer.network));
        assert_eq!(values(&other.world_model.network), before);

        let all = InitConfig { parts: InitConfig::default().parts, crc32: String::new(), ..init.clone() };
        let untouched = Agent::new(&device, &more, 7).unwrap();
        let error = all.apply(&device, &untouched, |_| {}).unwrap_err().to_string();
        let table = "`embedder.embedding_tables.0.weight` has shape [";
        assert!(error.contains(table), "{error}");
        assert_ne!(values(&untouched.tokenizer.network), values(&source.tokenizer.network));

        let mut groups = source.config.clone();
        groups.tokenizer.groups = 2;
        let error = init.apply(&device, &Agent::new(&device, &groups, 7).unwrap(), |_| {}).unwrap_err();
        assert!(error.to_string().contains("agent.tokenizer.groups is"), "{error}");
        let mut layers = source.config.clone();
        layers.world_model.layers += 1;
        let error = all.apply(&device, &Agent::new(&device, &layers, 7).unwrap(), |_| {}).unwrap_err();
        assert!(error.to_string().contains("is not in both"), "{error}");

        // Parameters that have changed since.
        Agent::new(&device, &source.config, 99).unwrap().save(None, &scratch.0).unwrap();
        let error = init.apply(&device, &other, |_| {}).unwrap_err().to_string();
        assert!(error.contains(&format!("but init.crc32 is {}", init.crc32)), "{error}");
        std::fs::remove_dir_all(&scratch.0).unwrap();
        let error = init.apply(&device, &other, |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("init.from: there is no folder"), "{error}");
    }

    #[test]
    fn parts_are_checked() {
        let parts = |parts: &str| InitConfig { parts: parts.into(), ..InitConfig::default() }.validate();
        assert!(parts("world_model, tokenizer").is_ok() && InitConfig::default().validate().is_ok());
        for wrong in ["", "tokeniser", "tokenizer,tokenizer", "tokenizer,"] {
            assert!(parts(wrong).unwrap_err().to_string().contains("but must be one or more of tokenizer,"));
        }
        let crc32 = InitConfig { crc32: "xyz".into(), ..InitConfig::default() };
        assert!(crc32.validate().unwrap_err().to_string().contains("eight hexadecimal digits"));
    }
}
