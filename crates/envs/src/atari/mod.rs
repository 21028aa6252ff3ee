//! The 26 games of the Atari 100k benchmark. They are always listed; playing them needs the feature `atari`.

#[cfg(feature = "atari")]
mod env;
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
pub use protocol::Protocol;

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use crate::game::is_registered;
use crate::{Env, EnvError, Game, Make, Purpose};

/// How a game under its name in Gymnasium's new style, `ALE/Breakout-v5`, differs from `atari/Breakout`.
pub const V5: &str =
    "sticky actions (0.25 per frame), frame skip 4 without a maximum over the last two frames";

static ROM_FOLDER: RwLock<Option<PathBuf>> = RwLock::new(None);

/// Looks for ROMs in this folder first, from now on.
pub fn set_rom_folder(folder: impl Into<PathBuf>) {
    // A poisoned lock only means that another thread died while it held it.
    *ROM_FOLDER.write().unwrap_or_else(|e| e.into_inner()) = Some(folder.into());
}

/// A row of the table: title, the literature's scores of random and human play, rules.
type Row = (&'static str, f32, f32, &'static str);

const ROWS: [Row; 26] = [
    (
        "Alien",
        227.8,
        7127.7,
        "Collect the eggs in the corridors of a ship without being caught by its aliens.",
    ),
    ("Amidar", 5.8, 1719.5, "Walk every edge of a lattice, pursued by those who patrol it."),
    (
        "Assault",
        222.4,
        742.0,
        "Shoot the craft that a mother ship drops, and do not let the cannon overheat.",
    ),
    ("Asterix", 210.0, 8503.3, "Run along eight lanes, touch the cauldrons and avoid the lyres."),
    (
        "BankHeist",
        14.2,
        753.1,
        "Rob banks in a maze of streets, blow up the police cars behind you, and mind the petrol.",
    ),
    ("BattleZone", 2360.0, 37187.5, "Drive a tank over a plain and hit the others before they hit you."),
    (
        "Boxing",
        0.1,
        12.1,
        "Two minutes in the ring: +1 or more for a punch landed, the same less for one taken.",
    ),
    (
        "Breakout",
        1.7,
        30.5,
        "Knock bricks out of a wall with a ball that must not get past the paddle; five balls.",
    ),
    ("ChopperCommand", 811.0, 7387.8, "Protect a convoy of trucks from aircraft with a helicopter."),
    (
        "CrazyClimber",
        10780.5,
        35829.4,
        "Climb a skyscraper, hand over hand, past closing windows and falling things.",
    ),
    ("DemonAttack", 152.1, 1971.0, "Shoot the demons that hover and split above you, wave after wave."),
    (
        "Freeway",
        0.0,
        29.6,
        "Lead a chicken across ten lanes of traffic as often as two minutes allow; +1 per crossing.",
    ),
    ("Frostbite", 65.2, 4334.7, "Jump on drifting floes to build an igloo before the cold comes."),
    ("Gopher", 257.6, 2412.5, "Keep a gopher from three carrots: fill its tunnels and knock it back."),
    (
        "Hero",
        1027.0,
        30826.4,
        "Fly down mine shafts with a rotor on your back, blast walls and free the miners.",
    ),
    ("Jamesbond", 29.0, 302.8, "Drive, dive and shoot through the missions of a secret agent."),
    ("Kangaroo", 52.0, 3035.0, "Climb to your joey past monkeys that throw apples."),
    ("Krull", 1598.0, 2665.5, "Fight, ride and cross a web through the scenes of a film to save a princess."),
    ("KungFuMaster", 258.5, 22736.3, "Fight your way through five floors of a temple."),
    (
        "MsPacman",
        307.3,
        6951.6,
        "Eat every dot in the maze; a power pill turns the tables on the ghosts for a while.",
    ),
    ("Pong", -20.7, 14.6, "Table tennis against the console: +1 for a point won, -1 for one lost; to 21."),
    (
        "PrivateEye",
        24.9,
        69571.3,
        "Drive through a city in search of clues and stolen goods, and return them.",
    ),
    (
        "Qbert",
        163.9,
        13455.0,
        "Hop on every cube of a pyramid to change its colour, away from what comes down it.",
    ),
    ("RoadRunner", 11.5, 7845.0, "Outrun a coyote along a road, eat the seed on it and mind the lorries."),
    (
        "Seaquest",
        68.4,
        42054.7,
        "Pick up divers in a submarine, shoot what attacks it, and surface before the air runs out.",
    ),
    ("UpNDown", 533.4, 11693.2, "Drive a car that can jump over winding roads and collect the flags."),
];

