//! Policies that see codes and know what was done before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use agent::train::{ActorCriticObjective, Learner};
use agent::{Acting, Action, Agent, Asked, Dream, Dreamer, Player, Returns, Seen, Sees};
use engine::{Adam, Device, Key, Lstm, Result, Stepper};

#[path = "common/small.rs"]
mod small;

use small::small;

const BURN_IN: usize = 2;
const HORIZON: usize = 5;
/// The action that is none.
const NONE: i32 = 5;

fn agent(device: &Device, sees: Sees, previous_action: bool) -> Result<Agent> {
    let mut config = small();
    (config.actor_critic.sees, config.actor_critic.previous_action) = (sees, previous_action);
    Agent::new(device, &config, 3)
}

fn start(dreamer: &Dreamer, agent: &Agent) -> Result<()> {
    let start = dreamer.start();
    let codes: Vec<i32> = (0..start.before.shape().len()).map(|i| (i * 7 % 11) as i32).collect();
    match agent.config.actor_critic.sees {
        Sees::Codes => start.before.write(&codes)?,
        Sees::Frames => {
            start.before.write(&codes.iter().map(|c| *c as f32 / 11.0).collect::<Vec<_>>())?;
        }
    }
    start.mask.write(&[1i32, 1, 0, 1, 0, 0])?;
    let first: Vec<i32> = (0..start.tokens.shape().len()).map(|i| (i * 3 % 11) as i32).collect();
    start.tokens.write(&first)?;
    match &start.previous {
        Some(previous) => previous.write(&[2i32, 0, 1, NONE, NONE, 4, NONE, NONE, NONE]),
        None => Ok(()),
    }
}

#[test]
fn parameters_come_with_the_options_alone() -> Result<()> {
    let device = Device::under_test(1)?;
    let names = |sees, previous| -> Result<Vec<String>> {
        let agent = agent(&device, sees, previous)?;
        Ok(agent.actor_critic.network.params.specs().iter().map(|spec| spec.name.clone()).collect())
    };
    let paper = names(Sees::Frames, false)?;
    assert!(paper.iter().all(|name| !name.contains("codes") && !name.contains("previous")), "{paper:?}");
    let table = "previous_action.weight".to_string();
    assert_eq!(names(Sees::Frames, true)?, [&paper[..], std::slice::from_ref(&table)].concat());
    let codes = names(Sees::Codes, true)?;
    // The first of the channels is the width of the linear layer.
    assert_eq!(codes.iter().filter(|name| name.starts_with("conv")).count(), 2);
    assert!(codes.contains(&"codes.weight".to_string()) && codes.contains(&table), "{codes:?}");
    Ok(())
}

/// At temperature 0 the dream's actions are the policy's best ones over the dreamt tokens and the actions before them.
#[test]
fn a_dream_is_what_the_policy_does_over_what_it_was_given() -> Result<()> {
    let device = Device::under_test(2)?;
    for (sees, previous_action) in [(Sees::Codes, true), (Sees::Codes, false), (Sees::Frames, true)] {
        let agent = agent(&device, sees, previous_action)?;
        let mut dreamer = Dreamer::new(&device, &agent, 3, HORIZON, BURN_IN, Key::new(1, 0))?;
        start(&dreamer, &agent)?;
        let dreamt = dreamer.dream(&agent, Acting::Policy { temperature: 0.0 })?.clone();
        assert_eq!(dreamt.frames.is_some(), sees == Sees::Frames);
        let actions = dreamt.actions.read::<i32>()?;
        if let Some(previous) = &dreamt.previous {
            let before = previous.read::<i32>()?;
            for (row, first) in [1, 4, NONE].into_iter().enumerate() {
                let at = row * HORIZON;
                assert_eq!(before[at], first);
                assert_eq!(before[at + 1..at + HORIZON], actions[at..at + HORIZON - 1]);
            }
        }
        let logits = Stepper::new(&device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
            let tokens = tape.buffer(&dreamt.tokens)?;
            let view = agent.view_over_time(tape, tokens)?;
            let previous = dreamt.previous.as_ref().map(|actions| tape.buffer(actions)).transpose()?;
            let state = Lstm { hidden: tape.buffer(&dreamt.hidden)?, cell: tape.buffer(&dreamt.cell)? };
            let policy = agent.actor_critic.follow(tape, Seen { view, previous }, state)?;
            tape.read(policy.logits)
        })?;
        let best: Vec<i32> = logits
            .chunks_exact(5)
            .map(|row| (0..5).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32)
            .collect();
        assert_eq!(actions, best, "{sees:?}");
    }
    Ok(())
}

