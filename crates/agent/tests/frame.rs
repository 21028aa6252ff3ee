//! World models that predict whole frames, and tokenizers without a codebook.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use agent::train::{Learner, TokenizerObjective, WorldModelObjective};
use agent::{
    Action, Agent, AgentConfig, Asked, Draws, Dream, ErrorWeights, Read, Sees, Tokenizer, TokenizerConfig,
    TokenizerKind, WorldModel, WorldModelKind,
};
use engine::{Adam, Device, Key, Result, Rng, Stepper};

#[path = "common/small.rs"]
mod small;

use small::small;

const K: usize = 16;
const STEPS: usize = 5;

/// The small agent as one of this family: four patches of 2x2 tokens.
fn frame() -> AgentConfig {
    let mut config = small();
    let (t, w, p) = (&mut config.tokenizer, &mut config.world_model, &mut config.actor_critic);
    (t.kind, t.vocabulary, t.embedding) = (TokenizerKind::Fsq, 8, 3);
    (t.residual_blocks, t.attention_sizes) = (0, vec![]);
    (w.kind, w.patch, w.context, w.steps) = (WorldModelKind::Frame, 2, 2, STEPS);
    (p.sees, p.previous_action) = (Sees::Codes, true);
    config
}

/// The same, with tokens that are drawn one after the other.
fn in_order() -> AgentConfig {
    let mut config = frame();
    config.world_model.draws = Draws::InOrder;
    config
}

/// Tokens [steps, K] and actions.
fn sequence(seed: u32, steps: usize) -> (Vec<i32>, Vec<i32>) {
    let mut rng = Rng::new(Key::new(7, seed));
    let tokens = (0..steps * K).map(|_| rng.below(8) as i32).collect();
    (tokens, (0..steps).map(|_| rng.below(5) as i32).collect())
}

/// Logits of all frames but the first, in the order of tokens, and those of the rewards.
fn predict(device: &Device, agent: &Agent, tokens: &[i32], actions: &[i32]) -> Result<[Vec<f32>; 2]> {
    let steps = actions.len();
    let inputs =
        [device.buffer::<i32>("tokens", [1, steps, K])?, device.buffer::<i32>("actions", [1, steps])?];
    inputs[0].write(tokens)?;
    inputs[1].write(actions)?;
    let [logits, rewards] = Stepper::new(device, Key::new(0, 0)).infer(|tape| -> Result<[Vec<f32>; 2]> {
        let (tokens, actions) = (tape.buffer(&inputs[0])?, tape.buffer(&inputs[1])?);
        let output = agent.world_model.forward(tape, tokens, actions, false)?;
        Ok([tape.read(output.observations)?, tape.read(output.rewards)?])
    })?;
    let places = (K..steps * K).map(|n| agent.world_model.prediction_of(n / K, n % K));
    Ok([places.flat_map(|place| logits[place * 8..(place + 1) * 8].to_vec()).collect(), rewards])
}

fn tolerance(device: &Device) -> f32 {
    if device.float_size() == 2 { 0.3 } else { 1e-4 }
}

fn assert_close(got: &[f32], expected: &[f32], limit: f32) {
    assert_eq!(got.len(), expected.len());
    let worst = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0f32, f32::max);
    assert!(worst < limit, "{worst}");
}

/// A prediction depends on the step before its frame, and on nothing after that.
#[test]
fn a_frame_is_predicted_from_all_of_the_step_before_it() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, &frame(), 1)?;
    let (tokens, actions) = sequence(0, STEPS);
    let [before, rewards] = predict(&device, &agent, &tokens, &actions)?;
    assert_eq!(before.len(), (STEPS - 1) * K * 8);
    let changed = |[logits, outputs]: [Vec<f32>; 2]| {
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).any(|(a, b)| a != b);
        let frames: Vec<bool> =
            logits.chunks(K * 8).zip(before.chunks(K * 8)).map(|(a, b)| apart(a, b)).collect();
        let every_token = logits.chunks(8).zip(before.chunks(8)).filter(|(a, b)| apart(a, b)).count();
        let rewards: Vec<bool> = outputs.chunks(3).zip(rewards.chunks(3)).map(|(a, b)| apart(a, b)).collect();
        (frames, every_token, rewards)
    };
    let mut other = tokens.clone();
    other[2 * K + 13] ^= 1;
    let (frames, tokens_changed, outputs) = changed(predict(&device, &agent, &other, &actions)?);
    assert_eq!(frames, [false, false, true, true]);
    assert_eq!(tokens_changed, 2 * K);
    assert_eq!(outputs, [false, false, true, true, true]);
    let mut other = actions.clone();
    other[3] = (other[3] + 1) % 5;
    let (frames, tokens_changed, outputs) = changed(predict(&device, &agent, &tokens, &other)?);
    assert_eq!(frames, [false, false, false, true]);
    assert_eq!(tokens_changed, K);
    assert_eq!(outputs, [false, false, false, true, true]);
    Ok(())
}

