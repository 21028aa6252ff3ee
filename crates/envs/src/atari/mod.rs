//! The 26 games of the Atari 100k benchmark. They are always listed; playing them needs the feature `atari`.

#[cfg(feature = "atari")]
mod env;
#[cfg(feature = "atari")]
mod protocol;
#[cfg(feature = "atari")]
mod roms;
#[cfg(test)]
#[cfg(feature = "atari")]
mod traces;
#[cfg(feature = "atari")]
mod view;

#[cfg(feature = "atari")]
pub use env::Atari;
#[cfg(feature = "atari")]
pub use protocol::Protocol;

use std::path::PathBuf;
use std::sync::RwLock;

use crate::{Env, EnvError, Game, Purpose};

/// How a game under its name in Gymnasium's new style, `ALE/Breakout-v5`, differs from `atari/Breakout`.
pub const V5: &str =
    "sticky actions (0.25 per frame), frame skip 4 without a maximum over the last two frames";

static ROM_FOLDER: RwLock<Option<PathBuf>> = RwLock::new(None);

/// Looks for ROMs in this folder first, from now on.
pub fn set_rom_folder(folder: impl Into<PathBuf>) {
    // A poisoned lock only means that another thread died while it held it.
    *ROM_FOLDER.write().unwrap_or_else(|e| e.into_inner()) = Some(folder.into());
}

const fn game(name: &'static str, random: f32, human: f32, rules: &'static str) -> Game {
    Game { name, rules, random, skilled: human, yardstick: "human", make }
}

macro_rules! games {
    ($($game:literal, $random:literal, $human:literal, $rules:literal;)*) => {
        /// All of them, with the scores of the literature.
        pub static GAMES: [Game; 26] = [$(game(concat!("atari/", $game), $random, $human, $rules)),*];

        /// The same with sticky actions.
        static V5_GAMES: [Game; 26] = [$(game(concat!("ALE/", $game, "-v5"), $random, $human, $rules)),*];
    };
}

games! {
    "Alien", 227.8, 7127.7, "Collect the eggs in the corridors of a ship without being caught by its aliens.";
    "Amidar", 5.8, 1719.5, "Walk every edge of a lattice, pursued by those who patrol it.";
    "Assault", 222.4, 742.0, "Shoot the craft that a mother ship drops, and do not let the cannon overheat.";
    "Asterix", 210.0, 8503.3, "Run along eight lanes, touch the cauldrons and avoid the lyres.";
    "BankHeist", 14.2, 753.1, "Rob banks in a maze of streets, blow up the police cars behind you, and mind the petrol.";
    "BattleZone", 2360.0, 37187.5, "Drive a tank over a plain and hit the others before they hit you.";
    "Boxing", 0.1, 12.1, "Two minutes in the ring: +1 or more for a punch landed, the same less for one taken.";
    "Breakout", 1.7, 30.5, "Knock bricks out of a wall with a ball that must not get past the paddle; five balls.";
    "ChopperCommand", 811.0, 7387.8, "Protect a convoy of trucks from aircraft with a helicopter.";
    "CrazyClimber", 10780.5, 35829.4, "Climb a skyscraper, hand over hand, past closing windows and falling things.";
    "DemonAttack", 152.1, 1971.0, "Shoot the demons that hover and split above you, wave after wave.";
    "Freeway", 0.0, 29.6, "Lead a chicken across ten lanes of traffic as often as two minutes allow; +1 per crossing.";
    "Frostbite", 65.2, 4334.7, "Jump on drifting floes to build an igloo before the cold comes.";
    "Gopher", 257.6, 2412.5, "Keep a gopher from three carrots: fill its tunnels and knock it back.";
    "Hero", 1027.0, 30826.4, "Fly down mine shafts with a rotor on your back, blast walls and free the miners.";
    "Jamesbond", 29.0, 302.8, "Drive, dive and shoot through the missions of a secret agent.";
    "Kangaroo", 52.0, 3035.0, "Climb to your joey past monkeys that throw apples.";
    "Krull", 1598.0, 2665.5, "Fight, ride and cross a web through the scenes of a film to save a princess.";
    "KungFuMaster", 258.5, 22736.3, "Fight your way through five floors of a temple.";
    "MsPacman", 307.3, 6951.6, "Eat every dot in the maze; a power pill turns the tables on the ghosts for a while.";
    "Pong", -20.7, 14.6, "Table tennis against the console: +1 for a point won, -1 for one lost; to 21.";
    "PrivateEye", 24.9, 69571.3, "Drive through a city in search of clues and stolen goods, and return them.";
    "Qbert", 163.9, 13455.0, "Hop on every cube of a pyramid to change its colour, away from what comes down it.";
    "RoadRunner", 11.5, 7845.0, "Outrun a coyote along a road, eat the seed on it and mind the lorries.";
    "Seaquest", 68.4, 42054.7, "Pick up divers in a submarine, shoot what attacks it, and surface before the air runs out.";
    "UpNDown", 533.4, 11693.2, "Drive a car that can jump over winding roads and collect the flags.";
}

