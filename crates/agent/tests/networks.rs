//! What holds for networks of any size: decoding step by step, dreams, the two ways to treat an end, files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use agent::testing::Scratch;
use agent::{Acting, Agent, AgentConfig, CheckpointError, Dreamer, Policy, Returns, Trajectories};
use engine::{Buffer, Device, Key, Lstm, Result, Rng, Stepper};

#[path = "common/small.rs"]
mod small;

use small::small;

fn integers(device: &Device, name: &str, shape: &[usize], below: u32) -> Buffer {
    let buffer = device.buffer::<i32>(name, engine::Shape::try_from(shape).unwrap()).unwrap();
    let mut rng = Rng::new(Key::new(3, name.len() as u32));
    let values: Vec<i32> = (0..buffer.shape().len()).map(|_| rng.below(below) as i32).collect();
    buffer.write(&values).unwrap();
    buffer
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= 1e-4 * e.abs().max(1.0), "at {i}: {g} for {e}");
    }
}

/// A rollout of 340 positions gives, at every one, what the whole sequence at once gives, for one-token and multi-token appends.
#[test]
fn decoding_with_the_cache_equals_the_full_pass() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let model = &agent.world_model;
    let (steps, k, width) = (20, 16, 32);
    let mut stepper = Stepper::new(&device, Key::new(0, 0));
    for batch in [1, 3, 17] {
        let tokens = integers(&device, "tokens", &[batch, steps, k], 11);
        let actions = integers(&device, "actions", &[batch, steps], 5);
        let (whole, rewards) = stepper.infer(|tape| -> Result<(Vec<f32>, Vec<f32>)> {
            let (tokens, actions) = (tape.buffer(&tokens)?, tape.buffer(&actions)?);
            let output = model.forward(tape, tokens, actions, false)?;
            Ok((tape.read(output.hidden)?, tape.read(output.rewards)?))
        })?;
        // How many frame tokens go in at a time.
        for portion in [1, 5, 16] {
            let memory = model.memory(&device, batch)?;
            let mut positions = 0;
            for step in 0..steps {
                let mut at = 0;
                while at < k {
                    let end = k.min(at + portion);
                    let start = positions;
                    let hidden = stepper.infer(|tape| -> Result<Vec<f32>> {
                        let tokens = tape.buffer(&tokens)?;
                        let now = tape.slice(tokens, 1, step, step + 1)?;
                        let now = tape.reshape(now, [batch, k])?;
                        let now = tape.slice(now, 1, at, end)?;
                        let thought = model.see_tokens(tape, &memory, start, now)?;
                        let hidden = model.hidden(tape, thought)?;
                        tape.read(hidden)
                    })?;
                    for (i, row) in hidden.chunks_exact(width).enumerate() {
                        let (b, t) = (i / (end - at), start + i % (end - at));
                        assert_close(row, &whole[(b * 340 + t) * width..][..width]);
                    }
                    positions += end - at;
                    at = end;
                }
                let start = positions;
                let (hidden, logits) = stepper.infer(|tape| -> Result<(Vec<f32>, Vec<f32>)> {
                    let actions = tape.buffer(&actions)?;
                    let now = tape.slice(actions, 1, step, step + 1)?;
                    let now = tape.reshape(now, [batch])?;
                    let thought = model.see_action(tape, &memory, start, now)?;
                    let (reward, _) = model.consequences(tape, thought)?;
                    let hidden = model.hidden(tape, thought)?;
                    Ok((tape.read(hidden)?, tape.read(reward)?))
                })?;
                for (b, row) in hidden.chunks_exact(width).enumerate() {
                    assert_close(row, &whole[(b * 340 + start) * width..][..width]);
                    assert_close(&logits[b * 3..][..3], &rewards[(b * steps + step) * 3..][..3]);
                }
                positions += 1;
            }
            assert_eq!(positions, 340);
            // The 341st position does not exist.
            let full = stepper.infer(|tape| {
                let actions = tape.buffer(&actions)?;
                let now = tape.slice(actions, 1, 0, 1)?;
                let now = tape.reshape(now, [batch])?;
                model.see_action(tape, &memory, positions, now).map(|_| ())
            });
            assert_eq!(full.unwrap_err().to_string(), "position embedding: range 340..341 is outside 0..340");
        }
    }
    Ok(())
}

