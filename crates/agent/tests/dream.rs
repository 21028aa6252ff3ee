//! Dreams one step at a time: the same as whole ones, forked, put back, looked into.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use agent::{Acting, Action, Agent, AgentConfig, Asked, Dream, Dreamer, Moment};
use engine::{Device, Key, Result, Rng, Stepper};

#[path = "common/small.rs"]
mod small;

use small::small;

const K: usize = 16;
const BURN_IN: usize = 2;

fn with_window(steps: usize) -> AgentConfig {
    let mut config = small();
    config.world_model.steps = steps;
    config
}

/// Tokens of as many frames as each row has before its first: all of the burn-in, part of it, none.
fn rows() -> Vec<Vec<i32>> {
    let mut rng = Rng::new(Key::new(4, 4));
    [3, 2, 1].map(|frames| (0..frames * K).map(|_| rng.below(11) as i32).collect()).into()
}

fn render(device: &Device, agent: &Agent, tokens: &[i32]) -> Result<Vec<f32>> {
    let buffer = device.buffer::<i32>("tokens", [1, K])?;
    buffer.write(tokens)?;
    Stepper::new(device, Key::new(0, 0)).infer(|tape| {
        let tokens = tape.buffer(&buffer)?;
        let frame = agent.tokenizer.render(tape, tokens)?;
        tape.read(frame)
    })
}

fn bytes(frame: &[f32]) -> Vec<u8> {
    frame.iter().map(|value| (value * 255.0).round() as u8).collect()
}

fn policy() -> Action<'static> {
    Action::Policy { temperature: 1.0 }
}

/// Moments of `steps` steps of the policy.
fn play(dream: &mut Dream, agent: &Agent, steps: usize) -> Result<Vec<Vec<Moment>>> {
    (0..steps).map(|_| dream.step(agent, policy(), Asked::default())).collect()
}

/// The same, one after the other, as a whole dream over that horizon: also where the context window slides, and whoever acts.
fn check_against_a_whole_dream(window: usize, horizon: usize) -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &with_window(window), 1)?;
    let rows = rows();
    let mut dreamer = Dreamer::new(&device, &agent, rows.len(), horizon, BURN_IN, Key::new(9, 0))?;
    let given: Vec<usize> = (0..horizon).map(|t| (t * 3 + 1) % 5).collect();
    for acting in [Acting::Policy { temperature: 0.7 }, Acting::Given(&given)] {
        let mut mask = vec![0; rows.len() * BURN_IN];
        for (row, tokens) in rows.iter().enumerate() {
            let before = tokens.len() / K - 1;
            for i in 0..before {
                let at = row * BURN_IN + BURN_IN - before + i;
                mask[at] = 1;
                let frame = render(&device, &agent, &tokens[i * K..(i + 1) * K])?;
                dreamer.start().before.write_at(at * frame.len(), &frame)?;
            }
            dreamer.start().tokens.write_at(row * K, &tokens[tokens.len() - K..])?;
        }
        dreamer.start().mask.write(&mask)?;
        dreamer.set_key(Key::new(9, 0));
        let whole = dreamer.dream(&agent, acting)?;
        let (actions, rewards) = (whole.actions.read::<i32>()?, whole.rewards.read::<f32>()?);
        let (ends, tokens) = (whole.ends.read::<i32>()?, whole.tokens.read::<i32>()?);
        let frames = whole.frames.as_ref().unwrap().read::<f32>()?;
        let pixels = frames.len() / (rows.len() * horizon);

        let mut dream = Dream::from_tokens(&device, &agent, &rows, &[], BURN_IN, Key::new(9, 0))?;
        let mut seen = dream.look(&agent)?;
        let mut unfinished = Some(dream);
        for t in 0..horizon {
            let all = [given[t]; 3];
            let action = match acting {
                Acting::Policy { temperature } => Action::Policy { temperature },
                Acting::Given(_) => Action::Given(&all),
            };
            // Questions change nothing.
            let asked = Asked { logits: t % 2 == 0, attention: t % 3 == 0 };
            let moments = match t + 1 < horizon {
                true => unfinished.as_mut().unwrap().step(&agent, action, asked)?,
                false => unfinished.take().unwrap().finish(&agent, action, asked)?,
            };
            for (b, moment) in moments.iter().enumerate() {
                let at = b * horizon + t;
                let what = format!("window {window}, step {t}, dream {b}, {acting:?}");
                assert_eq!(seen[b].tokens, tokens[at * K..(at + 1) * K], "{what}");
                assert_eq!(seen[b].pixels, bytes(&frames[at * pixels..(at + 1) * pixels]), "{what}");
                assert_eq!(moment.action, actions[at] as usize, "{what}");
                assert_eq!((moment.reward, moment.end), (rewards[at], ends[at] == 1), "{what}");
                assert_eq!(moment.next.is_some(), t + 1 < horizon);
            }
            seen = moments.into_iter().filter_map(|moment| moment.next).collect();
        }
    }
    Ok(())
}