/// In order, a token depends on those before it in its frame as well, and on none after it.
#[test]
fn a_token_in_order_depends_on_those_before_it() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, &in_order(), 1)?;
    let (tokens, actions) = sequence(0, STEPS);
    let [before, _] = predict(&device, &agent, &tokens, &actions)?;
    let mut other = tokens.clone();
    other[2 * K + 6] ^= 1;
    let [after, _] = predict(&device, &agent, &other, &actions)?;
    let changed: Vec<bool> = before.chunks(8).zip(after.chunks(8)).map(|(b, a)| b != a).collect();
    // Predictions begin with frame 1.
    let expected: Vec<bool> = (K..STEPS * K).map(|n| n > 2 * K + 6).collect();
    assert_eq!(changed, expected);
    Ok(())
}

/// A dream's first step says what the whole sequence before it says, of a row with all of the context and of one without.
#[test]
fn dreams_begin_after_their_context() -> Result<()> {
    for config in [frame(), in_order()] {
        begins_after_its_context(&config)?;
    }
    Ok(())
}

fn begins_after_its_context(config: &AgentConfig) -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, config, 2)?;
    let (tokens, actions) = sequence(1, 4);
    let rows = [tokens[..3 * K].to_vec(), tokens[..K].to_vec()];
    let given: Vec<Vec<usize>> = vec![actions[..2].iter().map(|a| *a as usize).collect(), vec![]];
    let mut dream = Dream::from_tokens(&device, &agent, &rows, &given, 2, Key::new(1, 1))?;
    let asked = Asked { logits: true, attention: false };
    let moments = dream.step(&agent, Action::Given(&[actions[2] as usize; 2]), asked)?;
    // What was drawn becomes part of what the next step, and in order the next token, depends on.
    let next = moments.iter().map(|moment| &moment.next.as_ref().unwrap().tokens).collect::<Vec<_>>();
    let seen = [&tokens[..3 * K], next[0]].concat();
    let still = [&tokens[..K], &tokens[..K], &tokens[..K], next[1]].concat();
    let expected = [
        predict(&device, &agent, &seen, &actions)?,
        predict(&device, &agent, &still, &[0, 0, actions[2], 0])?,
    ];
    for (moment, [logits, rewards]) in moments.iter().zip(&expected) {
        let found = moment.logits.as_ref().unwrap();
        assert_close(&found.tokens, &logits[2 * K * 8..], tolerance(&device));
        assert_close(&found.rewards, &rewards[2 * 3..3 * 3], tolerance(&device));
    }
    let later = dream.step(&agent, Action::Given(&[1, 1]), asked)?;
    let seen = [&seen[..], &later[0].next.as_ref().unwrap().tokens].concat();
    let [logits, _] = predict(&device, &agent, &seen, &[actions[0], actions[1], actions[2], 1, 0])?;
    assert_close(&later[0].logits.as_ref().unwrap().tokens, &logits[3 * K * 8..], tolerance(&device));
    Ok(())
}

/// When the window is full, the newest half of the steps is read again.
#[test]
fn a_long_dream_goes_on_from_its_newest_steps() -> Result<()> {
    for config in [frame(), in_order()] {
        goes_on_from_its_newest_steps(&config)?;
    }
    Ok(())
}

