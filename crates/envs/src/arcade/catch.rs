//! Catch: a paddle under falling balls.

use super::{CELL, CELLS, Colour, check_action, fill, moved, paint_cells};
use crate::{Env, EnvError, Random, Step};

const ACTIONS: [&str; 3] = ["left", "stay", "right"];

const BACKGROUND: Colour = [20, 24, 60];
const BALL: Colour = [250, 190, 40];
const PADDLE: Colour = [60, 220, 90];

const BALLS: usize = 5;
/// Steps a ball falls before it is caught or missed.
const FALL: usize = CELLS - 1;

/// A ball falls one cell per step; the paddle, two cells wide, must be under it when it reaches the bottom row.
pub struct Catch {
    random: Random,
    ball: (usize, usize),
    /// Left cell of the paddle.
    paddle: usize,
    balls: usize,
}

impl Default for Catch {
    fn default() -> Catch {
        Catch::new()
    }
}

impl Catch {
    /// A game that waits for its first reset.
    pub fn new() -> Catch {
        Catch { random: Random::new(0), ball: (0, 0), paddle: 0, balls: 0 }
    }

    /// Left, stay or right, straight to where the ball will be.
    pub fn best_action(&self) -> usize {
        match self.ball.0 {
            ball if ball < self.paddle => 0,
            ball if ball > self.paddle + 1 => 2,
            _ => 1,
        }
    }
}

impl Env for Catch {
    fn action_names(&self) -> Vec<String> {
        ACTIONS.map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (CELLS * CELL, CELLS * CELL)
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        self.random = Random::new(seed);
        self.ball = (self.random.below(CELLS), 0);
        self.paddle = self.random.below(CELLS - 1);
        self.balls = 0;
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        check_action(action, ACTIONS.len())?;
        self.paddle = moved(self.paddle, action, CELLS - 2);
        self.ball.1 += 1;
        let mut reward = 0.0;
        if self.ball.1 == FALL {
            let caught = (self.paddle..=self.paddle + 1).contains(&self.ball.0);
            reward = if caught { 1.0 } else { -1.0 };
            self.balls += 1;
            self.ball = (self.random.below(CELLS), 0);
        }
        Ok(Step { reward, terminated: self.balls == BALLS, truncated: false })
    }

    fn render(&self, frame: &mut [u8]) {
        fill(frame, BACKGROUND);
        paint_cells(frame, self.ball, (1, 1), BALL);
        paint_cells(frame, (self.paddle, CELLS - 1), (2, 1), PADDLE);
    }
}
