//! Loads the agent that a command uses: from a run, or from a folder that `iris import` made.

use agent::Agent;
use agent::train::Run;
use anyhow::{Result, bail};
use engine::Device;
use envs::{Game, Purpose};

use crate::args::PlayerArgs;
use crate::output::{tell, warn};

/// An agent, where it computes, and the game it plays.
pub struct Source {
    pub device: Device,
    pub agent: Agent,
    pub game: Game,
}

impl Source {
    /// The agent that was asked for; a run has a game of its own.
    pub fn load(args: &PlayerArgs) -> Result<Source> {
        let device = args.device.open()?;
        let (folder, env) = (args.run.as_path(), args.env.as_deref());
        let (agent, game) = match (Agent::is_in(folder), env) {
            (true, Some(env)) => (Agent::load(&device, folder)?.0, Game::find(env)?),
            (true, None) => {
                bail!("{} holds an agent without the name of its game: add --env GAME", folder.display())
            }
            (false, _) => {
                let (config, agent) = Run::newest_agent(&device, folder, warn)?;
                (agent, Game::find(env.unwrap_or(&config.env))?)
            }
        };
        let env = game.make(Purpose::Evaluate, agent.config.tokenizer.frame_size)?;
        let (known, needed) = (agent.config.actions, env.action_names().len());
        if known != needed {
            bail!("the agent in {} knows {known} actions, but {} has {needed}", folder.display(), game.name);
        }
        tell!("{} on {}", game.name, args.device.describe(&device));
        if let Some(variant) = game.variant() {
            tell!("{}: {variant}", game.name);
        }
        Ok(Source { device, agent, game })
    }
}
