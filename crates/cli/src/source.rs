//! Loads the agent that a command uses: from a run, or from a folder that `iris import` or `iris export --hub` made.

use std::path::Path;

use agent::Agent;
use agent::train::Run;
use anyhow::{Result, bail};
use engine::Device;
use envs::{Game, Purpose};

use crate::args::{DeviceArgs, PlayerArgs};
use crate::config::protocol_remark;
use crate::hub;
use crate::output::{tell, warn};

/// Burn-in frames of the paper's table 4.
const PAPER_BURN_IN: usize = 20;

/// An agent, where it computes, and the game it plays.
pub struct Source {
    pub device: Device,
    pub agent: Agent,
    pub game: Game,
    /// Frames that the policy was warmed up with in training; the paper's for an agent without a run.
    pub burn_in: usize,
}

impl Source {
    /// The agent that was asked for; a run has a game of its own.
    pub fn load(args: &PlayerArgs) -> Result<Source> {
        Source::open(&args.run, args.env.as_deref(), &args.device)
    }

    pub fn open(folder: &Path, env: Option<&str>, on: &DeviceArgs) -> Result<Source> {
        let device = on.open()?;
        let (agent, config) = match Agent::is_in(folder) {
            true => {
                let config = hub::config_of(folder)?;
                (Agent::load(&device, folder)?.0, config)
            }
            false => {
                let (config, agent) = Run::newest_agent(&device, folder, warn)?;
                (agent, Some(config))
            }
        };
        let (game, burn_in) = match (config, env) {
            (Some(config), env) => {
                let game = config.game(env)?;
                protocol_remark(&config.atari, &game).iter().for_each(|remark| tell!("note: {remark}"));
                (game, config.actor_critic.burn_in)
            }
            (None, Some(env)) => (Game::find(env)?, PAPER_BURN_IN),
            (None, None) => {
                bail!("{} holds an agent without the name of its game: add --env GAME", folder.display())
            }
        };
        let env = game.make(Purpose::Evaluate, agent.config.tokenizer.frame_size)?;
        let (known, needed) = (agent.config.actions, env.action_names().len());
        if known != needed {
            bail!("the agent in {} knows {known} actions, but {} has {needed}", folder.display(), game.name);
        }
        tell!("{} on {}", game.name, on.describe(&device));
        if let Some(variant) = game.variant() {
            tell!("{}: {variant}", game.name);
        }
        Ok(Source { device, agent, game, burn_in })
    }
}
