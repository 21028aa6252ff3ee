//! `iris selftest`: three tiny networks train for a moment, and their losses are compared with those on the CPU.

use std::time::Instant;

use agent::train::{ActorCriticObjective, Learner, Objective, TokenizerObjective, WorldModelObjective};
use agent::{
    ActorCriticConfig, Agent, AgentConfig, ErrorWeights, Returns, Tokenizer, TokenizerConfig, Trajectories,
    WorldModel, WorldModelConfig,
};
use anyhow::{Result, bail};
use engine::{Adam, Buffer, Device, Key, Rng, Stepper};
use envs::{Game, Purpose};

use crate::args::{PrecisionName, SelftestArgs};
use crate::output::say;

/// What is compared: a network's loss step by step while it trains, and the trained world model's when it sees one token at a time.
const NAMES: [&str; 4] = ["tokenizer", "world model", "actor-critic", "decoding"];
const SEED: u64 = 0;
/// A GPU runs the first step, records the second and replays the others.
const TRAINING_STEPS: usize = 10;
/// Sequences, and steps of each.
const BATCH: usize = 2;
const STEPS: usize = 4;
const FRAME_SIZE: usize = 32;
/// Of a loss. More than rounding explains is an error somewhere.
pub const F32_TOLERANCE: f32 = 1e-3;
pub const BF16_TOLERANCE: f32 = 5e-2;

pub fn run(args: SelftestArgs) -> Result<()> {
    let device = args.device.open()?;
    let tolerance = match (device.is_gpu(), args.device.precision) {
        (false, _) => 0.0,
        (true, PrecisionName::F32) => F32_TOLERANCE,
        (true, PrecisionName::Bf16) => BF16_TOLERANCE,
    };
    let name = args.device.describe(&device);
    match Selftest::new()?.passes(&name, &device, tolerance) {
        true => Ok(()),
        false => bail!("the self-test failed on {name}"),
    }
}

/// Losses to compare with.
pub struct Selftest {
    /// Of the CPU on one thread.
    expected: [Vec<f32>; 4],
}

impl Selftest {
    pub fn new() -> Result<Selftest> {
        Ok(Selftest { expected: losses(&Device::cpu(Some(1))?)? })
    }

    /// Tests a device, and says in a line how it went.
    pub fn passes(&self, name: &str, device: &Device, tolerance: f32) -> bool {
        let start = Instant::now();
        let outcome = losses(device);
        let seconds = start.elapsed().as_secs_f64();
        let ends = outcome.iter().flatten().zip(NAMES);
        let ends = ends.filter_map(|(losses, name)| Some(format!("{name} {:.4}", losses.last()?)));
        say!("  {name}: {} in {seconds:.1} s", ends.collect::<Vec<_>>().join(", "));
        let verdict = outcome.and_then(|losses| self.judge(&losses, tolerance));
        match &verdict {
            Ok(words) => say!("    ok: {words}"),
            Err(reason) => say!("    FAILED: {reason}"),
        }
        verdict.is_ok()
    }

    /// Whether losses are near enough to those expected, in words.
    fn judge(&self, losses: &[Vec<f32>; 4], tolerance: f32) -> Result<String> {
        let mut farthest: f32 = 0.0;
        for ((name, got), expected) in NAMES.iter().zip(losses).zip(&self.expected) {
            for (step, (got, expected)) in got.iter().zip(expected).enumerate() {
                let distance = (got - expected).abs() / expected.abs();
                if distance.is_nan() || distance > tolerance {
                    let step = step + 1;
                    bail!("{name}, step {step}: the loss is {got}, but {expected} on one thread of the CPU");
                }
                farthest = farthest.max(distance);
            }
            if got.len() > 1 && got[got.len() - 1] >= got[0] {
                bail!("{name}: the loss does not fall");
            }
        }
        Ok(match tolerance {
            0.0 => "the same to the bit as on one thread".into(),
            _ => format!("at most {:.4}% from the CPU, {}% allowed", 100.0 * farthest, 100.0 * tolerance),
        })
    }
}

