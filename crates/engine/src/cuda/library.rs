//! Finding NVIDIA's libraries: where the system looks, the usual folders, and the pip wheels' folders.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use crate::{Error, Result};

/// One library the GPU needs.
#[derive(Clone, Debug)]
pub struct Library {
    /// As NVIDIA calls it.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// A file; or what is wrong, and how to get it.
    pub found: std::result::Result<String, String>,
}

struct Wanted {
    name: &'static str,
    purpose: &'static str,
    /// Under these names, the best first.
    files: &'static [&'static str],
    advice: &'static str,
    /// How to ask what the system has under a name without a version.
    plain: Option<Plain>,
}

/// A library's name without a version. Whoever links at run time may ask for that first and get what the system has under it, whatever else is loaded.
struct Plain {
    file: &'static str,
    version: Version,
    /// The oldest main version that will do.
    oldest: usize,
}

/// How a library says its main version.
#[derive(Clone, Copy)]
enum Version {
    /// Written to two integers.
    Pair(&'static [u8]),
    /// Returned as one number: main version times 10,000, or times 1,000 in older ones.
    Number(&'static [u8]),
}

impl Version {
    /// The function that says it.
    fn function(self) -> &'static [u8] {
        match self {
            Version::Pair(name) | Version::Number(name) => name,
        }
    }
}

/// The driver comes first.
const WANTED: [Wanted; 4] = [
    Wanted {
        name: "NVIDIA driver",
        purpose: "runs everything",
        files: &["libcuda.so.1"],
        advice: "install the NVIDIA driver of your distribution, 580 or newer for CUDA 13",
        plain: None,
    },
    Wanted {
        name: "NVRTC",
        purpose: "compiles our kernels",
        files: &["libnvrtc.so.13", "libnvrtc.so.12"],
        advice: "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` (nvidia-cuda-nvrtc-cu12 for a driver before 580)",
        plain: Some(Plain { file: "libnvrtc.so", version: Version::Pair(b"nvrtcVersion"), oldest: 12 }),
    },
    Wanted {
        name: "cuBLASLt",
        purpose: "matrix products",
        files: &["libcublasLt.so.13", "libcublasLt.so.12"],
        advice: "install the CUDA toolkit, or `pip install nvidia-cublas` (nvidia-cublas-cu12 for a driver before 580)",
        plain: Some(Plain {
            file: "libcublasLt.so",
            version: Version::Number(b"cublasLtGetVersion"),
            oldest: 12,
        }),
    },
    Wanted {
        name: "cuDNN",
        purpose: "convolutions",
        files: &["libcudnn.so.9"],
        advice: "install cuDNN 9, or `pip install nvidia-cudnn-cu13` (nvidia-cudnn-cu12 for a driver before 580)",
        plain: Some(Plain { file: "libcudnn.so", version: Version::Number(b"cudnnGetVersion"), oldest: 9 }),
    },
];

/// Looks for every library; the ones found are loaded and stay so.
pub fn libraries() -> &'static [Library] {
    static FOUND: OnceLock<Vec<Library>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let (folders, driver) = (library_folders(), driver_version());
        let found = |w: &Wanted| find(w, driver, &folders);
        WANTED.iter().map(|w| Library { name: w.name, purpose: w.purpose, found: found(w) }).collect()
    })
}

fn find(wanted: &Wanted, driver: Option<i32>, folders: &[PathBuf]) -> std::result::Result<String, String> {
    let files = wanted.files.iter().filter(|file| runs_on(file, driver));
    let loaded = files.into_iter().find_map(|file| open(file, folders));
    let loaded = loaded.ok_or_else(|| format!("not found; {}", wanted.advice))?;
    let known = |file: Option<String>| file.unwrap_or("the system's search path".into());
    let Some(Plain { file, version, oldest }) = &wanted.plain else {
        return Ok(known(file_of(&loaded, b"cuDriverGetVersion")));
    };
    match main_version(file, *version) {
        Some(found) if found < *oldest => Err(format!(
            "the system's {file} is of version {found} and comes before newer ones, but at least {oldest} is needed: take it off the search path (LD_LIBRARY_PATH, or its package)"
        )),
        // What has the plain name is what is used.
        _ => Ok(known(file_of(&for_good(Path::new(file)).unwrap_or(loaded), version.function()))),
    }
}

/// Whether a driver runs what a library makes: one before CUDA 13 runs nothing of CUDA 13.
fn runs_on(file: &str, driver: Option<i32>) -> bool {
    !file.ends_with(".so.13") || driver.is_none_or(|version| version >= 13_000)
}

