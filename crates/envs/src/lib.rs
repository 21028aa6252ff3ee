//! Games behind one trait, in Gymnasium's terms, and the built-in arcade. Knows nothing of networks.

pub mod arcade;
mod random;

pub use random::Random;

/// A game. The same seed and the same actions give the same frames and rewards.
pub trait Env: Send {
    /// What the actions are called, in order; their number is the size of the action space.
    fn action_names(&self) -> &'static [&'static str];

    /// Height and width of a frame in pixels.
    fn frame_size(&self) -> (usize, usize);

    /// Starts an episode.
    fn reset(&mut self, seed: u64);

    /// Plays one step. An action the game does not have is an error and changes nothing.
    fn step(&mut self, action: usize) -> Result<Step, EnvError>;

    /// Draws the current state as RGB bytes, row by row.
    fn render(&self, frame: &mut [u8]);
}

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub reward: f32,
    /// The game is over.
    pub terminated: bool,
    /// The episode was cut off by a time limit.
    pub truncated: bool,
}

impl Step {
    pub fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EnvError {
    #[error("action {action} does not exist; this game has {count}, from 0 on")]
    NoSuchAction { action: usize, count: usize },

    #[error("no game is called `{name}`; `iris envs` lists them{}", suggestion.as_ref().map_or(String::new(), |s| format!(". Did you mean `{s}`?")))]
    NoSuchGame { name: String, suggestion: Option<String> },
}

/// What is known about a game.
#[derive(Clone, Copy, Debug)]
pub struct Game {
    pub name: &'static str,
    /// The rules in a sentence or two.
    pub rules: &'static str,
    /// Mean return of uniformly random actions.
    pub random: f32,
    /// Mean return of scripted play that knows the rules and looks ahead; the best there is, except in breakout.
    pub perfect: f32,
    make: fn() -> Box<dyn Env>,
}

impl Game {
    pub fn make(&self) -> Box<dyn Env> {
        (self.make)()
    }

    /// How far a return is on the way from random to perfect play.
    pub fn progress(&self, mean_return: f32) -> f32 {
        (mean_return - self.random) / (self.perfect - self.random)
    }

    /// The game of this name, or an error that names the nearest.
    pub fn find(name: &str) -> Result<&'static Game, EnvError> {
        arcade::GAMES.iter().find(|game| game.name == name).ok_or_else(|| {
            let nearest = arcade::GAMES.iter().map(|game| (distance(game.name, name), game.name)).min();
            let suggestion = nearest.filter(|(distance, _)| *distance <= 5).map(|(_, name)| name.to_string());
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
}
