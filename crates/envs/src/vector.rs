//! Several games side by side, stepped by the threads of the caller's rayon pool.

use rayon::prelude::*;

use crate::{Env, EnvError, Step};

/// Environments that are stepped together. Each plays as it would alone, whatever the number of threads.
pub struct VectorEnv {
    envs: Vec<Box<dyn Env>>,
    frame_bytes: usize,
}

impl VectorEnv {
    /// Takes environments of the same game.
    pub fn new(envs: Vec<Box<dyn Env>>) -> VectorEnv {
        let frame_bytes = envs.first().map_or(0, |env| env.frame_size().0 * env.frame_size().1 * 3);
        VectorEnv { envs, frame_bytes }
    }

    /// Number of environments.
    pub fn len(&self) -> usize {
        self.envs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.envs.is_empty()
    }

    /// The first of them.
    pub fn first(&self) -> Option<&dyn Env> {
        self.envs.first().map(AsRef::as_ref)
    }

    /// Whether the next reset of each continues its game.
    pub fn continues(&self) -> Vec<bool> {
        self.envs.iter().map(|env| env.continues()).collect()
    }

    /// Starts an episode in every environment that has a seed.
    pub fn reset(&mut self, seeds: &[Option<u64>]) -> Result<(), EnvError> {
        let envs = self.envs.par_iter_mut().zip(seeds);
        envs.try_for_each(|(env, seed)| seed.map_or(Ok(()), |seed| env.reset(seed)))
    }

    /// Plays a step in every environment that has an action.
    pub fn step(&mut self, actions: &[Option<usize>]) -> Result<Vec<Option<Step>>, EnvError> {
        let play =
            |(env, action): (&mut Box<dyn Env>, &Option<usize>)| action.map(|a| env.step(a)).transpose();
        self.envs.par_iter_mut().zip(actions).map(play).collect()
    }

    /// Draws all of them, one after the other in `frames`.
    pub fn render(&mut self, frames: &mut [u8]) {
        let frames = frames.par_chunks_exact_mut(self.frame_bytes.max(1));
        self.envs.par_iter_mut().zip(frames).for_each(|(env, frame)| env.render(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Game, Purpose, Random};

    #[test]
    fn games_side_by_side_are_the_games_played_alone() {
        let game = Game::find("arcade/breakout").unwrap();
        let make = || game.make(Purpose::Train, 32).unwrap();
        let mut together = VectorEnv::new((0..8).map(|_| make()).collect());
        together.reset(&(0..8).map(Some).collect::<Vec<_>>()).unwrap();
        let mut alone: Vec<_> = (0..8).map(|_| make()).collect();
        alone.iter_mut().zip(0..).for_each(|(env, seed)| env.reset(seed).unwrap());
        let mut random = Random::new(1);
        let (mut frames, mut frame) = (vec![0; 8 * 32 * 32 * 3], vec![0; 32 * 32 * 3]);
        for turn in 0..40 {
            // One place rests each time.
            let actions: Vec<_> = (0..8).map(|i| (i != turn % 8).then(|| random.below(3))).collect();
            let steps = together.step(&actions).unwrap();
            together.render(&mut frames);
            for (i, env) in alone.iter_mut().enumerate() {
                assert_eq!(steps[i], actions[i].map(|a| env.step(a).unwrap()));
                env.render(&mut frame);
                assert_eq!(frame, frames[i * frame.len()..(i + 1) * frame.len()]);
            }
        }
        assert!(together.step(&[Some(9); 8]).is_err());
    }
}
