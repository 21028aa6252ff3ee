//! The 26 ROMs that can be played.

use std::ffi::CStr;

/// A ROM that can be played.
#[derive(Debug, PartialEq, Eq)]
pub struct Cartridge {
    /// The game's name in the literature, such as `BankHeist`.
    pub game: &'static str,
    /// The ROM's name in ALE, which is its file's name without `.bin`.
    pub rom: &'static CStr,
    /// MD5 of the ROM.
    pub md5: &'static str,
}

impl Cartridge {
    pub fn find(game: &str) -> Option<&'static Cartridge> {
        CARTRIDGES.iter().find(|cartridge| cartridge.game == game)
    }

    /// The name of its file.
    pub fn file_name(&self) -> String {
        format!("{}.bin", self.rom.to_string_lossy())
    }
}

const fn cartridge(game: &'static str, rom: &'static CStr, md5: &'static str) -> Cartridge {
    Cartridge { game, rom, md5 }
}

/// The 26 games of the Atari 100k benchmark.
pub static CARTRIDGES: [Cartridge; 26] = [
    cartridge("Alien", c"alien", "f1a0a23e6464d954e3a9579c4ccd01c8"),
    cartridge("Amidar", c"amidar", "acb7750b4d0c4bd34969802a7deb2990"),
    cartridge("Assault", c"assault", "de78b3a064d374390ac0710f95edde92"),
    cartridge("Asterix", c"asterix", "89a68746eff7f266bbf08de2483abe55"),
    cartridge("BankHeist", c"bank_heist", "00ce0bdd43aed84a983bef38fe7f5ee3"),
    cartridge("BattleZone", c"battle_zone", "41f252a66c6301f1e8ab3612c19bc5d4"),
    cartridge("Boxing", c"boxing", "c3ef5c4653212088eda54dc91d787870"),
    cartridge("Breakout", c"breakout", "f34f08e5eb96e500e851a80be3277a56"),
    cartridge("ChopperCommand", c"chopper_command", "c1cb228470a87beb5f36e90ac745da26"),
    cartridge("CrazyClimber", c"crazy_climber", "55ef7b65066428367844342ed59f956c"),
    cartridge("DemonAttack", c"demon_attack", "f0e0addc07971561ab80d9abe1b8d333"),
    cartridge("Freeway", c"freeway", "8e0ab801b1705a740b476b7f588c6d16"),
    cartridge("Frostbite", c"frostbite", "4ca73eb959299471788f0b685c3ba0b5"),
    cartridge("Gopher", c"gopher", "c16c79aad6272baffb8aae9a7fff0864"),
    cartridge("Hero", c"hero", "fca4a5be1251927027f2c24774a02160"),
    cartridge("Jamesbond", c"jamesbond", "e51030251e440cffaab1ac63438b44ae"),
    cartridge("Kangaroo", c"kangaroo", "4326edb70ff20d0ee5ba58fa5cb09d60"),
    cartridge("Krull", c"krull", "4baada22435320d185c95b7dd2bcdb24"),
    cartridge("KungFuMaster", c"kung_fu_master", "5b92a93b23523ff16e2789b820e2a4c5"),
    cartridge("MsPacman", c"ms_pacman", "87e79cd41ce136fd4f72cc6e2c161bee"),
    cartridge("Pong", c"pong", "60e0ea3cbe0913d39803477945e9e5ec"),
    cartridge("PrivateEye", c"private_eye", "ef3a4f64b6494ba770862768caf04b86"),
    cartridge("Qbert", c"qbert", "484b0076816a104875e00467d431c2d2"),
    cartridge("RoadRunner", c"road_runner", "ce5cc62608be2cd3ed8abd844efb8919"),
    cartridge("Seaquest", c"seaquest", "240bfbac5163af4df5ae713985386f92"),
    cartridge("UpNDown", c"up_n_down", "a499d720e7ee35c62424de882a3351b6"),
];