/// Every parameter of the policy learns, and none of the tokenizer.
#[test]
fn gradients_end_at_the_codebook() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = agent(&device, Sees::Codes, true)?;
    let mut dreamer = Dreamer::new(&device, &agent, 3, HORIZON, BURN_IN, Key::new(1, 0))?;
    start(&dreamer, &agent)?;
    dreamer.dream(&agent, Acting::Policy { temperature: 1.0 })?;
    dreamer.trajectories().rewards.write(&[1f32; 3 * HORIZON])?;
    let read = |name: &str| agent.actor_critic.network.params.get(name);
    let names: Vec<String> =
        agent.actor_critic.network.params.specs().iter().map(|spec| spec.name.clone()).collect();
    let before = names.iter().map(|name| read(name)).collect::<Result<Vec<_>>>()?;
    let tokenizer = agent.tokenizer.network.params.values().read::<f32>()?;
    let objective = ActorCriticObjective::new(dreamer.trajectories().clone(), Returns::default());
    let mut learner = Learner::new(&device, objective, Adam::default(), 1e-2)?;
    learner.update(&agent)?;
    for (name, before) in names.iter().zip(before) {
        assert_ne!(read(name)?, before, "{name}");
    }
    assert_eq!(agent.tokenizer.network.params.values().read::<f32>()?, tokenizer);
    Ok(())
}

/// Playing real frames, told what was really done, is what a dream that is shown these frames remembers.
#[test]
fn a_player_and_a_dream_see_the_same() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = agent(&device, Sees::Codes, true)?;
    let frames: Vec<Vec<u8>> =
        (0..3).map(|t| (0..8 * 8 * 3).map(|i| ((i * (t + 3) * 31) % 256) as u8).collect()).collect();
    let taken = [3, 1];
    let mut player = Player::with_thoughts(&device, &agent, 1)?;
    for (frame, action) in frames.iter().zip(taken) {
        player.act(&agent, frame, 1.0)?;
        player.took(0, action)?;
    }
    let before = player.state()?;
    player.act(&agent, &frames[2], 1.0)?;
    let thought = player.thoughts()?.remove(0);
    let asked = Asked::default();
    let dream = |burn_in: usize, actions: &[usize]| -> Result<Vec<f32>> {
        let row = [frames.concat()];
        let mut dream =
            Dream::from_frames(&device, &agent, &row, &[actions.to_vec()], burn_in, Key::new(1, 0))?;
        Ok(dream.step(&agent, Action::Given(&[0]), asked)?.remove(0).action_probabilities)
    };
    let near = |one: &[f32], other: &[f32]| one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(near(&dream(2, &taken)?, &thought.action_probabilities));
    // A dream that is shown them one by one.
    let mut shown = Dream::from_frames(&device, &agent, &frames[..1], &[], 0, Key::new(1, 0))?;
    for (action, frame) in taken.iter().zip(&frames[1..]) {
        shown.condition(&agent, &[*action], std::slice::from_ref(frame))?;
    }
    let last = shown.step(&agent, Action::Given(&[0]), asked)?.remove(0).action_probabilities;
    assert!(near(&last, &thought.action_probabilities));
    // The action counts, and is part of the player's state.
    player.put_back(&before)?;
    player.took(0, 0)?;
    player.act(&agent, &frames[2], 1.0)?;
    assert_ne!(player.thoughts()?.remove(0).action_probabilities, thought.action_probabilities);
    player.put_back(&before)?;
    player.act(&agent, &frames[2], 1.0)?;
    assert_eq!(player.thoughts()?.remove(0), thought);
    assert!(player.took(0, 5).is_err());
    // The start of a game: nothing was done.
    player.forget(0)?;
    player.act(&agent, &frames[2], 1.0)?;
    let fresh = player.thoughts()?.remove(0).action_probabilities;
    assert!(near(&fresh, &{
        let mut dream = Dream::from_frames(&device, &agent, &frames[2..], &[], 0, Key::new(1, 0))?;
        dream.step(&agent, Action::Given(&[0]), asked)?.remove(0).action_probabilities
    }));
    Ok(())
}

/// Steps one at a time, forks and snapshots carry the previous action.
#[test]
fn dreams_are_forked_and_put_back() -> Result<()> {
    let device = Device::under_test(1)?;
    let agent = agent(&device, Sees::Codes, true)?;
    let tokens = [(0..16).map(|i| i % 11).collect::<Vec<i32>>()];
    let mut dream = Dream::from_tokens(&device, &agent, &tokens, &[vec![3]], 0, Key::new(2, 0))?;
    let policy = Action::Policy { temperature: 1.0 };
    dream.step(&agent, Action::Given(&[4]), Asked::default())?;
    let here = dream.snapshot(&agent)?;
    let mut fork = dream.fork(&agent)?;
    let next = dream.step(&agent, policy, Asked::default())?;
    assert_eq!(fork.step(&agent, policy, Asked::default())?, next);
    dream.put_back(&here)?;
    assert_eq!(dream.step(&agent, policy, Asked::default())?, next);
    Ok(())
}
