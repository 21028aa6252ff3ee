//! The networks compute what the reference release computes: activations, losses, gradients, tokens, and the first optimiser step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use agent::{
    ActorCritic, ActorCriticConfig, AgentConfig, ErrorWeights, Perceptual, Policy, Returns, Tokenizer,
    TokenizerConfig, WorldModel, WorldModelBatch, WorldModelConfig,
};
use common::{Golden, assert_close, nhwc};
use engine::{Adam, Device, Key, Lstm, Result, Stepper};

fn setup() -> (Golden, Device, Stepper) {
    let device = Device::under_test(2).unwrap();
    let stepper = Stepper::new(&device, Key::new(0, 0));
    (Golden::load(), device, stepper)
}

/// Weights after an optimiser step, to 1e-5.
fn assert_updated(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0f32, f32::max);
    assert!(worst <= 1e-5, "{what}: off by {worst}");
}

/// A scalar of the release against ours.
fn assert_number(golden: &Golden, name: &str, key: &str, got: f32) {
    let expected = golden.number(name, key);
    // The perceptual loss may be close to zero: golden weights of its layers have both signs.
    let error = (f64::from(got) - expected).abs();
    assert!(error <= 1e-4 * expected.abs() + 1e-6, "{name}.{key}: {got} for {expected}");
}

#[test]
fn golden_tokenizer() -> Result<()> {
    let (golden, device, mut stepper) = setup();
    let tokenizer = Tokenizer::new(&device, &TokenizerConfig::default(), 0)?;
    let perceptual = Perceptual::random(&device, 0.0)?;
    golden.fill(&tokenizer.network, "tokenizer");
    golden.fill(&perceptual.network, "tokenizer.lpips");
    let frames = device.buffer::<f32>("frames", [2, 64, 64, 3])?;
    frames.write(&nhwc(&golden.uniform("input.frames", 2 * 3 * 64 * 64), 3, 64 * 64))?;
    let rate = device.scalar("learning rate", 1e-4)?;

    stepper.run(|tape| -> Result<()> {
        let x = tape.buffer(&frames)?;
        let x = tape.affine(x, 2.0, -1.0)?;
        let y = tokenizer.encode(tape, x)?;
        assert_close("y", &tape.read(y)?, &nhwc(&golden.f32("tokenizer.y"), 512, 16), 1e-4);
        let quantised = tokenizer.quantise(tape, y)?;
        assert_eq!(tape.read::<i32>(quantised.tokens)?, golden.i32("tokenizer.tokens"));
        let decoded = tokenizer.decode(tape, quantised.embedded)?;
        let decoded = tape.affine(decoded, 0.5, 0.5)?;
        let expected = nhwc(&golden.f32("tokenizer.reconstruction"), 3, 64 * 64);
        assert_close("reconstruction", &tape.read(decoded)?, &expected, 1e-4);
        Ok(())
    })?;
    stepper.run(|tape| -> Result<()> {
        let x = tape.buffer(&frames)?;
        let x = tape.affine(x, 2.0, -1.0)?;
        let losses = tokenizer.loss(tape, x, Some(&perceptual), ErrorWeights::default())?;
        for (name, loss) in losses.named() {
            let name = name.trim_start_matches("tokenizer/train/");
            if name != "total_loss" {
                assert_number(&golden, "tokenizer.losses", name, tape.read::<f32>(loss)?[0]);
            }
        }
        tape.backward(losses.total)?;
        let norm = tape.adam(&tokenizer.network.params, &rate, &Adam::default())?;
        let expected = golden.json["tokenizer.grad_norm_total"].as_f64().unwrap();
        let norm = f64::from(tape.read::<f32>(norm)?[0]);
        assert!((norm - expected).abs() < 1e-3 * expected, "{norm} for {expected}");
        Ok(())
    })?;
    golden.check_gradient_norms(&tokenizer.network, "tokenizer.grad_norms");
    let params = &tokenizer.network.params;
    let conv = agent::reference::Layout::Conv3x3
        .to_reference(&[64, 3, 3, 3], &params.get("encoder.conv_in.weight")?);
    assert_updated("conv_in after Adam", &conv, &golden.f32("tokenizer.after_adam.encoder.conv_in.weight"));
    let rows = &params.get("embedding.weight")?[..4 * 512];
    assert_updated("codebook after Adam", rows, &golden.f32("tokenizer.after_adam.embedding.rows0_4"));
    Ok(())
}