#[test]
fn wrong_shapes_are_errors() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let tokens = integers(&device, "tokens", &[2, 3, 8], 11);
    let actions = integers(&device, "actions", &[3, 2], 5);
    Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<()> {
        let (tokens, actions) = (tape.buffer(&tokens)?, tape.buffer(&actions)?);
        let error = agent.world_model.forward(tape, tokens, actions, false).map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("world model: shapes [2, 3, 8] and [2, 3, 16]"), "{error}");
        let right = tape.concat(&[tokens, tokens], 2)?;
        let error = agent.world_model.forward(tape, right, actions, false).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("actions are [B, L]"), "{error}");
        assert!(agent.tokenizer.render(tape, actions).is_err());
        assert!(agent.tokenizer.reconstruct(tape, actions).is_err());
        Ok(())
    })?;
    let bad = AgentConfig { actions: 0, ..small() };
    assert_eq!(
        Agent::new(&device, &bad, 0).map(|_| ()).unwrap_err().to_string(),
        "bad config: actions is 0, but must be at least 1"
    );
    Ok(())
}

/// Bytes in, tokens and picture out: the path that play takes is the one that training takes.
#[test]
fn reconstructing_is_encoding_and_rendering() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let frames = device.buffer::<u8>("frames", [2, 8, 8, 3])?;
    frames.write(&(0..2 * 8 * 8 * 3).map(|i| (i * 7 % 256) as u8).collect::<Vec<_>>())?;
    Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<()> {
        let bytes = tape.buffer(&frames)?;
        let (tokens, picture) = agent.tokenizer.reconstruct(tape, bytes)?;
        assert_eq!((tokens.dims(), picture.dims()), (&[2, 16][..], &[2, 8, 8, 3][..]));
        let x = tape.frames(bytes, 2.0 / 255.0, -1.0)?;
        let y = agent.tokenizer.encode(tape, x)?;
        let quantised = agent.tokenizer.quantise(tape, y)?;
        assert_eq!(tape.read::<i32>(quantised.tokens)?, tape.read::<i32>(tokens)?);
        let decoded = agent.tokenizer.decode(tape, quantised.embedded)?;
        let expected: Vec<f32> =
            tape.read::<f32>(decoded)?.iter().map(|v| (0.5 * v + 0.5).clamp(0.0, 1.0)).collect();
        assert_close(&tape.read::<f32>(picture)?, &expected);
        Ok(())
    })
}

fn frames(dreamt: &Trajectories) -> Result<Vec<f32>> {
    dreamt.frames.as_ref().unwrap().read()
}

/// Fills a dreamer's start: random frames, tokens and a mask with whole and partly padded rows.
fn start(dreamer: &Dreamer, burn_in: usize, mask: &[i32]) -> Result<()> {
    let mut rng = Rng::new(Key::new(8, 8));
    let start = dreamer.start();
    let frames: Vec<f32> = (0..start.before.shape().len()).map(|_| rng.uniform()).collect();
    start.before.write(&frames)?;
    assert_eq!(mask.len() % burn_in, 0);
    start.mask.write(mask)?;
    let tokens: Vec<i32> = (0..start.tokens.shape().len()).map(|_| rng.below(11) as i32).collect();
    start.tokens.write(&tokens)
}

#[test]
fn a_dream_uses_exactly_340_positions_and_follows_its_key() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let mask = [1, 1, 0, 1, 0, 0];
    let dream = |seed: u64| -> Result<(Vec<i32>, Vec<f32>, Vec<f32>)> {
        let mut dreamer = Dreamer::new(&device, &agent, 3, 20, 2, Key::new(seed, 0))?;
        start(&dreamer, 2, &mask)?;
        let dreamt = dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
        let result = (dreamt.actions.read::<i32>()?, dreamt.rewards.read::<f32>()?, frames(dreamt)?);
        assert_eq!(dreamer.positions(), 340);
        Ok(result)
    };
    let (first, again, other) = (dream(1)?, dream(1)?, dream(2)?);
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    let (actions, rewards, frames) = first;
    assert!(actions.iter().all(|a| (0..5).contains(a)) && (0..5).all(|a| actions.contains(&a)));
    assert!(rewards.iter().all(|r| [-1.0, 0.0, 1.0].contains(r)));
    assert!(frames.iter().all(|f| (0.0..=1.0).contains(f)));
    Ok(())
}

