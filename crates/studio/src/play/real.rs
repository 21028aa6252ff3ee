//! The real game beside a dream: it can be brought back to any of its steps by playing it again.

use agent::PlayedGame;
use envs::{Env, Game, Purpose, Step};

use super::history::{Image, Place};
use crate::compute::refused;
use crate::problem::Problem;

/// Steps of one game; its actions are kept to play it again.
const LONGEST: usize = 200_000;

pub struct Real {
    env: Box<dyn Env>,
    size: usize,
    /// Games so far; the last is being played.
    games: Vec<PlayedGame>,
    over: bool,
    actions: usize,
}

impl Real {
    /// The game before its first frame.
    pub fn new(game: &Game, purpose: Purpose, size: usize) -> Result<Real, Problem> {
        let env = game.make(purpose, size).map_err(refused)?;
        let actions = env.action_names().len();
        Ok(Real { env, size, games: Vec::new(), over: true, actions })
    }

    pub fn action_names(&self) -> Vec<String> {
        self.env.action_names()
    }

    /// Begins a game, or goes on with one that was played up to somewhere.
    pub fn begin(&mut self, played: PlayedGame) -> Result<(), Problem> {
        self.games.push(played);
        let (game, actions) = (self.games.len() - 1, self.games.last().map_or(0, |game| game.actions.len()));
        self.go_to(Place { game, actions })
    }

    /// The games so far.
    pub fn games(&self) -> &[PlayedGame] {
        &self.games
    }

    /// Whether the next step begins a new game.
    pub fn over(&self) -> bool {
        self.over && !self.env.continues()
    }

    pub fn place(&self) -> Place {
        let actions = self.games.last().map_or(0, |game| game.actions.len());
        Place { game: self.games.len().saturating_sub(1), actions }
    }

    pub fn step(&mut self, action: usize) -> Result<Step, Problem> {
        let Some(game) = self.games.last_mut() else {
            return Err(Problem::internal("no game has begun"));
        };
        if game.actions.len() >= LONGEST {
            return Err(Problem::bad_request(format!("the game has lasted {LONGEST} steps: start it again")));
        }
        if action >= self.actions {
            return Err(Problem::bad_request(format!(
                "there is no action {action}: the game has {}",
                self.actions
            )));
        }
        if self.over {
            // A life was lost: the same game goes on.
            self.env.reset(game.seed).map_err(refused)?;
        }
        let step = self.env.step(action).map_err(refused)?;
        game.actions.push(action);
        self.over = step.done();
        Ok(step)
    }

    /// Forgets what came after a place, and plays up to it again.
    pub fn go_to(&mut self, place: Place) -> Result<(), Problem> {
        self.games.truncate(place.game + 1);
        let Some(game) = self.games.last_mut() else { return Ok(()) };
        game.actions.truncate(place.actions);
        let (seed, actions) = (game.seed, std::mem::take(&mut game.actions));
        self.env.reset(seed).map_err(refused)?;
        self.over = false;
        actions.into_iter().try_for_each(|action| self.step(action).map(|_| ()))
    }

    /// As the network gets it.
    pub fn frame(&self) -> Image {
        let mut pixels = vec![0; self.size * self.size * 3];
        self.env.render(&mut pixels);
        Image::square(self.size, pixels)
    }

    /// As a person sees it, where that is more.
    pub fn full(&self) -> Option<Image> {
        let (height, width, pixels) = self.env.full_frame()?;
        Some(Image { height, width, pixels: pixels.into() })
    }
}
