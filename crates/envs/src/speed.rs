//! How fast a game runs.

use std::time::Instant;

use crate::{EnvError, Game, Purpose, Random};

/// Steps per second of a game on one core, frames drawn at `size`x`size`, with random actions and the resets in between.
pub fn steps_per_second(game: &Game, size: usize, steps: usize) -> Result<f64, EnvError> {
    let mut env = game.make(Purpose::Train, size)?;
    let (actions, mut frame) = (env.action_names().len(), vec![0; size * size * 3]);
    let mut random = Random::new(0);
    env.reset(0)?;
    let start = Instant::now();
    for _ in 0..steps {
        let step = env.step(random.below(actions))?;
        env.render(&mut frame);
        if step.done() {
            env.reset(random.next_u64())?;
            env.render(&mut frame);
        }
    }
    Ok(steps as f64 / start.elapsed().as_secs_f64())
}