fn goes_on_from_its_newest_steps(config: &AgentConfig) -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, config, 3)?;
    let (tokens, _) = sequence(2, 1);
    let mut dream = Dream::from_tokens(&device, &agent, &[tokens], &[], 2, Key::new(1, 1))?;
    let mut frames = vec![dream.look(&agent)?.remove(0).tokens];
    let mut actions = Vec::new();
    for step in 0..9 {
        let remembered = dream.remembered();
        let before = dream.snapshot(&agent)?;
        let asked = Asked { logits: true, attention: false };
        let moment = dream.step(&agent, Action::Policy { temperature: 1.0 }, asked)?.remove(0);
        let kept = dream.remembered() - 1;
        actions.push(moment.action as i32);
        // The context is forgotten with the first steps.
        if (kept < remembered || step >= 3) && kept + 2 <= STEPS {
            let mut seen = frames[frames.len() - 1 - kept..].concat();
            seen.extend(&moment.next.as_ref().unwrap().tokens);
            let mut done = actions[actions.len() - 1 - kept..].to_vec();
            done.push(0);
            let [logits, _] = predict(&device, &agent, &seen, &done)?;
            let found = &moment.logits.as_ref().unwrap().tokens;
            assert_close(found, &logits[kept * K * 8..], tolerance(&device));
        }
        dream.put_back(&before)?;
        let again = dream.step(&agent, Action::Policy { temperature: 1.0 }, asked)?.remove(0);
        assert!(again == moment, "step {step}");
        frames.push(moment.next.unwrap().tokens);
    }
    Ok(())
}

#[test]
fn recorded_steps_are_expected() -> Result<()> {
    for config in [frame(), in_order()] {
        is_expected(&config)?;
    }
    Ok(())
}

fn is_expected(config: &AgentConfig) -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, config, 4)?;
    let (tokens, actions) = sequence(3, 3);
    let actions: Vec<usize> = actions.iter().map(|a| *a as usize).collect();
    let read = Read { tokens: &tokens, actions: &actions };
    let expected = read.expectations(&device, &agent)?;
    assert_eq!((expected.len(), expected[0].probabilities.len()), (2, K));
    let given: Vec<i32> = actions.iter().map(|a| *a as i32).collect();
    let [logits, _] = predict(&device, &agent, &tokens, &given)?;
    let line = &logits[(K + 5) * 8..(K + 6) * 8];
    let total: f32 = line.iter().map(|l| l.exp()).sum();
    assert!((expected[1].probabilities[5] - line[tokens[2 * K + 5] as usize].exp() / total).abs() < 1e-3);
    Ok(())
}

/// A step sees all of itself and what is before it; a dream looks where the same steps look when they are read again.
#[test]
fn attention_is_that_of_whole_steps() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = Agent::new(&device, &frame(), 4)?;
    let (mut tokens, given) = sequence(5, 3);
    let mut actions: Vec<usize> = given.iter().map(|action| *action as usize).collect();
    let (start, before) = ([tokens.clone()], [actions[..2].to_vec()]);
    let mut dream = Dream::from_tokens(&device, &agent, &start, &before, 0, Key::new(2, 0))?;
    let asked = Asked { logits: false, attention: true };
    for steps in 3..5 {
        actions[steps - 1] = steps % 2;
        let moment = dream.step(&agent, Action::Given(&actions[steps - 1..]), asked)?.remove(0);
        actions.push(0);
        tokens.extend(moment.next.unwrap().tokens);
        let dreamt = moment.attention.unwrap();
        assert_eq!((dreamt.queries, dreamt.keys), (5, 5 * steps));
        let read = Read { tokens: &tokens, actions: &actions }.attention(&device, &agent)?;
        assert_eq!((read.queries, read.keys), (dreamt.queries, dreamt.keys));
        assert_close(&dreamt.weights, &read.weights, tolerance(&device));
        for row in dreamt.weights.chunks_exact(dreamt.keys) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4 && row.iter().all(|weight| *weight > 0.0));
        }
        // Token 6 is in the second row and third column of the grid, so in the patch at the right top.
        let (shares, patch) = (agent.world_model.looked_at(&dreamt, 1, 2, 6), dreamt.of(1, 2, 2).to_vec());
        assert_eq!(shares.len(), steps * (K + 1) + K);
        assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        assert!(shares[steps * (K + 1)..].iter().all(|share| *share == 0.0));
        for step in 0..steps {
            let (to, from) = (&shares[step * (K + 1)..], &patch[step * 5..]);
            assert_eq!((to[K], to[0], to[3], to[12]), (from[0], from[1] / 4.0, from[2] / 4.0, from[3] / 4.0));
        }
    }
    Ok(())
}