/// Whatever a dreamer dreamt before: steps that are replayed follow the temperature and the key of the dream.
#[test]
fn a_dreamer_that_has_dreamt_before_dreams_like_a_new_one() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let given: Vec<usize> = (0..6).map(|t| t % 5).collect();
    let dreamer = || -> Result<Dreamer> {
        let dreamer = Dreamer::new(&device, &agent, 2, 6, 2, Key::new(0, 0))?;
        start(&dreamer, 2, &[1, 1, 0, 1])?;
        Ok(dreamer)
    };
    let dream = |dreamer: &mut Dreamer, acting: Acting| -> Result<(Vec<i32>, Vec<f32>, Vec<f32>)> {
        dreamer.set_key(Key::new(7, 0));
        let dreamt = dreamer.dream(&agent, acting)?;
        Ok((dreamt.actions.read()?, dreamt.rewards.read()?, frames(dreamt)?))
    };
    let mut old = dreamer()?;
    let policy = |temperature| Acting::Policy { temperature };
    let mut actions = Vec::new();
    // A GPU runs a step, captures it, then replays it.
    for acting in [policy(1.0), policy(1.0), policy(1.0), policy(0.0), Acting::Given(&given), policy(0.1)] {
        let dreamt = dream(&mut old, acting)?;
        assert_eq!(dreamt, dream(&mut dreamer()?, acting)?, "{acting:?}");
        actions.push(dreamt.0);
    }
    assert!(actions[3] != actions[2] && actions[5] != actions[2]);
    Ok(())
}

/// Nothing but the horizon ends a dream: the world model forgets what does not fit, however little that is.
#[test]
fn a_dream_may_outlast_the_world_models_memory() -> Result<()> {
    let device = Device::under_test(2)?;
    for steps in [2, 3, 5] {
        let mut config = small();
        config.world_model.steps = steps;
        let agent = Agent::new(&device, &config, 1)?;
        let mut dreamer = Dreamer::new(&device, &agent, 2, 11, 1, Key::new(0, 0))?;
        start(&dreamer, 1, &[1, 0])?;
        let dreamt = dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
        assert!(frames(dreamt)?.iter().all(|f| (0.0..=1.0).contains(f)));
        assert!(dreamer.positions() <= steps * 17);
    }
    Ok(())
}

/// At temperature 0 the dream's actions are the policy's best ones, replayed over the dreamt frames from the state after burn-in.
#[test]
fn a_dream_is_what_the_policy_does_over_its_frames() -> Result<()> {
    let device = Device::under_test(2)?;
    for (dense, skip) in [(0, false), (6, true)] {
        let mut config = small();
        (config.actor_critic.dense, config.actor_critic.skip) = (dense, skip);
        follows_its_frames(&device, &Agent::new(&device, &config, 4)?)?;
    }
    Ok(())
}

fn follows_its_frames(device: &Device, agent: &Agent) -> Result<()> {
    let mut dreamer = Dreamer::new(device, agent, 3, 6, 2, Key::new(1, 0))?;
    start(&dreamer, 2, &[1, 1, 0, 1, 0, 0])?;
    let dreamt = dreamer.dream(agent, Acting::Policy { temperature: 0.0 })?;
    let logits = Stepper::new(device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
        let state = Lstm { hidden: tape.buffer(&dreamt.hidden)?, cell: tape.buffer(&dreamt.cell)? };
        let frames = tape.buffer(dreamt.frames.as_ref().unwrap())?;
        let Policy { logits, .. } = agent.actor_critic.follow(tape, frames, state)?;
        tape.read(logits)
    })?;
    let best: Vec<i32> = logits
        .chunks_exact(5)
        .map(|row| (0..5).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32)
        .collect();
    assert_eq!(dreamt.actions.read::<i32>()?, best);
    // The row that was all padding starts from nothing, the others do not.
    let hidden = dreamt.hidden.read::<f32>()?;
    let started: Vec<bool> = hidden.chunks_exact(7).map(|row| row.iter().any(|h| *h != 0.0)).collect();
    assert_eq!(started, [true, true, false]);
    Ok(())
}