/// CUDA's version of the driver, such as 13000.
fn driver_version() -> Option<i32> {
    // SAFETY: the driver's library may be loaded at any time, and the function takes a pointer to an integer.
    unsafe {
        let driver = for_good(Path::new(WANTED[0].files[0]))?;
        let ask = driver.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"cuDriverGetVersion").ok()?;
        let mut version = 0;
        (ask(&mut version) == 0).then_some(version)
    }
}

/// The main version of what the system has under a name.
fn main_version(file: &str, version: Version) -> Option<usize> {
    // SAFETY: NVIDIA's libraries may be loaded at any time, and these are the functions' types.
    unsafe {
        let library = for_good(Path::new(file))?;
        match version {
            Version::Pair(name) => {
                let ask = library.get::<unsafe extern "C" fn(*mut i32, *mut i32) -> i32>(name).ok()?;
                let (mut major, mut minor) = (0, 0);
                (ask(&mut major, &mut minor) == 0).then_some(major as usize)
            }
            Version::Number(name) => {
                let number = library.get::<unsafe extern "C" fn() -> usize>(name).ok()?();
                Some(if number < 10_000 { number / 1_000 } else { number / 10_000 })
            }
        }
    }
}

/// Loads all of them, or says what is missing.
pub(super) fn load() -> Result<()> {
    check(libraries())
}

/// Loads the driver, which is enough to ask about a GPU, or says that it is missing.
pub(super) fn load_driver() -> Result<()> {
    check(&libraries()[..1])
}

fn check(libraries: &[Library]) -> Result<()> {
    libraries.iter().try_for_each(|library| match &library.found {
        Ok(_) => Ok(()),
        Err(wrong) => Err(Error::NoGpu { reason: format!("{}: {wrong}", library.name) }),
    })
}

fn open(file: &str, folders: &[PathBuf]) -> Option<ManuallyDrop<Loaded>> {
    let by_path = |folder: &PathBuf| Some(folder.join(file)).filter(|path| path.is_file());
    for_good(Path::new(file)).or_else(|| folders.iter().filter_map(by_path).find_map(|path| for_good(&path)))
}

/// The file that a library's function was loaded from.
fn file_of(library: &Loaded, function: &[u8]) -> Option<String> {
    // SAFETY: the function is not called. What is written about it is a name that lives as long as the library.
    let name = unsafe {
        let at = library.get::<*const c_void>(function).ok()?.into_raw();
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(at, &mut about) == 0 || about.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(about.dli_fname).to_string_lossy().into_owned()
    };
    // Links lead to a name with the whole version.
    Some(std::fs::canonicalize(&name).map_or(name, |path| path.display().to_string()))
}

/// Loads a library for good, visible to those that ask for it by name later.
fn for_good(file: &Path) -> Option<ManuallyDrop<Loaded>> {
    // SAFETY: NVIDIA's libraries may be loaded at any time.
    let library = unsafe { Loaded::open(Some(file), RTLD_NOW | RTLD_GLOBAL) };
    library.ok().map(ManuallyDrop::new)
}

/// The folders that are searched after the system's own, in this order.
pub fn library_folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders = Vec::new();
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        folders.push(root.join("lib64"));
    }
    folders.push("/usr/local/cuda/lib64".into());
    folders.push("/usr/lib/x86_64-linux-gnu".into());
    // The wheels put libraries into site-packages/nvidia/<package>/lib.
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    let roots = roots.chain(variable("HOME").map(|home| home.join(".local")));
    for root in roots.chain(["/usr/local".into(), "/usr".into()]) {
        for python in inside(&root.join("lib")).into_iter().filter(|path| name_starts_with(path, "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let wheels = inside(&python.join(packages).join("nvidia"));
                folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    folders
}

fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_starts_with(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_before_cuda_13_get_libraries_of_cuda_12() {
        let runs = |driver| WANTED[1].files.iter().map(|file| runs_on(file, driver)).collect::<Vec<_>>();
        assert_eq!([Some(12_080), Some(13_000), None].map(runs), [[false, true], [true, true], [true, true]]);
    }

    #[test]
    fn the_file_behind_a_name_is_found() {
        let library = for_good(Path::new("libc.so.6")).unwrap();
        assert!(
            file_of(&library, b"malloc").is_some_and(|file| file.contains("libc") && file.starts_with('/'))
        );
        assert_eq!(file_of(&library, b"cudnnGetVersion"), None);
    }

    /// The C library stands in for one that does not say its version, and for one that is not there.
    #[test]
    fn what_says_no_version_is_not_too_old() {
        assert_eq!(main_version("libc.so.6", Version::Number(b"cudnnGetVersion")), None);
        assert_eq!(main_version("libnothing-like-it.so", Version::Pair(b"nvrtcVersion")), None);
    }
}
