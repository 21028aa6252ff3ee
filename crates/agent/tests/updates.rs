//! 100 updates of each network have the losses that PyTorch computes on the same batches: `scripts/compare_pytorch.py`, whose networks are checked against
//! the reference release.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use agent::train::{ActorCriticObjective, Learner, Objective, TokenizerObjective, WorldModelObjective};
use agent::{
    ActorCriticConfig, Agent, AgentConfig, ErrorWeights, Network, Perceptual, Returns, Tokenizer,
    TokenizerConfig, Trajectories, WorldModel, WorldModelConfig,
};
use common::Golden;
use engine::{Adam, Device, Result};

/// Sizes of networks and batches, as the script has them.
struct Sizes {
    name: &'static str,
    agent: AgentConfig,
    frames: usize,
    sequences: usize,
    dreams: usize,
    horizon: usize,
    /// Whether weights are as wide as the release initialises them, or as wide as the golden ones.
    initial: bool,
}

fn without_dropout(config: WorldModelConfig) -> WorldModelConfig {
    WorldModelConfig { embedding_dropout: 0.0, attention_dropout: 0.0, residual_dropout: 0.0, ..config }
}

/// Every kind of layer, as small as can be.
fn small() -> Sizes {
    let tokenizer = TokenizerConfig {
        frame_size: 16,
        channels: 16,
        resolutions: 3,
        groups: 4,
        vocabulary: 32,
        embedding: 24,
        ..TokenizerConfig::default()
    };
    let world_model = WorldModelConfig { steps: 5, layers: 2, width: 32, ..WorldModelConfig::default() };
    let actor_critic =
        ActorCriticConfig { channels: vec![8, 8, 16], hidden: 32, ..ActorCriticConfig::default() };
    let agent =
        AgentConfig { actions: 6, tokenizer, world_model: without_dropout(world_model), actor_critic };
    Sizes { name: "small", agent, frames: 4, sequences: 8, dreams: 8, horizon: 6, initial: false }
}

fn paper() -> Sizes {
    let world_model = without_dropout(WorldModelConfig::default());
    let agent = AgentConfig { actions: 6, world_model, ..AgentConfig::default() };
    Sizes { name: "paper", agent, frames: 32, sequences: 8, dreams: 2, horizon: 20, initial: true }
}

/// Gives a network the generated weights. At the paper's size rounding grows to 1% within ten updates of weights as wide as the golden ones.
fn start(sizes: &Sizes, golden: &Golden, network: &Network, prefix: &str) -> Result<()> {
    golden.fill(network, prefix);
    for spec in network.params.specs().iter().filter(|spec| sizes.initial && spec.shape.dims().len() > 1) {
        let dims = spec.shape.dims();
        let fan_in: usize = dims[1..].iter().product();
        let width = match prefix {
            "world_model" if spec.name.contains("emb") => 0.02 * 3f32.sqrt(),
            "world_model" => 0.02 * (fan_in as f32).sqrt(),
            // The codebook, then PyTorch's default for layers.
            _ if spec.name == "embedding.weight" => 1.0 / dims[0] as f32,
            _ => 1.0 / 3f32.sqrt(),
        };
        let weights: Vec<f32> = network.params.get(&spec.name)?.iter().map(|w| w * width).collect();
        network.params.set(&spec.name, &weights)?;
    }
    Ok(())
}

/// Coloured rectangles: u8 [count, size, size, 3]
fn pictures(golden: &Golden, name: &str, count: usize, size: usize) -> Vec<u8> {
    const RECTANGLES: usize = 6;
    const NUMBERS: usize = 3 + 7 * RECTANGLES;
    let number = |u: f32, below: usize| (u * below as f32).floor() as usize;
    let colour = |u: &[f32]| [u[0], u[1], u[2]].map(|u| number(u, 256) as u8);
    let mut pixels = Vec::with_capacity(count * size * size * 3);
    for u in golden.uniform(name, count * NUMBERS).chunks_exact(NUMBERS) {
        let mut image = vec![colour(u); size * size];
        for r in u[3..].chunks_exact(7) {
            let (top, left) = (number(r[0], size), number(r[1], size));
            let (height, width) = (1 + number(r[2], size / 2), 1 + number(r[3], size / 2));
            for row in image.chunks_exact_mut(size).skip(top).take(height) {
                row.iter_mut().skip(left).take(width).for_each(|pixel| *pixel = colour(&r[4..]));
            }
        }
        pixels.extend(image.into_iter().flatten());
    }
    pixels
}