/// Losses of a two-row trajectory in which row 0 ends at its first step: with the paper's way what follows does not count.
#[test]
fn what_follows_an_end_counts_only_the_releases_way() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, &small(), 5)?;
    let floats = |name: &str, shape: [usize; 2], values: &[f32]| -> Result<Buffer> {
        let buffer = device.buffer::<f32>(name, shape)?;
        buffer.write(values)?;
        Ok(buffer)
    };
    let losses = |stop_at_end: bool, late_reward: f32| -> Result<[f32; 3]> {
        let logits = device.buffer::<f32>("logits", [2, 4, 2])?;
        logits
            .write(&[0.1f32, 0.9, -0.3, 0.2, 1.0, 0.0, 0.5, 0.5, 0.0, 0.7, 0.3, -0.2, 0.4, 0.4, 0.0, 0.0])?;
        let values = floats("values", [2, 4], &[0.5, 0.25, -0.5, 1.0, 0.1, 0.2, 0.3, 0.4])?;
        let rewards = floats("rewards", [2, 4], &[1.0, late_reward, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0])?;
        let ends = device.buffer::<i32>("ends", [2, 4])?;
        ends.write(&[1, 0, 0, 0, 0, 0, 0, 0])?;
        let actions = device.buffer::<i32>("actions", [2, 4])?;
        actions.write(&[1, 0, 1, 0, 0, 1, 1, 0])?;
        let config =
            Returns { gamma: 0.9, lambda: 0.5, entropy_weight: 0.1, stop_at_end, ..Returns::default() };
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let policy = Policy { logits: tape.buffer(&logits)?, values: tape.buffer(&values)?, bins: None };
            let (actions, rewards, ends) =
                (tape.buffer(&actions)?, tape.buffer(&rewards)?, tape.buffer(&ends)?);
            let losses = agent.actor_critic.loss(tape, policy, actions, rewards, ends, &config)?;
            let mut out = [0.0; 3];
            for (out, loss) in out.iter_mut().zip([losses.actions, losses.values, losses.entropy]) {
                *out = tape.read::<f32>(loss)?[0];
            }
            Ok(out)
        })
    };
    // Masked: a reward after the end changes nothing. The release's way: it does.
    assert_eq!(losses(true, 0.0)?, losses(true, 5.0)?);
    assert_ne!(losses(false, 0.0)?, losses(false, 5.0)?);
    assert_ne!(losses(true, 0.0)?, losses(false, 0.0)?);

    // The masked value loss by hand: row 0 has one step with return 1 (cut at the end), row 1 three steps.
    let next = |v: f32, r: f32| 0.9 * (0.5 * v + 0.5 * r);
    let r2 = next(0.4, 0.4);
    let r1 = 1.0 + next(0.3, r2);
    let r0 = next(0.2, r1);
    let errors = [0.5 - 1.0, 0.1 - r0, 0.2 - r1, 0.3 - r2];
    let expected = errors.iter().map(|e| e * e).sum::<f32>() / 4.0;
    assert!((losses(true, 0.0)?[1] - expected).abs() < 1e-5);
    Ok(())
}

fn all_values(agent: &Agent) -> Vec<f32> {
    let networks = [&agent.tokenizer.network, &agent.world_model.network, &agent.actor_critic.network];
    networks.iter().flat_map(|n| n.params.values().read::<f32>().unwrap()).collect()
}

