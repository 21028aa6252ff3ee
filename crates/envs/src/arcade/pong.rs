//! Pong against an opponent who is a little slow.

use super::{CELL, CELLS, Colour, check_action, fill, moved, paint_cells};
use crate::{Env, EnvError, Random, Step};

const ACTIONS: [&str; 3] = ["up", "stay", "down"];

const BACKGROUND: Colour = [16, 20, 24];
const BALL: Colour = [240, 240, 240];
const OPPONENT: Colour = [210, 130, 70];
const PLAYER: Colour = [90, 190, 90];

/// Cells of the player's paddle and of the opponent's.
const PADDLE: usize = 3;
const OTHER: usize = 2;
/// The lowest place of the player's upper cell, and of the opponent's.
const LOWEST: usize = CELLS - PADDLE;
const OTHER_LOWEST: usize = CELLS - OTHER;
const POINTS: usize = 5;
/// Steps after which an episode is cut off.
const LIMIT: usize = 300;

/// The player is at the right, the opponent at the left; their paddles are three and two cells high. The ball moves one cell sideways and one up or down per step.
/// The upper cell of a paddle sends it up, the lower one down, and the middle one on as it came. The opponent follows the ball, but only every third
/// step.
#[derive(Clone)]
pub struct Pong {
    random: Random,
    ball: (usize, usize),
    /// -1 or 1, sideways and vertically.
    velocity: (i32, i32),
    /// Upper cells of the paddles.
    player: usize,
    opponent: usize,
    points: usize,
    steps: usize,
}

impl Default for Pong {
    fn default() -> Pong {
        Pong::new()
    }
}

impl Pong {
    /// A game that waits for its first reset.
    pub fn new() -> Pong {
        Pong {
            random: Random::new(0),
            ball: (0, 0),
            velocity: (1, 1),
            player: 3,
            opponent: 3,
            points: 0,
            steps: 0,
        }
    }

    fn serve(&mut self) {
        self.ball = (1, self.random.below(CELLS));
        let up = if self.random.below(2) == 0 { -1 } else { 1 };
        self.velocity = (1, up);
    }

    /// Where the ball is next: it bounces off the upper and lower wall.
    fn next_ball(&self) -> ((usize, usize), (i32, i32)) {
        let (mut vx, mut vy) = self.velocity;
        let last = CELLS as i32 - 1;
        let (x, mut y) = (self.ball.0 as i32 + vx, self.ball.1 as i32 + vy);
        if y < 0 || y > last {
            vy = -vy;
            y = self.ball.1 as i32 + vy;
        }
        vx = vx.signum();
        ((x.clamp(0, last) as usize, y as usize), (vx, vy))
    }

    /// Goes where the ball will come, and hits it with the cell that sends it farthest from the opponent.
    pub fn best_action(&self) -> usize {
        let mut ahead = self.clone();
        if ahead.velocity.0 < 0 {
            // The ball goes away: wait in the middle.
            return toward(self.player, LOWEST / 2);
        }
        let mut steps = 1;
        while ahead.ball.0 < CELLS - 2 {
            (ahead.ball, ahead.velocity) = ahead.next_ball();
            steps += 1;
        }
        let ((_, y), _) = ahead.next_ball();
        // Its lower cell sends the ball down, its upper one up.
        let (down, up) = (y.saturating_sub(PADDLE - 1), y.min(LOWEST));
        let (wanted, other) = if self.opponent < OTHER_LOWEST / 2 { (down, up) } else { (up, down) };
        toward(self.player, if wanted.abs_diff(self.player) <= steps { wanted } else { other })
    }
}

fn toward(position: usize, target: usize) -> usize {
    match target {
        t if t < position => 0,
        t if t > position => 2,
        _ => 1,
    }
}

impl Env for Pong {
    fn action_names(&self) -> Vec<String> {
        ACTIONS.map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (CELLS * CELL, CELLS * CELL)
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        *self = Pong { random: Random::new(seed), ..Pong::new() };
        self.serve();
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        check_action(action, ACTIONS.len())?;
        self.player = moved(self.player, action, LOWEST);
        if self.steps.is_multiple_of(3) {
            let wanted = toward(self.opponent, self.ball.1.saturating_sub(1).min(OTHER_LOWEST));
            self.opponent = moved(self.opponent, wanted, OTHER_LOWEST);
        }
        self.steps += 1;
        let (ball, velocity) = self.next_ball();
        let mut reward = 0.0;
        let (paddle, cells, side) =
            if velocity.0 > 0 { (self.player, PADDLE, CELLS - 1) } else { (self.opponent, OTHER, 0) };
        (self.ball, self.velocity) = (ball, velocity);
        if ball.0 == side {
            if (paddle..paddle + cells).contains(&ball.1) {
                let vertical = match ball.1 - paddle {
                    0 => -1,
                    place if place + 1 == cells => 1,
                    _ => velocity.1,
                };
                self.velocity = (-velocity.0, vertical);
            } else {
                reward = if side == 0 { 1.0 } else { -1.0 };
                self.points += 1;
                self.serve();
            }
        }
        Ok(Step { reward, terminated: self.points == POINTS, truncated: self.steps >= LIMIT })
    }

    fn render(&self, frame: &mut [u8]) {
        fill(frame, BACKGROUND);
        paint_cells(frame, (0, self.opponent), (1, OTHER), OPPONENT);
        paint_cells(frame, (CELLS - 1, self.player), (1, PADDLE), PLAYER);
        paint_cells(frame, self.ball, (1, 1), BALL);
    }
}