/// The file of every game's ROM, from which the game was started, or what is wrong with it.
#[cfg(feature = "atari")]
pub fn roms() -> Vec<(&'static str, Result<PathBuf, EnvError>)> {
    let start = |cartridge| {
        let (path, rom) = roms::read(cartridge)?;
        Atari::with_rom(cartridge, path.clone(), &rom, Protocol::new(Purpose::Evaluate))?;
        Ok(path)
    };
    ale::CARTRIDGES.iter().map(|cartridge| (cartridge.game, start(cartridge))).collect()
}

/// Starts a game from the bytes of a ROM, for `fuzz/`.
#[cfg(feature = "atari")]
#[doc(hidden)]
pub fn start_rom(title: &str, rom: &[u8]) -> Result<(), EnvError> {
    let no_such_game = || EnvError::NoSuchGame { name: title.to_string(), suggestion: None };
    let cartridge = ale::Cartridge::find(title).ok_or_else(no_such_game)?;
    Atari::with_rom(cartridge, title.into(), rom, Protocol::new(Purpose::Evaluate)).map(|_| ())
}

/// The game of a name: `atari/Breakout`, `Breakout`, `BreakoutNoFrameskip-v4` or `ALE/Breakout-v5`.
pub fn find(name: &str) -> Option<&'static Game> {
    if name.starts_with("ALE/") {
        return V5_GAMES.iter().find(|game| game.name == name);
    }
    titled(name.strip_suffix("NoFrameskip-v4").unwrap_or_else(|| name.strip_prefix("atari/").unwrap_or(name)))
}

fn titled(title: &str) -> Option<&'static Game> {
    GAMES.iter().find(|game| game.title() == Some(title))
}

impl Game {
    /// The name of an Atari game without what is around it, such as `Breakout`.
    pub fn title(&self) -> Option<&'static str> {
        let v5 = || self.name.strip_prefix("ALE/").and_then(|name| name.strip_suffix("-v5"));
        self.name.strip_prefix("atari/").or_else(v5)
    }

    /// What sets this variant of a game apart from the benchmark's: worth a line wherever the game is started.
    pub fn variant(&self) -> Option<&'static str> {
        self.name.starts_with("ALE/").then_some(V5)
    }

    /// The game that this is a variant of, or else itself.
    pub fn original(&self) -> &Game {
        self.title().and_then(titled).unwrap_or(self)
    }
}

#[cfg(feature = "atari")]
fn make(game: &Game, purpose: Purpose) -> Result<Box<dyn Env>, EnvError> {
    let protocol = match game.variant() {
        None => Protocol::new(purpose),
        Some(_) => Protocol::v5(purpose),
    };
    let title = game.title().unwrap_or(game.name);
    Ok(Box::new(Atari::new(title, protocol)?))
}

#[cfg(not(feature = "atari"))]
fn make(game: &Game, _: Purpose) -> Result<Box<dyn Env>, EnvError> {
    Err(EnvError::AtariNotBuilt { name: game.name.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_has_four_names() {
        for name in ["atari/Breakout", "Breakout", "BreakoutNoFrameskip-v4"] {
            let game = Game::find(name).unwrap();
            assert_eq!((game.name, game.skilled, game.variant()), ("atari/Breakout", 30.5, None));
        }
        let game = Game::find("ALE/Breakout-v5").unwrap();
        assert_eq!((game.name, game.skilled, game.variant()), ("ALE/Breakout-v5", 30.5, Some(V5)));
        assert_eq!(game.original().name, "atari/Breakout");
        assert_eq!(Game::find("arcade/pong").unwrap().original().name, "arcade/pong");
        for name in [
            "atari/atari/Breakout",
            "atari/BreakoutNoFrameskip-v4",
            "ALE/Breakout",
            "Breakout-v5",
            "NoFrameskip-v4",
        ] {
            assert!(Game::find(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_misspelt_game_is_answered_with_the_nearest() {
        for (name, nearest) in
            [("breakout", "atari/Breakout"), ("Brakout", "atari/Breakout"), ("atari/QBert", "atari/Qbert")]
        {
            let error = Game::find(name).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(&format!("Did you mean `{nearest}`?")), "{error}");
        }
    }

    #[cfg(not(feature = "atari"))]
    #[test]
    fn a_program_without_atari_says_how_to_build_one_with_it() {
        let error = Game::find("Breakout").unwrap().make(Purpose::Train, 64).map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this program was built without Atari, which atari/Breakout needs: run scripts/atari, then build with --features atari"
        );
    }
}