/// The losses under [`NAMES`].
fn losses(device: &Device) -> Result<[Vec<f32>; 4]> {
    let config = config();
    let frames = game_frames(BATCH * STEPS)?;
    let mut rng = Rng::new(Key::new(SEED, 1));
    let (world_model, decoding) = world_model(device, &config, &mut rng)?;
    let actor_critic = actor_critic(device, &config, &frames, &mut rng)?;
    Ok([tokenizer(device, &config, &frames)?, world_model, actor_critic, decoding])
}

/// Every kind of layer, and little of it.
fn config() -> AgentConfig {
    AgentConfig {
        actions: 4,
        tokenizer: TokenizerConfig {
            frame_size: FRAME_SIZE,
            channels: 32,
            resolutions: 4,
            residual_blocks: 1,
            attention_sizes: vec![8],
            groups: 8,
            vocabulary: 64,
            embedding: 64,
            ..TokenizerConfig::default()
        },
        world_model: WorldModelConfig {
            steps: STEPS,
            layers: 2,
            heads: 4,
            width: 64,
            init_std: 0.1,
            ..WorldModelConfig::default()
        },
        actor_critic: ActorCriticConfig { channels: vec![16, 32, 32], hidden: 64, ..Default::default() },
    }
}

/// Frames of a game at random play, one after the other.
fn game_frames(count: usize) -> Result<Vec<u8>> {
    let mut env = Game::find("arcade/breakout")?.make(Purpose::Train, FRAME_SIZE)?;
    let mut rng = Rng::new(Key::new(SEED, 0));
    let actions = env.action_names().len() as u32;
    let mut frames = vec![0; count * FRAME_SIZE * FRAME_SIZE * 3];
    env.reset(SEED)?;
    for frame in frames.chunks_exact_mut(FRAME_SIZE * FRAME_SIZE * 3) {
        env.render(frame);
        if env.step(rng.below(actions) as usize)?.done() {
            env.reset(SEED)?;
        }
    }
    Ok(frames)
}

/// Updates a network as training does, and returns its losses.
fn train<O: Objective>(
    device: &Device,
    objective: O,
    model: &O::Model,
    learning_rate: f32,
) -> Result<Vec<f32>> {
    let mut learner = Learner::new(device, objective, Adam::default(), learning_rate)?;
    learner.set_key(Key::new(SEED, 2));
    let mut losses = Vec::with_capacity(TRAINING_STEPS);
    for _ in 0..TRAINING_STEPS {
        learner.update(model)?;
        // The total comes first.
        losses.extend(learner.take_losses()?.first().map(|(_, total)| *total));
    }
    Ok(losses)
}

fn tokenizer(device: &Device, config: &AgentConfig, frames: &[u8]) -> Result<Vec<f32>> {
    let objective = TokenizerObjective::new(
        device,
        &config.tokenizer,
        BATCH * STEPS,
        None,
        ErrorWeights { squared: 1.0, moving: 0.0 },
    )?;
    objective.frames.write(frames)?;
    train(device, objective, &Tokenizer::new(device, &config.tokenizer, SEED)?, 1e-4)
}

