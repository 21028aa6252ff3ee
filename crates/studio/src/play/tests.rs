//! Sessions against the agent's own dreams and games.

use std::rc::Rc;

use agent::{Acting, Agent, AgentConfig, Rollout, Stretch};
use engine::{Device, Key};
use envs::{Game, Purpose};

use super::history::By;
use super::session::{Begin, Eyes, Orders, Session};
use crate::compute::Loaded;

const BURN_IN: usize = 2;

/// Fresh networks of the default size, whose dreams practically never end.
fn loaded(device: &Device, game: &str) -> Rc<Loaded> {
    let mut config = AgentConfig { actions: 3, ..AgentConfig::default() };
    let (t, w, p) = (&mut config.tokenizer, &mut config.world_model, &mut config.actor_critic);
    (t.frame_size, t.channels, t.groups, t.resolutions) = (32, 16, 4, 4);
    (t.residual_blocks, t.attention_sizes, t.vocabulary, t.embedding) = (0, vec![], 32, 32);
    (w.steps, w.layers, w.heads, w.width, w.init_std) = (8, 2, 4, 64, 0.1);
    (p.channels, p.hidden, p.dense) = (vec![8, 8, 8], 16, 16);
    let agent = Agent::new(device, &config, 1).unwrap();
    agent.world_model.network.params.set("head_ends.head_module.2.bias", &[20.0, -20.0]).unwrap();
    Rc::new(Loaded { agent, game: Game::find(game).unwrap(), burn_in: BURN_IN, epoch: None })
}

fn person(action: usize) -> Orders {
    Orders { action: Some(action), eyes: Eyes::Game, temperature: 0.5, horizon: 0 }
}

fn policy(eyes: Eyes) -> Orders {
    Orders { action: None, eyes, temperature: 0.5, horizon: 0 }
}

fn session(device: &Device, loaded: &Rc<Loaded>, seed: u64) -> Session {
    Session::new(device, Some(loaded.clone()), loaded.game.clone(), seed, Begin::Evaluation).unwrap()
}

fn dreamt(session: &Session, step: usize) -> Vec<u8> {
    session.history().get(step).unwrap().dream.as_ref().unwrap().pixels.to_vec()
}

fn game_frame(session: &Session, step: usize) -> Vec<u8> {
    session.history().get(step).unwrap().frame.as_ref().unwrap().pixels.to_vec()
}

#[test]
fn a_hundred_steps_of_play_are_dreamt_as_iris_dream_does() {
    let device = Device::under_test(2).unwrap();
    let loaded = loaded(&device, "arcade/pong");
    let actions: Vec<usize> = (0..101).map(|i| (i * i / 3) % 3).collect();
    // What `iris dream RUN --test --from 0 --seed 5 --futures 1 --actions ...` does.
    let played = Stretch::play(&device, &loaded.agent, &loaded.game, 0.5, 5, 101).unwrap();
    let start = played.from(0, 101, BURN_IN);
    let rollout = Rollout { device: &device, agent: &loaded.agent, burn_in: BURN_IN, context: Some(1) };
    let dreams = rollout.dreams(&[start], 101, Acting::Given(&actions), Key::new(5, 0), |_| {}).unwrap();
    assert_eq!(dreams[0].cells.len(), 101);

    let mut session = session(&device, &loaded, 5);
    let mut slid = 0;
    for action in &actions[..100] {
        let dream = session.step(person(*action)).unwrap().facts.dream.clone().unwrap();
        slid += usize::from(dream.slid);
        assert!(dream.remembered <= dream.window);
    }
    for (step, cell) in dreams[0].cells.iter().enumerate() {
        assert!(dreamt(&session, step) == cell.frame, "step {step}");
    }
    for (step, cell) in dreams[0].cells.iter().take(100).enumerate() {
        let facts = &session.history().get(step + 1).unwrap().facts;
        assert_eq!(facts.dream.as_ref().unwrap().reward, cell.reward, "step {step}");
        assert_eq!((facts.action, facts.by), (Some(actions[step]), Some(By::Person)));
    }
    // Eight steps fit; the window slides every few steps from then on.
    assert!((10..40).contains(&slid), "{slid}");

    // The game beside it is the one of that seed, and the first reconstruction what the dream begins with.
    assert!(game_frame(&session, 0) == played.cells[0].frame);
    let first = session.history().get(0).unwrap();
    assert_eq!(first.seen, first.dream);
    let mut env = loaded.game.make(Purpose::Evaluate, 32).unwrap();
    env.reset(agent::episode_seed(agent::evaluation_seed(5), 0)).unwrap();
    let mut frame = vec![0; 32 * 32 * 3];
    let mut total = 0.0;
    for (step, action) in actions[..100].iter().enumerate() {
        let outcome = env.step(*action).unwrap();
        total += outcome.reward;
        env.render(&mut frame);
        assert!(game_frame(&session, step + 1) == frame, "step {step}");
        if outcome.done() {
            break;
        }
    }
    let game = session.now().unwrap().facts.game.clone().unwrap();
    assert_eq!((game.number, game.total), (0, total));
}