#[test]
fn golden_perceptual_distance() -> Result<()> {
    let (golden, device, mut stepper) = setup();
    let perceptual = Perceptual::random(&device, 0.0)?;
    golden.fill(&perceptual.network, "tokenizer.lpips");
    let frames = device.buffer::<f32>("frames", [2, 64, 64, 3])?;
    frames.write(&nhwc(&golden.uniform("input.frames", 2 * 3 * 64 * 64), 3, 64 * 64))?;
    stepper.run(|tape| {
        let x = tape.buffer(&frames)?;
        let x = tape.affine(x, 2.0, -1.0)?;
        let (a, b) = (tape.slice(x, 0, 0, 1)?, tape.slice(x, 0, 1, 2)?);
        let distance = perceptual.distance(tape, a, b)?;
        assert_close("distance", &tape.read(distance)?, &golden.f32("lpips.value"), 1e-4);
        Ok(())
    })
}

#[test]
fn golden_world_model() -> Result<()> {
    let (golden, device, mut stepper) = setup();
    let (steps, k) = (20, 16);
    let model = WorldModel::new(&device, &WorldModelConfig::default(), &TokenizerConfig::default(), 6, 0)?;
    golden.fill(&model.network, "world_model");
    let integers = |name: &str, shape: &[usize], values: Vec<i32>| -> Result<engine::Buffer> {
        let buffer = device.buffer::<i32>(name, engine::Shape::try_from(shape)?)?;
        buffer.write(&values)?;
        Ok(buffer)
    };
    let tokens = integers("tokens", &[2, steps, k], golden.integers("input.obs_tokens", 2 * steps * k, 512))?;
    let actions = integers("actions", &[2, steps], golden.integers("input.actions", 2 * steps, 6))?;
    let signs = golden.integers("input.rewards", 2 * steps, 5).iter().map(|r| (r - 2).signum() + 1).collect();
    let rewards = integers("rewards", &[2, steps], signs)?;
    // Sequence 0 ends at step 13 and is padding after it.
    let ends = integers("ends", &[2, steps], (0..2 * steps).map(|i| i32::from(i == 13)).collect())?;
    let mask = integers(
        "mask",
        &[2, steps],
        (0..2 * steps).map(|i| i32::from(!(14..steps).contains(&i))).collect(),
    )?;

    let rate = device.scalar("learning rate", 1e-4)?;
    stepper.run(|tape| -> Result<()> {
        let batch = WorldModelBatch {
            tokens: tape.buffer(&tokens)?,
            actions: tape.buffer(&actions)?,
            amounts: None,
            rewards: tape.buffer(&rewards)?,
            ends: tape.buffer(&ends)?,
            mask: tape.buffer(&mask)?,
        };
        let output = model.forward(tape, batch.tokens, batch.actions, false)?;
        let end = |tape: &mut engine::Tape, x: engine::Tensor, count: usize| -> Result<Vec<f32>> {
            let time = x.dims()[1];
            let last = tape.slice(x, 1, time - count, time)?;
            tape.read(last)
        };
        assert_close("hidden", &end(tape, output.hidden, 3)?, &golden.f32("world_model.hidden_last3"), 1e-4);
        let last = end(tape, output.observations, 17)?;
        assert_close("next tokens", &last, &golden.f32("world_model.logits_observations_last17"), 1e-4);
        assert_close("rewards", &tape.read(output.rewards)?, &golden.f32("world_model.logits_rewards"), 1e-4);
        assert_close("ends", &tape.read(output.ends)?, &golden.f32("world_model.logits_ends"), 1e-4);

        let losses = model.loss(tape, &batch, false)?;
        for (name, loss) in losses.named() {
            let name = name.trim_start_matches("world_model/train/loss_");
            let name = if name == "obs" { "observations" } else { name };
            if !name.contains("total_loss") {
                assert_number(&golden, "world_model.losses", name, tape.read::<f32>(loss)?[0]);
            }
        }
        tape.backward(losses.total)?;
        let norm =
            tape.adam(&model.network.params, &rate, &Adam { weight_decay: 0.01, ..Adam::default() })?;
        let expected = golden.json["world_model.grad_norm_total"].as_f64().unwrap();
        let norm = f64::from(tape.read::<f32>(norm)?[0]);
        assert!((norm - expected).abs() < 1e-3 * expected, "{norm} for {expected}");
        Ok(())
    })?;
    golden.check_gradient_norms(&model.network, "world_model.grad_norms");
    let params = &model.network.params;
    let query = params.get("transformer.blocks.0.attn.query.weight")?;
    assert_updated(
        "query after AdamW",
        &query,
        &golden.f32("world_model.after_adamw.blocks0.attn.query.weight"),
    );
    let positions = &params.get("pos_emb.weight")?[..4 * 256];
    assert_updated(
        "positions after AdamW",
        positions,
        &golden.f32("world_model.after_adamw.pos_emb.rows0_4"),
    );
    Ok(())
}

