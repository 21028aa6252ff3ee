//! Compiles the prepared ALE sources and the shim in front of them. Without the feature there is nothing to do.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "atari")]
    if let Err(message) = ale::compile() {
        println!("cargo::error={message}");
    }
}

#[cfg(feature = "atari")]
mod ale {
    use std::path::{Path, PathBuf};
    use std::{env, fs, io};

    pub fn compile() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed=IRIS_ALE_DIR");
        println!("cargo::rerun-if-changed=shim");
        let folder = prepared_folder()?;
        let stamp = folder.join("sha256");
        // The script writes this file last, and again only when it unpacks anew.
        println!("cargo::rerun-if-changed={}", stamp.display());
        if !stamp.is_file() {
            let folder = folder.display();
            return Err(format!("the ALE sources are not in {folder}: run scripts/atari, then build again"));
        }
        println!("cargo::rustc-env=IRIS_ALE_PREPARED={}", folder.display());
        let sources = folder.join("src");
        let files = units(&sources).map_err(|e| format!("{}: {e}", sources.display()))?;
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            // A debug build plays at full speed too.
            .opt_level(3)
            .define("NDEBUG", None)
            .warnings(false)
            .include(&sources)
            .include("shim")
            .file("shim/shim.cpp")
            .files(files)
            .try_compile("ale")
            .map_err(|e| format!("ALE did not compile: {e}"))
    }

    /// `IRIS_ALE_DIR`, or where `scripts/atari` puts the sources of its own accord.
    fn prepared_folder() -> Result<PathBuf, String> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        match (variable("IRIS_ALE_DIR"), variable("CARGO_MANIFEST_DIR")) {
            (Some(folder), _) if folder.is_absolute() => Ok(folder),
            (Some(folder), _) => {
                Err(format!("IRIS_ALE_DIR is {}, which is not an absolute path", folder.display()))
            }
            (None, Some(here)) => Ok(here.ancestors().nth(2).unwrap_or(&here).join("third_party/ale")),
            (None, None) => Err("CARGO_MANIFEST_DIR is not set: build this crate with cargo".into()),
        }
    }

    /// The files to compile. Most share a handful of large headers, so that compiling many as one is five times quicker.
    fn units(sources: &Path) -> io::Result<Vec<PathBuf>> {
        // Screens on a display and sound are left out. These three do not go together with the others of their folder.
        let alone = ["M6502Hi", "M6502Low", "NullDev"];
        let common = ["ColourPalette", "Constants", "Log", "ScreenExporter", "SoundNull", "SoundRaw"];
        let (single, core): (Vec<_>, Vec<_>) =
            listed(sources, "ale/emucore")?.into_iter().partition(|file| alone.contains(&stem(file)));
        let mut rest = listed(sources, "ale/common")?;
        rest.retain(|file| common.contains(&stem(file)));
        for folder in ["ale/environment", "ale/games", "ale/games/supported"] {
            rest.extend(listed(sources, folder)?);
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let mut units: Vec<PathBuf> = single.iter().map(|file| sources.join(file)).collect();
        let core = core.into_iter().map(|file| match stem(&file) {
            "TIA" => quicker_tia(sources, &file, &out),
            _ => Ok(file),
        });
        for (name, files) in [("core.cpp", core.collect::<io::Result<Vec<_>>>()?), ("games.cpp", rest)] {
            let lines = files.iter().map(|file| format!("#include \"{}\"\n", file.display()));
            units.push(out.join(name));
            fs::write(out.join(name), lines.collect::<String>())?;
        }
        Ok(units)
    }

    /// A copy of the picture chip's file with our own loop in front of the one that takes most of the time.
    fn quicker_tia(sources: &Path, file: &Path, out: &Path) -> io::Result<PathBuf> {
        let text = fs::read_to_string(sources.join(file))?;
        let function = "TIA::updateFrameScanline(";
        let case = "// Handle all of the other cases\n      default:\n      {\n";
        let Some((before, after)) = text.split_once(function) else {
            return Err(io::Error::other(format!("{} has no {function}", file.display())));
        };
        let Some((cases, rest)) = after.split_once(case) else {
            return Err(io::Error::other(format!("{function} in {} has no last case", file.display())));
        };
        let copy = out.join("TIA.cxx");
        fs::write(&copy, format!("{before}{function}{cases}{case}#include \"scanline.inc\"\n{rest}"))?;
        Ok(copy)
    }

    /// The C++ files of a folder, in order, named from the root of the sources.
    fn listed(sources: &Path, folder: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(sources.join(folder))? {
            let file = Path::new(folder).join(entry?.file_name());
            if file.extension().is_some_and(|extension| extension == "cpp" || extension == "cxx") {
                files.push(file);
            }
        }
        files.sort();
        Ok(files)
    }

    fn stem(file: &Path) -> &str {
        file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
    }
}
