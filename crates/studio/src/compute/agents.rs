//! Agents in memory: loaded when they are asked for, and dropped when others are and nobody plays with them.

use std::path::PathBuf;
use std::rc::Rc;

use agent::train::{Run, TrainConfig};
use agent::{Agent, Eye};
use engine::Device;
use envs::{Game, Purpose};

use super::refused;
use crate::index::{Kind, RunEntry};
use crate::problem::Problem;

/// Agents that are kept beside those in use.
const KEPT: usize = 3;
/// Burn-in frames of the paper's table 4, for an agent without a run.
const PAPER_BURN_IN: usize = 20;

/// Where an agent comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    kind: Kind,
    /// The game, for an agent without a run.
    env: Option<String>,
    /// A run that goes on has another agent after every epoch.
    epoch: Option<usize>,
}

/// An agent and the game it plays.
pub struct Loaded {
    pub agent: Agent,
    pub game: Game,
    /// Frames that the policy was warmed up with in training.
    pub burn_in: usize,
    /// Epochs of training, where they are known.
    pub epoch: Option<usize>,
}

#[derive(Default)]
pub struct Agents {
    /// The one that was used last is the last.
    loaded: Vec<(Source, Rc<Loaded>)>,
}

impl Source {
    /// The newest agent of a run, or an agent that plays `env`.
    pub fn new(entry: &RunEntry, env: Option<&str>) -> Source {
        let epoch = match entry.kind {
            Kind::Run => Run::newest_epoch(&entry.path),
            Kind::Agent => None,
        };
        Source { path: entry.path.clone(), kind: entry.kind, env: env.map(Into::into), epoch }
    }
}

impl Loaded {
    fn new(device: &Device, source: &Source) -> Result<Loaded, Problem> {
        let env = source.env.as_deref();
        let (agent, game, burn_in) = match (source.kind, env) {
            (Kind::Agent, None) => {
                return Err(Problem::bad_request("this agent does not know its game: choose one"));
            }
            (Kind::Agent, Some(env)) => {
                let agent = Agent::load(device, &source.path).map_err(refused)?.0;
                (agent, Game::find(env).map_err(refused)?, PAPER_BURN_IN)
            }
            (Kind::Run, _) => {
                let (config, agent): (TrainConfig, Agent) =
                    Run::newest_agent(device, &source.path, |_| {}).map_err(refused)?;
                let game = config.game(env).map_err(refused)?;
                (agent, game, config.actor_critic.burn_in)
            }
        };
        let actions =
            game.make(Purpose::Evaluate, agent.config.tokenizer.frame_size).map_err(refused)?.action_names();
        let (known, needed) = (agent.config.actions, actions.len());
        match known == needed {
            true => Ok(Loaded { agent, game, burn_in, epoch: source.epoch }),
            false => Err(Problem::bad_request(format!(
                "the agent knows {known} actions, but {} has {needed}",
                game.name
            ))),
        }
    }

    /// Side of its frames in pixels.
    pub fn size(&self) -> usize {
        self.agent.config.tokenizer.frame_size
    }

    pub fn eye(&self, device: &Device) -> Result<Eye, Problem> {
        Eye::new(device, &self.agent).map_err(Problem::internal)
    }
}

impl Agents {
    pub fn load(&mut self, device: &Device, source: &Source) -> Result<Rc<Loaded>, Problem> {
        if let Some(at) = self.loaded.iter().position(|(known, _)| known == source) {
            let found = self.loaded.remove(at);
            let agent = found.1.clone();
            self.loaded.push(found);
            return Ok(agent);
        }
        // Before the new one: two large agents may not fit.
        while self.loaded.len() >= KEPT {
            self.loaded.remove(0);
        }
        let agent = Rc::new(Loaded::new(device, source)?);
        self.loaded.push((source.clone(), agent.clone()));
        Ok(agent)
    }
}