/// Makes 100 updates, each with the batch that `fill` writes, and compares every loss. Prints the largest relative difference of each.
fn compare<O: Objective>(
    sizes: &Sizes,
    device: &Device,
    (objective, model): (O, &O::Model),
    adam: Adam,
    mut fill: impl FnMut(&O, usize) -> Result<()>,
) -> Result<()> {
    let file = format!("tests/golden/updates_{}.json", sizes.name);
    let recorded = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let recorded: serde_json::Value = serde_json::from_slice(&recorded).unwrap();
    let expected = recorded[O::PHASE.name()].as_object().unwrap();
    assert_eq!(expected.len(), 3);
    let mut learner = Learner::new(device, objective, adam, 1e-4)?;
    let mut worst = vec![(0.0, 0); expected.len()];
    for update in 0..100 {
        fill(&learner.objective, update)?;
        learner.update(model)?;
        let losses = learner.take_losses()?;
        for ((name, theirs), worst) in expected.iter().zip(&mut worst) {
            let theirs = theirs[update].as_f64().unwrap();
            let ours = losses.iter().find(|(ours, _)| ours.ends_with(&format!("/{name}"))).unwrap().1;
            let difference = (f64::from(ours) - theirs).abs() / theirs.abs();
            if difference > worst.0 {
                *worst = (difference, update);
            }
            assert!(difference < 0.01, "{name}: {difference} in update {update}");
        }
    }
    for (name, (difference, update)) in expected.keys().zip(worst) {
        println!("{:>13}  {name:<20} {difference:.1e} in update {update}", O::PHASE.name());
    }
    Ok(())
}

fn compare_tokenizer(sizes: &Sizes) -> Result<()> {
    let (golden, device, config) = (Golden::load(), Device::cpu(Some(2))?, &sizes.agent.tokenizer);
    let tokenizer = Tokenizer::new(&device, config, 0)?;
    let perceptual = Perceptual::random(&device, 0.0)?;
    start(sizes, &golden, &tokenizer.network, "tokenizer")?;
    golden.fill(&perceptual.network, "tokenizer.lpips");
    // LPIPS's linear weights are not negative.
    let frozen = &perceptual.network.params;
    for spec in frozen.specs().iter().filter(|spec| spec.name.starts_with("lin")) {
        let weights: Vec<f32> = frozen.get(&spec.name)?.iter().map(|w| w.abs()).collect();
        frozen.set(&spec.name, &weights)?;
    }
    let objective =
        TokenizerObjective::new(&device, config, sizes.frames, Some(perceptual), ErrorWeights::default())?;
    compare(sizes, &device, (objective, &tokenizer), Adam::default(), |batch, update| {
        let name = format!("updates.{update}.frames");
        batch.frames.write(&pictures(&golden, &name, sizes.frames, config.frame_size))
    })
}

