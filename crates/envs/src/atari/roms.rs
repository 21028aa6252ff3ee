//! Where ROMs are looked for.

use std::path::{Path, PathBuf};
use std::{env, fs};

use ale::Cartridge;

use super::ROM_FOLDER;
use crate::EnvError;

/// The ROM's file, from the first place that has it, and its bytes.
pub fn read(cartridge: &Cartridge) -> Result<(PathBuf, Vec<u8>), EnvError> {
    let named = ROM_FOLDER.read().unwrap_or_else(|e| e.into_inner()).clone();
    read_from(places(named), cartridge)
}

fn read_from(places: Vec<PathBuf>, cartridge: &Cartridge) -> Result<(PathBuf, Vec<u8>), EnvError> {
    let file = cartridge.file_name();
    let Some(path) = places.iter().map(|folder| folder.join(&file)).find(|path| path.is_file()) else {
        return Err(EnvError::NoRom { game: cartridge.game.to_string(), file, places });
    };
    match fs::read(&path) {
        Ok(rom) => Ok((path, rom)),
        Err(reason) => Err(EnvError::BadRom { path, reason: reason.to_string() }),
    }
}

/// The folder the user named, `ALE_ROM_PATH`, the prepared source release, and an installed ale-py.
fn places(named: Option<PathBuf>) -> Vec<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let prepared = variable("IRIS_ALE_DIR").unwrap_or_else(|| ale::PREPARED.into()).join(ale::ROMS);
    let mut places: Vec<PathBuf> = named.into_iter().chain(variable("ALE_ROM_PATH")).collect();
    places.push(prepared);
    let mut pythons: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    pythons.extend(variable("HOME").map(|home| home.join(".local")));
    // Beside the `python3` that would be started, wherever it is linked to.
    let path = env::var_os("PATH").unwrap_or_default();
    let python = env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.is_file());
    for file in python.iter().cloned().chain(python.as_ref().and_then(|file| file.canonicalize().ok())) {
        pythons.extend(file.parent().and_then(Path::parent).map(Path::to_path_buf));
    }
    for place in pythons.iter().flat_map(|python| installed(python)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The ROM folders of ale-py under a prefix of Python.
fn installed(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten() {
        for packages in ["site-packages", "dist-packages"] {
            let roms = entry.path().join(packages).join("ale_py/roms");
            if entry.file_name().to_string_lossy().starts_with("python3") && roms.is_dir() {
                found.push(roms);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atari::set_rom_folder;

    #[test]
    fn the_first_place_that_has_the_rom_is_taken_and_a_missing_one_names_all() {
        let folder = env::temp_dir().join(format!("iris-roms-{}", std::process::id()));
        let (empty, full) = (folder.join("empty"), folder.join("full"));
        fs::create_dir_all(&empty).unwrap();
        fs::create_dir_all(&full).unwrap();
        fs::write(full.join("pong.bin"), "pong").unwrap();
        let pong = Cartridge::find("Pong").unwrap();
        let (path, rom) = read_from(vec![empty.clone(), full.clone()], pong).unwrap();
        assert_eq!((path, rom), (full.join("pong.bin"), b"pong".to_vec()));

        let hero = Cartridge::find("Hero").unwrap();
        let error = read_from(vec![empty.clone(), full.clone()], hero).unwrap_err().to_string();
        let expected =
            format!("no ROM of Hero: there is no hero.bin in {}, {}", empty.display(), full.display());
        assert_eq!(error, expected);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_named_folder_comes_first_and_the_prepared_release_is_there() {
        set_rom_folder("/roms");
        let places = places(ROM_FOLDER.read().unwrap().clone());
        assert_eq!(places[0], Path::new("/roms"));
        assert!(places.iter().any(|place| place.ends_with(ale::ROMS) && place.join("pong.bin").is_file()));
    }

    #[test]
    fn an_installed_ale_py_is_found() {
        let prefix = env::temp_dir().join(format!("iris-python-{}", std::process::id()));
        let roms = prefix.join("lib/python3.11/site-packages/ale_py/roms");
        fs::create_dir_all(&roms).unwrap();
        assert_eq!(installed(&prefix), [roms]);
        fs::remove_dir_all(&prefix).unwrap();
    }
}
