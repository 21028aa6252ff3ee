//! Games: their names, and the two scores that a normalised score is measured between.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::ReportError;
use crate::scores::read;

/// What random play and a human (for built-in games: a perfect player) score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    pub random: f64,
    pub human: f64,
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "[{}, {}]", self.random, self.human)
    }
}

impl Reference {
    /// (score - random) / (human - random)
    pub fn normalise(&self, score: f64) -> f64 {
        (score - self.random) / (self.human - self.random)
    }
}

/// The references of every known game.
#[derive(Clone)]
pub struct Games {
    /// Of the benchmark, and from a file.
    references: BTreeMap<String, Reference>,
    /// Of games that come with the program. Runs of them know their own progress, score files do not.
    built_in: BTreeMap<String, Reference>,
}

impl Games {
    pub fn new(references: impl IntoIterator<Item = (String, Reference)>) -> Games {
        Games { references: references.into_iter().collect(), built_in: BTreeMap::new() }
    }

    /// Adds a game that comes with the program.
    pub fn add_built_in(&mut self, game: &str, [random, human]: [f64; 2]) {
        self.built_in.insert(game.to_string(), Reference { random, human });
    }

    /// Adds or replaces references from a file `{"Game": [random, human]}`, with remarks about it.
    pub fn add_file(&mut self, path: &Path) -> Result<Vec<String>, ReportError> {
        let mut notes = Vec::new();
        let format = |why: &str| ReportError::Config { path: path.to_path_buf(), why: why.to_string() };
        let values = read(path)?;
        let [Value::Object(entries)] = values.as_slice() else {
            return Err(format("references are one object, {\"Game\": [random, human]}"));
        };
        for (name, value) in entries {
            let numbers: Option<Vec<f64>> =
                value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
            match numbers.as_deref() {
                Some(&[random, human]) if human > random => {
                    let (game, new) = (self.canonical(name), Reference { random, human });
                    let old = self.references.insert(game.clone(), new);
                    if let Some(old) = old.filter(|old| *old != new) {
                        notes.push(format!(
                            "{game}: your scores are normalised with {new} of {}, the published agents' with the benchmark's {old}; they do not compare",
                            path.display()
                        ));
                    }
                }
                _ => return Err(ReportError::Reference { path: path.to_path_buf(), game: name.clone() }),
            }
        }
        Ok(notes)
    }

    pub fn get(&self, game: &str) -> Option<&Reference> {
        self.references.get(game)
    }

    /// Also of a game that comes with the program.
    pub fn get_any(&self, game: &str) -> Option<&Reference> {
        self.get(game).or_else(|| self.built_in.get(game))
    }

    /// The name of the game a run or an evaluation played. Sticky actions make `ALE/Breakout-v5` another game than the benchmark's.
    pub fn played(&self, env: &str) -> String {
        match env.starts_with("ALE/") {
            true => env.to_string(),
            false => self.canonical(env),
        }
    }

    /// The name used here: `Breakout` for `atari/breakout`, `ALE/Breakout-v5` and `BreakoutNoFrameskip-v4`. Other names stay as they are.
    pub fn canonical(&self, name: &str) -> String {
        let plain = |name: &str| -> String {
            name.chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>().to_ascii_lowercase()
        };
        let bare = match name.split_once('/') {
            Some((suite, game)) if ["atari", "ale"].contains(&suite.to_ascii_lowercase().as_str()) => game,
            Some(_) => return name.to_string(),
            None => name,
        };
        let bare = match bare.rsplit_once("-v") {
            Some((game, version)) if version.parse::<u32>().is_ok() => game,
            _ => bare,
        };
        let bare = bare.strip_suffix("NoFrameskip").unwrap_or(bare);
        let known = self.references.keys().find(|known| !known.contains('/') && plain(known) == plain(bare));
        known.cloned().unwrap_or_else(|| name.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn games() -> Games {
        let reference = Reference { random: 1.7, human: 30.5 };
        Games::new(["Breakout", "MsPacman", "arcade/breakout"].map(|name| (name.to_string(), reference)))
    }

    #[test]
    fn names_of_the_same_game() {
        let spellings = [
            "Breakout",
            "breakout",
            "atari/Breakout",
            "ALE/Breakout-v5",
            "BreakoutNoFrameskip-v4",
            "Breakout-v0",
        ];
        for name in spellings {
            assert_eq!(games().canonical(name), "Breakout", "{name}");
        }
        assert_eq!(games().canonical("ms_pacman"), "MsPacman");
        assert_eq!(games().played("atari/Breakout"), "Breakout");
        assert_eq!(games().played("ALE/Breakout-v5"), "ALE/Breakout-v5");
    }

    #[test]
    fn names_of_other_games_stay() {
        for name in ["arcade/breakout", "arcade/catch", "Zaxxon", "atari/Zaxxon"] {
            assert_eq!(games().canonical(name), name);
        }
    }

    #[test]
    fn references_become_0_and_1() {
        let reference = Reference { random: -20.7, human: 14.6 };
        assert_eq!((reference.normalise(-20.7), reference.normalise(14.6)), (0.0, 1.0));
    }
}
