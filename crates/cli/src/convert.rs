//! `iris import` and `iris export`: agents from and to the reference release's layout.

use std::path::Path;

use agent::train::Run;
use agent::{Agent, reference};
use anyhow::{Result, bail};
use engine::Device;

use crate::args::{ExportArgs, ImportArgs};
use crate::output::{say, warn};

pub fn import(args: ImportArgs) -> Result<()> {
    if Run::is_in(&args.out) {
        bail!("{} holds a run: choose another folder for the agent", args.out.display());
    }
    let device = Device::cpu(None)?;
    let (agent, perceptual) = reference::import(&device, &args.checkpoint)?;
    let path = agent.save(perceptual.as_ref(), &args.out)?;
    let (t, w) = (&agent.config.tokenizer, &agent.config.world_model);
    say!("imported an agent with {} actions into {}", agent.config.actions, path.display());
    say!(
        "  tokenizer     {:>10} parameters: {} x {} pixels to {} of {} tokens",
        agent.tokenizer.network.params.count(),
        t.frame_size,
        t.frame_size,
        t.tokens(),
        t.vocabulary
    );
    say!(
        "  world model   {:>10} parameters: {} layers of width {} over {} steps",
        agent.world_model.network.params.count(),
        w.layers,
        w.width,
        w.steps
    );
    say!("  actor-critic  {:>10} parameters", agent.actor_critic.network.params.count());
    say!("  perceptual    {}", if perceptual.is_some() { "kept for the loss" } else { "not in the file" });
    Ok(())
}

pub fn export(args: ExportArgs) -> Result<()> {
    let device = Device::cpu(None)?;
    if is_inside(&args.out, &args.agent) {
        bail!("{} belongs to the agent being exported: choose another file", args.out.display());
    }
    let (agent, perceptual) = match Agent::is_in(&args.agent) {
        true => Agent::load(&device, &args.agent)?,
        false => (Run::newest_agent(&device, &args.agent, warn)?.1, None),
    };
    reference::export(&agent, perceptual.as_ref(), &args.out)?;
    say!("exported to {}", args.out.display());
    if perceptual.is_none() {
        say!(
            "the agent has no perceptual network: load it with strict=False, or build the tokenizer without one"
        );
    }
    Ok(())
}

/// Whether a file exists and belongs to the agent or run in `folder`.
fn is_inside(file: &Path, folder: &Path) -> bool {
    let (Ok(file), Ok(folder)) = (file.canonicalize(), folder.canonicalize()) else { return false };
    file == folder.join("agent.safetensors") || file.starts_with(folder.join("checkpoints"))
}