#[test]
fn step_by_step_is_a_whole_dream() -> Result<()> {
    check_against_a_whole_dream(20, 6)
}

#[test]
fn step_by_step_is_a_whole_dream_to_the_last_position() -> Result<()> {
    check_against_a_whole_dream(5, 5)
}

#[test]
fn step_by_step_is_a_whole_dream_beyond_the_context_window() -> Result<()> {
    for window in [2, 3, 6] {
        check_against_a_whole_dream(window, 17)?;
    }
    Ok(())
}

#[test]
fn frames_and_their_tokens_begin_the_same_dream() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let mut rng = Rng::new(Key::new(2, 2));
    let frames: Vec<Vec<u8>> =
        [3, 1].map(|count| (0..count * 8 * 8 * 3).map(|_| rng.below(256) as u8).collect()).into();
    let encode = |frame: &[u8]| {
        let buffer = device.buffer::<u8>("frame", [1, 8, 8, 3])?;
        buffer.write(frame)?;
        Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<Vec<i32>> {
            let frame = tape.buffer(&buffer)?;
            let (tokens, _) = agent.tokenizer.reconstruct(tape, frame)?;
            tape.read(tokens)
        })
    };
    let mut tokens = Vec::new();
    for row in &frames {
        let codes: Result<Vec<_>> = row.chunks_exact(8 * 8 * 3).map(encode).collect();
        tokens.push(codes?.concat());
    }
    let mut dreams = [
        Dream::from_frames(&device, &agent, &frames, &[], BURN_IN, Key::new(1, 0))?,
        Dream::from_tokens(&device, &agent, &tokens, &[], BURN_IN, Key::new(1, 0))?,
    ];
    // What is older than the burn-in does not count.
    let [one, other] = &mut dreams;
    assert_eq!(one.look(&agent)?, other.look(&agent)?);
    assert_eq!(play(one, &agent, 4)?, play(other, &agent, 4)?);
    let mut older = tokens.clone();
    older[0].splice(0..0, vec![3; K]);
    let mut third = Dream::from_tokens(&device, &agent, &older, &[], BURN_IN, Key::new(1, 0))?;
    let mut fourth = Dream::from_tokens(&device, &agent, &tokens, &[], BURN_IN, Key::new(1, 0))?;
    assert_eq!(play(&mut third, &agent, 2)?, play(&mut fourth, &agent, 2)?);
    for wrong in [vec![], vec![0; K + 1]] {
        assert!(Dream::from_tokens(&device, &agent, &[wrong], &[], BURN_IN, Key::new(1, 0)).is_err());
    }
    assert!(Dream::from_frames(&device, &agent, &[vec![0; 100]], &[], BURN_IN, Key::new(1, 0)).is_err());
    Ok(())
}

/// Before the context window slides, while it slides and after.
#[test]
fn a_fork_goes_on_like_the_original_until_it_acts_otherwise() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &with_window(4), 1)?;
    for before in [0, 1, 2, 3, 7] {
        let mut original = Dream::from_tokens(&device, &agent, &rows(), &[], BURN_IN, Key::new(3, 0))?;
        play(&mut original, &agent, before)?;
        let mut fork = original.fork(&agent)?;
        let mut other = original.fork(&agent)?;
        let mut elsewhere = original.fork(&agent)?;
        assert_eq!(fork.key(), original.key());
        elsewhere.set_key(Key::new(99, 0));
        let expected = play(&mut original, &agent, 6)?;
        assert_eq!(play(&mut fork, &agent, 6)?, expected, "after {before} steps");
        let actions: Vec<usize> = expected[0].iter().map(|moment| (moment.action + 1) % 5).collect();
        let moments = other.step(&agent, Action::Given(&actions), Asked::default())?;
        for (moment, before) in moments.iter().zip(&expected[0]) {
            // The same state of mind, another action, another answer.
            assert_eq!(moment.value, before.value);
            assert_eq!(moment.action_probabilities, before.action_probabilities);
            assert_ne!(moment.reward_probabilities, before.reward_probabilities);
        }
        assert_ne!(play(&mut elsewhere, &agent, 6)?, expected);
    }
    Ok(())
}