/// While it trains, and of the trained model when it sees the same tokens one by one.
fn world_model(device: &Device, config: &AgentConfig, rng: &mut Rng) -> Result<(Vec<f32>, Vec<f32>)> {
    let k = config.tokenizer.tokens();
    let objective = WorldModelObjective::new(device, config, BATCH)?;
    for (buffer, below) in [
        (&objective.tokens, config.tokenizer.vocabulary),
        (&objective.actions, config.actions),
        (&objective.rewards, 3),
        (&objective.ends, 2),
    ] {
        random_integers(buffer, below, rng)?;
    }
    // The last step is padding.
    let mask: Vec<i32> = (0..BATCH * STEPS).map(|i| i32::from(i + 1 < BATCH * STEPS)).collect();
    objective.mask.write(&mask)?;
    let (tokens, actions) = (objective.tokens.clone(), objective.actions.clone());
    let model = WorldModel::new(device, &config.world_model, &config.tokenizer, config.actions, SEED)?;
    let training = train(device, objective, &model, 1e-3)?;

    let memory = model.memory(device, BATCH)?;
    let decoding = Stepper::new(device, Key::new(SEED, 3)).infer(|tape| -> engine::Result<Vec<f32>> {
        let (tokens, actions) = (tape.buffer(&tokens)?, tape.buffer(&actions)?);
        let (mut predictions, mut labels) = (Vec::new(), Vec::new());
        let (mut thought, mut at) = (None, 0);
        for step in 0..STEPS {
            let frame = tape.slice(tokens, 1, step, step + 1)?;
            let frame = tape.reshape(frame, [BATCH, k])?;
            for i in 0..k {
                let token = tape.slice(frame, 1, i, i + 1)?;
                if let Some(thought) = thought {
                    predictions.push(model.next_token(tape, thought)?);
                    labels.push(token);
                }
                thought = Some(model.see_tokens(tape, &memory, at, token)?);
                at += 1;
            }
            let action = tape.slice(actions, 1, step, step + 1)?;
            thought = Some(model.see_action(tape, &memory, at, action)?);
            at += 1;
        }
        let (predictions, labels) = (tape.concat(&predictions, 1)?, tape.concat(&labels, 1)?);
        let loss = tape.cross_entropy(predictions, labels)?;
        tape.read(loss)
    })?;
    Ok((training, decoding))
}

fn actor_critic(device: &Device, config: &AgentConfig, frames: &[u8], rng: &mut Rng) -> Result<Vec<f32>> {
    let agent = Agent::new(device, config, SEED)?;
    let dreamt = Trajectories::new(device, &agent, BATCH, STEPS)?;
    let frames: Vec<f32> = frames.iter().map(|byte| f32::from(*byte) / 255.0).collect();
    dreamt.frames.iter().try_for_each(|seen| seen.write(&frames))?;
    random_integers(&dreamt.actions, config.actions, rng)?;
    // Before the last step, so that returns do not move with the values.
    let ends: Vec<i32> = (0..BATCH * STEPS).map(|i| i32::from((i + 2) % STEPS == 0)).collect();
    dreamt.ends.write(&ends)?;
    dreamt.rewards.write(&(0..BATCH * STEPS).map(|_| rng.uniform()).collect::<Vec<f32>>())?;
    train(device, ActorCriticObjective::new(dreamt, Returns::default()), &agent, 3e-4)
}

/// Fills a buffer with integers from 0 to `below` - 1.
fn random_integers(buffer: &Buffer, below: usize, rng: &mut Rng) -> Result<()> {
    let values: Vec<i32> = (0..buffer.shape().len()).map(|_| rng.below(below as u32) as i32).collect();
    Ok(buffer.write(&values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_differ_or_do_not_fall_are_refused() {
        let curves = |last: f32| [vec![2.0, 1.0], vec![4.0, 3.0], vec![1.0, last], vec![3.5]];
        let test = Selftest { expected: curves(0.5) };
        assert!(test.judge(&curves(0.5), 0.0).unwrap().contains("to the bit"));
        assert!(test.judge(&curves(0.51), BF16_TOLERANCE).unwrap().contains("2.0000% from the CPU"));
        let refused = |last, tolerance| test.judge(&curves(last), tolerance).unwrap_err().to_string();
        let expected = "actor-critic, step 2: the loss is 0.51, but 0.5 on one thread of the CPU";
        assert_eq!(refused(0.51, F32_TOLERANCE), expected);
        assert!(refused(f32::NAN, BF16_TOLERANCE).contains("the loss is NaN"));
        let stuck = Selftest { expected: curves(1.0) };
        let error = stuck.judge(&curves(1.0), 0.0).unwrap_err().to_string();
        assert_eq!(error, "actor-critic: the loss does not fall");
    }
}
