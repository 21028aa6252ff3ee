//! Breakout: bricks, a ball and a paddle.

use super::{CELL, CELLS, Colour, check_action, fill, moved, paint_cells};
use crate::{Env, EnvError, Random, Step};

const ACTIONS: [&str; 3] = ["left", "stay", "right"];

const BACKGROUND: Colour = [14, 14, 30];
const BALL: Colour = [245, 245, 245];
const PADDLE: Colour = [80, 160, 240];
const BRICKS: [Colour; ROWS] = [[220, 80, 80], [230, 180, 70]];

const ROWS: usize = 2;
/// Steps after which an episode is cut off.
const LIMIT: usize = 400;

/// Two rows of bricks at the top, a paddle of two cells at the bottom. The ball moves diagonally; it takes a brick out and turns back one cell on, bounces off
/// the walls, and off the paddle to the side of the cell it hit.
#[derive(Clone)]
pub struct Breakout {
    random: Random,
    bricks: [[bool; CELLS]; ROWS],
    ball: (i32, i32),
    velocity: (i32, i32),
    paddle: usize,
    steps: usize,
}

impl Default for Breakout {
    fn default() -> Breakout {
        Breakout::new()
    }
}

impl Breakout {
    /// A game that waits for its first reset.
    pub fn new() -> Breakout {
        Breakout {
            random: Random::new(0),
            bricks: [[true; CELLS]; ROWS],
            ball: (0, 0),
            velocity: (1, 1),
            paddle: 3,
            steps: 0,
        }
    }

    fn left(&self) -> usize {
        self.bricks.iter().flatten().filter(|b| **b).count()
    }

    /// Moves the ball one step; returns whether it took a brick out and whether it was lost.
    fn fly(&mut self) -> (bool, bool) {
        let last = CELLS as i32 - 1;
        let (mut vx, mut vy) = self.velocity;
        if !(0..=last).contains(&(self.ball.0 + vx)) {
            vx = -vx;
        }
        if self.ball.1 + vy < 0 {
            vy = -vy;
        }
        let mut hit = false;
        let (x, y) = (self.ball.0 + vx, self.ball.1 + vy);
        if (0..ROWS as i32).contains(&y) && self.bricks[y as usize][x as usize] {
            self.bricks[y as usize][x as usize] = false;
            hit = true;
            vy = -vy;
            // The ball slides along under the brick and turns back, unless another one is in the way.
            let row = self.ball.1;
            if row >= ROWS as i32 || !self.bricks[row as usize][x as usize] {
                self.ball.0 = x;
            }
            self.velocity = (vx, vy);
            return (hit, false);
        }
        self.ball = (x, y);
        if y == last {
            let paddle = self.paddle as i32;
            if !(paddle..=paddle + 1).contains(&x) {
                return (hit, true);
            }
            vx = if x == paddle { -1 } else { 1 };
            vy = -1;
            self.random.next_u64();
        }
        self.velocity = (vx, vy);
        (hit, false)
    }

    /// Goes where the ball will come down, and tries both cells of the paddle to see which leads to a brick sooner.
    pub fn best_action(&self) -> usize {
        let mut ahead = self.clone();
        let mut steps = 0;
        // Fly on with a paddle that is everywhere until the ball comes down.
        while ahead.ball.1 + ahead.velocity.1 < CELLS as i32 - 1 || ahead.velocity.1 < 0 {
            ahead.fly();
            steps += 1;
            if ahead.left() == 0 || steps > 60 {
                return 1;
            }
        }
        let mut side = ahead.ball.0 + ahead.velocity.0;
        if !(0..CELLS as i32).contains(&side) {
            side = ahead.ball.0 - ahead.velocity.0;
        }
        let landing = side as usize;
        let after = |paddle: usize| {
            let mut flight = ahead.clone();
            flight.paddle = paddle;
            (0..80).find(|_| flight.fly().0).unwrap_or(80)
        };
        let choices = [landing.min(CELLS - 2), landing.saturating_sub(1)];
        let sooner = after(choices[0]).cmp(&after(choices[1]));
        // Neither leads to a brick at once: take turns, or the ball runs in circles.
        let second = sooner.is_gt() || sooner.is_eq() && self.random.clone().below(2) == 1;
        let mut target = choices[usize::from(second)];
        if target.abs_diff(self.paddle) > steps + 1 {
            target = choices[usize::from(!second)];
        }
        match target {
            t if t < self.paddle => 0,
            t if t > self.paddle => 2,
            _ => 1,
        }
    }
}

impl Env for Breakout {
    fn action_names(&self) -> Vec<String> {
        ACTIONS.map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (CELLS * CELL, CELLS * CELL)
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        *self = Breakout { random: Random::new(seed), ..Breakout::new() };
        self.ball = (self.random.below(CELLS) as i32, ROWS as i32 + 1);
        self.velocity = (if self.random.below(2) == 0 { -1 } else { 1 }, -1);
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        check_action(action, ACTIONS.len())?;
        self.paddle = moved(self.paddle, action, CELLS - 2);
        self.steps += 1;
        let (hit, lost) = self.fly();
        let reward = if hit { 1.0 } else { 0.0 };
        Ok(Step { reward, terminated: lost || self.left() == 0, truncated: self.steps >= LIMIT })
    }

    fn render(&self, frame: &mut [u8]) {
        fill(frame, BACKGROUND);
        for (y, (row, colour)) in self.bricks.iter().zip(BRICKS).enumerate() {
            for (x, _) in row.iter().enumerate().filter(|(_, brick)| **brick) {
                paint_cells(frame, (x, y), (1, 1), colour);
            }
        }
        paint_cells(frame, (self.paddle, CELLS - 1), (2, 1), PADDLE);
        paint_cells(frame, (self.ball.0 as usize, self.ball.1 as usize), (1, 1), BALL);
    }
}