#[test]
fn what_is_put_back_happens_again() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &with_window(4), 1)?;
    let mut dream = Dream::from_tokens(&device, &agent, &rows(), &[], BURN_IN, Key::new(3, 0))?;
    let mut snapshots = Vec::new();
    let mut moments = Vec::new();
    for _ in 0..9 {
        snapshots.push(dream.snapshot(&agent)?);
        moments.push(dream.step(&agent, policy(), Asked::default())?);
    }
    for at in [8, 0, 4] {
        dream.put_back(&snapshots[at])?;
        assert_eq!(play(&mut dream, &agent, 9 - at)?, moments[at..]);
    }
    let one = Dream::from_tokens(&device, &agent, &rows()[..1], &[], BURN_IN, Key::new(3, 0));
    let error = one?.put_back(&snapshots[0]).unwrap_err().to_string();
    assert!(error.contains("a dream is copied to one of the same shape"), "{error}");
    Ok(())
}

#[test]
fn probabilities_are_those_of_the_logits_and_sum_to_1() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &small(), 1)?;
    let mut dream = Dream::from_tokens(&device, &agent, &rows(), &[], BURN_IN, Key::new(3, 0))?;
    let asked = Asked { logits: true, attention: false };
    for _ in 0..3 {
        let moments = dream.step(&agent, policy(), asked)?;
        assert!(moments.iter().all(|moment| moment.attention.is_none()));
        for moment in moments {
            let close = |sum: f32| assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            close(moment.action_probabilities.iter().sum());
            close(moment.reward_probabilities.iter().sum());
            assert!((0.0..=1.0).contains(&moment.end_probability) && moment.value.is_finite());
            let logits = moment.logits.unwrap();
            let shapes = [&logits.actions, &logits.rewards, &logits.ends, &logits.tokens].map(Vec::len);
            assert_eq!(shapes, [5, 3, 2, K * 11]);
            let odds = (moment.action_probabilities[1] / moment.action_probabilities[0]).ln();
            assert!((odds - (logits.actions[1] - logits.actions[0])).abs() < 1e-4);
            // A sampled token is a likely one, on average.
            let next = moment.next.unwrap();
            assert!(next.tokens.iter().all(|token| (0..11).contains(token)));
            let above = next.tokens.iter().zip(logits.tokens.chunks_exact(11));
            let gain: f32 =
                above.map(|(token, all)| all[*token as usize] - all.iter().sum::<f32>() / 11.0).sum();
            assert!(gain > 0.0, "{gain}");
        }
    }
    // At temperature 0 the policy does what it thinks best.
    for moment in dream.step(&agent, Action::Policy { temperature: 0.0 }, Asked::default())? {
        let best = moment.action_probabilities.iter().copied().fold(0.0, f32::max);
        assert_eq!(moment.action_probabilities[moment.action], best);
        assert!(moment.logits.is_none());
    }
    let wrong = dream.step(&agent, Action::Given(&[0, 5, 0]), Asked::default()).unwrap_err().to_string();
    assert_eq!(wrong, "dream: index 5 at position 1 is outside 0..5");
    assert!(dream.step(&agent, Action::Given(&[0]), Asked::default()).is_err());
    Ok(())
}

#[test]
fn attention_sums_to_1_and_sees_no_future() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &with_window(4), 1)?;
    let mut dream = Dream::from_tokens(&device, &agent, &rows(), &[], BURN_IN, Key::new(3, 0))?;
    let asked = Asked { logits: false, attention: true };
    let check = |moment: &Moment, at: usize, queries: usize| {
        let attention = moment.attention.as_ref().unwrap();
        assert_eq!((attention.layers, attention.heads), (3, 4));
        assert_eq!((attention.queries, attention.keys), (queries, at + queries));
        for row in 0..3 * 4 * queries {
            let (layer, head, query) = (row / (4 * queries), row / queries % 4, row % queries);
            let weights = attention.of(layer, head, query);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-4);
            let (past, future) = weights.split_at(at + query + 1);
            assert!(past.iter().all(|w| *w > 0.0) && future.iter().all(|w| *w == 0.0));
        }
    };
    // Four frames fit: at the fourth step the window slides to the newest half.
    for steps_before in [0, 1, 2, 2, 2] {
        for moment in dream.step(&agent, policy(), asked)? {
            check(&moment, steps_before * (K + 1) + K, K + 1);
        }
    }
    let twin = dream.fork(&agent)?;
    for moment in dream.finish(&agent, policy(), asked)? {
        // The window need not slide for a step without a frame after it.
        check(&moment, 3 * (K + 1) + K, 1);
    }
    // Other pasts, other weights: they are not those of some fixed prompt.
    let mut twin = twin;
    let [a, b, _] = &twin.step(&agent, policy(), asked)?[..] else { panic!("three dreams") };
    assert_ne!(a.attention, b.attention);
    Ok(())
}

