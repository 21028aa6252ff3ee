//! `iris import`, `import-perceptual` and `export`: networks from and to the reference release's layout.

use std::path::Path;

use agent::train::Run;
use agent::{Agent, reference};
use anyhow::{Result, bail};
use engine::Device;

use crate::args::{ExportArgs, ImportArgs, ImportPerceptualArgs};
use crate::output::{pasteable, say, warn};
use crate::{digest, hub};

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

/// What the published files of the perceptual network are called, and how their digests begin.
const VGG: (&str, &str) = ("torchvision's vgg16-397923af.pth", "397923af");
const LPIPS: (&str, &str) = ("the vgg.pth of LPIPS 0.1", "d507d7349b931f0638a25a48a722f98a");

pub fn import_perceptual(args: ImportPerceptualArgs) -> Result<()> {
    if Run::is_in(&args.out) || Agent::is_in(&args.out) {
        bail!("{} holds a run or an agent: choose another folder for the network", args.out.display());
    }
    let perceptual = reference::import_perceptual(&Device::cpu(None)?, &args.vgg, &args.lpips)?;
    let vgg = recognised(&args.vgg, VGG, &digest::sha256(&args.vgg)?, "SHA-256");
    let lpips = recognised(&args.lpips, LPIPS, &digest::md5(&args.lpips)?, "MD5");
    let path = perceptual.save(&args.out)?;
    say!("imported a perceptual network into {}", path.display());
    say!("  VGG16   {vgg}");
    say!("  LPIPS   {lpips}");
    say!("train with it: tokenizer.perceptual={}", pasteable(&args.out));
    Ok(())
}

/// Whether a file is the published one.
fn recognised(path: &Path, (published, start): (&str, &str), digest: &str, kind: &str) -> String {
    match digest.starts_with(start) {
        true => format!("{}: {published}, by its {kind}", path.display()),
        false => format!(
            "{}: not {published} byte for byte ({kind} {digest}); names and shapes are right",
            path.display()
        ),
    }
}

pub fn export(args: ExportArgs) -> Result<()> {
    let out = match (&args.hub, &args.out) {
        (Some(folder), _) => return hub::export(&args.agent, folder),
        (None, Some(out)) => out,
        (None, None) => bail!("name a file with --out, or a folder with --hub"),
    };
    let device = Device::cpu(None)?;
    if is_inside(out, &args.agent) {
        bail!("{} belongs to the agent being exported: choose another file", out.display());
    }
    let (agent, perceptual) = match Agent::is_in(&args.agent) {
        true => Agent::load(&device, &args.agent)?,
        false => (Run::newest_agent(&device, &args.agent, warn)?.1, None),
    };
    reference::export(&agent, perceptual.as_ref(), out)?;
    say!("exported to {}", out.display());
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
    ["agent.safetensors", "model.safetensors"].iter().any(|name| file == folder.join(name))
        || file.starts_with(folder.join("checkpoints"))
}