fn compare_world_model(sizes: &Sizes) -> Result<()> {
    let (golden, device, config) = (Golden::load(), Device::cpu(Some(2))?, &sizes.agent);
    let model = WorldModel::new(&device, &config.world_model, &config.tokenizer, config.actions, 0)?;
    start(sizes, &golden, &model.network, "world_model")?;
    let objective = WorldModelObjective::new(&device, config, sizes.sequences)?;
    let adam = Adam { weight_decay: 0.01, ..Adam::default() };
    let (rows, steps, k) = (sizes.sequences, config.world_model.steps, config.tokenizer.tokens());
    let vocabulary = config.tokenizer.vocabulary as i32;
    compare(sizes, &device, (objective, &model), adam, |batch, update| {
        let integers = |name: &str, len: usize, below: usize| {
            golden.integers(&format!("updates.{update}.{name}"), len, below as u32)
        };
        let actions = integers("actions", rows * steps, config.actions);
        let base = integers("tokens", rows * k, 8);
        let lengths = integers("lengths", rows, steps);
        let (mut tokens, mut ends, mut mask) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..rows {
            let length = 1 + lengths[row];
            for step in 0..steps {
                let before = if step == 0 { 0 } else { actions[row * steps + step - 1] };
                let token = |base: &i32| (3 * base + step as i32 + before) % vocabulary;
                tokens.extend(base[row * k..][..k].iter().map(token));
                ends.push(i32::from(step as i32 == length - 1 && length < steps as i32));
                mask.push(i32::from((step as i32) < length));
            }
        }
        let others = integers("rewards", rows * steps, 12);
        let reward =
            |(action, other): (&i32, &i32)| if *other < 3 { *other } else { (action - 2).signum() + 1 };
        let rewards: Vec<i32> = actions.iter().zip(&others).map(reward).collect();
        batch.tokens.write(&tokens)?;
        batch.actions.write(&actions)?;
        batch.rewards.write(&rewards)?;
        batch.ends.write(&ends)?;
        batch.mask.write(&mask)
    })
}

fn compare_actor_critic(sizes: &Sizes) -> Result<()> {
    let (golden, device, config) = (Golden::load(), Device::cpu(Some(2))?, &sizes.agent);
    let agent = Agent::new(&device, config, 0)?;
    start(sizes, &golden, &agent.actor_critic.network, "actor_critic")?;
    let (batch, time, size) = (sizes.dreams, sizes.horizon, config.tokenizer.frame_size);
    let hidden = config.actor_critic.hidden;
    let dreamt = Trajectories::new(&device, &agent, batch, time)?;
    let returns = Returns { stop_at_end: false, ..Returns::default() };
    let objective = ActorCriticObjective::new(dreamt, returns);
    compare(sizes, &device, (objective, &agent), Adam::default(), |objective, update| {
        let name = |name: &str| format!("updates.{update}.{name}");
        let integers = |what: &str, below| golden.integers(&name(what), batch * time, below);
        let state = |what: &str| -> Vec<f32> {
            golden.uniform(&name(what), batch * hidden).iter().map(|u| 2.0 * u - 1.0).collect()
        };
        let pixels = pictures(&golden, &name("dreams"), batch * time, size);
        let frames: Vec<f32> = pixels.iter().map(|byte| f32::from(*byte) / 255.0).collect();
        let rewards: Vec<f32> = integers("ac_rewards", 4).iter().map(|r| (r - 1).min(1) as f32).collect();
        let ends: Vec<i32> = integers("ac_ends", 8).iter().map(|end| i32::from(*end == 0)).collect();
        let dreamt = &objective.dreamt;
        dreamt.frames.as_ref().unwrap().write(&frames)?;
        dreamt.actions.write(&integers("ac_actions", config.actions as u32))?;
        dreamt.rewards.write(&rewards)?;
        dreamt.ends.write(&ends)?;
        dreamt.hidden.write(&state("hidden"))?;
        dreamt.cell.write(&state("cell"))
    })
}

#[test]
fn small_tokenizer() -> Result<()> {
    compare_tokenizer(&small())
}

#[test]
fn small_world_model() -> Result<()> {
    compare_world_model(&small())
}

#[test]
fn small_actor_critic() -> Result<()> {
    compare_actor_critic(&small())
}

/// `cargo test --release -p agent --test updates -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn paper_sized_networks() -> Result<()> {
    compare_tokenizer(&paper())?;
    compare_world_model(&paper())?;
    compare_actor_critic(&paper())
}
