//! Freeway: cross six lanes of traffic.

use super::{CELL, CELLS, Colour, check_action, fill, paint_cells};
use crate::{Env, EnvError, Random, Step};

const ACTIONS: [&str; 3] = ["up", "stay", "down"];

const VERGE: Colour = [40, 90, 50];
const ROAD: Colour = [60, 60, 66];
const PLAYER: Colour = [245, 220, 80];
const CARS: [Colour; 3] = [[220, 80, 80], [90, 150, 230], [200, 200, 210]];

const LANES: usize = CELLS - 2;
const COLUMN: usize = CELLS / 2;
const LENGTH: usize = 100;

/// The player crosses upwards in the middle column. Each lane has one car that moves a cell per step (even lanes) or every other step (odd lanes), to
/// the right in the lower half and to the left in the upper.
#[derive(Clone)]
pub struct Freeway {
    cars: [usize; LANES],
    /// Row of the player: `CELLS - 1` is the start, 0 the goal.
    row: usize,
    steps: usize,
}

impl Default for Freeway {
    fn default() -> Freeway {
        Freeway::new()
    }
}

impl Freeway {
    /// A game that waits for its first reset.
    pub fn new() -> Freeway {
        Freeway { cars: [0; LANES], row: CELLS - 1, steps: 0 }
    }

    fn drive(&mut self) {
        for (lane, car) in self.cars.iter_mut().enumerate() {
            if lane % 2 == 0 || self.steps.is_multiple_of(2) {
                let forward = if lane >= LANES / 2 { 1 } else { CELLS - 1 };
                *car = (*car + forward) % CELLS;
            }
        }
    }

    fn hit(&self) -> bool {
        (1..=LANES).contains(&self.row) && self.cars[self.row - 1] == COLUMN
    }

    /// One step; returns whether the player got across.
    fn advance(&mut self, action: usize) -> bool {
        match action {
            0 => self.row = self.row.saturating_sub(1),
            2 => self.row = (self.row + 1).min(CELLS - 1),
            _ => {}
        }
        self.steps += 1;
        self.drive();
        if self.hit() {
            self.row = CELLS - 1;
        }
        let across = self.row == 0;
        if across {
            self.row = CELLS - 1;
        }
        across
    }

    /// Looks a dozen steps ahead for the quickest way across.
    pub fn best_action(&self) -> usize {
        // Breadth first: states reached, with the first action that led there.
        let mut states: Vec<(Freeway, usize)> = Vec::new();
        for action in 0..3 {
            let mut next = self.clone();
            if next.advance(action) {
                return action;
            }
            states.push((next, action));
        }
        for _ in 0..20 {
            let mut following: Vec<(Freeway, usize)> = Vec::new();
            for (state, first) in &states {
                for action in 0..3 {
                    let mut next = state.clone();
                    if next.advance(action) {
                        return *first;
                    }
                    if !following.iter().any(|(s, _)| s.row == next.row) {
                        following.push((next, *first));
                    }
                }
            }
            states = following;
        }
        0
    }
}

impl Env for Freeway {
    fn action_names(&self) -> Vec<String> {
        ACTIONS.map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (CELLS * CELL, CELLS * CELL)
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        let mut random = Random::new(seed);
        *self = Freeway { cars: std::array::from_fn(|_| random.below(CELLS)), ..Freeway::new() };
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        check_action(action, ACTIONS.len())?;
        let across = self.advance(action);
        let reward = if across { 1.0 } else { 0.0 };
        Ok(Step { reward, terminated: false, truncated: self.steps >= LENGTH })
    }

    fn render(&self, frame: &mut [u8]) {
        fill(frame, VERGE);
        paint_cells(frame, (0, 1), (CELLS, LANES), ROAD);
        for (lane, &car) in self.cars.iter().enumerate() {
            paint_cells(frame, (car, lane + 1), (1, 1), CARS[lane % CARS.len()]);
        }
        paint_cells(frame, (COLUMN, self.row), (1, 1), PLAYER);
    }
}