#[test]
fn golden_actor_critic() -> Result<()> {
    let (golden, device, mut stepper) = setup();
    let policy = ActorCritic::new(&device, &ActorCriticConfig::default(), &TokenizerConfig::default(), 6, 0)?;
    golden.fill(&policy.network, "actor_critic");
    let frames = device.buffer::<f32>("frames", [4, 5, 64, 64, 3])?;
    frames.write(&nhwc(&golden.uniform("input.ac_frames", 4 * 5 * 3 * 64 * 64), 3, 64 * 64))?;
    let mask = device.buffer::<i32>("mask", [4, 2])?;
    mask.write(&[1, 1, 0, 1, 0, 0, 1, 1])?;
    let actions = device.buffer::<i32>("actions", [4, 3])?;
    actions.write(&golden.integers("input.ac_actions", 12, 6))?;
    let rewards = device.buffer::<f32>("rewards", [4, 3])?;
    let values: Vec<f32> =
        golden.integers("input.ac_rewards", 12, 3).iter().map(|&r| (r - 1) as f32).collect();
    rewards.write(&values)?;
    let ends = device.buffer::<i32>("ends", [4, 3])?;
    ends.write(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0])?;
    let zeros = device.buffer::<f32>("zeros", [4, 512])?;
    let (hidden, cell) = (device.buffer::<f32>("hidden", [4, 512])?, device.buffer::<f32>("cell", [4, 512])?);

    stepper.infer(|tape| -> Result<()> {
        let (frames, mask) = (tape.buffer(&frames)?, tape.buffer(&mask)?);
        let zero = tape.buffer(&zeros)?;
        let before = tape.slice(frames, 1, 0, 2)?;
        let state = policy.burn_in(tape, before, mask, Lstm { hidden: zero, cell: zero })?;
        tape.store(&hidden, 0, state.hidden)?;
        tape.store(&cell, 0, state.cell)
    })?;
    assert_close("hidden", &hidden.read()?, &golden.f32("actor_critic.burn_in.hx"), 1e-4);
    assert_close("cell", &cell.read()?, &golden.f32("actor_critic.burn_in.cx"), 1e-4);

    stepper.run(|tape| -> Result<()> {
        let frames = tape.buffer(&frames)?;
        let frames = tape.slice(frames, 1, 2, 5)?;
        let state = Lstm { hidden: tape.buffer(&hidden)?, cell: tape.buffer(&cell)? };
        let output: Policy = policy.follow(tape, frames, state)?;
        assert_close("logits", &tape.read(output.logits)?, &golden.f32("actor_critic.logits"), 1e-4);
        assert_close("values", &tape.read(output.values)?, &golden.f32("actor_critic.values"), 1e-4);
        let (actions, rewards, ends) = (tape.buffer(&actions)?, tape.buffer(&rewards)?, tape.buffer(&ends)?);
        let returns = tape.lambda_returns(rewards, ends, output.values, 0.995, 0.95)?;
        assert_close("returns", &tape.read(returns)?, &golden.f32("actor_critic.lambda_returns"), 1e-4);
        let config = Returns { stop_at_end: false, ..Returns::default() };
        let losses = policy.loss(tape, output, actions, rewards, ends, &config)?;
        for (name, loss) in losses.named() {
            let name = name.trim_start_matches("actor_critic/train/loss_");
            if !name.contains("total_loss") {
                let got = tape.read::<f32>(loss)?[0];
                assert_number(&golden, "actor_critic.losses_release_behaviour", name, got);
            }
        }
        tape.backward(losses.total)
    })?;
    golden.check_gradient_norms(&policy.network, "actor_critic.grad_norms");
    Ok(())
}

#[test]
fn parameter_counts_are_the_papers() -> Result<()> {
    let device = Device::under_test(1)?;
    for actions in [4, 18] {
        let agent = agent::Agent::new(&device, &AgentConfig { actions, ..AgentConfig::default() }, 0)?;
        assert_eq!(agent.tokenizer.network.params.count(), 4_027_523);
        assert_eq!(agent.world_model.network.params.count(), 8_446_469 + 256 * actions);
        assert_eq!(agent.actor_critic.network.params.count(), 3_215_905 + 513 * actions);
    }
    Ok(())
}
