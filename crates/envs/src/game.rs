//! The registry of games, by name.

use std::fmt;
use std::sync::{Arc, RwLock};

use crate::{Env, EnvError, Resized, arcade, atari};

/// What an environment is made for. Some games have other rules while training, such as an end at the loss of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Collecting experience.
    Train,
    /// Measuring how well an agent plays.
    Evaluate,
}

/// Makes an environment of a game. May capture anything, such as the address of a simulator.
pub type Make = Arc<dyn Fn(Purpose) -> Result<Box<dyn Env>, EnvError> + Send + Sync>;

/// A game: its name, its reference scores, and how to make it.
#[derive(Clone)]
pub struct Game {
    /// Full name, such as `arcade/catch`. The part after the last `/` is its short name.
    pub name: String,
    /// The rules in a sentence or two.
    pub rules: String,
    /// Mean return of uniformly random actions.
    pub random: f32,
    /// Mean return of the play that scores are measured against.
    pub skilled: f32,
    /// Whose return that is: "perfect" for scripted play that knows the rules and looks ahead, or "human".
    pub yardstick: String,
    /// Makes an environment, with frames of the game's own size.
    pub make: Make,
}

impl fmt::Debug for Game {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Game { name, random, skilled, .. } = self;
        write!(f, "Game({name}, random {random}, {} {skilled})", self.yardstick)
    }
}

/// Games added by the program around this library.
static REGISTERED: RwLock<Vec<Game>> = RwLock::new(Vec::new());

/// Adds a game to those that [`Game::find`] knows. It replaces a game that has the same name.
pub fn register(game: Game) {
    // A poisoned lock only means that another thread died while it held it: the table is whole.
    let mut games = REGISTERED.write().unwrap_or_else(|e| e.into_inner());
    games.retain(|known| known.name != game.name);
    games.push(game);
}

/// Whether the program around this library added a game of this name.
pub(crate) fn is_registered(name: &str) -> bool {
    REGISTERED.read().unwrap_or_else(|e| e.into_inner()).iter().any(|game| game.name == name)
}

/// Every game there is: arcade, Atari, then those that were registered.
pub fn all_games() -> Vec<Game> {
    let registered = REGISTERED.read().unwrap_or_else(|e| e.into_inner());
    let mut games: Vec<Game> = arcade::games().into_iter().chain(atari::games()).collect();
    games.retain(|game| registered.iter().all(|own| own.name != game.name));
    games.extend(registered.iter().cloned());
    games
}

impl Game {
    /// An environment of the game with frames of `size`x`size` pixels: drawn so by the game, or else resized.
    pub fn make(&self, purpose: Purpose, size: usize) -> Result<Box<dyn Env>, EnvError> {
        let (mut env, size) = ((self.make)(purpose)?, (size, size));
        Ok(match env.frame_size() == size || env.set_frame_size(size) {
            true => env,
            false => Box::new(Resized::new(env, size)),
        })
    }

    /// How far a return is on the way from random (0) to skilled play (1).
    pub fn progress(&self, mean_return: f32) -> f32 {
        (mean_return - self.random) / (self.skilled - self.random)
    }

    /// The part of the name after the last `/`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Whether this build can play the game: Atari games need the feature `atari`.
    pub fn is_built(&self) -> bool {
        let refused = || matches!((self.make)(Purpose::Evaluate), Err(EnvError::AtariNotBuilt { .. }));
        cfg!(feature = "atari") || self.title().is_none() || !refused()
    }

    /// The game of a name: its full name, one of Atari's [other names](atari::find), or a short name that fits only one game.
    ///
    /// # Errors
    /// [`EnvError::NoSuchGame`] with the nearest name, or [`EnvError::AmbiguousGame`].
    pub fn find(name: &str) -> Result<Game, EnvError> {
        let games = all_games();
        let found = games.iter().find(|game| game.name == name).cloned();
        if let Some(game) = found.or_else(|| atari::find(name)) {
            return Ok(game);
        }
        // `breakout` is arcade/breakout rather than atari/Breakout; `qbert` can only be atari/Qbert.
        let same = |game: &&Game| game.short_name() == name;
        let similar = |game: &&Game| game.short_name().eq_ignore_ascii_case(name);
        let mut fitting: Vec<&Game> = games.iter().filter(same).collect();
        if fitting.is_empty() {
            fitting = games.iter().filter(similar).collect();
        }
        match fitting[..] {
            [game] => Ok(game.clone()),
            [] => {
                let names =
                    games.iter().flat_map(|game| [(game, game.name.as_str()), (game, game.short_name())]);
                let suggestion = nearest_of(name, names).map(|game| game.name.clone());
                Err(EnvError::NoSuchGame { name: name.to_string(), suggestion })
            }
            _ => {
                let games = fitting.iter().map(|game| game.name.clone()).collect();
                Err(EnvError::AmbiguousGame { name: name.to_string(), games })
            }
        }
    }
}