#[test]
fn steps_back_and_branches_give_the_same_again() {
    let device = Device::under_test(2).unwrap();
    let loaded = loaded(&device, "arcade/breakout");
    let mut session = session(&device, &loaded, 3);
    // People and the policy take turns, with either's eyes, and reality is put back on the way.
    let orders = |step: usize| match step % 7 {
        0 | 1 => person(step % 3),
        2 | 3 => policy(Eyes::Dream),
        4 => Orders { horizon: 3, ..policy(Eyes::Game) },
        _ => policy(Eyes::Game),
    };
    let play = |session: &mut Session, from: usize, to: usize| {
        (from..to).for_each(|step| {
            session.step(orders(step)).unwrap();
        })
    };
    play(&mut session, 0, 60);
    let facts = |session: &Session, step: usize| session.history().get(step).unwrap().facts.clone();
    let all = |session: &Session| -> Vec<_> {
        (0..=60)
            .map(|step| (facts(session, step), dreamt(session, step), game_frame(session, step)))
            .collect()
    };
    let before = all(&session);
    assert!(before.iter().any(|(facts, ..)| facts.dream.as_ref().unwrap().given && facts.step > 0));
    for back in [59, 30, 7, 0] {
        session.show(back).unwrap();
        play(&mut session, back, 60);
        assert!(all(&session) == before, "after going back to {back}");
    }
    // Another action leads elsewhere, and what came after is forgotten.
    session.show(20).unwrap();
    session.step(person((facts(&session, 21).action.unwrap() + 1) % 3)).unwrap();
    assert_eq!(session.history().ends(), (0, 21));
    assert!(dreamt(&session, 20) == before[20].1 && game_frame(&session, 20) == before[20].2);
    assert_ne!(facts(&session, 21), before[21].0);

    // Reality put back: the dream shows what is left of the game's frame, and goes on from there.
    let dream = session.put_reality_back().unwrap().facts.dream.clone().unwrap();
    assert!(dream.given && dream.dreamt == 0);
    let now = session.now().unwrap();
    assert_eq!(now.dream, now.seen);
    session.step(person(0)).unwrap();
    assert_eq!(session.now().unwrap().facts.dream.as_ref().unwrap().dreamt, 1);
    assert!(session.show(99).is_err() && session.step(person(3)).is_err());
    // A refused step changes nothing.
    assert_eq!(session.now().unwrap().facts.step, 22);
}

#[test]
fn games_follow_each_other_and_may_be_left_again() {
    let device = Device::under_test(2).unwrap();
    let loaded = loaded(&device, "arcade/catch");
    let mut session = session(&device, &loaded, 0);
    // A dream that goes on after the end of the game, until it is to be shown reality.
    let orders = Orders { horizon: 50, ..person(1) };
    let over = |session: &Session| session.now().unwrap().facts.game.clone().unwrap();
    while !over(&session).over {
        session.step(orders).unwrap();
    }
    let end = session.now().unwrap().facts.step;
    session.step(orders).unwrap();
    assert!(over(&session).over && over(&session).steps == end);
    assert!(game_frame(&session, end) == game_frame(&session, end + 1));
    while over(&session).over {
        session.step(orders).unwrap();
    }
    let begun = session.now().unwrap().facts.clone();
    assert_eq!((begun.action, begun.game.unwrap().number), (None, 1));
    session.step(person(0)).unwrap();
    assert_eq!(session.games().len(), 2);
    session.show(5).unwrap();
    session.step(person(0)).unwrap();
    assert_eq!((session.games().len(), session.games()[0].actions.len()), (1, 6));
}

#[test]
fn a_long_game_stays_within_bounds_and_can_be_come_back_to() {
    let device = Device::under_test(2).unwrap();
    let loaded = loaded(&device, "arcade/freeway");
    let mut session = session(&device, &loaded, 0);
    for step in 0..1100 {
        session.step(Orders { horizon: 8, ..person(step % 3) }).unwrap();
    }
    let (first, last) = session.history().ends();
    assert!(last == 1100 && first > 0 && last - first <= 1000, "{first} to {last}");
    let kept = session.history().range(0, usize::MAX).filter(|moment| moment.snapshot().is_some()).count();
    assert!(kept <= 256, "{kept} snapshots");
    let (a, b) =
        (dreamt(&session, first + 2), session.history().get(first + 2).unwrap().facts.action.unwrap());
    session.show(first + 1).unwrap();
    session.step(Orders { horizon: 8, ..person(b) }).unwrap();
    assert!(dreamt(&session, first + 2) == a);
}

#[test]
fn a_game_without_an_agent_is_played_by_hand() {
    let device = Device::cpu(Some(1)).unwrap();
    let game = Game::find("arcade/catch").unwrap();
    let mut session = Session::new(&device, None, game, 4, Begin::Training).unwrap();
    let moment = session.step(person(2)).unwrap();
    assert!(moment.dream.is_none() && moment.seen.is_none() && moment.frame.is_some());
    // Nobody acts: nothing is done.
    assert_eq!(session.step(policy(Eyes::Dream)).unwrap().facts.action, Some(1));
    session.show(1).unwrap();
    session.step(person(0)).unwrap();
    assert_eq!(session.games()[0].actions, [2, 0]);
}

#[test]
#[ignore = "measures time"]
fn speed() {
    let device = Device::under_test(2).unwrap();
    let paper = AgentConfig { actions: 3, ..AgentConfig::default() };
    let paper = Loaded {
        agent: Agent::new(&device, &paper, 0).unwrap(),
        game: Game::find("arcade/pong").unwrap(),
        burn_in: 20,
        epoch: None,
    };
    for (name, loaded, steps) in
        [("default agent", loaded(&device, "arcade/pong"), 600), ("paper's size", Rc::new(paper), 40)]
    {
        let mut session = session(&device, &loaded, 0);
        for (by, orders) in [("person", person(1)), ("policy", policy(Eyes::Game))] {
            session.step(orders).unwrap();
            let start = std::time::Instant::now();
            (0..steps).for_each(|_| {
                session.step(orders).unwrap();
            });
            let rate = f64::from(steps) / start.elapsed().as_secs_f64();
            println!("{name}, {by}: {rate:.1} steps per second");
        }
    }
}