/// A square that the actions move: after training, every frame but the first is predicted.
#[test]
fn a_world_model_learns_what_actions_do() -> Result<()> {
    let device = Device::under_test(2)?;
    let mut config = frame();
    config.actions = 3;
    let w = &mut config.world_model;
    (w.layers, w.init_std, w.steps) = (2, 0.1, 4);
    (w.embedding_dropout, w.attention_dropout, w.residual_dropout) = (0.0, 0.0, 0.0);
    let model = WorldModel::new(&device, &config.world_model, &config.tokenizer, 3, 0)?;
    let (batch, steps) = (16, 4);
    let objective = WorldModelObjective::new(&device, &config, batch)?;
    objective.mask.write(&vec![1; batch * steps])?;
    objective.ends.write(&vec![0; batch * steps])?;
    let mut learner = Learner::new(&device, objective, Adam::default(), 5e-3)?;
    let mut rng = Rng::new(Key::new(0, 0));
    let mut losses = Vec::new();
    for update in 0..360 {
        let (mut tokens, mut actions, mut rewards) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..batch {
            let (mut place, background) = (rng.below(K as u32), rng.below(2) as i32);
            for _ in 0..steps {
                tokens.extend((0..K as u32).map(|k| if k == place { 7 } else { background }));
                let action = rng.below(3);
                place = (place + action + K as u32 - 1) % K as u32;
                actions.push(action as i32);
                rewards.push(1 + i32::from(place == 3));
            }
        }
        learner.objective.tokens.write(&tokens)?;
        learner.objective.actions.write(&actions)?;
        learner.objective.rewards.write(&rewards)?;
        learner.update(&model)?;
        if update % 60 == 59 {
            losses.push(learner.take_losses()?);
        }
    }
    let loss = |part: &[(&str, f32)], name: &str| part.iter().find(|(n, _)| n.ends_with(name)).unwrap().1;
    let (first, last) = (&losses[0], &losses[5]);
    assert!(
        loss(last, "loss_obs") < 0.1 && loss(last, "loss_obs") < 0.3 * loss(first, "loss_obs"),
        "{losses:?}"
    );
    assert!(loss(last, "loss_rewards") < 0.2, "{losses:?}");
    Ok(())
}

/// A square that jumps anywhere: drawn in order, a dreamt frame has one square; drawn at once, each of its 16 places has one with a chance of 1/16, so that
/// 62% of the frames have none or several.
#[test]
fn a_square_drawn_in_order_stays_one() -> Result<()> {
    let device = Device::under_test(2)?;
    let share = |config: AgentConfig| -> Result<f32> {
        let mut config = config;
        let w = &mut config.world_model;
        (w.layers, w.init_std, w.steps, w.context) = (1, 0.1, 3, 0);
        (w.embedding_dropout, w.attention_dropout, w.residual_dropout) = (0.0, 0.0, 0.0);
        let agent = Agent::new(&device, &config, 0)?;
        let (batch, steps) = (32, 3);
        let objective = WorldModelObjective::new(&device, &config, batch)?;
        objective.mask.write(&vec![1; batch * steps])?;
        objective.ends.write(&vec![0; batch * steps])?;
        objective.actions.write(&vec![0; batch * steps])?;
        objective.rewards.write(&vec![1; batch * steps])?;
        let mut learner = Learner::new(&device, objective, Adam::default(), 5e-3)?;
        let mut rng = Rng::new(Key::new(0, 0));
        let mut frame = || {
            let place = rng.below(K as u32);
            (0..K as u32).map(|k| if k == place { 7 } else { 0 }).collect::<Vec<i32>>()
        };
        for _ in 0..300 {
            let tokens = (0..batch * steps).flat_map(|_| frame()).collect::<Vec<i32>>();
            learner.objective.tokens.write(&tokens)?;
            learner.update(&agent.world_model)?;
        }
        let rows: Vec<Vec<i32>> = (0..64).map(|_| frame()).collect();
        let mut dream = Dream::from_tokens(&device, &agent, &rows, &[], 0, Key::new(3, 0))?;
        let asked = Asked { logits: false, attention: false };
        let moments = dream.step(&agent, Action::Given(&[0; 64]), asked)?;
        let squares = |tokens: &[i32]| {
            (tokens.iter().filter(|t| **t == 7).count(), tokens.iter().all(|t| [0, 7].contains(t)))
        };
        let one = moments.iter().filter(|moment| squares(&moment.next.as_ref().unwrap().tokens) == (1, true));
        Ok(one.count() as f32 / 64.0)
    };
    let [at_once, in_order] = [share(frame())?, share(in_order())?];
    assert!(in_order > 0.85 && at_once < 0.6, "{in_order} in order, {at_once} at once");
    Ok(())
}