#[test]
fn an_agent_survives_saving_and_loading() {
    let device = Device::under_test(1).unwrap();
    let folder = Scratch::new("save");
    let agent = Agent::new(&device, &small(), 7).unwrap();
    let path = agent.save(None, &folder.0).unwrap();
    let (loaded, perceptual) = Agent::load(&device, &folder.0).unwrap();
    assert_eq!(loaded.config, agent.config);
    assert_eq!(all_values(&loaded), all_values(&agent));
    assert!(perceptual.is_none());
    // Nothing but the file is left behind.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);

    let good = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Agent::load(&device, &folder.0).map(|_| ()).unwrap_err()
    };
    assert!(matches!(load(&good[..good.len() - 1]), CheckpointError::NotSafetensors { .. }));
    assert!(matches!(load(b""), CheckpointError::NotSafetensors { .. }));
    // The header is JSON at a known place: change it without changing its length.
    let edit = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good.windows(from.len()).position(|w| w == from.as_bytes()).expect(from);
        let mut bytes = good.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        load(&bytes)
    };
    assert!(matches!(edit(r#""iris-agent""#, r#""other-prog""#), CheckpointError::NotAnAgent { .. }));
    assert!(matches!(edit(r#"\"version\":1"#, r#"\"version\":2"#), CheckpointError::TooNew { found: 2, .. }));
    let error = edit("actor_critic.conv1.bias", "actor_critic.conv9.bias");
    assert!(error.to_string().ends_with("entry `actor_critic.conv1.bias` is missing"), "{error}");
    let error = edit(r#"\"actions\":5"#, r#"\"actions\":6"#);
    assert!(
        error.to_string().ends_with(
            "entry `world_model.embedder.embedding_tables.0.weight` has shape [5, 32], expected [6, 32]"
        ),
        "{error}"
    );
    let error = edit(r#"\"groups\":4"#, r#"\"groups\":3"#);
    assert!(error.to_string().contains("tokenizer.groups is 3, which does not divide"), "{error}");
    // A width that the file cannot hold is refused before memory is asked for.
    let error = edit(r#"\"vocabulary\":11"#, r#"\"vocabulary\":99"#);
    assert!(error.to_string().contains("has shape"), "{error}");
    let error = edit(r#"\"width\":32,"#, r#"\"width\":9e5"#);
    assert!(error.to_string().contains("config in its metadata cannot be read"), "{error}");
    // A changed weight.
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(matches!(load(&changed), CheckpointError::Checksum { .. }));
    // Files of programs that knew no checksum are read, too, unless they hold no numbers.
    let at = good.windows(5).position(|w| w == b"crc32").unwrap();
    changed[at..at + 5].copy_from_slice(b"older");
    std::fs::write(&path, &changed).unwrap();
    Agent::load(&device, &folder.0).unwrap();
    let data = changed.len() - 4;
    for (value, name) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        changed[data..].copy_from_slice(&value.to_le_bytes());
        let error = load(&changed).to_string();
        assert!(error.contains(&format!("holds {name}: the file is damaged")), "{error}");
    }
    let error = edit(r#"\"hidden\":7"#, r#"\"hiddem\":7"#);
    assert!(error.to_string().contains("unknown field `hiddem`"), "{error}");
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let check = |change: &dyn Fn(&mut AgentConfig)| {
        let mut config = small();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    assert_eq!(check(&|c| c.actions = 0), "actions is 0, but must be at least 1");
    assert_eq!(check(&|c| c.tokenizer.resolutions = 0), "tokenizer.resolutions is 0, but must be at least 1");
    assert_eq!(
        check(&|c| c.tokenizer.resolutions = 5),
        "tokenizer.frame_size is 8, which cannot be halved 4 times"
    );
    assert_eq!(
        check(&|c| c.world_model.heads = 5),
        "world_model.heads is 5, which does not divide world_model.width 32"
    );
    let error = check(&|c| c.world_model.attention_dropout = 1.0);
    assert!(error.starts_with("world_model.attention_dropout is 1"), "{error}");
    assert!(check(&|c| c.actor_critic.channels = vec![]).contains("actor_critic.channels is []"));
    assert!(check(&|c| c.actor_critic.channels = vec![4; 4]).contains("actor_critic.channels"));
    assert!(check(&|c| c.tokenizer.vocabulary = 1 << 40).contains("from 1 to 1048576"));
    assert!(check(&|c| c.tokenizer.residual_blocks = usize::MAX).contains("tokenizer.residual_blocks"));
    assert!(check(&|c| c.actor_critic.channels = vec![1 << 33, 4]).contains("actor_critic.channels"));
    assert_eq!(AgentConfig::default().validate(), Ok(()));
    let variant = AgentConfig::with_64_tokens(4);
    assert_eq!((variant.validate(), variant.tokenizer.tokens()), (Ok(()), 64));
}

/// The 64-token variant is the same code: 65 positions per step.
#[test]
fn the_64_token_variant_runs() -> Result<()> {
    let device = Device::under_test(2)?;
    let mut config = small();
    config.tokenizer.resolutions = 1;
    config.world_model.steps = 3;
    let agent = Agent::new(&device, &config, 0)?;
    assert_eq!(agent.world_model.tokens, 64);
    let mut dreamer = Dreamer::new(&device, &agent, 2, 3, 1, Key::new(1, 0))?;
    start(&dreamer, 1, &[1, 1])?;
    dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
    assert_eq!(dreamer.positions(), 3 * 65);
    Ok(())
}

/// What tokens look like depends on nothing but them: a dreamer keeps frames that it rendered among others.
#[test]
fn a_frame_looks_the_same_wherever_it_is_rendered() -> Result<()> {
    let device = Device::cpu(Some(2))?;
    let agent = Agent::new(&device, &small(), 1)?;
    let render = |tokens: &[i32]| -> Result<Vec<f32>> {
        let buffer = device.buffer::<i32>("tokens", [tokens.len() / 16, 16])?;
        buffer.write(tokens)?;
        Stepper::new(&device, Key::new(0, 0)).infer(|tape| {
            let tokens = tape.buffer(&buffer)?;
            let frames = agent.tokenizer.render(tape, tokens)?;
            tape.read(frames)
        })
    };
    let mut dreamer = Dreamer::new(&device, &agent, 3, 4, 2, Key::new(0, 0))?;
    start(&dreamer, 2, &[1, 1, 0, 1, 0, 0])?;
    let dreamt = dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
    let (tokens, frames) = (dreamt.tokens.read::<i32>()?, frames(dreamt)?);
    let pixels = frames.len() / 12;
    for turn in 0..12 {
        let mut turned = tokens.clone();
        turned.rotate_left(turn * 16);
        let mut rendered = render(&turned)?;
        rendered.rotate_right(turn * pixels);
        assert!(rendered == frames, "turned by {turn}");
    }
    Ok(())
}
