//! The table of games, by name.

use std::sync::RwLock;

use crate::{Env, EnvError, Resized, arcade, atari};

/// What an environment is made for. Some games have other rules while training, such as an end at the loss of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Train,
    Evaluate,
}

/// What is known about a game.
#[derive(Clone, Copy, Debug)]
pub struct Game {
    pub name: &'static str,
    /// The rules in a sentence or two.
    pub rules: &'static str,
    /// Mean return of uniformly random actions.
    pub random: f32,
    /// Mean return of the play that scores are measured against.
    pub skilled: f32,
    /// Whose return that is: "perfect" for scripted play that knows the rules and looks ahead, or "human".
    pub yardstick: &'static str,
    /// Makes an environment of the game.
    pub make: Make,
}

/// How an environment of a game is made.
pub type Make = fn(&Game, Purpose) -> Result<Box<dyn Env>, EnvError>;

/// Games added by the program around this library.
static REGISTERED: RwLock<Vec<&'static Game>> = RwLock::new(Vec::new());

/// Adds a game to those that [`Game::find`] knows; one that has the name already is replaced.
pub fn register(game: Game) {
    // A poisoned lock only means that another thread died while it held it: the table is whole.
    let mut games = REGISTERED.write().unwrap_or_else(|e| e.into_inner());
    games.retain(|known| known.name != game.name);
    games.push(Box::leak(Box::new(game)));
}

/// Every game there is.
pub fn all_games() -> Vec<&'static Game> {
    let registered = REGISTERED.read().unwrap_or_else(|e| e.into_inner());
    arcade::GAMES.iter().chain(&atari::GAMES).chain(registered.iter().copied()).collect()
}

impl Game {
    /// An environment of the game with frames of `size`x`size` pixels; others are resized.
    pub fn make(&self, purpose: Purpose, size: usize) -> Result<Box<dyn Env>, EnvError> {
        let env = (self.make)(self, purpose)?;
        Ok(match env.frame_size() == (size, size) {
            true => env,
            false => Box::new(Resized::new(env, (size, size))),
        })
    }

    /// How far a return is on the way from random to skilled play.
    pub fn progress(&self, mean_return: f32) -> f32 {
        (mean_return - self.random) / (self.skilled - self.random)
    }

    /// The game of this name, or an error that names the nearest. Atari games have [other names](atari::find) too.
    pub fn find(name: &str) -> Result<&'static Game, EnvError> {
        let games = all_games();
        let found = games.iter().rev().find(|game| game.name == name).copied();
        found.or_else(|| atari::find(name)).ok_or_else(|| {
            let away = |game: &Game| {
                let title = game.title().map(|title| distance(title, name));
                distance(game.name, name).min(title.unwrap_or(usize::MAX))
            };
            let nearest = games.iter().map(|game| (away(game), game.name)).min();
            let suggestion = nearest.filter(|(distance, _)| *distance <= 3).map(|(_, name)| name.to_string());
            EnvError::NoSuchGame { name: name.to_string(), suggestion }
        })
    }
}

/// Edits that turn one word into the other.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_game_names_the_nearest() {
        let error = Game::find("arcade/cach").map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no game is called `arcade/cach`; `iris envs` lists them. Did you mean `arcade/catch`?"
        );
        assert!(matches!(Game::find("chess"), Err(EnvError::NoSuchGame { suggestion: None, .. })));
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn a_registered_game_is_found_and_drawn_at_any_size() {
        let game = Game { name: "test/catch-again", ..arcade::GAMES[0] };
        register(game);
        register(Game { random: -9.0, ..game });
        let found = Game::find("test/catch-again").unwrap();
        assert_eq!(found.random, -9.0);
        for size in [32, 64] {
            assert_eq!(found.make(Purpose::Train, size).unwrap().frame_size(), (size, size));
        }
    }
}