/// The name that a misspelt word most likely stands for, if any is close: it contains the word, or at most a third of its letters differ.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_of(word, names.into_iter().map(|name| (name, name)))
}

fn nearest_of<'a, T>(word: &str, named: impl IntoIterator<Item = (T, &'a str)>) -> Option<T> {
    let distance_to = |name: &str| match distance(name, word) {
        _ if word.len() >= 3 && name.contains(word) => Some(0),
        distance => (distance <= name.len().max(word.len()).div_ceil(3)).then_some(distance),
    };
    let close = named.into_iter().filter_map(|(thing, name)| Some((distance_to(name)?, name, thing)));
    close.min_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1))).map(|(_, _, thing)| thing)
}

/// Edits that turn one word into the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
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
        let error = Game::find("arcade/cach").unwrap_err();
        assert_eq!(error.to_string(), "no game is called `arcade/cach`. Did you mean `arcade/catch`?");
        for (name, nearest) in
            [("Brakout", "atari/Breakout"), ("atari/QBert", "atari/Qbert"), ("pnog", "arcade/pong")]
        {
            let error = Game::find(name).unwrap_err();
            assert!(
                matches!(&error, EnvError::NoSuchGame { suggestion: Some(s), .. } if s == nearest),
                "{error}"
            );
        }
        for name in ["chess", "nope", ""] {
            let error = Game::find(name).unwrap_err();
            assert!(matches!(error, EnvError::NoSuchGame { suggestion: None, .. }), "{error}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn short_names_find_the_only_game_they_fit() {
        for (name, full) in [
            ("breakout", "arcade/breakout"),
            ("Breakout", "atari/Breakout"),
            ("catch", "arcade/catch"),
            ("qbert", "atari/Qbert"),
        ] {
            assert_eq!(Game::find(name).unwrap().name, full);
        }
        let error = Game::find("BREAKOUT").unwrap_err().to_string();
        assert_eq!(error, "`BREAKOUT` may be `arcade/breakout` or `atari/Breakout`: give the whole name");
    }

    #[test]
    fn names_made_at_run_time_are_found_and_drawn_at_any_size() {
        let catch = Game::find("arcade/catch").unwrap();
        for level in 1..=2 {
            let game = Game { name: format!("test/catch-{level}"), ..catch.clone() };
            register(game.clone());
            register(Game { random: -9.0 * level as f32, ..game });
        }
        let found = Game::find("test/catch-2").unwrap();
        assert_eq!((found.random, found.is_built()), (-18.0, true));
        assert_eq!(Game::find("catch-1").unwrap().name, "test/catch-1");
        assert_eq!(all_games().iter().filter(|game| game.name.starts_with("test/catch-")).count(), 2);
        for size in [32, 64] {
            assert_eq!(found.make(Purpose::Train, size).unwrap().frame_size(), (size, size));
        }
    }

    #[test]
    fn a_maker_may_hold_anything() {
        struct Level(Vec<String>);

        impl Env for Level {
            fn action_names(&self) -> Vec<String> {
                self.0.clone()
            }

            fn frame_size(&self) -> (usize, usize) {
                (4, 4)
            }

            fn reset(&mut self, _: u64) -> Result<(), EnvError> {
                Err(EnvError::other("no such level"))
            }

            fn step(&mut self, _: usize) -> Result<crate::Step, EnvError> {
                Err(EnvError::other("not started"))
            }

            fn render(&self, _: &mut [u8]) {}
        }

        let doors: Vec<String> = (0..3).map(|door| format!("door {door}")).collect();
        let make = move |_| Ok(Box::new(Level(doors.clone())) as Box<dyn Env>);
        register(Game {
            name: "test/level".into(),
            rules: String::new(),
            random: 0.0,
            skilled: 1.0,
            yardstick: "perfect".into(),
            make: Arc::new(make),
        });
        // Also through the wrapper that resizes.
        let mut env = Game::find("test/level").unwrap().make(Purpose::Evaluate, 8).unwrap();
        assert_eq!(env.action_names(), ["door 0", "door 1", "door 2"]);
        assert_eq!(env.reset(0).unwrap_err().to_string(), "no such level");
        let mut several = crate::VectorEnv::new(vec![env]);
        assert_eq!(several.reset(&[Some(0)]).unwrap_err().to_string(), "no such level");
        assert!(several.reset(&[None]).is_ok());
    }
}