/// Two squares of different colours anywhere: the loss falls to a part of what one picture for all frames costs.
#[test]
fn a_tokenizer_without_a_codebook_learns() -> Result<()> {
    let device = Device::under_test(2)?;
    let config = TokenizerConfig { channels: 16, ..frame().tokenizer };
    let tokenizer = Tokenizer::new(&device, &config, 0)?;
    let objective =
        TokenizerObjective::new(&device, &config, 32, None, ErrorWeights { squared: 5.0, moving: 0.0 })?;
    let mut learner = Learner::new(&device, objective, Adam::default(), 3e-3)?;
    let mut rng = Rng::new(Key::new(0, 0));
    let mut losses = Vec::new();
    for update in 0..200 {
        let mut frames = vec![40u8; 32 * 192];
        for frame in frames.chunks_exact_mut(192) {
            for colour in [[250, 60, 20], [20, 200, 240]] {
                let (top, left) = (rng.below(7) as usize, rng.below(7) as usize);
                for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    frame[((top + y) * 8 + left + x) * 3..][..3].copy_from_slice(&colour);
                }
            }
        }
        learner.objective.frames.write(&frames)?;
        learner.update(&tokenizer)?;
        if update % 50 == 49 {
            losses.push(learner.take_losses()?);
        }
    }
    assert!(losses[0].iter().all(|(name, _)| !name.contains("commitment")));
    let total = |part: usize| losses[part][0].1;
    assert!(total(3) < 0.5 * total(0), "{losses:?}");
    Ok(())
}

/// A few pixels anywhere on a large picture: they are the last that a tokenizer learns, unless what moves counts more.
#[test]
fn what_moves_is_learnt_sooner() -> Result<()> {
    let device = Device::under_test(2)?;
    let config = TokenizerConfig { frame_size: 32, resolutions: 3, channels: 8, ..frame().tokenizer };
    let moving_error = |moving: f32| -> Result<f32> {
        let tokenizer = Tokenizer::new(&device, &config, 0)?;
        let weights = ErrorWeights { squared: 0.0, moving };
        let objective = TokenizerObjective::new(&device, &config, 16, None, weights)?;
        let mut learner = Learner::new(&device, objective, Adam::default(), 3e-3)?;
        let mut rng = Rng::new(Key::new(0, 0));
        for update in 0..150 {
            if update == 120 {
                learner.take_losses()?;
            }
            let mut frames = vec![40u8; 16 * 3072];
            for frame in frames.chunks_exact_mut(3072) {
                let (top, left) = (rng.below(31) as usize, rng.below(31) as usize);
                for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    frame[((top + y) * 32 + left + x) * 3..][..3].copy_from_slice(&[200, 72, 72]);
                }
            }
            learner.objective.frames.write(&frames)?;
            learner.update(&tokenizer)?;
        }
        let losses = learner.take_losses()?;
        Ok(losses.last().unwrap().1)
    };
    // A weight of next to nothing measures the error and does not teach it.
    let [little, much] = [moving_error(1e-6)?, moving_error(10.0)?];
    assert!(much < 0.1 * little, "{much} with the weight, {little} without");
    Ok(())
}