/// All of them, with the scores of the literature.
pub fn games() -> Vec<Game> {
    ROWS.iter().map(|row| game(format!("atari/{}", row.0), row)).collect()
}

fn game(name: String, &(title, random, human, rules): &Row) -> Game {
    let make = made(&name, title, [Purpose::Train, Purpose::Evaluate].map(Protocol::new));
    Game { name, rules: rules.into(), random, skilled: human, yardstick: "human".into(), make }
}

/// Makes environments of a game, with the protocols of training and evaluation.
fn made(name: &str, title: &str, protocols: [Protocol; 2]) -> Make {
    let (name, title) = (name.to_string(), title.to_string());
    Arc::new(move |purpose| {
        let [training, evaluation] = protocols;
        let protocol = if purpose == Purpose::Train { training } else { evaluation };
        make(&name, &title, if name.starts_with("ALE/") { protocol.v5() } else { protocol })
    })
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

/// The game of a name in Atari's spellings: `atari/Breakout`, `Breakout`, `BreakoutNoFrameskip-v4` or `ALE/Breakout-v5`.
pub fn find(name: &str) -> Option<Game> {
    let titled = |title: &str| ROWS.iter().find(|row| row.0 == title);
    if let Some(v5) = name.strip_prefix("ALE/") {
        return Some(game(name.into(), titled(v5.strip_suffix("-v5")?)?));
    }
    let title = name.strip_suffix("NoFrameskip-v4").or_else(|| name.strip_prefix("atari/")).unwrap_or(name);
    Some(game(format!("atari/{title}"), titled(title)?))
}

impl Game {
    /// The name of an Atari game without what is around it, such as `Breakout`.
    pub fn title(&self) -> Option<&str> {
        let v5 = || self.name.strip_prefix("ALE/").and_then(|name| name.strip_suffix("-v5"));
        self.name.strip_prefix("atari/").or_else(v5)
    }

    /// How this variant of a game differs from the benchmark's: worth a line wherever the game is started.
    pub fn variant(&self) -> Option<&'static str> {
        self.name.starts_with("ALE/").then_some(V5)
    }

    /// The same Atari game with these protocols of training and evaluation. Any other game stays as it is, also one that was registered under the
    /// name of an Atari game.
    pub fn with_protocols(self, training: Protocol, evaluation: Protocol) -> Game {
        match self.title().filter(|_| !is_registered(&self.name)) {
            Some(title) => Game { make: made(&self.name, title, [training, evaluation]), ..self },
            None => self,
        }
    }

    /// Name of the game that this is a variant of, or else its own.
    pub fn original_name(&self) -> String {
        self.title().map_or_else(|| self.name.clone(), |title| format!("atari/{title}"))
    }
}

#[cfg(feature = "atari")]
fn make(_: &str, title: &str, protocol: Protocol) -> Result<Box<dyn Env>, EnvError> {
    Ok(Box::new(Atari::new(title, protocol)?))
}

#[cfg(not(feature = "atari"))]
fn make(name: &str, _: &str, _: Protocol) -> Result<Box<dyn Env>, EnvError> {
    Err(EnvError::AtariNotBuilt { name: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_has_four_names() {
        for name in ["atari/Breakout", "Breakout", "BreakoutNoFrameskip-v4"] {
            let game = Game::find(name).unwrap();
            assert_eq!((game.name.as_str(), game.skilled, game.variant()), ("atari/Breakout", 30.5, None));
        }
        let game = Game::find("ALE/Breakout-v5").unwrap();
        assert_eq!((game.name.as_str(), game.skilled, game.variant()), ("ALE/Breakout-v5", 30.5, Some(V5)));
        assert_eq!(game.original_name(), "atari/Breakout");
        assert_eq!(Game::find("arcade/pong").unwrap().original_name(), "arcade/pong");
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

    #[cfg(not(feature = "atari"))]
    #[test]
    fn a_program_without_atari_says_so() {
        let game = Game::find("Breakout").unwrap();
        let error = game.make(Purpose::Train, 64).map(|_| ()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "atari/Breakout needs the Atari emulator, which this program was built without"
        );
        assert!(!game.is_built());
    }
}
