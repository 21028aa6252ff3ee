//! `iris import` and `iris export`: agents from and to the reference release's layout.

use agent::{Agent, reference};
use anyhow::Result;
use engine::Device;

use crate::args::{ExportArgs, ImportArgs};

pub fn import(args: ImportArgs) -> Result<()> {
    let device = Device::cpu(None)?;
    let (agent, perceptual) = reference::import(&device, &args.checkpoint)?;
    let path = agent.save(perceptual.as_ref(), &args.out)?;
    let (t, w) = (&agent.config.tokenizer, &agent.config.world_model);
    println!("imported an agent with {} actions into {}", agent.config.actions, path.display());
    println!(
        "  tokenizer     {:>10} parameters: {} x {} pixels to {} of {} tokens",
        agent.tokenizer.network.params.count(),
        t.frame_size,
        t.frame_size,
        t.tokens(),
        t.vocabulary
    );
    println!(
        "  world model   {:>10} parameters: {} layers of width {} over {} steps",
        agent.world_model.network.params.count(),
        w.layers,
        w.width,
        w.steps
    );
    println!("  actor-critic  {:>10} parameters", agent.actor_critic.network.params.count());
    println!(
        "  perceptual    {}",
        if perceptual.is_some() { "kept for the loss" } else { "not in the file" }
    );
    Ok(())
}

pub fn export(args: ExportArgs) -> Result<()> {
    let device = Device::cpu(None)?;
    let (agent, perceptual) = Agent::load(&device, &args.agent)?;
    reference::export(&agent, perceptual.as_ref(), &args.out)?;
    println!("exported to {}", args.out.display());
    if perceptual.is_none() {
        println!(
            "the perceptual network is not part of this agent: load with strict=False, or build the tokenizer without it"
        );
    }
    Ok(())
}