/// The world model has seen z_0, a_0, z_1, a_1, z_2 and the policy the frames, before and after the context window slides.
#[test]
fn a_conditioned_dream_has_seen_the_frames_and_actions() -> Result<()> {
    let device = Device::under_test(2)?;
    let agent = Agent::new(&device, &with_window(4), 1)?;
    let mut rng = Rng::new(Key::new(2, 2));
    let frames: Vec<Vec<u8>> =
        (0..3).map(|_| (0..8 * 8 * 3).map(|_| rng.below(256) as u8).collect()).collect();
    let mut dream = Dream::from_frames(&device, &agent, &frames[..1], &[], 0, Key::new(1, 0))?;
    let mut tokens = vec![dream.look(&agent)?.remove(0).tokens];
    for (action, frame) in [(4, &frames[1]), (2, &frames[2])] {
        tokens.push(dream.condition(&agent, &[action], std::slice::from_ref(frame))?.remove(0).tokens);
    }
    let asked = Asked { logits: true, attention: false };
    let moment = dream.step(&agent, Action::Given(&[3]), asked)?.remove(0);
    let got = moment.logits.unwrap();

    let memory = agent.world_model.memory(&device, 1)?;
    let codes: Vec<_> =
        tokens.iter().map(|codes| Ok((device.buffer::<i32>("z", [1, K])?, codes))).collect::<Result<_>>()?;
    codes.iter().try_for_each(|(buffer, codes)| buffer.write(codes))?;
    let actions = device.buffer::<i32>("a", [3])?;
    actions.write(&[4, 2, 3])?;
    let (rewards, ends) = Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<_> {
        let actions = tape.buffer(&actions)?;
        let mut thought = None;
        for (t, (code, _)) in codes.iter().enumerate() {
            let code = tape.buffer(code)?;
            agent.world_model.see_tokens(tape, &memory, t * (K + 1), code)?;
            let action = tape.slice(actions, 0, t, t + 1)?;
            thought = Some(agent.world_model.see_action(tape, &memory, t * (K + 1) + K, action)?);
        }
        let (rewards, ends) = agent.world_model.consequences(tape, thought.unwrap())?;
        Ok((tape.read::<f32>(rewards)?, tape.read::<f32>(ends)?))
    })?;
    assert_eq!((got.rewards, got.ends), (rewards, ends));

    // The policy remembers the same as after two burn-in frames.
    let mut warm = Dream::from_frames(&device, &agent, &[frames.concat()], &[], 2, Key::new(1, 0))?;
    let after = warm.step(&agent, Action::Given(&[3]), asked)?.remove(0);
    let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
    close(after.value, moment.value);
    after.action_probabilities.iter().zip(&moment.action_probabilities).for_each(|(a, b)| close(*a, *b));
    // Without the context the world model expects something else.
    assert_ne!(after.reward_probabilities, moment.reward_probabilities);

    // What really happened may go on beyond the context window, and a dream put back goes the same way.
    let before = dream.snapshot(&agent)?;
    let go_on = |dream: &mut Dream| -> Result<_> {
        for frame in frames.iter().chain(&frames) {
            dream.condition(&agent, &[1], std::slice::from_ref(frame))?;
        }
        play(dream, &agent, 3)
    };
    let once = go_on(&mut dream)?;
    dream.put_back(&before)?;
    assert_eq!(go_on(&mut dream)?, once);
    assert!(dream.condition(&agent, &[5], &frames[..1]).is_err());
    assert!(dream.condition(&agent, &[0], &frames[..2]).is_err());
    assert!(dream.condition(&agent, &[0], &[vec![0; 7]]).is_err());
    Ok(())
}
