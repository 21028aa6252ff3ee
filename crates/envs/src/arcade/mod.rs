//! Built-in games of 32x32 pixels, drawn in cells of 4x4: small enough to learn in minutes, real pixels and colours all the same.

mod breakout;
mod catch;
mod freeway;
mod pong;

use std::sync::Arc;

use crate::{Env, EnvError, Game};

pub use breakout::Breakout;
pub use catch::Catch;
pub use freeway::Freeway;
pub use pong::Pong;

/// Pixels of a frame's side.
pub const SIZE: usize = 32;
/// Pixels of a cell's side.
const CELL: usize = 4;
/// Cells of a frame's side.
const CELLS: usize = SIZE / CELL;

/// All of them. Scores are means over episodes, checked by the tests.
pub fn games() -> Vec<Game> {
    let game = |name: &str, rules: &str, random, skilled, make: fn() -> Box<dyn Env>| Game {
        name: format!("arcade/{name}"),
        rules: rules.into(),
        random,
        skilled,
        yardstick: "perfect".into(),
        make: Arc::new(move |_| Ok(make())),
    };
    vec![
        game(
            "catch",
            "A ball falls; move the paddle under it. +1 for a catch, -1 for a miss; five balls.",
            -2.55,
            5.0,
            || Box::new(Catch::new()),
        ),
        game(
            "pong",
            "Return the ball past an opponent who is a little slow. +1 for a point won, -1 for one lost; five points.",
            -1.63,
            5.0,
            || Box::new(Pong::new()),
        ),
        game(
            "breakout",
            "Knock out sixteen bricks with a ball that must not get past the paddle. +1 per brick; over when the ball is lost.",
            1.35,
            9.77,
            || Box::new(Breakout::new()),
        ),
        game(
            "freeway",
            "Cross six lanes of traffic, again and again; being hit sends you back. +1 per crossing; 100 steps.",
            0.22,
            12.0,
            || Box::new(Freeway::new()),
        ),
    ]
}

type Colour = [u8; 3];

/// Fills the frame with one colour.
fn fill(frame: &mut [u8], colour: Colour) {
    frame.as_chunks_mut::<3>().0.fill(colour);
}

/// Paints a rectangle of pixels.
fn paint(frame: &mut [u8], (x, y): (usize, usize), (width, height): (usize, usize), colour: Colour) {
    for row in y..(y + height).min(SIZE) {
        let line = &mut frame[row * SIZE * 3..(row + 1) * SIZE * 3];
        line.as_chunks_mut::<3>().0[x..(x + width).min(SIZE)].fill(colour);
    }
}

/// Paints a rectangle of cells.
fn paint_cells(frame: &mut [u8], (x, y): (usize, usize), (width, height): (usize, usize), colour: Colour) {
    paint(frame, (x * CELL, y * CELL), (width * CELL, height * CELL), colour);
}

fn check_action(action: usize, count: usize) -> Result<(), EnvError> {
    match action < count {
        true => Ok(()),
        false => Err(EnvError::NoSuchAction { action, count }),
    }
}

/// One cell back, stay, or one cell on, inside `0..=last`.
fn moved(position: usize, action: usize, last: usize) -> usize {
    (position + action).saturating_sub(1).min(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, Random};

    /// Mean return of a way to play.
    fn mean_return<E: Env>(
        mut env: E,
        episodes: u64,
        mut policy: impl FnMut(&E, &mut Random) -> usize,
    ) -> f32 {
        let mut random = Random::new(99);
        let mut total = 0.0;
        for episode in 0..episodes {
            env.reset(episode).unwrap();
            loop {
                let action = policy(&env, &mut random);
                let step = env.step(action).unwrap();
                total += step.reward;
                if step.done() {
                    break;
                }
            }
        }
        total / episodes as f32
    }

    fn check<E: Env>(name: &str, make: fn() -> E, oracle: fn(&E) -> usize) {
        let game = Game::find(name).unwrap();
        let actions = make().action_names().len();
        let random = mean_return(make(), 3000, |_, random| random.below(actions));
        let perfect = mean_return(make(), 500, |env, _| oracle(env));
        let agree = (random - game.random).abs() < 0.15 && (perfect - game.skilled).abs() < 0.1;
        assert!(agree, "{name}: random play gives {random}, perfect play {perfect}");
    }

    #[test]
    fn documented_scores_are_true() {
        check("arcade/catch", Catch::new, Catch::best_action);
        check("arcade/pong", Pong::new, Pong::best_action);
        check("arcade/breakout", Breakout::new, Breakout::best_action);
        check("arcade/freeway", Freeway::new, Freeway::best_action);
    }

    #[test]
    fn games_follow_their_seed_and_draw_what_they_are() {
        for game in games() {
            let play = |seed: u64| {
                let mut env = game.make(Purpose::Train, SIZE).unwrap();
                let mut random = Random::new(5);
                let mut frames = Vec::new();
                env.reset(seed).unwrap();
                for _ in 0..60 {
                    let mut frame = vec![0; SIZE * SIZE * 3];
                    env.render(&mut frame);
                    frames.extend(frame);
                    if env.step(random.below(env.action_names().len())).unwrap().done() {
                        env.reset(seed + 1).unwrap();
                    }
                }
                frames
            };
            assert_eq!(play(1), play(1), "{}", game.name);
            assert_ne!(play(1), play(7), "{}", game.name);
            let mut env = game.make(Purpose::Train, SIZE).unwrap();
            env.reset(0).unwrap();
            let mut frame = vec![7; SIZE * SIZE * 3];
            env.render(&mut frame);
            let colours: std::collections::BTreeSet<_> = frame.as_chunks::<3>().0.iter().collect();
            assert!((3..=8).contains(&colours.len()), "{}: {} colours", game.name, colours.len());
            let count = env.action_names().len();
            assert!(matches!(env.step(count), Err(EnvError::NoSuchAction { action, .. }) if action == count));
        }
    }

    #[test]
    fn episodes_end() {
        for game in games() {
            let mut env = game.make(Purpose::Train, SIZE).unwrap();
            env.reset(3).unwrap();
            let steps = (1..=2000).find(|i| env.step(i % 2).unwrap().done());
            assert!(steps.is_some(), "{} goes on for ever", game.name);
        }
    }
}
